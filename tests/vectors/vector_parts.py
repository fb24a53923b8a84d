"""What the makers of vectors share: keys, bodies and numbers that are the same in every run."""

import hashlib
import sys
from pathlib import Path
from struct import pack

from nacl.signing import SigningKey

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "docs"))
import shine_dm as dm  # noqa: E402

T0 = 1774700000123
LOGIN_30 = "a_login_of_exactly_30_chars_09"
assert len(LOGIN_30) == 30


def key_of(name: str) -> SigningKey:
    return SigningKey(hashlib.sha256(b"vector key of " + name.encode()).digest())


def fill(n: int) -> bytes:
    return bytes((31 * i + 7) & 255 for i in range(n))


def number(label: str, bits: int) -> int:
    """A number that looks random and is always the same."""
    return int.from_bytes(hashlib.sha256(label.encode()).digest()[:8], "big") >> (64 - bits)


def receipt_body(ref_time_ms, ref_nonce, read_at_ms, version=1):
    return pack(">BQIQ", version, ref_time_ms, ref_nonce, read_at_ms)


def delete_body(direction, ref_time_ms, ref_nonce, version=1):
    return pack(">BBQI", version, direction, ref_time_ms, ref_nonce)


def clear_body(until_time_ms, version=1):
    return pack(">BQ", version, until_time_ms)


def fields_json(c: dm.Container):
    body = c.body
    return {
        "type": c.type,
        "from": c.from_,
        "to": c.to,
        "timeMs": c.time_ms,
        "nonce": c.nonce,
        "revisionTimeMs": c.revision_time_ms,
        "reencryptedAtMs": c.reencrypted_at_ms,
        "body": {"fill": len(body)} if len(body) > 1024 else {"hex": body.hex()},
    }

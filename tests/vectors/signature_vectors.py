"""Signatures that are good, broken, and good only for a verifier that is not strict."""

import hashlib

from nacl.bindings import (
    crypto_core_ed25519_scalar_mul,
    crypto_core_ed25519_scalar_reduce,
    crypto_scalarmult_ed25519_base_noclamp,
)
from nacl.signing import SigningKey

from vector_parts import T0, dm, key_of

GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493  # L of RFC 8032

# Points of order 1, 2, 4 and 8, and encodings of them that are not canonical.
SMALL_ORDER = [
    "01" + "00" * 31,
    "ec" + "ff" * 30 + "7f",
    "00" * 32,
    "00" * 31 + "80",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "01" + "00" * 30 + "80",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f",
    "ed" + "ff" * 31,
    "ee" + "ff" * 31,
]


def le(n: int) -> bytes:
    return n.to_bytes(32, "little")


def signature_vectors():
    key = key_of("alice")
    public = bytes(key.verify_key)
    blob = dm.build(dm.Container(1, "alice", "bob", T0, 1, body=b"\0sign"), key)
    text, sig = blob[:-64], blob[-64:]
    out = [("as signed", blob, public, True)]
    for byte in range(64):
        flipped = bytearray(sig)
        flipped[byte] ^= 1 << (byte % 8)
        out.append((f"bit {byte % 8} of signature byte {byte}", text + bytes(flipped), public, False))
    for byte in range(len(text)):
        changed = bytearray(text)
        changed[byte] ^= 1 << (byte % 8)
        out.append((f"bit {byte % 8} of byte {byte}", bytes(changed) + sig, public, False))
    s = int.from_bytes(sig[32:], "little")
    for k in (1, 2, 3, 7, 14):
        if s + k * GROUP_ORDER < 2**256:
            more = text + sig[:32] + le(s + k * GROUP_ORDER)
            out.append((f"S + {k}L", more, public, False))
    out.append(("S of zero", text + sig[:32] + le(0), public, False))
    out.append(("signature of zeros", text + bytes(64), public, False))
    out.append(("R and S exchanged", text + sig[32:] + sig[:32], public, False))
    out.append(("key of another user", blob, bytes(key_of("bob").verify_key), False))
    out.append(("key with a flipped sign", blob, public[:31] + bytes([public[31] ^ 0x80]), False))
    out.append(("key of ones", blob, b"\xff" * 32, False))
    out.append(("shorter than a signature", blob[:63], public, False))
    out.append(("a signature of nothing", bytes(key.sign(b"").signature), public, True))
    out.append(("empty", b"", public, False))
    # [S]B = R + h·A holds for a key of order 1 whatever was signed: anybody could sign for it.
    r = crypto_scalarmult_ed25519_base_noclamp(le(5))
    for n, small in enumerate(SMALL_ORDER):
        out.append((f"small-order key {n}", text + r + le(5), bytes.fromhex(small), False))
    # R of order 1 with the right S: the equation holds, but it was not made by signing.
    a = crypto_core_ed25519_scalar_reduce(clamped(key) + bytes(32))
    h = hashlib.sha512(bytes.fromhex(SMALL_ORDER[0]) + public + text).digest()
    s_bytes = crypto_core_ed25519_scalar_mul(crypto_core_ed25519_scalar_reduce(h), a)
    out.append(("R of order 1", text + bytes.fromhex(SMALL_ORDER[0]) + s_bytes, public, False))
    for name, b, k, ok in out:
        assert dm.verify(b, k) is ok, name
    return [{"name": n, "blob": b.hex(), "key": k.hex(), "ok": o} for n, b, k, o in out]


def clamped(key: SigningKey) -> bytes:
    a = bytearray(hashlib.sha512(bytes(key)).digest()[:32])
    a[0] &= 248
    a[31] = (a[31] & 127) | 64
    return bytes(a)

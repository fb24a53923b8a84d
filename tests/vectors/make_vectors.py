#!/usr/bin/python3
"""Write the test vectors of the container beside this script, and the seed corpus of the fuzzers.

    tests/vectors/make_vectors.py            write the files
    tests/vectors/make_vectors.py --check    say which ones differ from what would be written

Everything is derived from fixed strings, so two runs give the same files. The vectors come from
docs/shine_dm.py, which knows nothing of the C code that is tested against them.

Bytes are hex. A long body is a rule: {"fill": n} is n bytes, byte i being (31 * i + 7) mod 256.
"""

import hashlib
import json
import sys
from dataclasses import replace

from reject_vectors import build_reject_vectors, reject_vectors
from signature_vectors import signature_vectors
from vector_parts import (
    HERE,
    LOGIN_30,
    T0,
    clear_body,
    delete_body,
    dm,
    fields_json,
    fill,
    key_of,
    number,
    receipt_body,
)

CORPUS = HERE.parent / "fuzz" / "corpus"

# ---- containers that are good ----


def good_containers():
    """(name, container), every type and every edge of every field."""
    c = dm.Container
    top = dm.INT_MAX
    out = [
        ("text in", c(1, "alice", "bob", T0, 123456789, body=b"\0hello")),
        ("text out", c(2, "alice", "bob", T0, 123456789, body=b"\0hello, from the other side")),
        ("text of one byte", c(1, "alice", "bob", T0, 1, body=b"\0")),
        ("text of 65536", c(1, "alice", "bob", T0, 2, body=fill(65536))),
        ("text of 1 MiB", c(2, "alice", "bob", T0, 3, body=fill(dm.BODY_MAX))),
        ("logins of one character", c(1, "a", "0", T0, 4, body=b"x")),
        ("login of one underscore", c(2, "_", "_", T0, 4, body=b"x")),
        ("logins of 30 characters", c(1, LOGIN_30, LOGIN_30[::-1], T0, 5, body=b"x")),
        ("every character of a login", c(2, "abcdefghijklmnopqrstuvwxyz", "0123456789_", 1, 6, body=b"x")),
        ("note to self in", c(1, "alice", "alice", T0, 7, body=b"\0note")),
        ("note to self out", c(2, "alice", "alice", T0, 7, body=b"\0note")),
        ("all numbers zero", c(1, "alice", "bob", 0, 0, body=b"\0zero")),
        ("all numbers at their end", c(2, "alice", "bob", top, 2**32 - 1, top, top, b"\0end")),
        ("edited", c(1, "alice", "bob", T0, 8, T0 + 60000, 0, b"\0edit")),
        ("edited to an earlier time", c(1, "alice", "bob", T0, 8, T0 - 60000, 0, b"\0edit")),
        ("re-encrypted, never edited", c(2, "alice", "bob", T0, 9, 0, T0 + 1, b"\0again")),
        ("edited and re-encrypted", c(1, "alice", "bob", T0, 8, T0 + 60000, T0 + 90000, b"\0both")),
        ("receipt in", c(3, "bob", "alice", T0 + 5000, 10, body=receipt_body(T0, 123456789, T0 + 4000))),
        ("receipt out", c(4, "bob", "alice", T0 + 5000, 10, body=receipt_body(T0, 123456789, T0 + 4000))),
        ("receipt, all zero", c(3, "bob", "alice", 0, 0, body=receipt_body(0, 0, 0))),
        ("receipt, all at the end", c(4, "bob", "alice", top, 0, body=receipt_body(top, 2**32 - 1, top))),
        ("receipt from the past", c(3, "bob", "alice", 1, 0, body=receipt_body(T0, 1, T0 + 1))),
        ("delete for both, by from", c(5, "alice", "bob", T0 + 9, 11, body=delete_body(0, T0, 123456789))),
        ("delete for both, by to", c(5, "bob", "alice", T0 + 9, 12, body=delete_body(1, T0, 123456789))),
        ("delete own, by from", c(6, "alice", "bob", T0 + 9, 13, body=delete_body(0, T0, 123456789))),
        ("delete own, by to", c(6, "bob", "alice", T0 + 9, 14, body=delete_body(1, T0, 123456789))),
        ("delete, at the end", c(5, "a", "b", 0, 0, body=delete_body(1, top, 2**32 - 1))),
        ("delete, all zero", c(6, "a", "b", 0, 0, body=delete_body(0, 0, 0))),
        ("clear for both", c(7, "alice", "bob", T0 + 9, 15, body=clear_body(T0))),
        ("clear for both until its own time", c(7, "alice", "bob", T0, 16, body=clear_body(T0))),
        ("clear own", c(8, "alice", "bob", T0, 17, body=clear_body(T0 - 1))),
        ("clear until 0", c(8, "alice", "bob", 0, 0, body=clear_body(0))),
        ("clear until the end", c(7, "alice", "bob", top, 0, body=clear_body(top))),
    ]
    for i in range(40):
        out.append((f"drawn {i}", drawn(i)))
    return out


def drawn(i: int) -> dm.Container:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789_"

    def login(label):
        size = 1 + number(f"{i} {label} size", 16) % 30
        return "".join(letters[number(f"{i} {label} {n}", 16) % len(letters)] for n in range(size))

    kind = 1 + i % 8
    time_ms = number(f"{i} time", 53)
    if kind in dm.TEXTS:
        revision = (number(f"{i} rev", 53), number(f"{i} re", 53) if i % 3 else 0)
        body = fill(1 + number(f"{i} body", 9))
    else:
        revision = (0, 0)
        ref = (number(f"{i} ref", 53), number(f"{i} refnonce", 32))
        body = {
            3: receipt_body(*ref, number(f"{i} read", 53)),
            4: receipt_body(*ref, number(f"{i} read", 53)),
            5: delete_body(number(f"{i} dir", 1), *ref),
            6: delete_body(number(f"{i} dir", 1), *ref),
            7: clear_body(number(f"{i} until", 53) % (time_ms + 1)),
            8: clear_body(number(f"{i} until", 53) % (time_ms + 1)),
        }[kind]
    return dm.Container(kind, login("from"), login("to"), time_ms, number(f"{i} nonce", 32), *revision, body)


def body_json(c: dm.Container):
    """The body of types 3-8 taken apart."""
    if c.type in dm.RECEIPTS:
        r = c.receipt()
        return {"refTimeMs": r.ref_time_ms, "refNonce": r.ref_nonce, "readAtMs": r.read_at_ms}
    if c.type in dm.DELETES:
        d = c.delete()
        return {"byTo": d.by_to, "refTimeMs": d.ref_time_ms, "refNonce": d.ref_nonce}
    if c.type in dm.CLEARS:
        return {"untilTimeMs": c.clear().until_time_ms}
    return None


def valid_vectors():
    out = []
    for name, c in good_containers():
        key = key_of(c.from_)
        blob = dm.build(c, key)
        v = {
            "name": name,
            "fields": fields_json(c),
            "parsedBody": body_json(c),
            "seed": bytes(key).hex(),
            "clientKey": bytes(key.verify_key).hex(),
            "length": len(blob),
            "signature": blob[-64:].hex(),
            "sha256": hashlib.sha256(blob).hexdigest(),
            "baseKey": c.base_key(),
            "messageKey": c.message_key(),
            "deliveryKey": dm.delivery_key(dm.parse_key(c.message_key())),
        }
        if len(blob) <= 1024:
            v["blob"] = blob.hex()
        out.append(v)
    return out


# ---- keys ----


def key_vectors():
    good = [
        "alice|bob|1774700000123|123456789|1",
        "a|b|0|0|8",
        f"{LOGIN_30}|{LOGIN_30}|{dm.INT_MAX}|{2**32 - 1}|3",
    ] + [f"alice|bob|{T0}|1|{kind}" for kind in range(1, 9)]
    bad = [
        ("", "empty"),
        ("alice", "one part"),
        ("alice|bob|1|2", "a base key"),
        ("alice|bob|1|2|", "no type"),
        ("alice|bob|1|2|0", "type 0"),
        ("alice|bob|1|2|9", "type 9"),
        ("alice|bob|1|2|10", "type of two digits"),
        ("alice|bob|1|2|01", "type with a zero"),
        ("alice|bob|1|2|1|", "a bar too many"),
        ("alice|bob|1|2|1\n", "newline at the end"),
        ("alice|bob|1|2|1 ", "blank at the end"),
        (" alice|bob|1|2|1", "blank at the start"),
        ("|bob|1|2|1", "empty from"),
        ("alice||1|2|1", "empty to"),
        ("Alice|bob|1|2|1", "upper case"),
        ("alice|b-b|1|2|1", "character"),
        ("alice|b\u00e9b|1|2|1", "not ASCII"),
        (f"{LOGIN_30}x|bob|1|2|1", "from of 31"),
        (f"alice|{LOGIN_30}x|1|2|1", "to of 31"),
        ("alice|bob||2|1", "no time"),
        ("alice|bob|1||1", "no nonce"),
        ("alice|bob|01|2|1", "time with a zero"),
        ("alice|bob|00|2|1", "two zeros"),
        ("alice|bob|1|02|1", "nonce with a zero"),
        ("alice|bob|+1|2|1", "plus"),
        ("alice|bob|-1|2|1", "minus"),
        ("alice|bob|-0|2|1", "minus zero"),
        ("alice|bob|1|-2|1", "negative nonce"),
        ("alice|bob| 1|2|1", "blank before time"),
        ("alice|bob|1.0|2|1", "fraction"),
        ("alice|bob|1e2|2|1", "exponent"),
        ("alice|bob|0x1|2|1", "hexadecimal"),
        ("alice|bob|\u0661|2|1", "digit of another script"),
        (f"alice|bob|{2**53}|2|1", "time 2^53"),
        (f"alice|bob|{2**64 + 1}|2|1", "time 2^64+1"),
        ("alice|bob|" + "9" * 400 + "|2|1", "time of 400 digits"),
        (f"alice|bob|1|{2**32}|1", "nonce 2^32"),
        (f"alice|bob|1|{2**64}|1", "nonce 2^64"),
        ("alice|bob|1|2|x", "letter for a type"),
        ("alice/bob/1/2/1", "slashes"),
    ]
    return {
        "good": [
            {
                "key": k,
                "from": p.from_,
                "to": p.to,
                "timeMs": p.time_ms,
                "nonce": p.nonce,
                "type": p.type,
                "deliveryKey": dm.delivery_key(p),
            }
            for k in good
            for p in [dm.parse_key(k)]
        ],
        "bad": [{"key": k, "why": why} for k, why in bad],
    }


# ---- pairs, revisions, ties ----


def pair_vectors():
    key = key_of("alice")
    base = dm.Container(1, "alice", "bob", T0, 77, T0 + 5, 0, b"for bob")
    out = replace(base, type=2, body=b"for alice")
    rec = dm.Container(3, "alice", "bob", T0, 78, body=receipt_body(T0 - 9, 5, T0 - 1))
    tomb = dm.Container(5, "alice", "bob", T0, 79, body=delete_body(0, T0 - 9, 5))
    wipe = dm.Container(7, "alice", "bob", T0, 80, body=clear_body(T0))
    other_body = receipt_body(T0 - 9, 5, T0 - 2)
    me = replace(base, to="alice")
    cases = [
        ("texts, other ciphertext", base, out, True),
        ("texts, same ciphertext", base, replace(base, type=2), True),
        ("texts, other reencryptedAtMs", base, replace(out, reencrypted_at_ms=T0 + 9), True),
        ("notes to self", me, replace(me, type=2), True),
        ("receipts", rec, replace(rec, type=4), True),
        ("receipts, other body", rec, replace(rec, type=4, body=other_body), False),
        ("swapped", out, base, False),
        ("receipts swapped", replace(rec, type=4), rec, False),
        ("two incoming", base, base, False),
        ("two outgoing", out, out, False),
        ("text and receipt", base, replace(rec, type=4, nonce=77), False),
        ("receipt and text", replace(rec, nonce=77), replace(out, revision_time_ms=0), False),
        ("outgoing text, incoming receipt", replace(out, revision_time_ms=0), replace(rec, nonce=77), False),
        ("message tombstones", tomb, replace(tomb, type=6), False),
        ("conversation tombstones", wipe, replace(wipe, type=8), False),
        ("other from", base, replace(out, from_="alicf"), False),
        ("from that goes on", base, replace(out, from_="alice0"), False),
        ("other to", base, replace(out, to="bo"), False),
        ("other timeMs", base, replace(out, time_ms=T0 + 1), False),
        ("timeMs differing above 32 bits", base, replace(out, time_ms=T0 + 2**32), False),
        ("other nonce", base, replace(out, nonce=78), False),
        ("other revisionTimeMs", base, replace(out, revision_time_ms=T0 + 6), False),
        ("original and edit", replace(base, revision_time_ms=0), out, False),
        ("parties exchanged", base, replace(out, from_="bob", to="alice"), False),
    ]
    for name, a, b, expected in cases:
        assert dm.is_pair(a, b) is expected, name
    return [
        {"name": n, "in": dm.build(a, key).hex(), "out": dm.build(b, key).hex(), "pair": p}
        for n, a, b, p in cases
    ]


def revision_vectors():
    points = [(0, 0), (0, 1), (0, T0), (1, 0), (1, 1), (T0, 0), (T0, T0), (T0 + 2**32, 0)]
    points += [(dm.INT_MAX, 0), (dm.INT_MAX, dm.INT_MAX)]
    return [{"a": a, "b": b, "cmp": (a > b) - (a < b)} for a in points for b in points]


def tie_vectors():
    """Same key, same revision, other bytes."""
    key = key_of("alice")
    out = []
    for i in range(8):
        a, b = (
            dm.build(dm.Container(1, "alice", "bob", T0, i, body=b"\0" + word), key)
            for word in (b"one", b"two")
        )
        out.append({"a": a.hex(), "b": b.hex(), "kept": "a" if dm.kept(a, b) == a else "b"})
    assert {v["kept"] for v in out} == {"a", "b"}
    return out


# ---- files ----


def json_text(value) -> bytes:
    """One vector a line, so that a change shows as the lines it touches."""

    def line(v):
        return json.dumps(v, ensure_ascii=True, separators=(",", ":"))

    if isinstance(value, list):
        return ("[\n" + ",\n".join(map(line, value)) + "\n]\n").encode()
    parts = [f'"{k}":' + json_text(v).decode().rstrip() for k, v in value.items() if isinstance(v, list)]
    parts += [f'"{k}":' + line(v) for k, v in value.items() if not isinstance(v, list)]
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def all_files():
    """{path: bytes} of everything this script is responsible for."""
    keys = key_vectors()
    files = {
        HERE / "valid.json": json_text(valid_vectors()),
        HERE / "keys.json": json_text(keys),
        HERE / "pairs.json": json_text(pair_vectors()),
        HERE / "revisions.json": json_text({"order": revision_vectors(), "ties": tie_vectors()}),
        HERE / "reject.json": json_text(reject_vectors()),
        HERE / "build_reject.json": json_text(build_reject_vectors()),
        HERE / "signatures.json": json_text(signature_vectors()),
    }
    seen = set()
    for name, c in good_containers():
        if c.type not in seen:
            seen.add(c.type)
            files[CORPUS / "fuzz_dm" / f"type{c.type}"] = dm.build(c, key_of(c.from_))
    for n, v in enumerate(keys["good"][:3]):
        files[CORPUS / "fuzz_dm_key" / f"key{n}"] = v["key"].encode()
    return files


def main() -> int:
    files = all_files()
    if "--check" in sys.argv[1:]:
        stale = [p for p, data in files.items() if not p.exists() or p.read_bytes() != data]
        for p in stale:
            print(f"differs: {p}")
        return 1 if stale else 0
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())

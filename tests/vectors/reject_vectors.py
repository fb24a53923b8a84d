"""Blobs that are no containers, and fields that the builder must refuse.

A rejected blob is a good one and the cuts made in it: at `at`, `drop` bytes go and `hex` and then
`zeros` zero bytes come; `at` counts in the blob as the cuts before left it.
"""

from dataclasses import replace
from struct import pack

from vector_parts import T0, clear_body, delete_body, dm, fields_json, fill, key_of, receipt_body

def cut(at, drop=0, data=b"", zeros=0):
    return {"at": at, "drop": drop, "hex": data.hex(), "zeros": zeros}


def apply_cuts(blob: bytes, cuts) -> bytes:
    for c in cuts:
        end = c["at"] + c["drop"]
        blob = blob[: c["at"]] + bytes.fromhex(c["hex"]) + bytes(c["zeros"]) + blob[end:]
    return blob


def reject_bases():
    key = key_of("alice")
    c = dm.Container
    return {
        "text": dm.build(c(1, "alice", "bob", T0, 123456789, T0 + 1, T0 + 2, b"\0hello"), key),
        "receipt": dm.build(c(3, "alice", "bob", T0, 1, body=receipt_body(T0, 2, T0)), key),
        "receiptOut": dm.build(c(4, "alice", "bob", T0, 1, body=receipt_body(T0, 2, T0)), key),
        "delete": dm.build(c(5, "alice", "bob", T0, 1, body=delete_body(0, T0, 2)), key),
        "deleteOwn": dm.build(c(6, "alice", "bob", T0, 1, body=delete_body(0, T0, 2)), key),
        "clear": dm.build(c(7, "alice", "bob", T0, 1, body=clear_body(T0)), key),
        "clearOwn": dm.build(c(8, "alice", "bob", T0, 1, body=clear_body(T0)), key),
        "small": dm.build(c(2, "a", "b", T0, 1, body=b"x"), key),
    }


# Offsets in the bases whose parties are alice and bob.
FROM, TO, TIME, NONCE, REVISION, REENCRYPTED, LENGTH, BODY = 10, 16, 20, 28, 32, 40, 48, 52
BODY_SIZE = {
    "text": 6,
    "small": 1,
    "receipt": 21,
    "receiptOut": 21,
    "delete": 14,
    "deleteOwn": 14,
    "clear": 9,
    "clearOwn": 9,
}
TOO_LATE = (2**53, 2**63, 2**64 - 1)


def reject_cases(bases):
    """(name, base, cuts, code)"""
    out = []

    def add(name, base, code, *cuts):
        out.append((name, base, list(cuts), code))

    size = {name: len(blob) for name, blob in bases.items()}
    for n in range(size["small"]):
        add(f"cut after {n}", "small", "BAD_LENGTH", cut(n, size["small"] - n))
    for base in bases:
        add(f"{base}: cut before the last byte", base, "BAD_LENGTH", cut(size[base] - 1, 1))
        add(f"{base}: one byte more", base, "BAD_LENGTH", cut(size[base], data=b"\0"))
        add(f"{base}: 64 bytes more", base, "BAD_LENGTH", cut(size[base], zeros=64))
    for i in range(8):
        add(f"magic byte {i}", "text", "BAD_MAGIC", cut(i, 1, b"?"))
    add("magic in lower case", "text", "BAD_MAGIC", cut(0, 8, b"shine_dm"))
    for v in (0, 2, 255):
        add(f"version {v}", "text", "BAD_VERSION", cut(8, 1, bytes([v])))
    for v in (0, 9, 128, 255):
        add(f"type {v}", "text", "BAD_TYPE", cut(9, 1, bytes([v])))
    reject_logins(add)
    reject_times(add, bases)
    reject_bodies(add)
    reject_order(add)
    return out


def reject_logins(add):
    wrong = [b"Alice", b"al ce", b"al-ce", b"al.ce", b"alic\0", b"al|ce", b"al\xc3\xa9", b"al\xffce"]
    wrong += [b"al`ce", b"al{ce", b"al/ce", b"al:ce", b"\x80", b"a" * 31, b"a" * 255]
    for at, old, code in ((FROM, 6, "BAD_FROM_LOGIN"), (TO, 4, "BAD_TO_LOGIN")):
        add(f"{code}: length 0", "text", code, cut(at, 1, b"\0"))
        add(f"{code}: empty", "text", code, cut(at, old, b"\0"))
        add(f"{code}: length 31", "text", code, cut(at, 1, b"\x1f"))
        add(f"{code}: length 255", "text", code, cut(at, 1, b"\xff"))
        for w in wrong:
            add(f"{code}: {w[:8]!r} of {len(w)}", "text", code, cut(at, old, bytes([len(w)]) + w))
    # One byte off: the next field begins with what was a length, or is read as one.
    add("fromLen one less", "text", "BAD_TO_LOGIN", cut(FROM, 1, b"\x04"))
    add("fromLen one more", "text", "BAD_FROM_LOGIN", cut(FROM, 1, b"\x06"))
    add("toLen one less", "text", "BAD_TIME", cut(TO, 1, b"\x02"))
    add("toLen one more", "text", "BAD_TO_LOGIN", cut(TO, 1, b"\x04"))
    add("login ends with the bytes", "text", "BAD_LENGTH", cut(FROM, 500, b"\x1e" + b"a" * 29))


def reject_times(add, bases):
    for v in TOO_LATE:
        for name, at in (("timeMs", TIME), ("revisionTimeMs", REVISION), ("reencryptedAtMs", REENCRYPTED)):
            add(f"{name} {v}", "text", "BAD_TIME", cut(at, 8, pack(">Q", v)))
        add(f"refTimeMs of a receipt {v}", "receipt", "BAD_TIME", cut(BODY + 1, 8, pack(">Q", v)))
        add(f"readAtMs {v}", "receiptOut", "BAD_TIME", cut(BODY + 13, 8, pack(">Q", v)))
        add(f"refTimeMs of a tombstone {v}", "delete", "BAD_TIME", cut(BODY + 2, 8, pack(">Q", v)))
        add(f"refTimeMs of a tombstone (6) {v}", "deleteOwn", "BAD_TIME", cut(BODY + 2, 8, pack(">Q", v)))
        add(f"untilTimeMs {v}", "clear", "BAD_TIME", cut(BODY + 1, 8, pack(">Q", v)))
    for base in bases:
        if base in ("text", "small"):
            continue
        for v in (1, T0, 2**56):
            add(f"{base}: revisionTimeMs {v}", base, "BAD_TIME", cut(REVISION, 8, pack(">Q", v)))
            add(f"{base}: reencryptedAtMs {v}", base, "BAD_TIME", cut(REENCRYPTED, 8, pack(">Q", v)))
    for base in ("clear", "clearOwn"):
        for v in (T0 + 1, dm.INT_MAX):
            add(f"{base}: untilTimeMs {v}", base, "BAD_TIME", cut(BODY + 1, 8, pack(">Q", v)))


def reject_bodies(add):
    add("bodyLen one less", "text", "BAD_LENGTH", cut(LENGTH, 4, pack(">I", 5)))
    add("bodyLen one more", "text", "BAD_LENGTH", cut(LENGTH, 4, pack(">I", 7)))
    add("bodyLen that takes the signature", "text", "BAD_LENGTH", cut(LENGTH, 4, pack(">I", 70)))
    add("bodyLen 1 MiB of few bytes", "text", "BAD_LENGTH", cut(LENGTH, 4, pack(">I", dm.BODY_MAX)))
    for v in (dm.BODY_MAX + 1, 2**24, 2**31 - 1, 2**31, 2**32 - 64, 2**32 - 1):
        add(f"bodyLen {v} of few bytes", "text", "BODY_TOO_LARGE", cut(LENGTH, 4, pack(">I", v)))
    larger = cut(LENGTH, 4, pack(">I", dm.BODY_MAX + 1))
    add("body of 1 MiB and a byte", "text", "BODY_TOO_LARGE", larger, cut(BODY, 6, zeros=dm.BODY_MAX + 1))
    for base in ("text", "small"):
        add(f"{base}: empty text", base, "BAD_BODY", *new_body(base, b""))
    for base, length in BODY_SIZE.items():
        if base in ("text", "small"):
            continue
        for n in (0, 1, length - 1, length + 1, 9 if length == 21 else 21, 1024):
            add(f"{base}: body of {n}", base, "BAD_BODY", *new_body(base, (b"\1" + bytes(n))[:n]))
        for v in (0, 2, 255):
            add(f"{base}: body version {v}", base, "BAD_BODY", cut(BODY, 1, bytes([v])))
    for base in ("delete", "deleteOwn"):
        for v in (2, 128, 255):
            add(f"{base}: refDirection {v}", base, "BAD_BODY", cut(BODY + 1, 1, bytes([v])))


def new_body(base, body):
    shift = 6 if base == "small" else 0  # its logins are shorter
    length = cut(LENGTH - shift, 4, pack(">I", len(body)))
    return length, cut(BODY - shift, BODY_SIZE[base], body)


def reject_order(add):
    """Several faults at once: the first field names the error."""
    faults = [
        ("BAD_MAGIC", cut(0, 1, b"x")),
        ("BAD_VERSION", cut(8, 1, b"\2")),
        ("BAD_TYPE", cut(9, 1, b"\0")),
        ("BAD_FROM_LOGIN", cut(FROM + 1, 1, b"A")),
        ("BAD_TO_LOGIN", cut(TO + 1, 1, b"B")),
        ("BAD_TIME", cut(TIME, 8, b"\xff" * 8)),
        ("BODY_TOO_LARGE", cut(LENGTH, 4, b"\xff" * 4)),
    ]
    for i, (code, _) in enumerate(faults):
        add(f"{code} and everything after it", "text", code, *(f for _, f in faults[i:]))
    add("trailing byte and a bad body", "delete", "BAD_LENGTH", cut(BODY, 1, b"\7"), cut(130, data=b"x"))
    add("body version before its times", "clear", "BAD_BODY", cut(BODY, 9, b"\2" + b"\xff" * 8))


def reject_vectors():
    bases = reject_bases()
    cases = reject_cases(bases)
    for name, base, cuts, code in cases:
        try:
            dm.parse(apply_cuts(bases[base], cuts))
        except dm.DmError as e:
            assert e.code == code, (name, e.code, code)
        else:
            raise AssertionError(f"{name}: accepted")
    return {
        "bases": {name: blob.hex() for name, blob in bases.items()},
        "cases": [{"name": n, "base": b, "cuts": c, "code": e} for n, b, c, e in cases],
    }


def build_reject_vectors():
    """Fields that the builder must refuse with the code the parser would give."""
    ok = dm.Container(1, "alice", "bob", T0, 1, body=b"x")
    rec = replace(ok, type=3, body=receipt_body(T0, 2, T0))
    late = 2**53
    cases = [
        ("type 0", replace(ok, type=0), "BAD_TYPE"),
        ("type 9", replace(ok, type=9), "BAD_TYPE"),
        ("type 257", replace(ok, type=257), "BAD_TYPE"),
        ("type -1", replace(ok, type=-1), "BAD_TYPE"),
        ("from empty", replace(ok, from_=""), "BAD_FROM_LOGIN"),
        ("from in upper case", replace(ok, from_="Alice"), "BAD_FROM_LOGIN"),
        ("from of 31", replace(ok, from_="a" * 31), "BAD_FROM_LOGIN"),
        ("to empty", replace(ok, to=""), "BAD_TO_LOGIN"),
        ("to with a bar", replace(ok, to="b|b"), "BAD_TO_LOGIN"),
        ("to of 31", replace(ok, to="b" * 31), "BAD_TO_LOGIN"),
        ("timeMs 2^53", replace(ok, time_ms=late), "BAD_TIME"),
        ("timeMs -1", replace(ok, time_ms=-1), "BAD_TIME"),
        ("revisionTimeMs 2^53", replace(ok, revision_time_ms=late), "BAD_TIME"),
        ("revisionTimeMs -1", replace(ok, revision_time_ms=-1), "BAD_TIME"),
        ("reencryptedAtMs 2^63-1", replace(ok, reencrypted_at_ms=2**63 - 1), "BAD_TIME"),
        ("revision of a receipt", replace(rec, revision_time_ms=1), "BAD_TIME"),
        ("re-encryption of a receipt", replace(rec, reencrypted_at_ms=1), "BAD_TIME"),
        ("readAtMs 2^53", replace(rec, body=receipt_body(T0, 2, late)), "BAD_TIME"),
        ("until after timeMs", replace(ok, type=7, body=clear_body(T0 + 1)), "BAD_TIME"),
        ("body of 1 MiB and a byte", replace(ok, body=fill(dm.BODY_MAX + 1)), "BODY_TOO_LARGE"),
        ("receipt of 1 MiB and a byte", replace(rec, body=fill(dm.BODY_MAX + 1)), "BODY_TOO_LARGE"),
        ("empty text", replace(ok, body=b""), "BAD_BODY"),
        ("receipt with the body of a text", replace(rec, body=b"x"), "BAD_BODY"),
        ("refDirection 2", replace(ok, type=5, body=delete_body(2, T0, 1)), "BAD_BODY"),
        ("body version 2", replace(ok, type=8, body=clear_body(T0, 2)), "BAD_BODY"),
    ]
    for name, c, code in cases:
        try:
            dm.check(c)
        except dm.DmError as e:
            assert e.code == code, (name, e.code)
        else:
            raise AssertionError(f"{name}: accepted")
    return [{"name": n, "fields": fields_json(c), "code": e} for n, c, e in cases]

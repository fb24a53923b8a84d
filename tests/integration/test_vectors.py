"""The committed test vectors against the Python implementation of the container.

The C implementation reads the same files in tests/unit/test_dm_vectors.c.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
VECTORS = TESTS / "vectors"
sys.path[:0] = [str(TESTS.parent / "docs"), str(VECTORS)]
import make_vectors  # noqa: E402
import shine_dm as dm  # noqa: E402
from nacl.signing import SigningKey  # noqa: E402
from reject_vectors import apply_cuts  # noqa: E402
from vector_parts import fill  # noqa: E402

ALICE = SigningKey(bytes(range(32)))


def load(name):
    return json.loads((VECTORS / name).read_text())


def container(fields):
    body = fields["body"]
    return dm.Container(
        fields["type"],
        fields["from"],
        fields["to"],
        fields["timeMs"],
        fields["nonce"],
        fields["revisionTimeMs"],
        fields["reencryptedAtMs"],
        bytes.fromhex(body["hex"]) if "hex" in body else fill(body["fill"]),
    )


@pytest.fixture(scope="module")
def generated():
    return make_vectors.all_files()


def test_committed_files_are_what_is_generated(generated):
    stale = [str(p) for p, data in generated.items() if not p.exists() or p.read_bytes() != data]
    assert not stale, "run tests/vectors/make_vectors.py"


def test_no_vector_file_is_left_over(generated):
    present = set(VECTORS.glob("*.json"))
    assert present == {p for p in generated if p.suffix == ".json"}


def test_valid_containers():
    for v in load("valid.json"):
        c = container(v["fields"])
        seed, key = bytes.fromhex(v["seed"]), bytes.fromhex(v["clientKey"])
        blob = dm.build(c, seed)
        assert len(blob) == v["length"], v["name"]
        if "blob" in v:
            assert blob.hex() == v["blob"], v["name"]
        parsed = dm.parse(blob)
        assert parsed.signature.hex() == v["signature"]
        assert parsed == replace(c, signature=parsed.signature)
        assert (parsed.base_key(), parsed.message_key()) == (v["baseKey"], v["messageKey"])
        assert str(dm.parse_key(v["messageKey"])) == v["messageKey"]
        assert dm.verify(blob, key)


def test_rejected_containers_cover_every_code():
    vectors = load("reject.json")
    codes = set()
    for case in vectors["cases"]:
        blob = apply_cuts(bytes.fromhex(vectors["bases"][case["base"]]), case["cuts"])
        with pytest.raises(dm.DmError) as error:
            dm.parse(blob)
        assert error.value.code == case["code"], case["name"]
        codes.add(case["code"])
    logins = {"BAD_FROM_LOGIN", "BAD_TO_LOGIN"}
    heads = {"BAD_MAGIC", "BAD_VERSION", "BAD_TYPE"}
    assert codes == heads | logins | {"BAD_LENGTH", "BODY_TOO_LARGE", "BAD_BODY", "BAD_TIME"}


def test_refused_fields():
    for case in load("build_reject.json"):
        with pytest.raises(dm.DmError) as error:
            dm.build(container(case["fields"]), ALICE)
        assert error.value.code == case["code"], case["name"]


def test_keys():
    vectors = load("keys.json")
    for v in vectors["good"]:
        key = dm.parse_key(v["key"])
        fields = (v["from"], v["to"], v["timeMs"], v["nonce"], v["type"])
        assert tuple(key) == fields and str(key) == v["key"]
        assert dm.delivery_key(key) == v["deliveryKey"]
    for v in vectors["bad"]:
        assert dm.parse_key(v["key"]) is None, v["why"]


def test_pairs_revisions_and_ties():
    for v in load("pairs.json"):
        a, b = (dm.parse(bytes.fromhex(v[side])) for side in ("in", "out"))
        assert dm.is_pair(a, b) is v["pair"], v["name"]
    vectors = load("revisions.json")
    for v in vectors["order"]:
        assert (v["a"] > v["b"]) - (v["a"] < v["b"]) == v["cmp"]
    for v in vectors["ties"]:
        a, b = bytes.fromhex(v["a"]), bytes.fromhex(v["b"])
        assert dm.kept(a, b) == dm.kept(b, a) == bytes.fromhex(v[v["kept"]])


def test_signatures():
    for v in load("signatures.json"):
        assert dm.verify(bytes.fromhex(v["blob"]), bytes.fromhex(v["key"])) is v["ok"], v["name"]


def test_makers_make_what_they_say():
    incoming, outgoing = dm.text_pair("alice", "bob", ALICE, "h\u00e9llo", revision=5)
    a, b = dm.parse(incoming), dm.parse(outgoing)
    assert dm.is_pair(a, b) and a.text() == b.text() == "h\u00e9llo" and a.revision() == (5, 0)
    assert (a.owners(), b.owners()) == (("bob",), ("alice",))

    r, s = map(dm.parse, dm.receipt_pair("bob", "alice", ALICE, a.ref(), read_at_ms=9))
    assert dm.is_pair(r, s) and r.receipt() == (*a.ref(), 9)

    d = dm.parse(dm.delete("bob", "alice", ALICE, a.ref(), by_to=True))
    assert d.type == dm.DELETE_BOTH and d.delete() == (True, *a.ref())
    assert set(d.owners()) == {"alice", "bob"}
    assert dm.parse(dm.delete("alice", "bob", ALICE, a.ref(), for_both=False)).owners() == ("alice",)

    c = dm.parse(dm.clear("alice", "bob", ALICE))
    assert c.type == dm.CLEAR_BOTH and c.clear().until_time_ms == c.time_ms
    own = dm.parse(dm.clear("alice", "bob", ALICE, until_time_ms=3, for_both=False))
    assert own.type == dm.CLEAR_OWN and own.clear().until_time_ms == 3


def test_kept_prefers_the_higher_revision():
    old = dm.text_pair("alice", "bob", ALICE, "old", time_ms=1, nonce=1)[0]
    new = dm.text_pair("alice", "bob", ALICE, "new", time_ms=1, nonce=1, revision=2)[0]
    again = dm.text_pair("alice", "bob", ALICE, "new", time_ms=1, nonce=1, revision=2, reencrypted=1)[0]
    assert dm.kept(old, new) == dm.kept(new, old) == new
    assert dm.kept(again, new) == dm.kept(new, again) == again

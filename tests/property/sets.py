"""Random sets of containers that collide: few users, times and numbers, so that texts, edits,
receipts and tombstones meet. A set is made of users called a, b, c, d; `instantiate` gives them
logins, so that one set runs many times in one database."""

import hashlib
import random
from dataclasses import replace
from typing import Dict, List, NamedTuple, Optional, Tuple

import shine_dm as dm
from model import Op

ME, SECOND, FOREIGN = "home", "second", "foreign"
BASE_MS = 1_700_000_000_000
AHEAD_MS = 4_000_000_000_000  # more than a day ahead of every clock
TIMES = (0, BASE_MS, BASE_MS + 1, BASE_MS + 1000)
READ_TIMES = (0, BASE_MS - 5, BASE_MS, BASE_MS + 1, BASE_MS + 5000)
REVISIONS = (0, 0, 0, BASE_MS + 10, BASE_MS + 20, 1)
RECEIPT_LATER = (0, 0, 2, 4)
REENCRYPTED = (0, 0, 0, BASE_MS + 15)
# Ways a user may be served: here alone, here and elsewhere in either order, elsewhere.
SERVED = ((ME,), (ME,), (ME, SECOND), (SECOND, ME), (ME, FOREIGN), (FOREIGN,), (FOREIGN, SECOND))
# Ways a user who was served elsewhere may come here.
MOVED = ((ME,), (ME, SECOND), (FOREIGN, ME))


class Draft(NamedTuple):
    """A container without its author's name and signature: `salt` makes the signature."""

    container: dm.Container
    salt: int


class Step(NamedTuple):
    kind: str
    source: Optional[str]
    drafts: Tuple[Draft, ...]


class Set(NamedTuple):
    seed: int
    number: int
    servers: Dict[str, Tuple[str, ...]]
    steps: List[Step]


class _Maker:
    def __init__(self, rng: random.Random):
        self.rng = rng
        users = rng.choice(("a", "ab", "ab", "ab", "abc", "abc", "abcd"))
        self.users = users
        self.servers = {u: rng.choice(SERVED) for u in users}
        if not any(ME in s for s in self.servers.values()):
            self.servers[users[0]] = (ME,)
        self.times = rng.sample(TIMES, rng.choice((1, 2, 2, 3)))
        self.nonces = rng.choice(((7,), (7, 4294967295), (0, 7)))
        self.known: List[Draft] = []  # incoming copies made so far

    def draft(self, *args, **fields) -> Draft:
        return Draft(dm.Container(*args, **fields), self.rng.choice((0, 0, 0, 1)))

    def parties(self) -> Tuple[str, str]:
        rng = self.rng
        if len(self.users) == 1 or rng.random() < 0.07:
            u = rng.choice(self.users)
            return u, u
        if rng.random() < 0.8:
            return tuple(rng.sample(self.users[:2], 2))
        return tuple(rng.sample(self.users, 2))

    def stamp(self) -> Tuple[int, int]:
        if self.rng.random() < 0.004:
            return AHEAD_MS, 7
        return self.rng.choice(self.times), self.rng.choice(self.nonces)

    def source(self, *logins: str) -> Optional[str]:
        if self.rng.random() < 0.6:
            return None
        servers = sorted({s for u in logins for s in self.servers[u]} | {SECOND})
        return self.rng.choice([s for s in servers if s != ME])

    def text(self, type_: int, from_: str, to: str, stamp, revision: int) -> Draft:
        return self.draft(
            type_, from_, to, *stamp, revision, self.rng.choice(REENCRYPTED),
            b"\0" + bytes([self.rng.choice(b"xyz")]),
        )  # fmt: skip

    def text_pair(self) -> Step:
        from_, to = self.parties()
        stamp, revision = self.stamp(), self.rng.choice(REVISIONS)
        incoming = self.text(1, from_, to, stamp, revision)
        # Two servers may hold different revisions of the two copies.
        if self.rng.random() < 0.2:
            revision = self.rng.choice(REVISIONS)
        outgoing = self.text(2, from_, to, stamp, revision)
        self.known.append(incoming)
        return Step("pair", self.source(from_, to), (incoming, outgoing))

    def receipt_body(self, ref) -> bytes:
        read_at = self.rng.choice(READ_TIMES) if self.rng.random() < 0.99 else AHEAD_MS
        return dm._RECEIPT.pack(1, *ref, read_at)

    def receipt_pair(self) -> Step:
        from_, to = self.parties()
        ref = self.rng.choice(self.times), self.rng.choice(self.nonces)
        # A receipt has a key of its own; equal keys with another readAtMs come from liars only, and
        # name the same text here: two texts under one key have no result that all orders agree on.
        stamp = ref[0] + self.rng.choice(RECEIPT_LATER), ref[1]
        body = self.receipt_body(ref)
        incoming, outgoing = (self.draft(t, from_, to, *stamp, body=body) for t in (3, 4))
        if self.rng.random() < 0.1:  # only a client must send a pair
            other = replace(outgoing.container, body=self.receipt_body(ref))
            outgoing = outgoing._replace(container=other)
        self.known.append(incoming)
        return Step("pair", self.source(from_, to), (incoming, outgoing))

    def incoming(self) -> Step:
        if self.known and self.rng.random() < 0.5:
            draft = self.rng.choice(self.known)
        else:
            step = self.text_pair() if self.rng.random() < 0.6 else self.receipt_pair()
            draft = step.drafts[0]
        c = draft.container
        return Step("incoming", self.source(c.from_, c.to), (draft,))

    def tombstone(self) -> Step:
        from_, to = self.parties()
        type_ = self.rng.choice((5, 5, 6, 6, 7, 8))
        if type_ in (5, 6):
            ref = self.rng.choice(self.times), self.rng.choice(self.nonces)
            body = dm._DELETE.pack(1, self.rng.randrange(2), *ref)
            stamp = self.stamp()
        else:
            until = max(0, self.rng.choice(self.times) + self.rng.choice((0, 0, -1)))
            body = dm._CLEAR.pack(1, until)
            stamp = until + self.rng.choice((0, 0, 1, 50)), self.rng.choice(self.nonces)
        draft = self.draft(type_, from_, to, *stamp, body=body)
        return Step("delete", self.source(from_, to), (draft,))


# A receipt's key must tell which text it names: see receipt_pair().
assert all(b - a not in (2, 4) for a in TIMES for b in TIMES)


def make(seed: int, number: int) -> Set:
    """The set of this seed and number, always the same."""
    rng = random.Random(f"{seed}/{number}")
    maker = _Maker(rng)
    ways = [maker.text_pair] * 4 + [maker.receipt_pair] * 2 + [maker.incoming] * 2
    # Most sets hold a few tombstones, some none, some little else.
    ways += [maker.tombstone] * rng.choice((0, 1, 3, 3, 8))
    steps = [rng.choice(ways)() for _ in range(rng.randint(3, 12))]
    return Set(seed, number, maker.servers, steps)


def instantiate(steps: List[Step], prefix: str) -> List[Op]:
    """The containers of `steps` in the names of PREFIXa, PREFIXb …"""

    def blob(draft: Draft) -> bytes:
        c = draft.container
        signed = dm.encode(replace(c, from_=prefix + c.from_, to=prefix + c.to))
        return signed + hashlib.sha512(bytes([draft.salt]) + signed).digest()

    return [Op(s.kind, s.source, tuple(map(blob, s.drafts))) for s in steps]


def describe(step: Step) -> str:
    """One step in a line for people."""
    words = [f"{step.kind:8} source={step.source or '-':8}"]
    for c, salt in step.drafts:
        word = f"type {c.type} {c.from_}->{c.to} t={c.time_ms} n={c.nonce}"
        if any(c.revision()):
            word += f" rev={c.revision_time_ms}:{c.reencrypted_at_ms}"
        if c.type in dm.RECEIPTS:
            word += " {}".format(c.receipt())
        elif c.type in dm.DELETES:
            word += " {}".format(c.delete())
        elif c.type in dm.CLEARS:
            word += " {}".format(c.clear())
        else:
            word += f" body={c.body.hex()}"
        words.append(word + (" other signature" if salt else ""))
    return "; ".join(words)

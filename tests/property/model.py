"""What a server must hold after it received a set of containers: the reference of the property test.

Written from docs/protocol.md ("Applying a container"), not from the SQL. A pure function of the set:
no order, no repetition, no clock goes in. What order may decide is not part of the answer: positions
in event logs, times of storing, schedules, and the few fields marked None (see `Expected`).

    expected = expect("home", {"alice": ["home"], "bob": ["away"]}, [Op("pair", None, (a, b))])
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Tuple

import shine_dm as dm

DAY_MS = 86400000


class Op(NamedTuple):
    """One call. `kind`: pair, incoming, delete; `source`: login of the server that brings it, None =
    a server nobody identified; `blobs`: the pair (incoming, outgoing) or the one container."""

    kind: str
    source: Optional[str]
    blobs: Tuple[bytes, ...]


class Message(NamedTuple):
    revision: Tuple[int, int]
    digest: bytes
    courier: bool
    read_at_ms: Optional[int]


class Delivery(NamedTuple):
    incoming_key: str
    to: str
    state: str
    revision: Optional[Tuple[int, int]]  # None where the incoming copy is not kept: order decides


class Item(NamedTuple):
    sync_id: str
    synced: Optional[bool]  # None: a pair that lost its incoming copy may count as changed, or not


class Conversation(NamedTuple):
    last_key: Optional[str]  # the newest text by time and key
    last_time_ms: Optional[int]
    unread: int
    last_read_at_ms: Optional[int]  # of all receipts the owner ever wrote in it, covered ones too


Key = Tuple[str, str]


@dataclass
class Expected:
    """By owner (deliveries: author) and key (conversations: the other party)."""

    messages: Dict[Key, Message] = field(default_factory=dict)
    deliveries: Dict[Key, Delivery] = field(default_factory=dict)
    outbox: Dict[Key, Item] = field(default_factory=dict)
    # Those that hold a text or a receipt of the owner.
    conversations: Dict[Key, Conversation] = field(default_factory=dict)
    # Receipts that wait for their text, for owners served here.
    marks: Dict[Key, int] = field(default_factory=dict)
    # Base keys of texts that tombstones of the owner name; True: both copies are covered.
    named: Dict[Key, bool] = field(default_factory=dict)
    # Until when: both copies, the owner's copies.
    cleared: Dict[Key, Tuple[Optional[int], Optional[int]]] = field(default_factory=dict)
    verdicts: List[str] = field(default_factory=list)  # of each op, in the given order
    gone: List[bool] = field(default_factory=list)  # per op: a pair of which both copies are covered


def _raise(values: Dict, key, value: int) -> None:
    values[key] = max(values.get(key, -1), value)


def _named(t: dm.Container) -> Tuple[str, str, int, int]:
    """The text that a message tombstone names: author, reader, timeMs, nonce."""
    ref = t.delete()
    author, reader = (t.to, t.from_) if ref.by_to else (t.from_, t.to)
    return author, reader, ref.ref_time_ms, ref.ref_nonce


def text_key(from_: str, to: str, ref: Tuple[int, int], type_: int) -> str:
    return f"{from_}|{to}|{ref[0]}|{ref[1]}|{type_}"


class _Coverage:
    """Which text copies the tombstones of a set cover. Those for both parties count for either's
    copies, whoever of the two wrote them."""

    def __init__(self, tombstones: Iterable[dm.Container]):
        self.until_both: Dict[FrozenSet[str], int] = {}
        self.until_own: Dict[Tuple[str, FrozenSet[str]], int] = {}
        self.texts_both: set = set()
        self.texts_own: set = set()
        for t in tombstones:
            parties = frozenset((t.from_, t.to))
            if t.type == dm.CLEAR_BOTH:
                _raise(self.until_both, parties, t.clear().until_time_ms)
            elif t.type == dm.CLEAR_OWN:
                _raise(self.until_own, (t.from_, parties), t.clear().until_time_ms)
            elif t.type == dm.DELETE_BOTH:
                self.texts_both.add(_named(t))
            else:
                self.texts_own.add((t.from_, _named(t)))

    def text(self, owner: str, author: str, reader: str, ref: Tuple[int, int]) -> bool:
        """Is `owner`'s copy of this text covered?"""
        parties, name = frozenset((author, reader)), (author, reader, *ref)
        return (
            ref[0] <= self.until_both.get(parties, -1)
            or name in self.texts_both
            or ref[0] <= self.until_own.get((owner, parties), -1)
            or (owner, name) in self.texts_own
        )

    def copy(self, owner: str, c: dm.Container) -> bool:
        """Is the copy `c` covered? A receipt is, if the text copy of its owner is."""
        if c.type in dm.TEXTS:
            return self.text(owner, c.from_, c.to, c.ref())
        if c.type in dm.RECEIPTS:
            r = c.receipt()
            return self.text(owner, c.to, c.from_, (r.ref_time_ms, r.ref_nonce))
        return False


class _Kept(NamedTuple):
    container: dm.Container
    blob: bytes
    digest: bytes


class _Server:
    def __init__(self, me: str, servers: Mapping[str, List[str]], now_ms: int):
        self.me, self.servers, self.now_ms = me, servers, now_ms

    def serves(self, login: str) -> bool:
        return self.me in self.servers[login]

    def second(self, login: str) -> Optional[str]:
        """The user's other server, if this one is one of them."""
        if not self.serves(login):
            return None
        return next((s for s in self.servers[login] if s != self.me), None)

    def verdict(self, op: Op, cs: List[dm.Container]) -> str:
        c = cs[0]
        if any(u not in self.servers for u in (c.from_, c.to)):
            return "unknown_user"
        if op.kind == "pair" or c.type in (dm.DELETE_OWN, dm.CLEAR_OWN):
            served = self.serves(c.from_)
        elif op.kind == "incoming":
            served = self.serves(c.to)
        else:
            served = self.serves(c.from_) or self.serves(c.to)
        if not served:
            return "not_served"
        times = [t for c in cs for t in (c.time_ms, *c.revision())]
        times += [c.receipt().read_at_ms for c in cs if c.type in dm.RECEIPTS]
        ahead = max(times)
        return "time_ahead" if ahead - self.now_ms > DAY_MS else "ok"

    def owners(self, c: dm.Container) -> List[str]:
        """Under whom a copy is kept. Incoming copies are also kept as courier copies."""
        return [o for o in c.owners() if c.type not in (5, 6, 7, 8) or self.serves(o)]


def _winner(copies: Iterable[bytes], parsed: Mapping[bytes, dm.Container]) -> _Kept:
    """The revision decides, then the larger SHA-256."""
    kept = (_Kept(parsed[b], b, hashlib.sha256(b).digest()) for b in copies)
    return max(kept, key=lambda k: (k.container.revision(), k.digest))


def expect(me: str, servers: Mapping[str, List[str]], ops: List[Op], now_ms: int) -> Expected:
    """`servers`: each known user's access servers in order; `now_ms` only tells what lies more than
    a day ahead."""
    server = _Server(me, servers, now_ms)
    parsed = {b: dm.parse(b) for op in ops for b in op.blobs}
    out = Expected(verdicts=[server.verdict(op, [parsed[b] for b in op.blobs]) for op in ops])
    taken = [op for op, verdict in zip(ops, out.verdicts) if verdict == "ok"]

    copies = defaultdict(set)
    for op in taken:
        for blob in op.blobs:
            for owner in server.owners(parsed[blob]):
                copies[owner, parsed[blob].message_key()].add(blob)
    coverage = _Coverage(parsed[op.blobs[0]] for op in taken if op.kind == "delete")
    # Containers of one key name the same text: one judgement holds for all of them.
    kept = {
        key: _winner(blobs, parsed)
        for key, blobs in copies.items()
        if not coverage.copy(key[0], parsed[next(iter(blobs))])
    }
    reads = _reads(copies, parsed)
    for (owner, key), k in kept.items():
        courier = k.container.type in (1, 3) and not server.serves(owner)
        out.messages[owner, key] = Message(
            k.container.revision(), k.digest, courier, reads.get((owner, key))
        )
    _deliveries(out, server, taken, parsed, kept)
    _outbox(out, server, taken, parsed, kept)
    _conversations(out, kept, taken, parsed)
    for (owner, key), read_at in reads.items():
        c = dm.parse_key(key)
        if (owner, key) not in kept and server.serves(owner):
            if not coverage.text(owner, c.from_, c.to, (c.time_ms, c.nonce)):
                out.marks[owner, key] = read_at
    _tombstones(out, server, (parsed[op.blobs[0]] for op in taken if op.kind == "delete"))
    for op, verdict in zip(ops, out.verdicts):
        pair = [parsed[b] for b in op.blobs]
        out.gone.append(
            op.kind == "pair"
            and verdict == "ok"
            and all(coverage.copy(c.owners()[0], c) for c in pair)
        )
    return out


def _reads(copies, parsed) -> Dict[Key, int]:
    reads: Dict[Key, int] = {}
    for (owner, _), blobs in copies.items():
        for c in (parsed[b] for b in blobs):
            if c.type not in dm.RECEIPTS:
                continue
            r = c.receipt()
            of = dm.TEXT_OUT if c.type == dm.RECEIPT_IN else dm.TEXT_IN
            key = owner, text_key(c.to, c.from_, (r.ref_time_ms, r.ref_nonce), of)
            reads[key] = min(reads.get(key, r.read_at_ms), r.read_at_ms)
    return reads


def _deliveries(out: Expected, server: _Server, taken, parsed, kept) -> None:
    for op in taken:
        c = parsed[op.blobs[0]]
        state = "delivered" if server.serves(c.to) else "accepted"
        if op.kind == "pair":
            # The row lives while one of the copies does.
            row = c.from_, parsed[op.blobs[1]].message_key()
            incoming = kept.get((c.to, c.message_key()))
            if incoming or row in kept:
                revision = incoming.container.revision() if incoming else None
                out.deliveries[row] = Delivery(c.message_key(), c.to, state, revision)
        elif op.kind == "delete" and c.type in (dm.DELETE_BOTH, dm.CLEAR_BOTH):
            if c.from_ != c.to and server.serves(c.from_):
                row = c.from_, c.message_key()
                out.deliveries[row] = Delivery(c.message_key(), c.to, state, (0, 0))


def _outbox(out: Expected, server: _Server, taken, parsed, kept) -> None:
    brought = defaultdict(set)  # by source: what came together
    for op in taken:
        brought[op.source].add(op.blobs)
    for (owner, key), k in kept.items():
        second = server.second(owner)
        if second is None:
            continue
        c = k.container
        blobs, lost = [k.blob], False
        if c.type in (dm.TEXT_OUT, dm.RECEIPT_OUT):
            incoming = kept.get((c.to, f"{c.base_key()}|{c.type - 1}"))
            lost = incoming is None
            blobs = [k.blob] if lost else [incoming.blob, k.blob]
        digest = hashlib.sha256(b"".join(blobs)).hexdigest()[:16]
        sync_id = f"{key}:{c.revision_time_ms}:{c.reencrypted_at_ms}:{digest}"
        synced = any(set(blobs) <= set(together) for together in brought[second])
        # What was synced and then lost its incoming copy is another item.
        out.outbox[owner, key] = Item(sync_id, None if lost and synced else synced)


def _conversations(out: Expected, kept, taken, parsed) -> None:
    texts = defaultdict(list)
    for (owner, key), k in kept.items():
        message, c = out.messages[owner, key], k.container
        if c.type in dm.TEXTS and not message.courier:
            other = c.to if owner == c.from_ else c.from_
            unread = c.type == 1 and c.from_ != c.to and message.read_at_ms is None
            texts[owner, other].append((c.time_ms, key, unread))
    read: Dict[Key, int] = {}
    for c in (parsed[b] for op in taken for b in op.blobs):
        if c.type == dm.RECEIPT_OUT:
            _raise(read, (c.from_, c.to), c.receipt().read_at_ms)
    for conversation in set(texts) | set(read):
        rows = texts[conversation]
        time_ms, key, _ = max(rows) if rows else (None, None, None)
        unread = sum(r[2] for r in rows)
        out.conversations[conversation] = Conversation(
            key, time_ms, unread, read.get(conversation)
        )


def _tombstones(out: Expected, server: _Server, tombstones: Iterable[dm.Container]) -> None:
    for t in tombstones:
        for owner in server.owners(t):
            other = t.to if owner == t.from_ else t.from_
            if t.type in dm.DELETES:
                key = owner, "|".join(map(str, _named(t)))
                out.named[key] = out.named.get(key, False) or t.type == dm.DELETE_BOTH
            else:
                until = list(out.cleared.get((owner, other), (None, None)))
                which = 0 if t.type == dm.CLEAR_BOTH else 1
                until[which] = max(until[which] or 0, t.clear().until_time_ms)
                out.cleared[owner, other] = tuple(until)

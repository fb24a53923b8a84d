"""The SHiNE_DM container, written a second time.

The part of the example client (example_client.py) that makes and reads signed blocks; the tests use
it too. It follows docs/protocol.md ("The container") and shares no line with common/dm, so that a
mistake in one of the two shows as a difference. Keep it that way: when the C code and this module
disagree, read the protocol, not the other implementation.

    incoming, outgoing = text_pair("alice", "bob", alice_key, "hello")
    c = parse(incoming)
    c.message_key()           # "alice|bob|1774700000123|123456789|1"
    verify(incoming, alice_key.verify_key)

Signing keys are nacl.signing.SigningKey or the 32 bytes of a seed.
"""

import hashlib
import re
import secrets
import time
from dataclasses import dataclass, replace
from struct import Struct
from typing import NamedTuple, Optional, Tuple, Union

from nacl.exceptions import CryptoError
from nacl.signing import SigningKey, VerifyKey

MAGIC = b"SHiNE_DM"
VERSION = 1
BODY_VERSION = 1
BODY_MAX = 1024 * 1024
INT_MAX = 2**53 - 1
SIG_BYTES = 64

TEXT_IN, TEXT_OUT, RECEIPT_IN, RECEIPT_OUT = 1, 2, 3, 4
DELETE_BOTH, DELETE_OWN, CLEAR_BOTH, CLEAR_OWN = 5, 6, 7, 8
TEXTS = (TEXT_IN, TEXT_OUT)
RECEIPTS = (RECEIPT_IN, RECEIPT_OUT)
DELETES = (DELETE_BOTH, DELETE_OWN)
CLEARS = (CLEAR_BOTH, CLEAR_OWN)

PLAIN_TEXT = b"\x00"  # first byte of a body that holds UTF-8 in the clear

_LOGIN = re.compile(rb"[a-z0-9_]{1,30}\Z")
_KEY = re.compile(
    r"([a-z0-9_]{1,30})\|([a-z0-9_]{1,30})\|(0|[1-9][0-9]{0,15})\|(0|[1-9][0-9]{0,9})\|([1-8])"
)
_STAMP = Struct(">QIQQ")  # timeMs, nonce, revisionTimeMs, reencryptedAtMs
_RECEIPT = Struct(">BQIQ")
_DELETE = Struct(">BBQI")
_CLEAR = Struct(">BQ")
_LENGTH = Struct(">I")

Signer = Union[SigningKey, bytes]


class DmError(Exception):
    """Bytes or fields that are not a container. `code` is the name sent on the wire."""

    def __init__(self, code: str):
        super().__init__(code)
        self.code = code


class Receipt(NamedTuple):
    ref_time_ms: int
    ref_nonce: int
    read_at_ms: int


class Delete(NamedTuple):
    by_to: bool
    ref_time_ms: int
    ref_nonce: int


class Clear(NamedTuple):
    until_time_ms: int


class Key(NamedTuple):
    """A message key taken apart."""

    from_: str
    to: str
    time_ms: int
    nonce: int
    type: int

    def __str__(self) -> str:
        return "|".join(map(str, self))


@dataclass(frozen=True)
class Container:
    type: int
    from_: str
    to: str
    time_ms: int
    nonce: int
    revision_time_ms: int = 0
    reencrypted_at_ms: int = 0
    body: bytes = b""
    signature: bytes = b""

    def base_key(self) -> str:
        return f"{self.from_}|{self.to}|{self.time_ms}|{self.nonce}"

    def message_key(self) -> str:
        return f"{self.base_key()}|{self.type}"

    def ref(self) -> Tuple[int, int]:
        """What receipts and tombstones name a message by: (timeMs, nonce)."""
        return self.time_ms, self.nonce

    def revision(self) -> Tuple[int, int]:
        """Revisions compare as these tuples do."""
        return self.revision_time_ms, self.reencrypted_at_ms

    def owners(self) -> Tuple[str, ...]:
        """The users whose history holds this copy."""
        if self.type in (TEXT_IN, RECEIPT_IN):
            return (self.to,)
        if self.type in (DELETE_BOTH, CLEAR_BOTH) and self.from_ != self.to:
            return (self.from_, self.to)
        return (self.from_,)

    def text(self) -> str:
        """The text of a body in the clear."""
        if self.type not in TEXTS or self.body[:1] != PLAIN_TEXT:
            raise ValueError("not a plain text")
        return self.body[1:].decode()

    def receipt(self) -> Receipt:
        return Receipt(*_RECEIPT.unpack(self.body)[1:])

    def delete(self) -> Delete:
        _, direction, ref_time_ms, ref_nonce = _DELETE.unpack(self.body)
        return Delete(direction == 1, ref_time_ms, ref_nonce)

    def clear(self) -> Clear:
        return Clear(_CLEAR.unpack(self.body)[1])


# ---- rules ----


def check(c: Container) -> None:
    """Raise DmError for the first field, in the order of the wire, that may not be so."""
    if not TEXT_IN <= c.type <= CLEAR_OWN:
        raise DmError("BAD_TYPE")
    for login, code in ((c.from_, "BAD_FROM_LOGIN"), (c.to, "BAD_TO_LOGIN")):
        if not _LOGIN.match(login.encode("utf-8", "surrogateescape")):
            raise DmError(code)
    stamps = (c.time_ms, c.revision_time_ms, c.reencrypted_at_ms)
    if not all(0 <= t <= INT_MAX for t in stamps):
        raise DmError("BAD_TIME")
    if c.type not in TEXTS and c.revision() != (0, 0):
        raise DmError("BAD_TIME")
    if len(c.body) > BODY_MAX:
        raise DmError("BODY_TOO_LARGE")
    _check_body(c)


def _check_body(c: Container) -> None:
    if c.type in TEXTS:
        if not c.body:
            raise DmError("BAD_BODY")
        return
    layout = _RECEIPT if c.type in RECEIPTS else _DELETE if c.type in DELETES else _CLEAR
    if len(c.body) != layout.size or c.body[0] != BODY_VERSION:
        raise DmError("BAD_BODY")
    if c.type in RECEIPTS:
        times = (c.receipt().ref_time_ms, c.receipt().read_at_ms)
    elif c.type in DELETES:
        if c.body[1] not in (0, 1):
            raise DmError("BAD_BODY")
        times = (c.delete().ref_time_ms,)
    else:
        times = (c.clear().until_time_ms,)
        if times[0] > c.time_ms:
            raise DmError("BAD_TIME")
    if max(times) > INT_MAX:
        raise DmError("BAD_TIME")


def parse(blob: bytes) -> Container:
    """Read a container; everything is checked but the signature and the clock."""
    rest = memoryview(bytes(blob))

    def take(n: int) -> bytes:
        nonlocal rest
        if len(rest) < n:
            raise DmError("BAD_LENGTH")
        head, rest = rest[:n], rest[n:]
        return bytes(head)

    def take_login(code: str) -> str:
        size = take(1)[0]
        if not 1 <= size <= 30:
            raise DmError(code)
        login = take(size)
        if not _LOGIN.match(login):
            raise DmError(code)
        return login.decode("ascii")

    if take(len(MAGIC)) != MAGIC:
        raise DmError("BAD_MAGIC")
    if take(1)[0] != VERSION:
        raise DmError("BAD_VERSION")
    kind = take(1)[0]
    if not TEXT_IN <= kind <= CLEAR_OWN:
        raise DmError("BAD_TYPE")
    from_ = take_login("BAD_FROM_LOGIN")
    to = take_login("BAD_TO_LOGIN")
    time_ms, nonce, revision_time_ms, reencrypted_at_ms = _STAMP.unpack(take(_STAMP.size))
    c = Container(kind, from_, to, time_ms, nonce, revision_time_ms, reencrypted_at_ms)
    if max(time_ms, *c.revision()) > INT_MAX or (kind not in TEXTS and any(c.revision())):
        raise DmError("BAD_TIME")
    (size,) = _LENGTH.unpack(take(_LENGTH.size))
    if size > BODY_MAX:
        raise DmError("BODY_TOO_LARGE")
    c = replace(c, body=take(size), signature=take(SIG_BYTES))
    if rest:
        raise DmError("BAD_LENGTH")
    _check_body(c)
    return c


def encode(c: Container) -> bytes:
    """The signed bytes, without judging them: tests also need wrong ones."""
    from_ = c.from_.encode("utf-8", "surrogateescape")
    to = c.to.encode("utf-8", "surrogateescape")
    return b"".join(
        (
            MAGIC,
            bytes((VERSION, c.type, len(from_))),
            from_,
            bytes((len(to),)),
            to,
            _STAMP.pack(c.time_ms, c.nonce, c.revision_time_ms, c.reencrypted_at_ms),
            _LENGTH.pack(len(c.body)),
            c.body,
        )
    )


def sign(signed_bytes: bytes, signing_key: Signer) -> bytes:
    """`signed_bytes` and their signature."""
    return signed_bytes + _signer(signing_key).sign(signed_bytes).signature


def build(c: Container, signing_key: Signer) -> bytes:
    """The container of these fields, signed. DmError for what parse() would refuse."""
    check(c)
    return sign(encode(c), signing_key)


def verify(blob: bytes, key: Union[VerifyKey, bytes]) -> bool:
    """True if the signature at the end of `blob` is by `key`."""
    if len(blob) < SIG_BYTES:
        return False
    verify_key = key if isinstance(key, VerifyKey) else VerifyKey(bytes(key))
    try:
        verify_key.verify(bytes(blob[:-SIG_BYTES]), bytes(blob[-SIG_BYTES:]))
    except CryptoError:
        return False
    return True


def is_pair(incoming: Container, outgoing: Container) -> bool:
    """True if these are the two copies of one message."""
    if (incoming.type, outgoing.type) not in ((TEXT_IN, TEXT_OUT), (RECEIPT_IN, RECEIPT_OUT)):
        return False
    if incoming.base_key() != outgoing.base_key():
        return False
    if incoming.revision_time_ms != outgoing.revision_time_ms:
        return False
    return incoming.type == TEXT_IN or incoming.body == outgoing.body


def kept(a: bytes, b: bytes) -> bytes:
    """Which of two containers with the same message key stays stored."""
    ca, cb = parse(a), parse(b)
    if ca.message_key() != cb.message_key():
        raise ValueError("two different messages")
    if ca.revision() != cb.revision():
        return max((a, b), key=lambda blob: parse(blob).revision())
    return max((a, b), key=lambda blob: hashlib.sha256(blob).digest())


def parse_key(text: str) -> Optional[Key]:
    """A message key in its canonical form, or None."""
    m = _KEY.fullmatch(text)
    if not m:
        return None
    key = Key(m[1], m[2], int(m[3]), int(m[4]), int(m[5]))
    return key if key.time_ms <= INT_MAX and key.nonce < 2**32 else None


def delivery_key(key: Key) -> str:
    """The key of the delivery row: the outgoing one, for a tombstone its own."""
    return str(key._replace(type=key.type + 1) if key.type in (TEXT_IN, RECEIPT_IN) else key)


# ---- makers ----


def _signer(key: Signer) -> SigningKey:
    return key if isinstance(key, SigningKey) else SigningKey(bytes(key))


def _stamp(time_ms: Optional[int], nonce: Optional[int]) -> Tuple[int, int]:
    return (
        int(time.time() * 1000) if time_ms is None else time_ms,
        secrets.randbits(32) if nonce is None else nonce,
    )


def text_pair(
    from_: str,
    to: str,
    signing_key: Signer,
    text: Union[str, bytes],
    time_ms: Optional[int] = None,
    nonce: Optional[int] = None,
    revision: int = 0,
    reencrypted: int = 0,
) -> Tuple[bytes, bytes]:
    """(incoming, outgoing) of a text. str is sent in the clear, bytes are the body as it is."""
    body = PLAIN_TEXT + text.encode() if isinstance(text, str) else text
    stamp = _stamp(time_ms, nonce)
    incoming, outgoing = (
        build(Container(kind, from_, to, *stamp, revision, reencrypted, body), signing_key)
        for kind in TEXTS
    )
    return incoming, outgoing


def receipt_pair(
    from_: str,
    to: str,
    signing_key: Signer,
    ref: Tuple[int, int],
    read_at_ms: Optional[int] = None,
    time_ms: Optional[int] = None,
    nonce: Optional[int] = None,
) -> Tuple[bytes, bytes]:
    """(incoming, outgoing) of a receipt: `from_` has read the message `ref` (Container.ref()) that
    `to` wrote. `read_at_ms` defaults to the time of the receipt."""
    stamp = _stamp(time_ms, nonce)
    read = stamp[0] if read_at_ms is None else read_at_ms
    body = _RECEIPT.pack(BODY_VERSION, ref[0], ref[1], read)
    incoming, outgoing = (
        build(Container(kind, from_, to, *stamp, body=body), signing_key) for kind in RECEIPTS
    )
    return incoming, outgoing


def delete(
    from_: str,
    to: str,
    signing_key: Signer,
    ref: Tuple[int, int],
    by_to: bool = False,
    for_both: bool = True,
    time_ms: Optional[int] = None,
    nonce: Optional[int] = None,
) -> bytes:
    """A tombstone for the message `ref`, written by `from_` (or by `to`)."""
    body = _DELETE.pack(BODY_VERSION, int(by_to), *ref)
    kind = DELETE_BOTH if for_both else DELETE_OWN
    return build(Container(kind, from_, to, *_stamp(time_ms, nonce), body=body), signing_key)


def clear(
    from_: str,
    to: str,
    signing_key: Signer,
    until_time_ms: Optional[int] = None,
    for_both: bool = True,
    time_ms: Optional[int] = None,
    nonce: Optional[int] = None,
) -> bytes:
    """A tombstone for the conversation up to `until_time_ms`, by default its own time."""
    stamp = _stamp(time_ms, nonce)
    body = _CLEAR.pack(BODY_VERSION, stamp[0] if until_time_ms is None else until_time_ms)
    kind = CLEAR_BOTH if for_both else CLEAR_OWN
    return build(Container(kind, from_, to, *stamp, body=body), signing_key)

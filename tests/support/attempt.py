"""One send to a user whose servers behave badly, and what must become of it."""

import contextlib
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional

from example_client import Payload, pair_payload, public_b64, unb64

from .fake_server import FakeServer, Reaction
from .net import Net, User
from .server import WatchedServer

FIRST_RETRY_MS = 30_000
LETTERS = {"H": "ServerHello", "R": "ReceiveIncomingMessage", "G": "GetUser"}


class Fault(NamedTuple):
    """What one route does, and what that is worth."""

    verdict: str  # delivered, tried, given back, open (until a timeout)
    error: str = ""  # in the row's last_error
    heard: str = ""  # requests it was sent, by their first letters: H hello, R message, G GetUser
    certificate: str = "good"
    behaviour: Dict[str, Any] = {}


def talks(verdict: str, error: str, request: Reaction, heard: str = "HR") -> Fault:
    """It was asked."""
    return Fault(verdict, error, heard, behaviour={"request": request})


def before(verdict: str, error: str, heard: str = "", **behaviour: Any) -> Fault:
    """It was not."""
    return Fault(verdict, error, heard, behaviour=behaviour)


class Case:
    """alice, who is served by `server`, and bob, who is served by one fake server for each fault
    and was served by a bystander just before. Both are new, and so are the fakes: what one case did
    to a connection is not seen by the next."""

    def __init__(
        self, server: WatchedServer, net: Net, certificates: Dict[str, Any], *faults: Fault
    ):
        self.server, self.net, self.faults = server, net, faults
        self.fakes = [
            FakeServer(f"gamma{n}", certificates[f.certificate], **f.behaviour)
            for n, f in enumerate(faults, 1)
        ]
        self.bystander = FakeServer("gamma0", certificates["good"])
        self.key, self.took = "", 0.0

    async def __aenter__(self) -> "Case":
        self._opened = contextlib.AsyncExitStack()
        for one in (self.bystander, *self.fakes):
            await self._opened.enter_async_context(one)
        self.alice = self._enter("alice", "local", [(self.server.login, self.server.url)])
        self.bob = self._enter("bob", "partner", [self.bystander.route, self.fakes[0].route])
        self.bob.homes = [one.route for one in self.fakes]
        self.server.rows(
            "SELECT set_user_servers(%s, %s, %s, %s)",
            [self.server.login, self.bob.login, *map(list, zip(*self.bob.homes))],
        )
        self.client = await self.net.connect(self.server)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._opened.aclose()
        if exc[0] is None:
            assert self.bystander.connections == 0, "no route any more"

    def _enter(self, name: str, source: str, homes: List[Any]) -> User:
        """A user as the directory would have entered them, without the round trips."""
        user = User.new(name, homes)
        self.server.rows(
            "SELECT add_user(%s, %s, %s, NULL, NULL, %s, %s, %s)",
            [self.server.login, user.login, public_b64(user.key), source, *map(list, zip(*homes))],
        )
        return user

    async def send(self, op: str = "SendMessagePair", payload: Optional[Payload] = None) -> Payload:
        """The answer; afterwards `took` are the seconds until it came."""
        self.pair = self.alice.pair(self.bob)
        started = time.monotonic()
        answer = await self.client.call(op, payload or pair_payload(*self.pair), timeout=60)
        self.key, self.took = answer["outgoingKey"], time.monotonic() - started
        return answer

    def row(self) -> Dict[str, Any]:
        return self.server.delivery(self.key)

    def told(self) -> List[int]:
        """alice's events: 1 a container, 2 a change of state."""
        query = "SELECT kind FROM user_events WHERE owner_login = %s ORDER BY pts"
        return [row["kind"] for row in self.server.rows(query, [self.alice.login])]

    def check_heard(self) -> None:
        """Each route was sent what it should have been, and nothing else."""
        for server, fault in zip(self.fakes, self.faults):
            assert server.ops() == [LETTERS[x] for x in fault.heard]
            assert server.connections <= 1
            for request in server.requests:
                if request["op"] == "ReceiveIncomingMessage":
                    assert set(request["payload"]) == {"incomingBlobB64", "sourceServerLogin"}
                    assert unb64(request["payload"]["incomingBlobB64"]) == self.pair[0]


def check_row(
    row: Dict[str, Any], verdict: str, errors: Iterable[str] = (), wait_ms: Optional[int] = None
) -> None:
    """The row of an attempt that has ended."""
    assert row["lease_owner"] is None and row["lease_until_ms"] is None and row["claims"] == 0
    if verdict == "delivered":
        assert row["state"] == "delivered" and row["next_attempt_at_ms"] is None
        assert row["attempt_no"] == 1 and row["last_error"] is None
        return
    assert row["state"] == "accepted" and row["delivered_via"] is None
    for error in errors:
        assert error in row["last_error"]
    if verdict == "tried":
        assert row["attempt_no"] == 2 and row["due_after_ms"] == FIRST_RETRY_MS
    else:
        assert verdict == "given back" and row["attempt_no"] == 1
        assert wait_ms is None or row["next_attempt_at_ms"] == row["updated_at_ms"] + wait_ms

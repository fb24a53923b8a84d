"""What the tests of deliveryd share: an hour that passes in seconds, rows made by hand, and recipient
servers that keep count."""

from typing import Any, Dict, List, Optional, Tuple

from .fake_server import FakeServer, Reaction, answers
from .net import Net, User
from .server import WatchedServer
from .waiting import eventually

SLOTS = {1: 0, 2: 30_000, 3: 300_000, 4: 1_500_000, 5: 3_600_000}
MINUTE = 60_000
REFUSES = answers(500, "INTERNAL_ERROR")
TICK_MS = 100


class Scene:
    """alice, at home on `home` and perhaps on a false second server, writes to bob, whose servers
    are false. Every request to these is noted in `said`, in the order of arrival; `does` may be
    changed at any time."""

    def __init__(self, home: WatchedServer, net: Net):
        self.home, self.net = home, net
        self.said: List[Tuple[str, str]] = []  # (server, op), without hellos
        self.does: Dict[str, Reaction] = {}
        self.alice: Any = None
        self.bob: Any = None

    def server(self, login: str, does: Reaction = REFUSES) -> FakeServer:
        """A false server, to be entered with `async with`."""

        async def react(server: FakeServer, ws: Any, request: Dict[str, Any]) -> None:
            self.said.append((login, request["op"]))
            await self.does[login](server, ws, request)

        self.does[login] = does
        return FakeServer(login, self.home.certificate, react)

    async def people(self, *routes: FakeServer, second: Optional[FakeServer] = None) -> None:
        urls = [second.route] if second else []
        self.alice = await self.net.user("alice", self.home, urls=urls)
        self.bob = await self.net.user("bob", known_to=(self.home,), urls=[r.route for r in routes])

    async def send(self, text: str = "hello", **stamps: Any) -> str:
        """Send a message whose first attempt fails; returns its outgoing key."""
        client = await self.net.connect(self.home)
        sent = await client.send_pair(*self.alice.pair(self.bob, text, **stamps))
        await attempted(self.home, sent["outgoingKey"], 2)
        return sent["outgoingKey"]

    def set_routes(self, *routes: FakeServer) -> None:
        access = [x for r in routes for x in ("--access", f"{r.login}={r.url}")]
        self.home.shinectl("user", "set-servers", self.bob.login, *access)

    def calls(self, *logins: str) -> List[int]:
        """How often each has been called with a message."""
        return [self.said.count((x, "ReceiveIncomingMessage")) for x in logins]

    def questions(self) -> int:
        return sum(op == "GetDmDeliveryStatus" for _, op in self.said)


def later(server: WatchedServer, ms: int) -> None:
    """Let the server's database live `ms` ahead. Everybody's sign of life is renewed with it: a jump
    is no silence."""
    server.move_clock(ms)
    server.rows("UPDATE processes SET heartbeat_at_ms = now_ms()")


def due_now(server: WatchedServer, key: str) -> None:
    """The row is due at this moment, and nobody is told."""
    server.rows(
        "UPDATE dm_delivery_state SET next_attempt_at_ms = now_ms() WHERE outgoing_key = %s", [key]
    )


async def attempted(server: WatchedServer, key: str, number: int) -> Dict[str, Any]:
    """Wait until the attempt that comes next is this one, or there is none any more."""

    def probe() -> Optional[Dict[str, Any]]:
        row = server.delivery(key)
        over = row["attempt_no"] >= number or row["state"] != "accepted"
        return row if over and row["lease_owner"] is None else None

    return await eventually(probe, f"attempt {number} to come next", 30)


async def became(server: WatchedServer, key: str, state: str, timeout: float = 30) -> Dict[str, Any]:
    await eventually(lambda: server.delivery(key)["state"] == state, state, timeout)
    return server.delivery(key)


def make_rows(
    server: WatchedServer,
    author: User,
    recipients: List[User],
    count: int,
    attempt: int = 2,
    accepted_ago_ms: int = 30_000,
) -> None:
    """`count` delivery rows of `author`, due now, to each of `recipients` in turn, written into the
    tables without any client. Their blobs are no containers: false servers do not look."""
    server.rows(
        """
        WITH n AS (
            SELECT n, (%(to)s::text[])[1 + n %% %(servers)s] AS to_login FROM generate_series(1, %(count)s) n),
        k AS (SELECT n, to_login, %(from)s || '|' || to_login || '|' || (1000 + n) || '|7' AS base FROM n),
        m AS (
            INSERT INTO signed_messages (owner_login, message_key, base_key, from_login, to_login,
                message_type, courier, time_ms, nonce, revision_time_ms, reencrypted_at_ms,
                created_at_ms, stored_at_ms, digest, blob)
            SELECT to_login, base || '|1', base, %(from)s, to_login, 1, true, 1000 + n, 7, 0, 0,
                   now_ms(), now_ms(), sha256(base::bytea), base::bytea FROM k)
        INSERT INTO dm_delivery_state (from_login, outgoing_key, base_key, incoming_key, to_login,
            revision_time_ms, reencrypted_at_ms, state, attempt_no, accepted_at_ms,
            next_attempt_at_ms, route_hint, updated_at_ms)
        SELECT %(from)s, base || '|2', base, base || '|1', to_login, 0, 0, 'accepted', %(attempt)s,
               now_ms() - %(ago)s, now_ms(),
               coalesce((SELECT server_login FROM user_access_servers_current a
                         WHERE a.login = to_login AND slot = 1), ''), now_ms()
        FROM k""",
        {
            "from": author.login,
            "to": [u.login for u in recipients],
            "servers": len(recipients),
            "count": count,
            "attempt": attempt,
            "ago": accepted_ago_ms,
        },
    )


def states(server: WatchedServer, author: User) -> Dict[str, int]:
    """How many rows of an author are in which state."""
    query = "SELECT state, count(*) AS n FROM dm_delivery_state WHERE from_login = %s GROUP BY 1"
    return {row["state"]: row["n"] for row in server.rows(query, [author.login])}

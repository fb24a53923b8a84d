"""A flood of sends that survives what is done to the server, and the proof of what became of it."""

import asyncio
from typing import Any, Dict, List, Optional, Tuple

import shine_dm as dm
import websockets
from example_client import Client, ConnectionClosed, ShineError, pair_payload

from .net import Net, User
from .server import WatchedServer
from .waiting import eventually

Pair = Tuple[bytes, bytes]

# Copies with these bytes, delivered rows, events in both logs: per pair (2, 1, 1, 1) or nothing.
STORED = """
    SELECT p.n,
           (SELECT count(*) FROM signed_messages m
             WHERE (m.owner_login, m.message_key, m.blob) IN
                   ((p.to_, p.base || '|1', p.incoming), (p.from_, p.base || '|2', p.outgoing)))
           AS copies,
           (SELECT count(*) FROM dm_delivery_state d
             WHERE d.from_login = p.from_ AND d.outgoing_key = p.base || '|2'
               AND d.state = 'delivered') AS deliveries,
           (SELECT count(*) FROM user_events e
             WHERE e.owner_login = p.to_ AND e.message_key = p.base || '|1') AS told_to,
           (SELECT count(*) FROM user_events e
             WHERE e.owner_login = p.from_ AND e.message_key = p.base || '|2') AS told_from
      FROM unnest(%s::int[], %s::text[], %s::text[], %s::text[], %s::bytea[], %s::bytea[])
           AS p (n, from_, to_, base, incoming, outgoing)"""
COMPLETE, NOTHING = (2, 1, 1, 1), (0, 0, 0, 0)


class Flood:
    """Sends `pairs` over `connections` connections, `window` at a time on each. A connection that
    is lost is made anew; what was under way on it is lost, and not sent again. After a 503 the
    connection sends one at a time until one is answered."""

    def __init__(
        self, server: WatchedServer, pairs: List[Pair], connections: int = 4, window: int = 16
    ):
        self.server, self.pairs = server, pairs
        self.connections, self.window = connections, window
        self.answered: Dict[int, Any] = {}
        self.refused: List[int] = []
        self.lost: List[int] = []
        self.closed: List[ConnectionClosed] = []  # how connections ended
        self.stop = False  # do not come back
        self._next = iter(range(len(pairs)))
        self._news = asyncio.Event()

    @property
    def ended(self) -> int:
        return len(self.answered) + len(self.refused) + len(self.lost)

    async def run(self) -> None:
        await asyncio.gather(*(self._connection() for _ in range(self.connections)))
        assert self.stop or self.ended == len(self.pairs)

    async def reaches(self, count: int) -> None:
        """Wait until so many sends have ended."""
        while self.ended < count:
            self._news.clear()
            await self._news.wait()

    async def _connection(self) -> None:
        net = Net()
        client: Optional[Client] = None
        under_way: Dict["asyncio.Future[Any]", int] = {}
        refused = False
        try:
            while True:
                if client is None or client.closed:
                    if self.stop:
                        break
                    client = await reconnect(net, self.server)
                self._fill(client, under_way, 1 if refused else self.window)
                if not under_way:
                    break
                done, _ = await asyncio.wait(
                    under_way, timeout=60, return_when=asyncio.FIRST_COMPLETED
                )
                assert done, f"no answer within 60 s to {sorted(under_way.values())}"
                pause = max(self._take(under_way.pop(future), future) for future in done)
                self._news.set()
                refused = pause > 0
                await asyncio.sleep(pause)
            for future, n in under_way.items():
                self._take(n, future)
        finally:
            await net.close()

    def _fill(
        self, client: Client, under_way: Dict["asyncio.Future[Any]", int], window: int
    ) -> None:
        while len(under_way) < window and not self.stop:
            n = next(self._next, None)
            if n is None:
                return
            future = client.start("SendMessagePair", pair_payload(*self.pairs[n]))
            under_way[future] = n

    def _take(self, n: int, future: "asyncio.Future[Any]") -> float:
        """Note how one send has ended; returns the pause that the server asks for."""
        try:
            answer = future.result()
            self.answered[n] = answer.result()
        except ShineError as e:
            assert e.status == 503 and e.payload["retryAfterMs"] > 0, e
            self.refused.append(n)
            return e.payload["retryAfterMs"] / 1000
        except ConnectionClosed as e:
            self.lost.append(n)
            self.closed.append(e)
        return 0.0


async def reconnect(net: Net, server: WatchedServer, timeout: float = 30) -> Client:
    async def attempt() -> Optional[Client]:
        try:
            return await net.connect(server, open_timeout=5)
        except (OSError, asyncio.TimeoutError, EOFError, websockets.WebSocketException):
            return None

    return await eventually(attempt, "a connection", timeout)


async def database_back(client: Client, user: User, timeout: float = 20) -> None:
    """Wait until a request that needs the database is served again."""

    async def attempt() -> Any:
        try:
            return await client.call("GetUser", {"login": user.login})
        except ShineError as e:
            assert e.status == 503, e
            return None

    await eventually(attempt, "the database to be back", timeout)


def stored(server: WatchedServer, pairs: Dict[int, Pair]) -> Dict[int, Tuple[int, ...]]:
    """What the database holds of each pair, to be compared with COMPLETE and NOTHING."""
    numbers, parsed = list(pairs), [dm.parse(pair[0]) for pair in pairs.values()]
    rows = server.rows(
        STORED,
        [
            numbers,
            [p.from_ for p in parsed],
            [p.to for p in parsed],
            [p.base_key() for p in parsed],
            [pair[0] for pair in pairs.values()],
            [pair[1] for pair in pairs.values()],
        ],
    )
    return {row["n"]: tuple(v for k, v in row.items() if k != "n") for row in rows}


def assert_gapless(server: WatchedServer, user: User, events: int) -> None:
    """The log of `user` has the positions 1 … `events`, and its head says so."""
    query = "SELECT pts FROM user_events WHERE owner_login = %s ORDER BY pts"
    assert [r["pts"] for r in server.rows(query, [user.login])] == list(range(1, events + 1))
    head = "SELECT last_pts FROM user_event_heads WHERE owner_login = %s"
    assert server.value(head, [user.login]) == events


async def assert_kept(flood: Flood, parties: Tuple[User, User], what: str) -> None:
    """What was answered is there, all of it; the rest completely or not at all; sending anything
    again succeeds and changes nothing more."""
    net = Net()
    server, pairs = flood.server, dict(enumerate(flood.pairs))
    client = await reconnect(net, server)
    await database_back(client, parties[0])
    before = stored(server, pairs)
    for n in flood.answered:
        assert before[n] == COMPLETE, f"answered pair {n}: {before[n]} ({what})"
    for n in flood.refused + flood.lost:
        assert before[n] in (COMPLETE, NOTHING), f"pair {n}: {before[n]} ({what})"
    for user in parties:
        assert_gapless(server, user, sum(state == COMPLETE for state in before.values()))
    for start in range(0, len(flood.pairs), 32):
        again = [client.send_pair(*pair) for pair in flood.pairs[start : start + 32]]
        for answer in await asyncio.gather(*again):
            assert answer["deliveryState"] == "delivered"
    after = stored(server, pairs)
    assert set(after.values()) == {COMPLETE}, what
    for user in parties:
        assert_gapless(server, user, len(pairs))
    await net.close()

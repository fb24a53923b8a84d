"""Users and their connections, for one test."""

import itertools
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import example_client
from nacl.signing import SigningKey
from example_client import Client

from .server import WatchedServer

_numbers = itertools.count(1)


@dataclass
class User:
    """Somebody with a client key and one or two access servers."""

    login: str
    homes: List[Tuple[str, str]]  # (serverLogin, url)
    key: SigningKey = field(default_factory=SigningKey.generate)
    home: Optional[WatchedServer] = None  # where session() connects to

    @classmethod
    def new(cls, name: str, homes: List[Tuple[str, str]], **rest: Any) -> "User":
        """One with a login of their own, entered nowhere yet."""
        return cls(f"{name}_{next(_numbers)}", homes, **rest)

    def pair(self, to: "User", text: Any = "hello", **stamps: Any) -> Tuple[bytes, bytes]:
        return example_client.shine_dm.text_pair(self.login, to.login, self.key, text, **stamps)


class Net:
    """Makes users and connections; close() ends every connection made here."""

    def __init__(self) -> None:
        self.clients: List[Client] = []
        self._admins: Dict[str, Client] = {}

    async def user(
        self,
        name: str,
        *homes: WatchedServer,
        known_to: Tuple[WatchedServer, ...] = (),
        urls: Optional[List[Tuple[str, str]]] = None,
    ) -> User:
        """A user named like `name`, with a login of their own. They are entered on their homes and
        on the servers of `known_to`. `urls`: access servers that are not ours."""
        access = [(s.login, s.url) for s in homes] + (urls or [])
        user = User.new(name, access, home=homes[0] if homes else None)
        for server in (*homes, *known_to):
            await self.enter(user, server)
        return user

    async def enter(self, user: User, server: WatchedServer) -> None:
        """Make `user` known on `server`."""
        admin = self._admins.get(server.url)
        if admin is None or admin.closed:
            admin = self._admins[server.url] = await self.connect(server)
        await admin.add_user(user.login, user.key, user.homes)

    async def connect(self, server: WatchedServer, path: str = "/ws", **options: Any) -> Client:
        url = server.url.removesuffix("/ws") + path
        client = await example_client.connect(url, str(server.cafile), **options)
        self.clients.append(client)
        return client

    async def session(
        self, user: User, server: Optional[WatchedServer] = None, **options: Any
    ) -> Client:
        """A connection of `user` with a new session."""
        where = server or user.home
        assert where is not None, f"{user.login} has no home here"
        client = await self.connect(where)
        await client.create_session(user.login, user.key, **options)
        return client

    async def spread_sessions(self, user: User, server: WatchedServer) -> Tuple[Client, Client]:
        """Two sessions of `user` on two different workers. The kernel chooses the worker, so we try
        until it has chosen both."""
        placed: Dict[str, Client] = {}
        for _ in range(60):
            client = await self.session(user, server)
            place = server.value(
                "SELECT connected_to FROM active_sessions WHERE session_id = %s",
                [client.session_id],
            )
            if place in placed:
                await client.close()
            else:
                placed[place] = client
            if len(placed) == 2:
                first, second = placed.values()
                return first, second
        raise AssertionError(f"60 connections, all on one worker: {list(placed)}")

    async def close(self) -> None:
        for client in self.clients:
            await client.close()

"""One laboratory per test run: cluster, certificates, schema template, and the servers in it."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

import lab

from .server import WatchedServer

REPO = Path(__file__).resolve().parents[2]

# Tests make hundreds of users, thousands of requests from one address, and many false servers.
TEST_SETTINGS: Dict[str, Any] = {
    "frontd.workers": 2,
    "directory.addUser": "open",
    "log.level": "debug",
    "server.pool.dialsPerSecond": 1000,
}


def bin_dir() -> Path:
    """Where the programs are: SHINE_BIN, or the build with sanitizers."""
    path = Path(os.environ.get("SHINE_BIN", REPO / "build/san/bin")).resolve()
    if not (path / "frontd").exists():
        raise lab.LabError(f"{path}/frontd is missing: make VARIANT=san, or set SHINE_BIN")
    return path


class World:
    """`durable`: PostgreSQL with fsync, for tests that kill it."""

    def __init__(self, durable: bool = False):
        self.directory = Path(tempfile.mkdtemp(prefix="shine-test-"))
        self.directory.chmod(0o755)  # PostgreSQL runs as another user
        self.authority = lab.Authority(self.directory / "ca")
        self.postgres = lab.Postgres(self.directory / "pg", durable=durable)
        self.servers: List[WatchedServer] = []
        self.bin_dir = bin_dir()
        self._template: Optional[str] = None
        self._names = 0
        try:
            self.postgres.start()
        except BaseException:
            self.close()
            raise

    def server(
        self,
        login: str,
        certificate: Optional[lab.certs.Certificate] = None,
        start: bool = True,
        **settings: Any,
    ) -> WatchedServer:
        """A new server. Keyword settings are keys with `__` for the dot:
        delivery__firstReplyBudgetMs=500."""
        self._names += 1
        unique = f"{login}_{self._names}"
        server = WatchedServer(
            login,
            self.directory / unique,
            self.postgres,
            self.authority,
            self.bin_dir,
            {**TEST_SETTINGS, **{k.replace("__", "."): v for k, v in settings.items()}},
            certificate,
            database=unique,
        )
        server.prepare(self._template)
        if not self._template:
            self.postgres.sql(f'CREATE DATABASE "schema" TEMPLATE "{unique}"')
            self._template = "schema"
        self.servers.append(server)
        return server.start().ready() if start else server

    def close(self) -> None:
        """Stop everything and remove it, unless SHINE_KEEP is set."""
        for server in self.servers:
            server.stop()
            server.forget_connection()
        self.postgres.stop()
        if os.environ.get("SHINE_KEEP"):
            print(f"kept: {self.directory}")
        else:
            shutil.rmtree(self.directory, ignore_errors=True)

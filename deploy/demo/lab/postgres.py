"""A throw-away PostgreSQL cluster on a private Unix socket; nothing listens on the network."""

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, List, Optional

import psycopg2

from .process import LabError, Process, wait_until

_BIN_DIRS = "/usr/lib/postgresql/{}/bin"


def _bin_dir() -> Path:
    for version in range(20, 14, -1):
        path = Path(_BIN_DIRS.format(version))
        if (path / "initdb").exists():
            return path
    raise LabError("no PostgreSQL 15 or newer in /usr/lib/postgresql")


class Postgres:
    """`directory` is created. As root the cluster runs as user postgres, because PostgreSQL refuses
    to run as root; every directory above must therefore let others pass."""

    def __init__(
        self,
        directory: Path,
        durable: bool = False,
        max_connections: int = 800,
        settings: Optional[List[str]] = None,
        tied: bool = True,
    ):
        self.directory, self.tied = directory, tied
        self.user = "postgres" if os.geteuid() == 0 else None
        self.settings = [f"max_connections={max_connections}", "shared_buffers=32MB"]
        if not durable:
            self.settings += ["fsync=off", "full_page_writes=off"]
        self.settings += settings or []
        self.bin = _bin_dir()
        self.data, self.log = directory / "data", directory / "postgres.log"
        self.process: Optional[Process] = None

    def start(self) -> "Postgres":
        if not self.data.exists():
            self._initdb()
        argv = [str(self.bin / "postgres"), "-D", str(self.data), "-k", str(self.directory)]
        for setting in ["listen_addresses=", *self.settings]:
            argv += ["-c", setting]
        # SIGINT is PostgreSQL's fast shutdown: sessions are ended, not waited for.
        self.process = Process(argv, self.log, signal.SIGINT, self.user, self.tied)
        wait_until(self.accepts, 60, f"PostgreSQL start, see {self.log}", pause=0.05)
        return self

    def stop(self, timeout: float = 20) -> None:
        if self.process:
            self.process.stop(timeout)
            self.process = None

    def conninfo(self, database: str, user: str = "postgres") -> str:
        return f"host={self.directory} dbname={database} user={user}"

    def sql(self, query: str, database: str = "postgres", params: Any = None) -> List[Any]:
        """Run one statement outside a transaction, as superuser."""
        connection = psycopg2.connect(self.conninfo(database))
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(query, params)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def create_database(self, name: str, template: str = "template0") -> None:
        self.sql(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')

    def _initdb(self) -> None:
        self.directory.mkdir(mode=0o700)
        if self.user:
            shutil.chown(self.directory, self.user)
        argv = [str(self.bin / "initdb"), "-D", str(self.data), "--username=postgres"]
        argv += ["--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions"]
        done = subprocess.run(
            argv,
            user=self.user,
            group=self.user,
            extra_groups=[] if self.user else None,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise LabError(f"initdb: {done.stderr.strip()}")

    def accepts(self) -> bool:
        """True if it lets us in now; false while it starts or recovers."""
        if self.process is None or self.process.returncode is not None:
            raise LabError(f"PostgreSQL ended: {self.log.read_text(errors='replace')[-2000:]}")
        try:
            return bool(self.sql("SELECT 1"))
        except psycopg2.OperationalError:
            return False

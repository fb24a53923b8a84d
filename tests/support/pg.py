"""A private PostgreSQL for tests that need databases but no daemons: the laboratory's cluster in a
temporary folder of its own, with a name for every database. Any number of them run side by side.

    with pg.Cluster() as cluster:
        conninfo = cluster.create_database()
"""

import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psycopg2
import psycopg2.extensions

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deploy" / "demo"))

from lab import Postgres  # noqa: E402


class Cluster:
    """One PostgreSQL server with its data. It dies with the thread that calls start(), and stop()
    removes the folder. `durable` keeps fsync on; `settings` is a dict of further settings."""

    def __init__(self, *, durable=False, settings=None):
        self.durable = durable
        self.settings = [f"{name}={value}" for name, value in (settings or {}).items()]
        self.directory = None
        self.postgres = None
        self._count = 0
        self._lock = threading.Lock()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def log_path(self):
        return self.postgres.log

    def start(self):
        """Create the data on the first call; after stop_server() start the same data again."""
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="shine-pg-"))
            self.directory.chmod(0o755)  # the server runs as another user
            self.postgres = Postgres(
                self.directory / "cluster", durable=self.durable, settings=self.settings
            )
        try:
            self.postgres.start()
        except BaseException:
            self.stop()
            raise

    def stop_server(self):
        """Stop the server, keep the data."""
        self.postgres.stop()

    def stop(self):
        """Stop the server and remove everything."""
        if self.directory is not None:
            self.postgres.stop()
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None

    def conninfo(self, dbname="postgres"):
        return self.postgres.conninfo(dbname)

    def connect(self, dbname="postgres"):
        """A psycopg2 connection in autocommit mode; the caller closes it."""
        connection = psycopg2.connect(self.conninfo(dbname))
        connection.autocommit = True
        return connection

    def execute(self, statement, dbname="postgres"):
        self.postgres.sql(statement, dbname)

    def create_database(self, name=None, template="template0"):
        """Create a database (with a fresh name if none is given) and return its conninfo. One after
        the other: PostgreSQL refuses to copy a template twice at a time."""
        with self._lock:
            self._count += 1
            name = name or f"test_{self._count}"
            self.postgres.create_database(name, template)
        return self.conninfo(name)

    def drop_database(self, name):
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def dbname_of(conninfo):
    """The database that a connection string names."""
    return psycopg2.extensions.parse_dsn(conninfo)["dbname"]


def migrate(conninfo, shinectl, config_lines=()):
    """Create the schema by `shinectl migrate`. `config_lines`: further lines of configuration."""
    with tempfile.NamedTemporaryFile("w", prefix="shine-", suffix=".conf") as config:
        config.write("\n".join([f"db.conninfo = {conninfo}", *config_lines, ""]))
        config.flush()
        done = subprocess.run(
            [str(shinectl), "-c", config.name, "migrate"], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"shinectl migrate failed:\n{done.stdout}{done.stderr}")

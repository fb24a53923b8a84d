"""A private PostgreSQL for tests, the demo and the benchmark.

A cluster lives in a temporary folder of its own, listens on a unix socket there and on a free port
of 127.0.0.1, and vanishes when it is stopped. Any number of them run side by side. PostgreSQL refuses
to run as root, so root's clusters belong to the user postgres; other users run their own.

    with pg.Cluster() as cluster:
        conninfo = cluster.create_database("shine")

The unix socket is open to whoever may enter the folder (its owner and root) and needs no password;
the TCP port needs the random one that is part of tcp_conninfo().
"""

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import psycopg2
import psycopg2.extensions
from psycopg2 import sql

BIN = Path("/usr/lib/postgresql/15/bin")

# For tests only: a lost machine may lose what these save.
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

DEFAULTS = {
    "max_connections": "200",
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %a ",
    "log_timezone": "UTC",
    "timezone": "UTC",
    "lc_messages": "C",
}

# PR_SET_PDEATHSIG: the server stops when the thread that started it is gone, however it went.
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_PR_SET_PDEATHSIG = 1


def _die_with_parent():
    _prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)


def free_port():
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Cluster:
    """One PostgreSQL server with its data.

    durable   keep fsync on, as in production (benchmarks); off is several times faster
    settings  a dict of further postgresql.conf settings
    keep      the server survives this process and the folder stays (a demo that is left running);
              otherwise it dies with the thread that calls start(), and stop() removes the folder
    """

    def __init__(self, *, durable=False, settings=None, keep=False):
        self.settings = dict(DEFAULTS)
        if not durable:
            self.settings.update(NOT_DURABLE)
        self.settings.update(settings or {})
        self.keep = keep
        self.directory = None
        self.port = None
        self.process = None
        self._password = secrets.token_hex(16)
        self._count = 0
        self._lock = threading.Lock()
        self._as_user = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def pid(self):
        return self.process.pid

    @property
    def log_path(self):
        return self.directory / "log"

    # -- life ------------------------------------------------------------------------------------

    def start(self):
        """Create the data on the first call; after stop_server() start the same data again."""
        try:
            if self.directory is None:
                self._create()
            self._start_server()
        except BaseException:
            self.stop()
            raise

    def stop(self):
        """Stop the server and remove everything."""
        self.stop_server()
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None

    def stop_server(self, how=signal.SIGINT):
        """Stop the server, keep the data. SIGINT: fast; SIGQUIT: as in a crash."""
        if self.process is None:
            return
        for number in (how, signal.SIGQUIT, signal.SIGKILL):
            if self.process.poll() is not None:
                break
            self.process.send_signal(number)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                continue
        self.process = None

    def _create(self):
        self.directory = Path(tempfile.mkdtemp(prefix="shine-pg-"))
        if self._as_user:
            os.chown(self.directory, self._as_user["user"], self._as_user["group"])
        password = self.directory / "password"
        password.write_text(self._password + "\n")
        password.chmod(0o644)  # the folder itself is closed
        self._run(
            BIN / "initdb", "--pgdata", self.directory / "data", "--username", "postgres",
            "--auth-local", "trust", "--auth-host", "scram-sha-256", "--pwfile", password,
            "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync", "--no-instructions",
        )  # fmt: skip
        password.unlink()

    def _run(self, *command):
        done = subprocess.run(
            [str(c) for c in command], cwd=self.directory, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, **self._as_user,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")

    def _start_server(self):
        # The port may be taken between the look and the server's start: then look again.
        for _ in range(5):
            self.port = self.port or free_port()
            if self._try_start():
                return
            self.port = None
        raise RuntimeError(f"PostgreSQL does not start:\n{self.log_path.read_text()[-4000:]}")

    def _try_start(self):
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            **self.settings,
        }
        command = [str(BIN / "postgres"), "-D", str(self.directory / "data")]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=None if self.keep else _die_with_parent,
                **self._as_user,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.process = None
                return False
            try:
                self.connect().close()
                return True
            except psycopg2.OperationalError:
                time.sleep(0.03)
        raise RuntimeError(f"PostgreSQL is not ready:\n{self.log_path.read_text()[-4000:]}")

    # -- databases -------------------------------------------------------------------------------

    def conninfo(self, dbname="postgres"):
        """Connection string over the unix socket."""
        return f"host={self.directory} port={self.port} user=postgres dbname={dbname}"

    def tcp_conninfo(self, dbname="postgres"):
        """Connection string over TCP; holds the password."""
        return (
            f"host=127.0.0.1 port={self.port} user=postgres password={self._password} "
            f"dbname={dbname}"
        )

    def connect(self, dbname="postgres"):
        """A psycopg2 connection in autocommit mode; the caller closes it."""
        connection = psycopg2.connect(self.conninfo(dbname))
        connection.autocommit = True
        return connection

    def execute(self, statement, dbname="postgres"):
        connection = self.connect(dbname)
        try:
            connection.cursor().execute(statement)
        finally:
            connection.close()

    def create_database(self, name=None, template=None):
        """Create a database (with a fresh name if none is given) and return its conninfo."""
        with self._lock:
            self._count += 1
            name = name or f"test_{self._count}"
            statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
            if template:
                statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
            self.execute(statement)
        return self.conninfo(name)

    def drop_database(self, name):
        self.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )


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

"""One complete SHiNE server: its database, its configuration file, its daemons."""

import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import psycopg2
import psycopg2.extras

from .certs import Authority, Certificate
from .postgres import Postgres
from .process import LabError, Process, environment, free_port, wait_until

STOP_SECONDS = 25.0  # a daemon stops within 20 s by itself


class Server:
    """A server named `login`. Files go to `directory`, which is created.

    prepare() makes database and configuration, start() the daemon, ready() waits until it serves.
    start_deliveryd() adds a process that makes the retries, or several.
    `settings` are configuration keys beyond, or instead of, those made here.
    """

    def __init__(
        self,
        login: str,
        directory: Path,
        postgres: Postgres,
        authority: Authority,
        bin_dir: Path,
        settings: Optional[Dict[str, Any]] = None,
        certificate: Optional[Certificate] = None,
        database: Optional[str] = None,
        tied: bool = True,
    ):
        directory.mkdir(parents=True, exist_ok=True)
        self.login, self.directory, self.postgres = login, directory, postgres
        self.bin_dir, self.tied = bin_dir, tied
        self.cafile = authority.cafile
        self.certificate = certificate or authority.issue(login)
        self.database = database or login
        self.port = free_port()
        self.url = f"wss://127.0.0.1:{self.port}/ws"
        self.config, self.log = directory / f"{login}.conf", directory / f"{login}.log"
        self.settings = settings or {}
        self.frontd: Optional[Process] = None
        self.deliveryds: List[Process] = []
        self._connection: Any = None  # of rows()

    # -- making it --

    @property
    def conninfo(self) -> str:
        """For the daemons."""
        return self.postgres.conninfo(self.database)

    @property
    def admin_conninfo(self) -> str:
        """For the laboratory itself: may do everything."""
        return self.postgres.conninfo(self.database)

    def configuration(self) -> Dict[str, Any]:
        return {
            "server.SHiNE.login": self.login,
            "server.url": self.url,
            "listen": f"127.0.0.1:{self.port}",
            "tls.certFile": self.certificate.cert,
            "tls.keyFile": self.certificate.key,
            "tls.caFile": self.cafile,
            "db.conninfo": self.conninfo,
            # The other servers of a laboratory live on loopback, which is refused otherwise.
            "server.pool.allowPrivateAddresses": "on",
            # All its clients and servers have one address.
            "limits.requestsPerLogin": 0,
            "limits.sendsPerAddress": 0,
            "limits.sendsPerServer": 0,
            "limits.hellosPerAddress": 0,
            "limits.addUsersPerAddress": 0,
            **self.settings,
        }

    def write_configuration(self) -> None:
        lines = [f"{key} = {value}\n" for key, value in self.configuration().items()]
        self.config.write_text("".join(lines))

    def prepare(self, template: Optional[str] = None) -> "Server":
        """Create database and configuration. `template`: a database that has the schema already."""
        self.write_configuration()
        if template:
            self.postgres.create_database(self.database, template)
        else:
            self.postgres.create_database(self.database)
            self.shinectl("migrate")
        return self

    # -- running it --

    def spawn(self, program: str, *args: str) -> Process:
        """Start a daemon with this server's configuration."""
        argv = [str(self.bin_dir / program), "-c", str(self.config), *args]
        return Process(argv, self.log, tied=self.tied)

    def start(self) -> "Server":
        self.frontd = self.spawn("frontd")
        return self

    def start_deliveryd(self, **settings: Any) -> Process:
        """One more deliveryd, working as soon as this returns. Keyword settings as for tests: keys
        with `__` for the dot."""
        sets = [x for k, v in settings.items() for x in ("--set", f"{k.replace('__', '.')}={v}")]
        process = self.spawn("deliveryd", *sets)
        self.deliveryds.append(process)
        query = "SELECT 1 FROM processes WHERE kind = 'deliveryd' AND pid = %s"

        def works() -> bool:
            if process.returncode is not None:
                log = self.log.read_text(errors="replace")[-2000:]
                raise LabError(f"deliveryd of {self.login} ended: {log}")
            return bool(self.rows(query, [process.pid]))

        wait_until(works, 60, f"deliveryd of {self.login} does not start, see {self.log}")
        return process

    def stop_deliveryd(self, process: Process, timeout: float = STOP_SECONDS) -> bool:
        """SIGTERM to one; false if it had to be killed or ended with an error."""
        self.deliveryds.remove(process)
        return process.stop(timeout) and process.returncode == 0

    def ready(self, timeout: float = 60) -> "Server":
        """Wait until frontd answers a TLS handshake and an HTTP request, and every worker has found
        its database."""
        what = f"{self.login} does not start, see {self.log}"
        wait_until(self._answers, timeout, what)
        wait_until(self._registered, timeout, what)
        return self

    def stop(self, timeout: float = STOP_SECONDS) -> bool:
        """SIGTERM to all; false if one had to be killed."""
        clean = True
        for process in self.deliveryds:
            process.signal(process.stop_signal)  # all stop at the same time
        while self.deliveryds:
            clean &= self.stop_deliveryd(self.deliveryds[0], timeout)
        if self.frontd is not None:
            clean &= self.frontd.stop(timeout) and self.frontd.returncode == 0
            self.frontd = None
        return clean

    def _answers(self) -> bool:
        if self.frontd is None or self.frontd.returncode is not None:
            raise LabError(f"{self.login} ended: {self.log.read_text(errors='replace')[-2000:]}")
        context = ssl.create_default_context()
        context.check_hostname = False  # some tests give it a bad certificate on purpose
        context.verify_mode = ssl.CERT_NONE
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as plain:
                with context.wrap_socket(plain) as s:
                    s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    return s.recv(5) == b"HTTP/"
        except OSError:
            return False

    def _registered(self) -> bool:
        workers = self.frontd.children() if self.frontd else []
        query = "SELECT pid FROM processes WHERE kind = 'frontd'"
        wanted = int(self.settings.get("frontd.workers", 0)) or 1
        return len(workers) >= wanted and {r["pid"] for r in self.rows(query)} >= set(workers)

    # -- working with it --

    def shinectl(self, *args: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        argv = [str(self.bin_dir / "shinectl"), "-c", str(self.config), *map(str, args)]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=60, check=False, env=environment()
        )
        if check and done.returncode:
            raise LabError(f"shinectl {' '.join(args[:2])}: {done.stderr.strip()}")
        return done

    def add_user(self, login: str, public_b64: str, access: List[Tuple[str, str]]) -> None:
        servers: List[str] = []
        for name, url in access:
            servers += ["--access", f"{name}={url}"]
        self.shinectl("user", "add", login, "--client-key", public_b64, *servers)

    def rows(self, query: str, params: Any = None) -> List[Any]:
        """Rows of one statement, run as administrator, as dictionaries. The connection is kept; one
        that was lost is made anew at the next call."""
        if self._connection is None:
            self._connection = psycopg2.connect(self.admin_conninfo)
            self._connection.autocommit = True
        try:
            with self._connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
                cursor.execute(query, params)
                return cursor.fetchall() if cursor.description else []
        finally:
            if self._connection.closed:
                self._connection = None

    def forget_connection(self) -> None:
        """Close what rows() keeps open: before the database goes away."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

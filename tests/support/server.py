"""A complete server under watch: after every test its log and its leases are looked at."""

import os
import re
import signal
from typing import Any, Dict, Iterator, List, Optional

import lab

from .waiting import eventually

# What no daemon may ever write, whatever a test does to it.
NEVER = re.compile(
    r"AddressSanitizer|LeakSanitizer|MemorySanitizer|runtime error:|SUMMARY: .*Sanitizer"
    r"|[Aa]ssertion|event=bug|deadlock detected|out_of_memory"
)
ERROR_LINE = re.compile(r'level=error|"level":"error"')

# The caller's own choice wins (make check collects reports in files).
SANITIZERS = {
    "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0"),
    "UBSAN_OPTIONS": os.environ.get("UBSAN_OPTIONS", "print_stacktrace=1"),
}

HELD_LEASES = """
    SELECT from_login, outgoing_key, lease_owner, lease_until_ms - now_ms() AS left_ms
      FROM dm_delivery_state WHERE state = 'accepted' AND lease_until_ms > now_ms()"""


class WatchedServer(lab.Server):
    """lab.Server with an eye on its log."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._checked = 0  # bytes of the log already judged
        self._expected: List["re.Pattern[str]"] = []
        self.unclean = False  # it had to be killed, or ended with an error
        self.clock_source: Optional[str] = None

    def spawn(self, program: str, *args: str) -> lab.Process:
        argv = [str(self.bin_dir / program), "-c", str(self.config), *args]
        return lab.Process(argv, self.log, tied=self.tied, env=SANITIZERS)

    def stop(self, timeout: float = lab.server.STOP_SECONDS) -> bool:
        clean = super().stop(timeout)
        self.unclean |= not clean
        return clean

    def stop_deliveryd(
        self, process: lab.Process, timeout: float = lab.server.STOP_SECONDS
    ) -> bool:
        clean = super().stop_deliveryd(process, timeout)
        self.unclean |= not clean
        return clean

    def kill_deliveryd(self, process: lab.Process) -> None:
        """kill -9."""
        self.deliveryds.remove(process)
        process.kill()

    # -- the log --

    def expect(self, pattern: str) -> None:
        """Error lines that match are part of the test that runs now."""
        self._expected.append(re.compile(pattern))

    def complaints(self) -> List[str]:
        """Lines written since the last call that should not be there."""
        bad = []
        for line in self._new_lines():
            if NEVER.search(line):
                bad.append(f"{self.login}: {line}")
            elif ERROR_LINE.search(line) and not any(p.search(line) for p in self._expected):
                bad.append(f"{self.login}: {line}")
        if self.unclean:
            bad.append(f"{self.login}: did not stop in time, or not with status 0; see {self.log}")
        self._expected, self.unclean = [], False
        return bad

    def _new_lines(self) -> Iterator[str]:
        if not self.log.exists():
            return
        with open(self.log, "rb") as f:
            f.seek(self._checked)
            new = f.read()
        self._checked += len(new)
        yield from new.decode(errors="replace").splitlines()

    # -- the database --

    def value(self, query: str, params: Any = None) -> Any:
        """The only value of the only row."""
        (row,) = self.rows(query, params)
        (value,) = row.values()
        return value

    def now_ms(self) -> int:
        return self.value("SELECT now_ms() AS now")

    def move_clock(self, ms: int) -> None:
        """Let this server's database live `ms` ahead of the real time; 0 puts it right."""
        if self.clock_source is None:
            self.clock_source = self.value(
                "SELECT prosrc FROM pg_proc WHERE oid = 'public.now_ms()'::regprocedure"
            )
        body = self.clock_source.strip().rstrip(";")
        moved = f"SELECT ({body}) + ({ms})::bigint" if ms else body
        self.rows(
            "CREATE OR REPLACE FUNCTION public.now_ms() RETURNS bigint LANGUAGE sql STABLE "
            f"AS $now${moved}$now$"
        )

    async def settled(self, timeout: float = 10.0) -> List[Dict[str, Any]]:
        """Wait until no attempt is under way; returns the leases that stay held."""
        try:
            await eventually(lambda: not self.rows(HELD_LEASES), "leases", timeout)
            return []
        except AssertionError:
            return self.rows(HELD_LEASES)

    def delivery(self, outgoing_key: str) -> Dict[str, Any]:
        """The delivery row of a message, and how far ahead of now it is due."""
        (row,) = self.rows(
            "SELECT *, next_attempt_at_ms - accepted_at_ms AS due_after_ms,"
            " lease_until_ms > now_ms() AS leased FROM dm_delivery_state WHERE outgoing_key = %s",
            [outgoing_key],
        )
        return row

    # -- its processes --

    def workers(self) -> List[int]:
        """Pids of the worker processes."""
        return self.frontd.children() if self.frontd else []

    def worker_of(self, client: Any) -> int:
        """Pid of the worker that holds the connection of a logged-in client."""
        return self.value(
            "SELECT pid FROM active_sessions JOIN processes ON process_id = connected_to"
            " WHERE session_id = %s",
            [client.session_id],
        )

    def backends(self, worker: Optional[int] = None) -> List[int]:
        """Pids of the PostgreSQL processes that serve this server, or one worker's pool."""
        return [
            row["pid"]
            for row in self.rows(
                "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
                " AND (%s::bigint IS NULL OR application_name IN"
                "      (SELECT process_id FROM processes WHERE pid = %s))",
                [self.database, worker, worker],
            )
        ]

    def kill_worker(self, index: int = 0) -> int:
        """kill -9 of one worker."""
        pid = self.workers()[index]
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_master(self) -> None:
        """kill -9 of the master; its workers stop by themselves."""
        if self.frontd is not None:
            self.frontd.kill()
            self.frontd = None

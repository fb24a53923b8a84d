"""Children that do not outlive us, free ports, waiting for conditions."""

import ctypes
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

_PR_SET_PDEATHSIG = 1


class LabError(Exception):
    """Something of the laboratory itself does not work: not a failed assertion."""


def free_port() -> int:
    """A loopback port that nobody listens on. Another program could take it before we do; daemons
    then fail to start, which is noticed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(probe: Callable[[], Any], timeout: float, what: str, pause: float = 0.02) -> Any:
    """The first true result of `probe`, asked again and again."""
    deadline = time.monotonic() + timeout
    while True:
        result = probe()
        if result:
            return result
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not within {timeout:g} s")
        time.sleep(pause)


def environment() -> Dict[str, str]:
    """Ours, without the variables that the programs read as configuration keys."""
    return {k: v for k, v in os.environ.items() if not k.startswith("SHINE_")}


def _tie_to_parent(stop_signal: int) -> Callable[[], None]:
    """Runs in the child: the kernel sends it `stop_signal` should we be killed."""
    libc = ctypes.CDLL(None, use_errno=True)

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, stop_signal, 0, 0, 0)

    return tie


class Process:
    """One child in a session of its own, so that Ctrl-C reaches us first and we stop it in order.
    Its output goes to the end of a file."""

    def __init__(
        self,
        argv: List[str],
        log: Path,
        stop_signal: int = signal.SIGTERM,
        user: Optional[str] = None,
        tied: bool = True,
        env: Optional[Dict[str, str]] = None,
    ):
        self.argv, self.log, self.stop_signal = argv, log, stop_signal
        with open(log, "ab") as out:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
                cwd="/" if user else None,
                env={**environment(), **(env or {})},
                preexec_fn=_tie_to_parent(stop_signal) if tied else None,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> Optional[int]:
        return self._child.poll()

    def children(self) -> List[int]:
        """Pids of the processes that it has started and that live."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(fields[1]) == self.pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
        return sorted(found)

    def signal(self, number: int) -> None:
        if self._child.poll() is None:
            self._child.send_signal(number)

    def kill(self) -> None:
        """kill -9 of this process alone."""
        self.signal(signal.SIGKILL)
        self._child.wait()

    def stop(self, timeout: float) -> bool:
        """Ask it to stop; false if it had to be killed."""
        self.signal(self.stop_signal)
        try:
            self._child.wait(timeout)
            return True
        except subprocess.TimeoutExpired:
            self.kill()
            return False

"""Runs sets of containers against a database and says where it differs from the model.

A run is one set in one order, in the names of users of its own, so that any number of runs share a
database and its batches. `Harness.check` takes many at once: it hands them to two driver processes,
compares what is stored with model.expect, checks what must hold for any data, hands everything over
once more, and sees that nothing moves. In some runs users who were served elsewhere then come to be
served here, and after everything came again the result must be as if they always had been.
"""

import base64
import random
import subprocess
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import model
import sets as generator
from compare import compare, unchanged
from psycopg2.extras import execute_values
from support import pg

DRIVERS = ((50, 400), (7, 150))  # largest statement and open sessions of each process
KEY_B64 = base64.b64encode(bytes(32)).decode()


@dataclass
class Run:
    """`sessions`: for each session the numbers of steps, in order; every step occurs somewhere.
    `moved`: who gets which servers after the first part; empty = there is no second part."""

    name: str
    servers: Dict[str, Tuple[str, ...]]
    steps: List[generator.Step]
    sessions: List[List[int]]
    moved: Dict[str, Tuple[str, ...]] = field(default_factory=dict)
    prefix: str = ""
    ops: List[model.Op] = field(default_factory=list)
    expected: Optional[model.Expected] = None
    problems: List[str] = field(default_factory=list)

    def begin(self, prefix: str) -> None:
        self.prefix, self.problems = prefix, []
        self.ops = generator.instantiate(self.steps, prefix)
        self.expect(self.servers)

    def expect(self, servers: Mapping[str, Tuple[str, ...]]) -> None:
        full = {self.prefix + u: list(s) for u, s in servers.items()}
        self.expected = model.expect(generator.ME, full, self.ops, int(time.time() * 1000))

    def smaller(self, steps: List[generator.Step], sessions: List[List[int]]) -> "Run":
        return Run(self.name, self.servers, steps, [s for s in sessions if s], self.moved)


def variants(s: generator.Set) -> List[Run]:
    """A set in the order it was made, in two other orders with repetitions, and dealt to three
    sessions at a time."""
    rng = random.Random(f"orders {s.seed}/{s.number}")
    n = len(s.steps)

    def shuffled() -> List[int]:
        order = list(range(n)) + rng.choices(range(n), k=rng.randint(0, n // 2 + 1))
        rng.shuffle(order)
        return order

    dealt: List[List[int]] = [[], [], []]
    for step in shuffled():
        dealt[rng.randrange(3)].append(step)
    orders = [("as made", [list(range(n))]), ("shuffled 1", [shuffled()])]
    orders += [("shuffled 2", [shuffled()]), ("three sessions", [d for d in dealt if d])]
    runs = [Run(name, s.servers, s.steps, sessions) for name, sessions in orders]
    for run in runs[1:]:
        for user, servers in s.servers.items():
            if generator.ME not in servers and rng.random() < 0.6:
                run.moved[user] = rng.choice(generator.MOVED)
    return runs


class Harness:
    """A database with the schema, and the driver of one build."""

    def __init__(self, cluster: pg.Cluster, build: Path):
        self.cluster, self.driver = cluster, build / "property" / "driver"
        self.conninfo = cluster.create_database()
        pg.migrate(self.conninfo, build / "bin" / "shinectl")
        self.db = cluster.connect(pg.dbname_of(self.conninfo))
        self.rounds = 0

    def check(self, runs: Sequence[Run]) -> List[Run]:
        """Those of `runs` that went wrong, with their problems."""
        self.rounds += 1
        mark = f"r{self.rounds:05d}_"
        for i, run in enumerate(runs):
            run.begin(f"{mark}{i:05d}")
        self._add_users(runs)
        self._feed(runs, again=False)
        first = self._read(mark)
        self._feed(runs, again=True)
        second = self._read(mark)
        for run in runs:
            before, after = first[run.prefix], second[run.prefix]
            run.problems += compare(run, run.servers, run.expected, before)
            run.problems += unchanged(run.expected, before, after)
        self._move([run for run in runs if run.moved and not run.problems], mark)
        return [run for run in runs if run.problems]

    def _move(self, runs: Sequence[Run], mark: str) -> None:
        cursor = self.db.cursor()
        for run in runs:
            for user, servers in run.moved.items():
                urls = [f"wss://{s}/ws" for s in servers]
                cursor.execute(
                    "SELECT set_user_servers(%s, %s, %s, %s)",
                    (generator.ME, run.prefix + user, list(servers), urls),
                )
            run.expect({**run.servers, **run.moved})
        self._feed(runs, again=False)
        rows = self._read(mark)
        for run in runs:
            servers = {**run.servers, **run.moved}
            found = compare(run, servers, run.expected, rows[run.prefix])
            run.problems += [f"after the move: {p}" for p in found]

    def log_errors(self) -> List[str]:
        """What PostgreSQL complained about: not even a deadlock that was repaired is fine."""
        lines = self.cluster.log_path.read_text(errors="replace").splitlines()
        return [line for line in lines if "ERROR:" in line or "PANIC:" in line]

    # -- feeding ---------------------------------------------------------------------------------

    def _add_users(self, runs: Sequence[Run]) -> None:
        logins = [(r.prefix + u, s) for r in runs for u, s in r.servers.items()]
        cursor = self.db.cursor()
        execute_values(
            cursor,
            "INSERT INTO users (login, client_key, source, created_at_ms, refreshed_at_ms) VALUES %s",
            [(login, KEY_B64, "local", 1, 1) for login, _ in logins],
        )
        execute_values(
            cursor,
            "INSERT INTO user_access_servers_current (login, slot, server_login, url) VALUES %s",
            [(u, i + 1, s, f"wss://{s}/ws") for u, ss in logins for i, s in enumerate(ss)],
        )

    def _feed(self, runs: Sequence[Run], again: bool) -> None:
        """Sessions of one run go to different processes. The second time each step comes once, from
        a client where a client may bring it."""
        lines: List[List[str]] = [[] for _ in DRIVERS]
        origin: List[List[Tuple[Run, int]]] = [[] for _ in DRIVERS]
        for i, run in enumerate(runs):
            sessions = [list(range(len(run.steps)))] if again else run.sessions
            for j, session in enumerate(sessions):
                d = (i + j) % len(DRIVERS)
                for n in session:
                    op = run.ops[n]
                    source = op.source or "-"
                    if again and n % 2 == 0 and op.kind != "incoming":
                        source = "client"
                    blobs = " ".join(base64.b64encode(b).decode() for b in op.blobs)
                    lines[d].append(f"{run.prefix} {j} {op.kind} {source} {blobs}\n")
                    origin[d].append((run, n))
        for output, of in zip(self._drive(lines), origin):
            self._hear(output, of, again)

    def _drive(self, lines: List[List[str]]) -> List[str]:
        started = []
        for (batch, at_a_time), text in zip(DRIVERS, lines):
            stdin = tempfile.TemporaryFile("w+")
            stdin.writelines(text)
            stdin.seek(0)
            stdout, stderr = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
            command = [self.driver, self.conninfo, generator.ME, f"p{batch}", batch, at_a_time]
            process = subprocess.Popen(
                [str(c) for c in command], stdin=stdin, stdout=stdout, stderr=stderr
            )
            started.append((process, stdin, stdout, stderr))
        outputs = []
        for process, stdin, stdout, stderr in started:
            status = process.wait()
            for f in (stdout, stderr):
                f.seek(0)
            complaint = stderr.read()
            # A batch that failed and went well item by item shows in the log only.
            if status not in (0, 1) or complaint:
                raise RuntimeError(f"driver ended with {status}:\n{complaint[:2000]}")
            outputs.append(stdout.read())
            for f in (stdin, stdout, stderr):
                f.close()
        return outputs

    def _hear(self, output: str, origin: List[Tuple[Run, int]], again: bool) -> None:
        """Check the verdicts."""
        answers = output.splitlines()
        if len(answers) != len(origin):
            raise RuntimeError(f"{len(origin)} steps, {len(answers)} answers")
        for answer in answers:
            line, verdict, state = answer.split()
            run, n = origin[int(line)]
            expected = run.expected
            want = expected.verdicts[n]
            if again and expected.gone[n] and n % 2 == 0:
                want = "deleted"
            if verdict != want:
                run.problems.append(f"step {n}: verdict {verdict}, expected {want}")
            elif again and verdict == "ok" and state != "-":
                want = self._state(run, n, expected)
                if state != want:
                    run.problems.append(f"step {n} again: state {state}, expected {want}")

    @staticmethod
    def _state(run: Run, n: int, expected: model.Expected) -> str:
        c = model.dm.parse(run.ops[n].blobs[-1])
        row = expected.deliveries.get((c.from_, c.message_key()))
        return row.state if row else "accepted"

    # -- reading ---------------------------------------------------------------------------------

    TABLES = {
        "signed_messages": "owner_login",
        "dm_delivery_state": "from_login",
        "dm_sync_outbox": "owner_login",
        "conversations": "owner_login",
        "read_marks": "owner_login",
        "message_tombstones": "owner_login",
        "conversation_tombstones": "owner_login",
        "user_event_heads": "owner_login",
        "user_events": "owner_login",
    }

    def _read(self, mark: str) -> Dict[str, Dict[str, List[Dict[str, Any]]]]:
        """Rows of this round by prefix and table."""
        cursor = self.db.cursor()
        found = defaultdict(lambda: {table: [] for table in self.TABLES})
        for table, owner in self.TABLES.items():
            cursor.execute(
                f"SELECT * FROM {table} WHERE {owner} >= %s AND {owner} < %s",
                (mark, mark[:-1] + chr(ord(mark[-1]) + 1)),
            )
            columns = [c.name for c in cursor.description]
            for values in cursor.fetchall():
                plain = (bytes(v) if isinstance(v, memoryview) else v for v in values)
                row = dict(zip(columns, plain))
                found[row[owner][:-1]][table].append(row)
        return found


# -- failures ------------------------------------------------------------------------------------


def minimise(harness: Harness, run: Run) -> Run:
    """Drop steps while it still goes wrong; the smallest run found, with its problems."""
    best = run
    one = run.smaller(run.steps, [sum(run.sessions, [])])
    best = next(iter(harness.check([one])), best)
    while True:
        smaller = harness.check(_smaller(best))
        if not smaller:
            return best
        best = min(smaller, key=_size)


def _size(run: Run) -> Tuple[int, int]:
    return len(run.steps), sum(map(len, run.sessions))


def _smaller(run: Run) -> List[Run]:
    """The run without one step, or without one repetition."""
    out = []
    for drop in range(len(run.steps)):
        left = [[n - (n > drop) for n in s if n != drop] for s in run.sessions]
        steps = run.steps[:drop] + run.steps[drop + 1 :]
        out.append(run.smaller(steps, left))
    for i, session in enumerate(run.sessions):
        for j, n in enumerate(session):
            if sum(s.count(n) for s in run.sessions) > 1:
                left = run.sessions[:i] + [session[:j] + session[j + 1 :]] + run.sessions[i + 1 :]
                out.append(run.smaller(run.steps, left))
    return [r for r in out if r.steps]


def report(s: generator.Set, run: Run, smallest: Run) -> str:
    lines = [f"set {s.number} of seed {s.seed}, {run.name}:"]
    lines += [f"    {p}" for p in run.problems[:8]]
    lines += ["  smallest run that goes wrong:"]
    lines += [f"    {u} is served by {', '.join(v)}" for u, v in smallest.servers.items()]
    lines += [f"    later {u} is served by {', '.join(v)}" for u, v in smallest.moved.items()]
    lines += [f"    {n}: {generator.describe(step)}" for n, step in enumerate(smallest.steps)]
    lines += [f"    session {i}: steps {s}" for i, s in enumerate(smallest.sessions)]
    lines += [f"    -> {p}" for p in smallest.problems]
    lines += [f"  again: tests/property/run.py --seed {s.seed} --only {s.number}"]
    return "\n".join(lines)

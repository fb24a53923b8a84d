#!/usr/bin/python3
"""`make bench`: how fast, and where the time goes.

Real daemons built with -O2, real TLS, a private PostgreSQL with synchronous_commit=on and fsync, all on this
machine together with the generator. Everything compared is measured in this one run. Prints a report
and writes build/bench/results.json; docs/performance.md explains the figures.

    bench.py [--docs]      --docs: also put them into docs/performance.md

BENCH_SECONDS (10) bounds each load; BENCH_PAIRS (60000) bounds the messages signed for it. BENCH_SET adds
configuration keys to the servers: BENCH_SET="db.maxBatch=50 frontd.workers=1".
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy" / "demo"))

import claims  # noqa: E402
import plain  # noqa: E402
import report  # noqa: E402
from lab import Authority, Postgres, Server  # noqa: E402

BIN = ROOT / "build" / "bin"
TOOLS = ROOT / "build" / "bench"
SECONDS = int(os.environ.get("BENCH_SECONDS", "10"))
PAIRS = int(os.environ.get("BENCH_PAIRS", "60000"))
SETTINGS = dict(item.split("=", 1) for item in os.environ.get("BENCH_SET", "").split())
CONNECTIONS, IN_FLIGHT = 64, 8
IDLE_SESSIONS, IDLE_USERS = 5000, 100
CLAIM_ROWS = 40000
TICK = os.sysconf("SC_CLK_TCK")
FOUND = ROOT / "build" / "bench" / "results.json"


def cpu_seconds(root: int) -> float:
    """CPU of a process and all its descendants, the ended ones that were waited for included."""
    children: Dict[int, List[int]] = {}
    used: Dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        pid = int(entry.name)
        children.setdefault(int(fields[1]), []).append(pid)
        used[pid] = sum(int(fields[i]) for i in (11, 12, 13, 14)) / TICK
    total, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        total += used.get(pid, 0.0)
        waiting += children.get(pid, [])
    return total


def descendants(root: int) -> List[int]:
    """Processes below `root`, without it."""
    found: List[int] = []
    try:
        below = (Path("/proc") / str(root) / "task" / str(root) / "children").read_text().split()
    except OSError:
        return found
    for pid in map(int, below):
        found += [pid, *descendants(pid)]
    return found


def memory_bytes(root: int) -> int:
    """Memory of the processes below `root`: what they hold alone, and their share of what they share."""
    total = 0
    for pid in descendants(root):
        for line in (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def output(*argv: Any) -> str:
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench: {argv[0]} failed: {done.stderr.strip()}")
    return done.stdout


def bench_users(count: int) -> List[List[str]]:
    return [line.split() for line in output(TOOLS / "bench_load", "users", count).splitlines()]


def load(servers: List[Server], postgres: Postgres, *args: Any) -> Dict[str, Any]:
    """One load against servers[0]; CPU per pair of each server's frontd and of PostgreSQL. Signing and logging in
    lie before the generator's "start"."""
    roots = [s.frontd.pid for s in servers] + [postgres.process.pid]
    argv = [TOOLS / "bench_load", "run", "--url", servers[0].url, "--ca", servers[0].cafile, "--seconds", SECONDS, *args]
    seen: List[List[float]] = []
    figures: Dict[str, Any] = {}
    with subprocess.Popen(list(map(str, argv)), stdout=subprocess.PIPE, text=True) as generator:
        for line in generator.stdout:
            if line.startswith("{"):
                figures = json.loads(line)
            else:  # "start", "stop"
                seen.append([cpu_seconds(root) for root in roots])
    if generator.returncode or len(seen) != 2:
        sys.exit("bench: the generator failed")
    cost = [(b - a) * 1e6 / figures["pairs"] for a, b in zip(*seen)]
    figures["frontd_us"] = cost[:-1]
    figures["postgres_us"] = cost[-1]
    return figures


def local(servers: List[Server], postgres: Postgres) -> Dict[str, Any]:
    alpha = servers[0]
    for login, key in bench_users(CONNECTIONS):
        alpha.add_user(login, key, [("alpha", alpha.url)])
    return load(
        [alpha], postgres, "--users", CONNECTIONS, "--in-flight", IN_FLIGHT, "--max-pairs", PAIRS
    )


def federated(servers: List[Server], postgres: Postgres) -> List[Dict[str, Any]]:
    """bench0@alpha writes to far0@beta: one request at a time, which is the whole way there and back, and 64."""
    alpha, beta = servers
    sender, recipient = bench_users(2)
    for server in servers:
        for login, key, home in ((sender[0], sender[1], alpha), ("far0", recipient[1], beta)):
            server.add_user(login, key, [(home.login, home.url)])
    common = ("--users", 1, "--to-prefix", "far", "--max-pairs", 40000)
    return [load(servers, postgres, "--in-flight", n, *common) for n in (1, 64)]


def idle(server: Server) -> Dict[str, Any]:
    """What a logged-in session that does nothing costs its frontd."""
    for login, key in bench_users(IDLE_USERS):
        server.add_user(login, key, [(server.login, server.url)])
    before = memory_bytes(server.frontd.pid)
    argv = [TOOLS / "bench_idle", "--url", server.url, "--ca", server.cafile]
    argv += ["--users", IDLE_USERS, "--per-user", IDLE_SESSIONS // IDLE_USERS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(list(map(str, argv)), text=True, **pipes) as devices:
        ready = devices.stdout.readline().strip()
        # What served the handshakes is given back within seconds: the least is what they cost.
        after = min(memory_bytes(server.frontd.pid) for _ in range(20) if not time.sleep(0.25))
        kept, _ = devices.communicate()
    if (ready, kept.strip()) != ("ready", "kept"):
        sys.exit("bench: the idle sessions did not last")
    return {
        "sessions": IDLE_SESSIONS,
        "bytes_per_session": (after - before) / IDLE_SESSIONS,
        "frontd_bytes": after,
    }


def sql_cost() -> List[Dict[str, Any]]:
    script = Path(__file__).with_name("sql_cost.py")
    return json.loads(output(sys.executable, script, "--json", "--pairs", 2000))["results"]


def measure() -> Dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="shine-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        settings = ["shared_buffers=512MB", "max_wal_size=4GB", "synchronous_commit=on"]
        postgres = Postgres(directory / "pg", durable=True, settings=settings).start()
        servers: List[Server] = []
        try:
            authority = Authority(directory)
            for login in ("alpha", "beta"):
                keys = {"log.level": "warn", "limits.connectionsPerAddress": 20000, **SETTINGS}
                servers.append(Server(login, directory / login, postgres, authority, BIN, keys).prepare())
            postgres.create_database("plain", "alpha")
            for server in servers:
                server.start()
            for server in servers:
                server.ready()
            parts = json.loads(output(TOOLS / "bench_parts"))
            far, far_64 = federated(servers, postgres)
            near = local(servers, postgres)
            # In a frontd that has done nothing else: freed memory would be used again and hide the cost.
            servers[1].stop()
            quiet = idle(servers[1].start().ready())
            for server in servers:
                server.stop()
            pgbench = plain.measure(postgres, "plain", directory, max(1, SECONDS * 2 // 5))
            claim = claims.measure(postgres, authority, directory, BIN, TOOLS, CLAIM_ROWS)
        finally:
            for server in servers:
                server.stop()
            postgres.stop()
    costs = sql_cost()
    rows = next(c["plain_us"] for c in costs if c["size"] == 50)
    server_us = near["frontd_us"][0] + near["postgres_us"]
    return {
        "local": {
            "pairs_per_s": near["pairs_per_s"],
            "p50_ms": near["p50_ms"],
            "p99_ms": near["p99_ms"],
            "ratio_to_pgbench_1": near["pairs_per_s"] / pgbench["per_s_1"],
            "ratio_to_pgbench_50": near["pairs_per_s"] / pgbench["per_s_50"],
            "cpu_us_per_pair": server_us,
            "cpu_ratio": server_us / (parts["verify"] + rows),
            "frontd_us_per_pair": near["frontd_us"][0],
            "postgres_us_per_pair": near["postgres_us"],
            "generator_us_per_pair": near["cpu_us_per_pair"],
            "two_checks_us": parts["verify"],
            "plain_rows_us": rows,
        },
        "frontd_parts_us": {**parts, "rest": near["frontd_us"][0] - sum(parts.values())},
        "federated": {
            "per_s_1": far["pairs_per_s"],
            "per_s_64": far_64["pairs_per_s"],
            "p50_ms_64": far_64["p50_ms"],
            "p99_ms_64": far_64["p99_ms"],
            "alpha_us_per_pair_64": far_64["frontd_us"][0],
            "beta_us_per_pair_64": far_64["frontd_us"][1],
            "postgres_us_per_pair_64": far_64["postgres_us"],
            "p50_ms": far["p50_ms"],
            "p99_ms": far["p99_ms"],
            "delivered": far["delivered"] + far_64["delivered"],
            "pairs": far["pairs"] + far_64["pairs"],
            "alpha_us_per_pair": far["frontd_us"][0],
            "beta_us_per_pair": far["frontd_us"][1],
            "postgres_us_per_pair": far["postgres_us"],
        },
        "idle": quiet,
        "claim": claim,
        "pgbench": pgbench,
        "sql": costs,
    }


def main() -> None:
    results = measure()
    FOUND.parent.mkdir(parents=True, exist_ok=True)
    FOUND.write_text(json.dumps(results, indent=1) + "\n")
    print(report.text(results))
    print(f"written to {FOUND.relative_to(ROOT)}")
    if "--docs" in sys.argv[1:]:
        report.write_docs(results, ROOT / "docs" / "performance.md")
    lost = results["federated"]["pairs"] - results["federated"]["delivered"]
    if lost:
        sys.exit(f"bench: {lost} federated pairs were not delivered")


if __name__ == "__main__":
    main()

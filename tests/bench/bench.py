#!/usr/bin/python3
"""`make bench`: how fast, and where the time goes.

Real daemons built with -O2, real TLS, a private PostgreSQL with synchronous_commit=on and fsync, all on this
machine together with the generator. Everything compared is measured in this one run. Prints a report
and writes build/bench/results.json.

BENCH_SECONDS (10) bounds each load; BENCH_PAIRS (60000) bounds the messages signed for it.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy" / "demo"))

from lab import Authority, Postgres, Server  # noqa: E402

BIN = ROOT / "build" / "bin"
GENERATOR = ROOT / "build" / "bench" / "bench_load"
SECONDS = int(os.environ.get("BENCH_SECONDS", "10"))
PAIRS = int(os.environ.get("BENCH_PAIRS", "60000"))
CONNECTIONS, IN_FLIGHT = 64, 8
TICK = os.sysconf("SC_CLK_TCK")


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


def generate(*args: Any) -> Dict[str, Any]:
    done = subprocess.run(
        [str(GENERATOR), *map(str, args)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"bench: the generator failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def bench_users(count: int) -> List[List[str]]:
    done = subprocess.run([str(GENERATOR), "users", str(count)], capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def load(servers: List[Server], postgres: Postgres, *args: Any) -> Dict[str, Any]:
    """One load against servers[0]; CPU per pair of each server's frontd and of PostgreSQL. The generator's signing
    lies before its clock, and costs the servers nothing."""
    before = [cpu_seconds(s.frontd.pid) for s in servers] + [cpu_seconds(postgres.process.pid)]
    figures = generate(
        "run", "--url", servers[0].url, "--ca", servers[0].cafile, "--seconds", SECONDS, *args
    )
    after = [cpu_seconds(s.frontd.pid) for s in servers] + [cpu_seconds(postgres.process.pid)]
    cost = [(b - a) * 1e6 / figures["pairs"] for a, b in zip(before, after)]
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


def federated(servers: List[Server], postgres: Postgres) -> Dict[str, Any]:
    """bench0@alpha writes to far0@beta, one request at a time: the whole way there and back."""
    alpha, beta = servers
    sender, recipient = bench_users(2)
    for server in servers:
        for login, key, home in ((sender[0], sender[1], alpha), ("far0", recipient[1], beta)):
            server.add_user(login, key, [(home.login, home.url)])
    return load(
        servers, postgres, "--users", 1, "--in-flight", 1, "--to-prefix", "far", "--max-pairs", 20000
    )


def report(title: str, names: List[str], figures: Dict[str, Any]) -> None:
    parts = [f"{name} frontd {us:.0f}" for name, us in zip(names, figures["frontd_us"])]
    parts += [f"PostgreSQL {figures['postgres_us']:.0f}", f"generator {figures['cpu_us_per_pair']:.0f}"]
    print(f"{title}: {figures['pairs_per_s']:.0f} pairs/s, p50 {figures['p50_ms']:.1f} ms, p99 {figures['p99_ms']:.1f} ms")
    print(f"    CPU per pair in µs: {', '.join(parts)}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="shine-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        settings = ["shared_buffers=512MB", "max_wal_size=4GB", "synchronous_commit=on"]
        postgres = Postgres(directory / "pg", durable=True, settings=settings).start()
        servers: List[Server] = []
        try:
            authority = Authority(directory)
            for login in ("alpha", "beta"):
                server = Server(login, directory / login, postgres, authority, BIN, {"log.level": "warn"})
                servers.append(server.prepare().start())
            for server in servers:
                server.ready()
            checks = generate("verify")["two_checks_us"]
            far = federated(servers, postgres)
            near = local(servers, postgres)
        finally:
            for server in servers:
                server.stop()
            postgres.stop()
    print(f"two Ed25519 checks: {checks:.0f} µs")
    report(f"local, {CONNECTIONS} connections × {IN_FLIGHT} in flight", ["alpha"], near)
    report("alpha → beta, one in flight", ["alpha", "beta"], far)
    results = {
        "local": {
            "pairs_per_s": near["pairs_per_s"],
            "p50_ms": near["p50_ms"],
            "p99_ms": near["p99_ms"],
            "cpu_us_per_pair": near["frontd_us"][0] + near["postgres_us"],
            "frontd_us_per_pair": near["frontd_us"][0],
            "postgres_us_per_pair": near["postgres_us"],
            "generator_us_per_pair": near["cpu_us_per_pair"],
            "two_checks_us": checks,
        },
        "federated": {
            "per_s_1": far["pairs_per_s"],
            "p50_ms": far["p50_ms"],
            "p99_ms": far["p99_ms"],
            "delivered": far["delivered"],
            "pairs": far["pairs"],
            "alpha_us_per_pair": far["frontd_us"][0],
            "beta_us_per_pair": far["frontd_us"][1],
            "postgres_us_per_pair": far["postgres_us"],
        },
    }
    target = ROOT / "build" / "bench" / "results.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {target.relative_to(ROOT)}")
    if far["delivered"] != far["pairs"]:
        sys.exit(f"bench: {far['pairs'] - far['delivered']} federated pairs were not delivered")


if __name__ == "__main__":
    main()

"""What bench.py measured, for people: on the terminal, and between two marks in docs/performance.md."""

import os
import platform
from pathlib import Path
from typing import Any, Dict, List

BEGIN, END = "<!-- measured: written by tests/bench/bench.py --docs -->", "<!-- end of measured -->"

PARTS = {
    "verify": "two Ed25519 checks",
    "hash": "two SHA-256",
    "read": "reading the request: JSON, Base64, two containers",
    "write": "writing the answer and two events: JSON, Base64",
    "rest": "everything else: TLS, sockets, loop, protocol of the database",
}


def federated(far: Dict[str, Any], n: str) -> List[List[str]]:
    cpu = (far[f"{where}_us_per_pair{n}"] for where in ("alpha", "beta", "postgres"))
    return [
        ["latency p50 / p99, ms", f"{far[f'p50_ms{n}']:.1f} / {far[f'p99_ms{n}']:.1f}"],
        ["CPU alpha / beta / PostgreSQL per pair, µs", " / ".join(f"{us:.0f}" for us in cpu)],
    ]


def lines(results: Dict[str, Any]) -> List[List[str]]:
    """Rows of (what, how much)."""
    near, far, pgbench = results["local"], results["federated"], results["pgbench"]
    idle, claim = results["idle"], results["claim"]
    return [
        ["local pairs per second", f"{near['pairs_per_s']:.0f}"],
        ["latency p50 / p99, ms", f"{near['p50_ms']:.0f} / {near['p99_ms']:.0f}"],
        ["pgbench, one pair in a transaction, pairs/s", f"{pgbench['per_s_1']:.0f} ({pgbench['clients_1']} clients)"],
        [
            "pgbench, 50 pairs in a transaction, pairs/s",
            f"{pgbench['per_s_50']:.0f} ({pgbench['way_50']}, {pgbench['clients_50']} clients)",
        ],
        ["our rate / pgbench with one", f"{near['ratio_to_pgbench_1']:.2f}"],
        ["our rate / pgbench with 50", f"{near['ratio_to_pgbench_50']:.2f}"],
        ["CPU of frontd per pair, µs", f"{near['frontd_us_per_pair']:.0f}"],
        ["CPU of PostgreSQL per pair, µs", f"{near['postgres_us_per_pair']:.0f}"],
        ["CPU of the generator per pair, µs", f"{near['generator_us_per_pair']:.0f}"],
        ["floor: two checks + plain rows, µs", f"{near['two_checks_us']:.0f} + {near['plain_rows_us']:.0f}"],
        ["our CPU / floor", f"{near['cpu_ratio']:.2f}"],
        ["alpha → beta, one in flight, per second", f"{far['per_s_1']:.0f}"],
        *federated(far, ""),
        ["alpha → beta, 64 in flight, per second", f"{far['per_s_64']:.0f}"],
        *federated(far, "_64"),
        ["deliveryd and a null peer, rows per second", f"{claim['rows_per_s']:.0f}"],
        [
            "with 1 / 2 / 4 / 8 processes",
            " / ".join(f"{claim['by_processes'][n]:.0f}" for n in ("1", "2", "4", "8")),
        ],
        ["pgbench with the same two functions, rows/s", f"{claim['pgbench_per_s']:.0f}"],
        ["our rate / pgbench", f"{claim['ratio_to_pgbench']:.2f}"],
        [f"memory of frontd per idle session ({idle['sessions']} of them), bytes", f"{idle['bytes_per_session']:.0f}"],
    ]


def text(results: Dict[str, Any]) -> str:
    out = [f"{what:46} {value}" for what, value in lines(results)]
    out += ["", "CPU of frontd per pair, µs:"]
    out += [f"{PARTS[name]:66} {us:6.1f}" for name, us in results["frontd_parts_us"].items()]
    out += ["", "CPU of the PostgreSQL backend per pair, µs, by pairs in a call:"]
    for cost in results["sql"]:
        out.append(
            f"{cost['size']:4}: accept_pairs {cost['accept_us']:6.1f}, plain INSERT {cost['plain_us']:6.1f},"
            f" ratio {cost['ratio']:.2f}"
        )
    return "\n".join(out)


def table(head: List[str], rows: List[List[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def write_docs(results: Dict[str, Any], path: Path) -> None:
    parts = [[PARTS[name], f"{us:.1f}"] for name, us in results["frontd_parts_us"].items()]
    sql = [[str(c["size"]), f"{c['accept_us']:.0f}", f"{c['plain_us']:.0f}", f"{c['ratio']:.2f}"] for c in results["sql"]]
    measured = [
        f"{os.cpu_count()} cores, {platform.machine()}, shared by generator, daemons and PostgreSQL.",
        table(["measured", ""], lines(results)),
        table(["CPU of frontd per pair", "µs"], parts),
        table(["pairs in a call", "accept_pairs, µs a pair", "plain INSERT, µs a pair", "ratio"], sql),
    ]
    before, rest = path.read_text().split(BEGIN)
    after = rest.split(END)[1]
    path.write_text("\n\n".join([before + BEGIN, *measured, END]) + after)

"""deliveryd against a null peer: rows claimed, carried and recorded with their events, per second; beside it pgbench
calling the same two SQL functions with the same batch on two connections, without any call between them.
"""

import re
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List

from lab import Authority, Postgres, Server, environment

AUTHORS, BATCH = 5000, 200
BLOB_BYTES = 376  # a container of bench_load

USERS = """
    INSERT INTO users SELECT u || i, 'key', NULL, NULL, 'local', 0, 0
      FROM generate_series(1, {authors}) i, unnest('{{from,to}}'::text[]) u ON CONFLICT DO NOTHING;
    INSERT INTO user_access_servers_current
    SELECT 'from' || i, 1, 'alpha', 'wss://127.0.0.1/ws' FROM generate_series(1, {authors}) i
    UNION ALL SELECT 'to' || i, 1, 'null', 'ws://127.0.0.1:{port}/ws' FROM generate_series(1, {authors}) i
    ON CONFLICT DO NOTHING;
    INSERT INTO user_event_heads (owner_login) SELECT 'from' || i FROM generate_series(1, {authors}) i
    ON CONFLICT DO NOTHING"""
ROWS = """
    TRUNCATE signed_messages, dm_delivery_state, user_events;
    UPDATE user_event_heads SET last_pts = 0;
    INSERT INTO signed_messages (owner_login, message_key, base_key, from_login, to_login, message_type, courier,
        time_ms, nonce, revision_time_ms, reencrypted_at_ms, created_at_ms, stored_at_ms, digest, blob)
    SELECT 'to' || u, base || '|1', base, 'from' || u, 'to' || u, 1, true, i, 7, 0, 0, 0, 0, '',
           decode(repeat('5a', {bytes}), 'hex')
    FROM generate_series(1, {count}) i, LATERAL (SELECT 1 + i %% {authors} AS u) a,
         LATERAL (SELECT 'from' || u || '|to' || u || '|' || i || '|7' AS base) b;
    INSERT INTO dm_delivery_state (from_login, outgoing_key, base_key, incoming_key, to_login, revision_time_ms,
        reencrypted_at_ms, state, attempt_no, accepted_at_ms, next_attempt_at_ms, route_hint, updated_at_ms)
    SELECT from_login, base_key || '|2', base_key, message_key, to_login, 0, 0, 'accepted', 2, now_ms() - 30000 - time_ms %% 1000,
           now_ms() - time_ms %% 1000, 'null', 0 FROM signed_messages ORDER BY time_ms;
    VACUUM ANALYZE""".replace("%%", "%")
SCRIPT = """
WITH c AS MATERIALIZED (SELECT * FROM claim_due('alpha', 'bench' || :client_id, {batch}, 8000000, 45000, '{{}}')
                        WHERE from_login IS NOT NULL)
SELECT count(*) FROM (SELECT array_agg(from_login) f, array_agg(outgoing_key) k, array_agg(revision_time_ms) r,
    array_agg(reencrypted_at_ms) e, array_agg(row_version) v, count(*)::integer n FROM c HAVING count(*) > 0) a,
    finish_attempts('alpha', 'bench' || :client_id, f, k, r, e, v, array_fill(1, ARRAY[n]),
        array_fill('null'::text, ARRAY[n]), array_fill(''::text, ARRAY[n]), array_fill(0::bigint, ARRAY[n]));
"""


def fill(server: Server, count: int) -> None:
    for statement in ROWS.format(bytes=BLOB_BYTES, count=count, authors=AUTHORS).split(";"):
        server.rows(statement)
    server.rows("CHECKPOINT")


def left(server: Server) -> int:
    (row,) = server.rows("SELECT count(*) AS n FROM dm_delivery_state WHERE state = 'accepted'")
    return row["n"]


def daemons(server: Server, count: int, processes: int) -> float:
    """Rows per second from the first delivery to the last."""
    fill(server, count)
    for _ in range(processes):
        server.deliveryds.append(server.spawn("deliveryd"))
    while left(server) > count * 19 // 20:
        time.sleep(0.01)
    began, at_first = time.monotonic(), left(server)
    while True:
        now = left(server)
        if now < count // 20:
            break
        time.sleep(0.05)
    rate = (at_first - now) / (time.monotonic() - began)
    while server.deliveryds:
        if not server.stop_deliveryd(server.deliveryds[0]):
            raise SystemExit("bench: a deliveryd did not stop in order")
    return rate


def pgbench(server: Server, directory: Path, count: int) -> float:
    fill(server, count)
    script = directory / "claims.sql"
    script.write_text(SCRIPT.format(batch=BATCH).replace("\n", " ").strip() + "\n")
    transactions = count // BATCH // 2
    program = "/usr/lib/postgresql/15/bin/pgbench"
    done = subprocess.run(
        [program, "-n", "-M", "prepared", "-c", "2", "-j", "2", "-t", str(transactions), "-f", script, server.conninfo],
        capture_output=True, text=True, check=False, env={**environment(), "PGOPTIONS": "-c jit=off"},  # as the daemons do
    )  # fmt: skip
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    if done.returncode or not found or left(server) > 2 * BATCH:
        raise SystemExit(f"pgbench of claims: {done.stdout}{done.stderr}")
    return float(found[1]) * BATCH


def measure(
    postgres: Postgres, authority: Authority, directory: Path, bin_dir: Path, tools: Path, count: int
) -> Dict[str, Any]:
    null = subprocess.Popen(
        [tools / "bench_claim", "null"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert null.stdout is not None
        port = int(null.stdout.readline())
        settings = {"server.SHiNE.login": "alpha", "log.level": "warn"}
        server = Server("claims", directory / "claims", postgres, authority, bin_dir, settings).prepare()
        for statement in USERS.format(authors=AUTHORS, port=port).split(";"):
            server.rows(statement)
        plain = pgbench(server, directory, count)
        rates: List[float] = [daemons(server, count, n) for n in (1, 2, 4, 8)]
        server.forget_connection()
    finally:
        null.communicate("")
    return {
        "rows_per_s": rates[0],
        "ratio_to_pgbench": rates[0] / plain,
        "pgbench_per_s": plain,
        "by_processes": dict(zip(("1", "2", "4", "8"), rates)),
    }

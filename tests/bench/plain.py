"""The measure beside which our rates are put: pgbench writes the rows that one local pair makes (two copies, a
delivery row, two events, both heads moved) into the same cluster, with prepared statements in a pipeline.

Each of its clients writes for two users of its own, so that none waits for another's row lock: the best that plain
PostgreSQL can do, without a server in front that has to put owners in order.
"""

import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

CLIENTS = (8, 32, 64)
PER_TRANSACTION = 50
BLOB_BYTES = 376  # a container of bench_load
NOW = 1_700_000_000_000

COPY = (
    "INSERT INTO signed_messages (owner_login, message_key, base_key, from_login, to_login, message_type, courier,"
    " time_ms, nonce, revision_time_ms, reencrypted_at_ms, created_at_ms, stored_at_ms, digest, blob) "
)
STATE = (
    "INSERT INTO dm_delivery_state (from_login, outgoing_key, base_key, incoming_key, to_login, revision_time_ms,"
    " reencrypted_at_ms, state, attempt_no, accepted_at_ms, route_hint, delivered_via, updated_at_ms) "
)
EVENT = "INSERT INTO user_events (owner_login, pts, kind, message_key, created_at_ms) "
HEADS = "UPDATE user_event_heads SET last_pts = :pts WHERE owner_login IN ('bench' || :f, 'bench' || :t);"
BASE = f"'bench' || :f || '|bench' || :t || '|{NOW}|'"


def rows(number: str, source: str) -> str:
    """The statements of one pair, or of many: `number` is its nonce and position, `source` where numbers come from."""
    base = f"{BASE} || {number}"
    incoming, outgoing = f"{base} || '|1'", f"{base} || '|2'"

    def copy(owner: str, key: str, kind: int) -> str:
        return (
            f"SELECT 'bench' || {owner}, {key}, {base}, 'bench' || :f, 'bench' || :t, {kind}, false, {NOW},"
            f" {number}::bigint, 0, 0, {NOW}, {NOW}, :sha::bytea, :blob::bytea{source}"
        )

    def event(owner: str, key: str) -> str:
        return f"SELECT 'bench' || {owner}, {number}::bigint, 1, {key}, {NOW}{source}"

    return "\n".join(
        [
            f"{COPY}{copy(':t', incoming, 1)} UNION ALL {copy(':f', outgoing, 2)};",
            f"{STATE}SELECT 'bench' || :f, {outgoing}, {base}, {incoming}, 'bench' || :t, 0, 0, 'delivered', 1, {NOW},"
            f" 'alpha', 'alpha', {NOW}{source};",
            f"{EVENT}{event(':t', incoming)} UNION ALL {event(':f', outgoing)};",
        ]
    )


NEXT = "\\set pts :pts + 1"
USERS = "\\set f 2 * :client_id\n\\set t 2 * :client_id + 1"
PAIR = rows(":pts", "")


def script(kind: str) -> str:
    if kind == "single":
        body = f"{USERS}\n{NEXT}\n\\startpipeline\n{PAIR}\n{HEADS}\n\\endpipeline\n"
    elif kind == "row by row":
        body = f"{USERS}\n\\startpipeline\n" + f"{NEXT}\n{PAIR}\n" * PER_TRANSACTION + f"{HEADS}\n\\endpipeline\n"
    else:
        source = f" FROM generate_series(:pts - {PER_TRANSACTION - 1}, :pts) n"
        body = f"{USERS}\n\\set pts :pts + {PER_TRANSACTION}\n\\startpipeline\n{rows('n', source)}\n{HEADS}\n\\endpipeline\n"
    return body


def run(postgres: Any, database: str, directory: Path, kind: str, clients: int, seconds: int) -> float:
    """Pairs per second."""
    postgres.sql("TRUNCATE signed_messages, dm_delivery_state, user_events, user_event_heads", database)
    postgres.sql("INSERT INTO user_event_heads (owner_login) SELECT 'bench' || i FROM generate_series(0, 127) i", database)
    path = directory / "plain.sql"
    path.write_text(script(kind))
    argv = [str(postgres.bin / "pgbench"), "-n", "-M", "prepared", "-h", str(postgres.directory), "-U", "postgres"]
    argv += ["-c", str(clients), "-j", "2", "-T", str(seconds), "-f", str(path), "-D", "pts=0"]
    argv += ["-D", f"blob=\\x{secrets.token_hex(BLOB_BYTES)}", "-D", f"sha=\\x{secrets.token_hex(32)}", database]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    # On a busy machine many clients may not get through with preparing: no rate then.
    found = re.search(r"tps = ([0-9.]+)", done.stdout) or [0, 0]
    if done.returncode or "failed transactions: 0 " not in done.stdout:
        sys.exit(f"bench: pgbench failed: {done.stdout} {done.stderr.strip()[:2000]}")
    return float(found[1]) * (1 if kind == "single" else PER_TRANSACTION)


def measure(postgres: Any, database: str, directory: Path, seconds: int) -> Dict[str, Any]:
    """The best of several numbers of clients: one pair in a transaction, and PER_TRANSACTION in it."""
    rates = {
        (kind, clients): run(postgres, database, directory, kind, clients, seconds)
        for kind in ("single", "row by row", "set")
        for clients in CLIENTS
    }
    one = max((k for k in rates if k[0] == "single"), key=lambda k: rates[k])
    many = max((k for k in rates if k[0] != "single"), key=lambda k: rates[k])
    return {
        "per_s_1": rates[one],
        "clients_1": one[1],
        "per_s_50": rates[many],
        "clients_50": many[1],
        "way_50": many[0],
        "all": {f"{kind}, {clients} clients": round(rate) for (kind, clients), rate in rates.items()},
    }

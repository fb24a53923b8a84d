"""Delivery rows and outbox items under everything that touches them at once.

Claims, results of all kinds, results that come twice or late, rows given back, operators' releases, edits and deletions
by several connections: nobody gets a row that another holds, no deadlock, and in the end each message that still exists
has one final state and its author one event about it.
"""

import collections
import contextlib
import random
import threading
import time

import pytest
from test_sql_concurrency import ACCEPT, TOMBSTONES, blob, in_threads, logs_are_gapless, pairs, sha, tombstones
from test_sql_concurrency import cluster, dbname  # noqa: F401 (fixtures)

CLAIM = (
    "SELECT from_login, outgoing_key, revision_time_ms, row_version FROM"
    " claim_due('home', %s, %s, 1000000, %s, %s::text[]) WHERE from_login IS NOT NULL"
)
RESULT = (
    "SELECT recorded, state FROM finish_attempts('home', %s, %s::text[], %s::text[], %s::bigint[], %s::bigint[],"
    "%s::bigint[], %s::integer[], %s::text[], %s::text[], %s::bigint[], '{0,1,2,3,4}') ORDER BY ord"
)
PUSHES = (
    "SELECT owner_login, primary_key, sync_id, row_version FROM"
    " claim_pushes('home', %s, %s, 1000000, %s, '{}') WHERE owner_login IS NOT NULL"
)
PUSHED = "SELECT recorded FROM finish_pushes(%s, %s::text[], %s::text[], %s::text[], %s::bigint[], %s::integer[], %s::bigint[])"


@contextlib.contextmanager
def session(cluster, dbname):  # noqa: F811
    """A cursor whose every statement is a transaction: `with connection` of psycopg2 would make all of them one. Without
    JIT, as daemons work: it would compile for a second what runs for a millisecond."""
    with contextlib.closing(cluster.connect(dbname)) as db, db.cursor() as cur:
        cur.execute("SET deadlock_timeout = '100ms'; SET jit = off")
        yield cur


MESSAGES = [(f, t, k) for k in range(1, 17) for f in "abcd" for t in "xy"]


def results(process, rows, outcomes):
    n = len(rows)
    return [process, [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows], [0] * n,
            [r[3] for r in rows], outcomes, ["far"] * n, [""] * n, [0] * n]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_one_end_for_each_row(cluster, dbname, seed):  # noqa: F811
    """Leases are a few milliseconds long for some, so that many run out under their holders."""
    with session(cluster, dbname) as cur:
        cur.execute(ACCEPT, pairs(MESSAGES))
        cur.execute("UPDATE dm_delivery_state SET lease_owner = NULL, lease_until_ms = NULL, next_attempt_at_ms = now_ms()")
    deadline = time.monotonic() + 60
    lock = threading.Lock()
    versions = collections.Counter()  # of a row: each is given to one claim
    told = collections.Counter()  # results that made a row final
    late = []  # results that are reported once more

    def left(cur):
        cur.execute("SELECT count(*) FROM dm_delivery_state WHERE state = 'accepted'")
        return cur.fetchone()[0]

    def worker(i):
        r = random.Random(seed * 100 + i)
        with session(cluster, dbname) as cur:
            while left(cur) and time.monotonic() < deadline:
                me = f"w{i}.{r.randrange(2)}"
                cur.execute(CLAIM, (me, r.randint(1, 20), r.choice([2, 45000, 45000]), r.choice([[], ["nobody"]])))
                rows = cur.fetchall()
                with lock:
                    versions.update((row[1], row[3]) for row in rows)
                r.shuffle(rows)
                what = r.random()
                if what < 0.1:
                    cur.execute("SELECT release_claims(%s, 60000)", (me,))
                elif what < 0.2:
                    cur.execute("SELECT unregister_process(%s)", (me,))
                elif rows:
                    batch = results(me, rows, [r.choice([1, 2, 2, 3]) for _ in rows])
                    with lock:
                        late.append(batch)
                        again = r.choice(late)
                    for b in (batch, again):
                        cur.execute(RESULT, b)
                        final = [key for key, (recorded, state) in zip(b[2], cur.fetchall())
                                 if recorded and state in ("delivered", "failed")]  # fmt: skip
                        with lock:
                            told.update(final)

    def deleter(i):
        r = random.Random(seed * 100 + i)
        # Odd numbers are deleted for both by a tombstone that is itself to be delivered.
        todo = [m for m in MESSAGES if m[2] % 4 == 1]
        r.shuffle(todo)
        with session(cluster, dbname) as cur:
            for n in range(0, len(todo), 5):
                cur.execute(TOMBSTONES, tombstones(todo[n:n + 5]))
                cur.execute("SELECT unregister_process('p1')")  # whoever would have made the first attempts

    def operator(i):
        r = random.Random(seed * 100 + i)
        with session(cluster, dbname) as cur:
            while left(cur) and time.monotonic() < deadline:
                f, t, k = r.choice(MESSAGES)
                key = f"{f}|{t}|1000|{k}|2"
                cur.execute("UPDATE dm_delivery_state SET claims = 10 WHERE outgoing_key = %s AND lease_until_ms > 0", (key,))
                cur.execute("SELECT release_delivery(%s, %s)", (f, key))
                # Short leases run out ten times in a row, too.
                cur.execute("SELECT from_login, outgoing_key FROM v_delivery_stuck")
                for stuck in cur.fetchall():
                    cur.execute("SELECT release_delivery(%s, %s)", stuck)

    in_threads(lambda i: (worker, worker, worker, deleter, operator)[i](i), 5)
    with session(cluster, dbname) as cur:
        cur.execute("UPDATE dm_delivery_state SET claims = 0 WHERE state = 'accepted'")
        cur.execute("SELECT row_to_json(d), now_ms() FROM dm_delivery_state d WHERE state = 'accepted'")
        assert cur.fetchall() == [], "some rows have no end"
        assert max(versions.values()) == 1, "a version was given to two claims"
        assert max(told.values()) == 1, "a row ended twice"
        assert logs_are_gapless(cur)
        cur.execute("SELECT message_key, count(*) FROM user_events WHERE kind = 2 GROUP BY 1")
        events = dict(cur.fetchall())
        assert set(events.values()) == {1}
        assert set(events) == {k for k in told if k.endswith("|2")}
        cur.execute("SELECT outgoing_key, state, lease_owner, next_attempt_at_ms FROM dm_delivery_state")
        rows = cur.fetchall()
        assert all(lease is None and due is None for _, _, lease, due in rows)
        texts = {key for key, *_ in rows if key.endswith("|2")}
        assert texts == {f"{f}|{t}|1000|{k}|2" for f, t, k in MESSAGES if k % 4 != 1}
        assert texts <= set(events)
        assert {state for _, state, *_ in rows} == {"delivered", "failed"}


def edits(messages, revision):
    p = pairs(messages)
    texts = [f"{side}{b} {revision}" for b in p[2] for side in ("in ", "out ")]
    p[6] = [revision] * 2 * len(messages)
    p[8], p[9] = [sha(t) for t in texts], [blob(t) for t in texts]
    return p


def test_results_and_pushes_of_the_same_rows(cluster, dbname):  # noqa: F811
    """An edit makes rows wait for their first attempt again while a push of the old bytes is under way: results of
    attempts and of pushes then want the same outbox rows, in batches of any order."""
    messages = MESSAGES[:60]
    with session(cluster, dbname) as cur:
        cur.execute(ACCEPT, pairs(messages))
    stop = threading.Event()

    def editor(i):
        r = random.Random(i)
        with session(cluster, dbname) as cur:
            for revision in range(2000, 2040):
                some = r.sample(messages, 20)
                cur.execute(ACCEPT, edits(some, revision))
                cur.execute("SELECT release_claims('p1', 60000)")  # the first attempts, for the others
        stop.set()

    def attempts(i):
        r = random.Random(i)
        with session(cluster, dbname) as cur:
            while not stop.is_set():
                cur.execute(CLAIM, (f"w{i}", 20, 45000, []))
                if rows := cur.fetchall():
                    r.shuffle(rows)
                    cur.execute(RESULT, results(f"w{i}", rows, [r.choice([1, 2]) for _ in rows]))

    def pushes(i):
        r = random.Random(i)
        with session(cluster, dbname) as cur:
            held = []
            while not stop.is_set():
                cur.execute(PUSHES, (f"w{i}", 20, 45000))
                held = (held + cur.fetchall())[-200:]
                if held:
                    rows = r.sample(held, min(len(held), 20))
                    cur.execute(PUSHED, (f"w{i}", *([x[c] for x in rows] for c in range(4)),
                                         [r.choice([1, 2, 3]) for _ in rows], [0] * len(rows)))  # fmt: skip

    try:
        in_threads(lambda i: (editor, attempts, attempts, pushes, pushes)[i](i), 5)
    finally:
        stop.set()
    with session(cluster, dbname) as cur:
        assert logs_are_gapless(cur)
        cur.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert cur.fetchone()[0] == 0
        cur.execute("SELECT count(*) FROM dm_sync_outbox WHERE synced AND push_due_at_ms IS NOT NULL")
        assert cur.fetchone()[0] == 0

"""The lock order of the SQL functions, with several connections at once.

Batches that touch the same owners in every order, new owners, tombstones, results and changes of
servers among them: no deadlock, no gap in anybody's event log, one insert for one message, and a reader that polls
while a transaction is held open misses nothing.
"""

import hashlib
import random
import threading
import time
from pathlib import Path

import psycopg2
import pytest
from support import pg

ROOT = Path(__file__).resolve().parents[2]
ACCEPT = (
    "SELECT ord, verdict, state, from_pts, to_pts, attempt, row_version FROM accept_pairs('home', 'p1',"
    "%s::text[], %s::text[], %s::text[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[],"
    "%s::bigint[], %s::bytea[], %s::bytea[], %s::boolean[], %s::text[], %s::bigint[], %s::text[]) ORDER BY ord"
)
INCOMING = (
    "SELECT ord, verdict, to_pts FROM apply_incoming('home', 'p1', %s::text[], %s::text[], %s::text[],"
    "%s::integer[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[], %s::bytea[],"
    "%s::text[]) ORDER BY ord"
)
TOMBSTONES = (
    "SELECT ord, verdict FROM apply_tombstones('home', 'p1', %s::text[], %s::text[], %s::text[], %s::integer[],"
    "%s::bigint[], %s::bigint[], %s::bytea[], %s::bytea[], %s::boolean[], %s::bigint[], %s::bigint[],"
    "%s::bigint[], %s::boolean[], %s::text[], %s::bigint[], %s::text[])"
)
FINISH = (
    "SELECT recorded, state FROM finish_attempts('home', 'p1', %s::text[], %s::text[], %s::bigint[],"
    "%s::bigint[], %s::bigint[], %s::integer[], %s::text[], %s::text[], %s::bigint[]) ORDER BY ord"
)


@pytest.fixture(scope="module")
def cluster():
    with pg.Cluster() as c:
        yield c


@pytest.fixture
def dbname(cluster):
    conninfo = cluster.create_database()
    name = pg.dbname_of(conninfo)
    with cluster.connect(name) as db, db.cursor() as cur:
        for kind in ("migrations", "functions", "views"):
            for path in sorted((ROOT / "sql" / kind).glob("*.sql")):
                cur.execute(path.read_text())
        for login in "abcdef":
            cur.execute("SELECT add_user('home', %s, 'k', NULL, NULL, 'local', '{home,other}',"
                        "'{wss://home/,wss://other/}')", (login,))  # fmt: skip
        for login in "xy":
            cur.execute("SELECT add_user('home', %s, 'k', NULL, NULL, 'partner', '{far}', '{wss://far/}')",
                        (login,))  # fmt: skip
    yield name
    cluster.drop_database(name)


def blob(text):
    return psycopg2.Binary(text.encode())


def sha(text):
    return psycopg2.Binary(hashlib.sha256(text.encode()).digest())


def pairs(messages):
    """Parameters of ACCEPT for messages (from, to, nonce)."""
    n = len(messages)
    base = [f"{f}|{t}|1000|{k}" for f, t, k in messages]
    texts = [side + b for b in base for side in ("in ", "out ")]
    return [
        [m[0] for m in messages], [m[1] for m in messages], base, [1] * n, [1000] * n,
        [m[2] for m in messages], [0] * 2 * n, [0] * 2 * n, [sha(t) for t in texts],
        [blob(t) for t in texts], [False] * n, [None] * n, [900000] * n, [None] * n,
    ]  # fmt: skip


def incoming(messages):
    n = len(messages)
    base = [f"{f}|{t}|1000|{k}" for f, t, k in messages]
    texts = ["in " + b for b in base]
    return [
        [m[0] for m in messages], [m[1] for m in messages], base, [1] * n, [1000] * n,
        [m[2] for m in messages], [0] * n, [0] * n, [sha(t) for t in texts], [blob(t) for t in texts],
        [None] * n,
    ]  # fmt: skip


def tombstones(messages):
    """Parameters of TOMBSTONES that delete messages (from, to, nonce): odd ones for both, by their author."""
    n = len(messages)
    base = [f"{f}|{t}|2000|{k}" for f, t, k in messages]
    return [
        [m[0] for m in messages], [m[1] for m in messages], base, [6 - m[2] % 2 for m in messages],
        [2000] * n, [m[2] for m in messages], [sha(b) for b in base], [blob(b) for b in base], [False] * n,
        [1000] * n, [m[2] for m in messages], [0] * n, [False] * n, [None] * n, [900000] * n, [None] * n,
    ]  # fmt: skip


def logs_are_gapless(cur):
    cur.execute("SELECT h.owner_login, h.last_pts, count(e.pts), coalesce(max(e.pts), 0) FROM user_event_heads h "
                "LEFT JOIN user_events e USING (owner_login) GROUP BY 1, 2")  # fmt: skip
    return all(last == n == top for _, last, n, top in cur.fetchall())


def in_threads(work, n):
    """Run work(i) in n threads; errors of any of them are raised here."""
    errors = []

    def guarded(i):
        try:
            work(i)
        except Exception as e:  # re-raised below
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(90)
        assert not t.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


PULLED = ACCEPT.replace(") ORDER BY ord", ", p_history => true) ORDER BY ord")
PULLED_INCOMING = INCOMING.replace(") ORDER BY ord", ", p_history => true) ORDER BY ord")
PAGE = "SELECT sync_id FROM sync_page('home', 'other', true, %s, 0, '', 50, 100000, %s::text[])"
SETTINGS_PAGE = (
    "SELECT sync_id FROM sync_settings_page('home', 'other', true, %s, 0, '', 50, 100000, %s::text[])"
)
SETTINGS = (
    "SELECT verdict FROM put_settings('home', 'p1', %s::text[], %s::text[], %s::text[], %s::bigint[],"
    "%s::bytea[], %s::text[], %s::bigint[], 1000)"
)


def test_everything_of_replication_at_once(cluster, dbname):
    """Sends, pushes and pages of the second server, acknowledgements, settings and marks, for the same
    few users and messages in every order: no deadlock, and nothing is acknowledged that was not read."""

    def brought(parameters, source, server_at):
        parameters[server_at:server_at + 2] = [[True] * len(parameters[0]), source * len(parameters[0])]
        return parameters

    def work(i):
        rng = random.Random(100 + i)
        db = cluster.connect(dbname)
        cur = db.cursor()
        cur.execute("SET deadlock_timeout = '100ms'")
        for r in range(25):
            batch = [(rng.choice("abc"), rng.choice("abcx"), rng.randrange(30)) for _ in range(12)]
            got = [(t, f, k) for f, t, k in batch if t != "x"]
            owner = rng.choice("abc")
            if i == 0:
                cur.execute(ACCEPT, pairs(batch))
            elif i == 1:
                cur.execute(PULLED, brought(pairs(batch), ["other"], 10))
                cur.execute("SELECT * FROM tell_history('home', 'p1', %s)", (list("abc"),))
            elif i == 2:
                cur.execute(ACCEPT, brought(pairs(batch), ["other"], 10))
                cur.execute(PULLED_INCOMING, incoming(got)[:10] + [["other"] * len(got)])
            elif i == 3:
                for page in (PAGE, SETTINGS_PAGE):
                    cur.execute(page, (owner, []))
                    ids = [row[0] for row in cur.fetchall() if row[0]]
                    rng.shuffle(ids)
                    cur.execute(page, (owner, ids))
            elif i == 4:
                n = 8
                names = [f"s{rng.randrange(10)}" for _ in range(n)]
                cur.execute(SETTINGS, ([rng.choice("abc") for _ in range(n)], names, names,
                                       [rng.randrange(3) for _ in range(n)], [blob("sig")] * n,
                                       [rng.choice(["other", None]) for _ in range(n)], [900000] * n))  # fmt: skip
            elif r % 3 == 0:
                cur.execute("SELECT * FROM mark_unsynced('home', %s)", (owner,))
                cur.execute("SELECT * FROM claim_turns('home', 'p1', '{}', 5, 1000)")
                cur.execute("SELECT finish_turn('p1', %s, 'other', 0, '', 0, true)", (owner,))
            else:
                cur.execute(TOMBSTONES, tombstones(batch[:3]))
        db.close()

    in_threads(work, 6)
    with cluster.connect(dbname) as db, db.cursor() as cur:
        assert logs_are_gapless(cur)
        cur.execute("SELECT count(*) FROM dm_sync_outbox o WHERE NOT EXISTS (SELECT FROM signed_messages m"
                    " WHERE m.owner_login = o.owner_login AND m.message_key = o.primary_message_key)")  # fmt: skip
        assert cur.fetchone()[0] == 0


def test_batches_in_every_order_do_not_deadlock(cluster, dbname):
    rounds, size, workers = 15, 12, 4
    with cluster.connect(dbname) as db, db.cursor() as cur:
        cur.execute("DELETE FROM user_event_heads WHERE owner_login IN ('a', 'c', 'e')")

    def work(i):
        rng = random.Random(i)
        db = cluster.connect(dbname)
        cur = db.cursor()
        cur.execute("SET deadlock_timeout = '100ms'")
        for r in range(rounds):
            batch = [(rng.choice("abcdef"), rng.choice("abcdefxy"), rng.randrange(40)) for _ in range(size)]
            if i % 4 == 3 and r % 3 == 2:
                cur.execute("SELECT set_user_servers('home', %s, %s, %s)",
                            (rng.choice("abcdef"), ["home", rng.choice(["other", "third"])], ["wss://h/", "wss://o/"]))  # fmt: skip
            elif i % 2 == 1 and r % 3 == 0:
                cur.execute(TOMBSTONES, tombstones(batch[:4]))
            elif i % 4 == 2 and r % 3 == 1:
                cur.execute(INCOMING, incoming([(f, t if t < "x" else "a", k) for f, t, k in batch]))
            else:
                cur.execute(ACCEPT, pairs(batch))
                todo = [(m, row[6]) for m, row in zip(batch, cur.fetchall()) if row[5]]
                rng.shuffle(todo)
                if todo:
                    n = len(todo)
                    cur.execute(FINISH, [[m[0] for m, _ in todo], [f"{m[0]}|{m[1]}|1000|{m[2]}|2" for m, _ in todo],
                                         [0] * n, [0] * n, [v for _, v in todo], [rng.choice([1, 2, 3]) for _ in todo],
                                         ["far"] * n, ["e"] * n, [0] * n])  # fmt: skip
        db.close()

    in_threads(work, workers)
    with cluster.connect(dbname) as db, db.cursor() as cur:
        assert logs_are_gapless(cur)
        cur.execute("SELECT count(*) FROM signed_messages")
        assert cur.fetchone()[0] > 100
        cur.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert cur.fetchone()[0] == 0


def test_one_message_sent_twice_at_once_is_stored_once(cluster, dbname):
    barrier = threading.Barrier(4)
    answers = []

    def work(_):
        db = cluster.connect(dbname)
        cur = db.cursor()
        for k in range(20):
            barrier.wait(30)
            cur.execute(ACCEPT, pairs([("a", "x", k), ("a", "b", k)]))
            answers.extend(cur.fetchall())
        db.close()

    in_threads(work, 4)
    assert sum(1 for a in answers if a[5]) == 20  # one attempt each
    assert sum(1 for a in answers if a[3] > 0) == 40  # one event of the author each
    assert all(a[1] == 0 for a in answers)
    with cluster.connect(dbname) as db, db.cursor() as cur:
        assert logs_are_gapless(cur)
        cur.execute("SELECT count(*) FROM signed_messages")
        assert cur.fetchone()[0] == 80


def test_reader_misses_nothing_while_a_transaction_is_held_open(cluster, dbname):
    first, second, reader = (cluster.connect(dbname) for _ in range(3))
    first.autocommit = False
    cur = first.cursor()
    cur.execute(ACCEPT, pairs([("a", "b", 1)]))
    assert cur.fetchone()[3] == 1  # position 1 is taken, not committed

    done = threading.Event()

    def later():
        with second.cursor() as c:
            c.execute(ACCEPT, pairs([("a", "c", 2)]))
        done.set()

    t = threading.Thread(target=later)
    t.start()
    seen = []

    def poll():
        with reader.cursor() as c:
            c.execute("SELECT pts FROM events_since('{a}', %s::bigint[], 100, 100000) ORDER BY pts",
                      ([seen[-1] if seen else 0],))  # fmt: skip
            seen.extend(row[0] for row in c.fetchall())

    # The second writer is really waiting for the first one's head.
    deadline = time.monotonic() + 30
    waiting = 0
    while not waiting and time.monotonic() < deadline:
        with reader.cursor() as c:
            c.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s",
                      (second.info.backend_pid,))  # fmt: skip
            waiting = c.fetchone()[0]
        poll()
    assert waiting and not done.is_set()
    assert seen == []  # not 2 before 1
    first.commit()
    t.join(30)
    assert done.is_set()
    poll()
    assert seen == [1, 2]
    for db in (first, second, reader):
        db.close()


def test_a_change_of_servers_waits_for_writers_and_is_seen_by_the_next(cluster, dbname):
    """An outbox row is never missed: who is served is read under the same lock that a change takes."""
    writer, changer = cluster.connect(dbname), cluster.connect(dbname)
    with changer.cursor() as c:
        c.execute("SELECT set_user_servers('home', 'a', '{home}', '{wss://home/}')")
    changer.autocommit = False
    with changer.cursor() as c:
        c.execute("SELECT set_user_servers('home', 'a', '{home,other}', '{wss://home/,wss://other/}')")

    def work():
        with writer.cursor() as c:
            c.execute(ACCEPT, pairs([("a", "b", 1)]))

    t = threading.Thread(target=work)
    t.start()
    watch = cluster.connect(dbname)
    deadline = time.monotonic() + 30
    waiting = 0
    while not waiting and time.monotonic() < deadline:
        with watch.cursor() as c:
            c.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s",
                      (writer.info.backend_pid,))  # fmt: skip
            waiting = c.fetchone()[0]
    assert waiting
    changer.commit()
    t.join(30)
    with watch.cursor() as c:
        c.execute("SELECT count(*) FROM dm_sync_outbox WHERE owner_login = 'a'")
        assert c.fetchone()[0] == 1
    for db in (writer, changer, watch):
        db.close()


def test_profiles_beside_writers_do_not_deadlock_and_the_newest_holds(cluster, dbname):
    """Users come, go and come back, by profiles sent to us and in other servers' records."""
    publish = (
        "SELECT verdict FROM publish_profile('home', %s, 'k', NULL, NULL, %s, %s, %s, %s, %s, NULL)"
    )
    learn = (
        "SELECT verdict FROM import_record('home', %s, 'k', NULL, NULL, 'partner', 'far',"
        " %s, %s, %s, %s, %s, NULL, NULL)"
    )
    sent = []

    def work(i):
        rng = random.Random(i)
        db = cluster.connect(dbname)
        cur = db.cursor()
        cur.execute("SET deadlock_timeout = '100ms'")
        for r in range(25):
            for _ in range(4):
                login, time_ms = rng.choice("abcdefxy"), rng.randrange(30)
                servers = rng.choice((["home"], ["home", "other"], ["far"], ["far", "home"]))
                signature = bytes([rng.randrange(256) for _ in range(64)])
                record = f"{time_ms} {signature.hex()}"
                sent.append((login, time_ms, signature, record, servers))
                urls = [f"wss://{s}/" for s in servers]
                values = (login, servers, urls, time_ms, psycopg2.Binary(signature), record)
                cur.execute(rng.choice((publish, learn)), values)
            batch = [(rng.choice("abcdef"), rng.choice("abcdefxy"), 1000 * i + r) for _ in range(6)]
            cur.execute(ACCEPT, pairs(list(dict.fromkeys(batch))))
        db.close()

    in_threads(work, 4)
    with cluster.connect(dbname) as db, db.cursor() as cur:
        cur.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert cur.fetchone()[0] == 0
        assert logs_are_gapless(cur)
        for login in "abcdefxy":
            newest = max(s for s in sent if s[0] == login)
            cur.execute(
                "SELECT record, (SELECT array_agg(server_login::text ORDER BY slot)"
                " FROM user_access_servers_current a WHERE a.login = p.login)"
                " FROM user_profiles p WHERE login = %s",
                (login,),
            )
            assert cur.fetchone() == (newest[3], newest[4])

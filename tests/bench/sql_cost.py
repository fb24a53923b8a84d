#!/usr/bin/python3
"""CPU time that the PostgreSQL backend spends per accepted pair, by the number of pairs in a call.

Beside it, as the measure of what is possible at all: the same rows written by plain multi-row INSERTs (two
copies, a delivery row, two events and two new conversations per pair), prepared and with binary parameters, in one transaction.

    tests/bench/sql_cost.py [--pairs N] [--body BYTES] [--sizes 1,10,50,200] [--kind local|far] [--json]

Runs a private PostgreSQL without fsync: what is measured is the CPU of the statements, not the disk.
"""
import argparse
import ctypes
import ctypes.util
import glob
import hashlib
import json
import os
import random
import struct
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from support import pg  # noqa: E402

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "autovacuum": "off", "jit": "off",
            "synchronous_commit": "on", "full_page_writes": "on"}
ME = "home"
NOW = 1_700_000_000_000
OID = {"bool": (16, 1000), "bytea": (17, 1001), "int8": (20, 1016), "int4": (23, 1007), "int2": (21, 1005),
       "text": (25, 1009)}


# --- libpq with binary parameters: psycopg2 would paste text, whose parsing costs more than the work ---

class Libpq:
    def __init__(self, conninfo):
        self.lib = ctypes.CDLL(ctypes.util.find_library("pq") or "libpq.so.5")
        for name, result in (("PQconnectdb", ctypes.c_void_p), ("PQexec", ctypes.c_void_p),
                             ("PQprepare", ctypes.c_void_p), ("PQexecPrepared", ctypes.c_void_p),
                             ("PQresultErrorMessage", ctypes.c_char_p), ("PQgetvalue", ctypes.c_char_p),
                             ("PQerrorMessage", ctypes.c_char_p)):
            getattr(self.lib, name).restype = result
        self.conn = ctypes.c_void_p(self.lib.PQconnectdb(conninfo.encode()))
        if self.lib.PQstatus(self.conn) != 0:
            sys.exit(self.lib.PQerrorMessage(self.conn).decode())

    def _done(self, res):
        res = ctypes.c_void_p(res)
        if self.lib.PQresultStatus(res) not in (1, 2):
            sys.exit(self.lib.PQresultErrorMessage(res).decode())
        value = None
        if self.lib.PQntuples(res) > 0 and self.lib.PQnfields(res) > 0:
            value = self.lib.PQgetvalue(res, 0, 0)
        self.lib.PQclear(res)
        return value

    def run(self, sql):
        return self._done(self.lib.PQexec(self.conn, sql.encode()))

    def prepare(self, name, sql, oids):
        array = (ctypes.c_uint * len(oids))(*oids)
        self._done(self.lib.PQprepare(self.conn, name.encode(), sql.encode(), len(oids), array))

    def call(self, name, params):
        n = len(params)
        values = (ctypes.c_char_p * n)(*params)
        lengths = (ctypes.c_int * n)(*[len(p or b"") for p in params])
        formats = (ctypes.c_int * n)(*[1] * n)
        self._done(self.lib.PQexecPrepared(self.conn, name.encode(), n, values, lengths, formats, 1))


def scalar(kind, v):
    if v is None:
        return None
    if kind == "bool":
        return b"\1" if v else b"\0"
    if kind == "text":
        return v.encode()
    if kind == "bytea":
        return v
    return v.to_bytes(int(kind[3:]), "big", signed=True)


def array(kind, values):
    out = [struct.pack(">iiIii", 1, 1, OID[kind][0], len(values), 1)]
    for v in values:
        b = scalar(kind, v)
        out.append(struct.pack(">i", -1) if b is None else struct.pack(">i", len(b)) + b)
    return b"".join(out)


# --- the two ways of writing pairs ---

ACCEPT = [("text", 0), ("text", 0), ("text", 1), ("text", 1), ("text", 1), ("int4", 1), ("int8", 1), ("int8", 1),
          ("int8", 1), ("int8", 1), ("bytea", 1), ("bytea", 1), ("bool", 1), ("text", 1), ("int8", 1), ("text", 1)]


def accept_params(pairs):
    one, two = [], []
    for p in pairs:
        one.append((p["from"], p["to"], p["base"], 1, NOW, p["nonce"]))
        two += [(0, 0, p["sha"], p["blob"])] * 2
    cols = [list(c) for c in zip(*one)] + [list(c) for c in zip(*two)]
    n = len(pairs)
    cols += [[False] * n, [None] * n, [900000] * n, [None] * n]
    return [scalar("text", ME), scalar("text", "p1")] + [array(k, c) for (k, _), c in zip(ACCEPT[2:], cols)]


TABLES = {
    "signed_messages": ("owner_login text,message_key text,base_key text,from_login text,to_login text,"
                        "message_type int2,courier bool,time_ms int8,nonce int8,revision_time_ms int8,"
                        "reencrypted_at_ms int8,created_at_ms int8,stored_at_ms int8,digest bytea,blob bytea"),
    "dm_delivery_state": ("from_login text,outgoing_key text,base_key text,incoming_key text,to_login text,"
                          "revision_time_ms int8,reencrypted_at_ms int8,state text,attempt_no int2,"
                          "accepted_at_ms int8,next_attempt_at_ms int8,route_hint text,lease_owner text,"
                          "lease_until_ms int8,delivered_via text,updated_at_ms int8"),
    "user_events": "owner_login text,pts int8,kind int2,message_key text,created_at_ms int8",
    "conversations": "owner_login text,with_login text,last_message_key text,last_time_ms int8,unread_count int4",
}


def plain_rows(pairs, far, pts):
    """`pts`: the last position of each owner, and which conversations exist."""
    rows = {t: [] for t in TABLES}
    for p in pairs:
        for typ, owner in ((1, p["to"]), (2, p["from"])):
            key = "%s|%d" % (p["base"], typ)
            courier = far and typ == 1
            rows["signed_messages"].append((owner, key, p["base"], p["from"], p["to"], typ, courier, NOW,
                                            p["nonce"], 0, 0, NOW, NOW, p["sha"], p["blob"]))
            if not courier:
                pts[owner] = pts.get(owner, 0) + 1
                rows["user_events"].append((owner, pts[owner], 1, key, NOW))
                other = p["from"] if typ == 1 else p["to"]
                if (owner, other) not in pts:
                    pts[owner, other] = True
                    rows["conversations"].append((owner, other, key, NOW, 2 - typ))
        wait = (NOW + 30000, "far", "p1", NOW + 30000, None) if far else (None, ME, None, None, ME)
        rows["dm_delivery_state"].append((p["from"], p["base"] + "|2", p["base"], p["base"] + "|1", p["to"], 0, 0,
                                          "accepted" if far else "delivered", 1, NOW, *wait, NOW))
    return rows


def plain_prepare(db, table, n):
    kinds = [c.split()[1] for c in TABLES[table].split(",")]
    names = ",".join(c.split()[0] for c in TABLES[table].split(","))
    marks = ",".join("(%s)" % ",".join("$%d" % (r * len(kinds) + c + 1) for c in range(len(kinds))) for r in range(n))
    name = "%s_%d" % (table, n)
    db.prepare(name, "INSERT INTO %s (%s) VALUES %s" % (table, names, marks), [OID[k][0] for k in kinds] * n)
    return name, kinds


class Bench:
    def __init__(self, conninfo, args):
        self.args = args
        self.far = args.kind == "far"
        self.db = Libpq(conninfo)
        self.pid = int(self.db.run("SELECT pg_backend_pid()"))
        self.nonce = 0
        self.prepared = set()

    def cpu_ns(self):
        with open("/proc/%d/schedstat" % self.pid, encoding="ascii") as f:
            return int(f.read().split()[0])

    def fresh(self):
        self.db.run("DROP SCHEMA public CASCADE; CREATE SCHEMA public; DEALLOCATE ALL; SET client_min_messages=warning")
        self.prepared.clear()
        for kind in ("migrations", "functions", "views"):
            for path in sorted(glob.glob(os.path.join(ROOT, "sql", kind, "*.sql"))):
                with open(path, encoding="utf-8") as f:
                    self.db.run(f.read())
        self.db.run("SELECT add_user('home', 'u' || i, 'key', NULL, NULL, 'local', '{home}', '{wss://home/ws}'), "
                    "add_user('home', 'f' || i, 'key', NULL, NULL, 'partner', '{far}', '{wss://far/ws}') "
                    "FROM generate_series(1, 1000) i")
        self.db.run("INSERT INTO processes VALUES ('p1', 'frontd', 'h', 1, now_ms(), now_ms() + 100000000)")
        self.db.run("INSERT INTO active_sessions (session_id, login, session_key, storage_pwd, event_mode, "
                    "connected_to, created_at_ms, seen_at_ms) SELECT 's' || i, 'u' || i, '', '', 'pts', 'p1', 0, 0 "
                    "FROM generate_series(1, 1000) i")
        self.db.prepare("accept", "SELECT * FROM accept_pairs(%s)" % ",".join("$%d" % (i + 1) for i in range(16)),
                        [OID[k][a] for k, a in ACCEPT])

    def pairs(self, n):
        out = []
        for _ in range(n):
            self.nonce += 1
            a, b = random.sample(range(1, 1001), 2)
            frm, to = "u%d" % a, ("f%d" if self.far else "u%d") % b
            blob = os.urandom(self.args.body + 120)
            out.append({"from": frm, "to": to, "nonce": self.nonce, "blob": blob,
                        "sha": hashlib.sha256(blob).digest(), "base": "%s|%s|%d|%d" % (frm, to, NOW, self.nonce)})
        return out

    def accept(self, size):
        calls = [accept_params(self.pairs(size)) for _ in range(max(1, self.args.pairs // size))]
        for params in calls[: len(calls) // 5]:
            self.db.call("accept", params)
        rest = calls[len(calls) // 5:]
        start = self.cpu_ns()
        for params in rest:
            self.db.call("accept", params)
        return (self.cpu_ns() - start) / 1000 / (len(rest) * size)

    def plain(self, size):
        pts, calls = {}, []
        for _ in range(max(1, self.args.pairs // size)):
            steps = []
            for table, rows in plain_rows(self.pairs(size), self.far, pts).items():
                if not rows:
                    continue
                name, kinds = "%s_%d" % (table, len(rows)), [c.split()[1] for c in TABLES[table].split(",")]
                if name not in self.prepared:
                    plain_prepare(self.db, table, len(rows))
                    self.prepared.add(name)
                steps.append((name, [scalar(k, v) for row in rows for k, v in zip(kinds, row)]))
            calls.append(steps)
        total = 0
        for i, steps in enumerate(calls):
            if i == len(calls) // 5:
                total = self.cpu_ns()
            self.db.run("BEGIN")
            for name, params in steps:
                self.db.call(name, params)
            self.db.run("COMMIT")
        return (self.cpu_ns() - total) / 1000 / ((len(calls) - len(calls) // 5) * size)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--pairs", type=int, default=4000)
    ap.add_argument("--body", type=int, default=300)
    ap.add_argument("--sizes", default="1,10,50,200")
    ap.add_argument("--kind", choices=("local", "far"), default="local")
    ap.add_argument("--json", action="store_true")
    args = ap.parse_args()
    random.seed(1)
    results = []
    with pg.Cluster(settings=SETTINGS) as cluster:
        bench = Bench(cluster.conninfo(), args)
        for size in (int(s) for s in args.sizes.split(",")):
            bench.fresh()
            accept = bench.accept(size)
            bench.fresh()
            plain = bench.plain(size)
            results.append({"size": size, "accept_us": round(accept, 1), "plain_us": round(plain, 1),
                            "ratio": round(accept / plain, 2)})
            if not args.json:
                print("%4d per call: accept_pairs %6.1f us a pair, plain INSERT %6.1f us, ratio %.2f"
                      % (size, accept, plain, accept / plain), flush=True)
    if args.json:
        print(json.dumps({"kind": args.kind, "results": results}))


if __name__ == "__main__":
    main()

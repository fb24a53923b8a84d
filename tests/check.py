#!/usr/bin/python3
"""`make check`: build with gcc and with clang + sanitizers, then run every test there is.

Kinds, each present if its folder holds tests:
    unit         tests/unit/test_*.c          cmocka programs, clang + sanitizers
    sql          tests/sql/*.sql              pgTAP, each file in a fresh database
    property     tests/property/test_*.py     pytest
    integration  tests/integration/test_*.py  pytest, against the sanitizer build

Two jobs run at a time. The last line is `N passed, N failed`, counting test cases. What failed without
being a case (a crash, a sanitizer report, a missing plan, a kind that ran nothing) counts as one
failure each. Logs are in build/check.

    tests/check.py [KIND ...] [-k PYTEST_EXPRESSION] [--no-build]
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
BIN = BUILD / "san" / "bin"
LOGS = BUILD / "check"
KINDS = ("unit", "sql", "property", "integration")
UNIT_SECONDS, SQL_SECONDS, PYTEST_SECONDS = 120, 300, 2400

sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True
import tap  # noqa: E402


class Tally:
    """Results of all jobs; jobs report from several threads."""

    def __init__(self):
        self.passed, self.skipped = 0, 0
        self.failures = []  # (name, details)
        self.ran = dict.fromkeys(KINDS, 0)
        self._lock = threading.Lock()
        self._start = time.monotonic()

    def add(self, kind, name, passed, failures, skipped=0):
        with self._lock:
            self.passed += passed
            self.skipped += skipped
            self.failures += failures
            self.ran[kind] += passed + len(failures)
            verdict = f"{len(failures)} FAILED" if failures else "ok"
            elapsed = time.monotonic() - self._start
            print(f"  [{elapsed:5.0f} s] {kind} {name}: {passed} passed, {verdict}", flush=True)


def run(command, seconds, log, **options):
    """Run with a time limit, output to the file `log`. Returns (exit status or None, output)."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [str(c) for c in command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True, **options,
        )  # fmt: skip
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.returncode is None:  # the whole session: also what the test started
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return status, log.read_text(errors="replace")


def environment(reports=None):
    """The environment of tests. Sanitizer reports go to files `reports`.PID, or to stderr."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "SHINE_"))
           or k == "SHINE_PROPERTY_SETS"}
    where = f":log_path={reports}" if reports else ""
    env["ASAN_OPTIONS"] = "detect_leaks=1:abort_on_error=0:strict_string_checks=1" + where
    env["UBSAN_OPTIONS"] = "print_stacktrace=1:halt_on_error=1" + where
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "docs")])
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env["SHINE_TEST_BIN"] = str(BIN)
    return env


def ended(status):
    """Why a program that ended with `status` did not end well, or None."""
    if status is None:
        return "ran into its time limit"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}" if status else None


# -- the kinds -----------------------------------------------------------------------------------


def run_unit(tally, binary):
    env = environment()
    env["CMOCKA_MESSAGE_OUTPUT"] = "tap"
    status, output = run([binary], UNIT_SECONDS, LOGS / "unit" / f"{binary.name}.log", env=env)
    add_tap(tally, "unit", binary.name, status, output)


def add_tap(tally, kind, name, status, output):
    """Count a program that wrote TAP. Besides its cases it gives at most one failure."""
    passed, skipped, failures, problem = tap.count(output)
    end = ended(status)
    if problem or (end and not failures):  # failed cases are reason enough for a bad status
        failures.append(", ".join(filter(None, (problem, end))))
    elif status is None or status < 0 or "Sanitizer" in output:
        failures.append(end or "sanitizer report")
    tally.add(kind, name, passed, [(f"{name}: {f}", output[-6000:]) for f in failures], skipped)


def run_sql(tally, cluster, template, path):
    name = path.relative_to(ROOT / "tests" / "sql").as_posix()
    log = LOGS / "sql" / f"{name.replace('/', '.')}.log"
    try:
        from support import pg

        conninfo = cluster.create_database(template=template)
        status, output = run(
            ["psql", "-X", "-q", "-A", "-t", "-P", "pager=off", "-v", "ON_ERROR_STOP=1",
             "-f", path, conninfo],
            SQL_SECONDS, log, env=environment() | {"PGTZ": "UTC"},
        )  # fmt: skip
        cluster.drop_database(pg.dbname_of(conninfo))
    except Exception:  # reported as a failure of this file
        tally.add("sql", name, 0, [(name, traceback.format_exc())])
        return
    add_tap(tally, "sql", name, status, output)


def run_pytest(tally, kind, name, paths, expression):
    log = LOGS / kind / f"{name}.log"
    junit = LOGS / kind / f"{name}.xml"
    reports = LOGS / kind / f"{name}.sanitizer"
    command = ["/usr/bin/python3", "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider",
               f"--junit-xml={junit}", *paths]  # fmt: skip
    if expression:
        command += ["-k", expression]
    status, output = run(command, PYTEST_SECONDS, log, env=environment(reports))
    passed, skipped, failures = 0, 0, []
    if junit.exists():
        for case in ElementTree.parse(junit).iter("testcase"):
            bad = [c for c in case if c.tag in ("failure", "error")]
            title = f"{case.get('classname')}.{case.get('name')}"
            if bad:
                failures.append((title, bad[0].text or bad[0].get("message")))
            elif case.find("skipped") is not None:
                skipped += 1
            else:
                passed += 1
    problem = ended(status)
    if problem and not failures and not (status == 5 and expression):
        failures.append((f"{kind} {name}: pytest {problem}", output[-6000:]))
    for report in sorted(reports.parent.glob(f"{reports.name}.*")):
        failures.append((f"{kind} {name}: sanitizer report", report.read_text(errors="replace")))
    tally.add(kind, name, passed, failures, skipped)


# -- order of events -----------------------------------------------------------------------------


def build(tally):
    """Both compilers, warnings are errors. False if something does not build."""
    env = environment()
    for variant in ("gcc", "san"):
        command = ["make", "--no-print-directory", "-k", f"-j{os.cpu_count()}",
                   f"VARIANT={variant}", "all", "unit", "property-bin"]  # fmt: skip
        print(f"  building ({variant})", flush=True)
        status, output = run(command, 3600, LOGS / f"build-{variant}.log", env=env)
        if status != 0:
            tally.failures.append((f"build ({variant})", output[-8000:]))
    return not tally.failures


def sql_template(cluster):
    """The database that the SQL tests copy: the schema as shinectl makes it, and pgTAP."""
    from support import pg

    conninfo = cluster.create_database("shine_template")
    pg.migrate(conninfo, BIN / "shinectl")
    cluster.execute("CREATE EXTENSION pgtap", "shine_template")
    return "shine_template"


def shards(files):
    """Two halves of about the same size in bytes: the best guess at the same time to run."""
    halves = ([], [])
    weights = [0, 0]
    for path in sorted(files, key=lambda p: -p.stat().st_size):
        lighter = weights.index(min(weights))
        halves[lighter].append(path)
        weights[lighter] += path.stat().st_size
    return [sorted(h) for h in halves if h]


def run_kinds(tally, found, expression):
    cluster = None
    with ThreadPoolExecutor(2) as pool:
        try:
            jobs = [pool.submit(run_unit, tally, b) for b in found["unit"]]
            if found["sql"]:
                from support import pg

                try:
                    cluster = pg.Cluster()
                    cluster.start()
                    template = sql_template(cluster)
                    jobs += [pool.submit(run_sql, tally, cluster, template, p)
                             for p in found["sql"]]  # fmt: skip
                except Exception:  # no database, no SQL tests: one failure, the rest goes on
                    tally.add("sql", "set-up", 0, [("sql set-up", traceback.format_exc())])
            for kind in ("integration", "property"):
                for i, shard in enumerate(shards(found[kind])):
                    jobs.append(pool.submit(run_pytest, tally, kind, f"{kind}{i + 1}", shard,
                                            expression))  # fmt: skip
            for job in jobs:
                job.result()
        finally:
            if cluster:
                cluster.stop()


def find():
    return {
        "unit": [BUILD / "san" / "unit" / p.stem for p in sorted(ROOT.glob("tests/unit/test_*.c"))],
        "sql": sorted(ROOT.glob("tests/sql/**/*.sql")),
        "property": sorted(ROOT.glob("tests/property/**/test_*.py")),
        "integration": sorted(ROOT.glob("tests/integration/**/test_*.py")),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=" ".join(KINDS))
    parser.add_argument("-k", dest="expression", help="only these pytest cases")
    parser.add_argument("--no-build", action="store_true")
    options = parser.parse_args()
    if set(options.kinds) - set(KINDS):
        parser.error(f"kinds are: {' '.join(KINDS)}")

    shutil.rmtree(LOGS, ignore_errors=True)
    tally = Tally()
    if options.no_build or build(tally):
        found = find()
        if options.kinds:
            found = {k: v if k in options.kinds else [] for k, v in found.items()}
        run_kinds(tally, found, options.expression)
        for kind, tests in found.items():
            if tests and not tally.ran[kind] and not options.expression:
                tally.failures.append((kind, "this kind has tests, but none ran"))
        if not any(found.values()):
            tally.failures.append(("check", "there are no tests"))

    for name, details in tally.failures:
        print(f"\n--- FAILED {name}\n{details}")
    if tally.skipped:
        print(f"\n{tally.skipped} skipped")
    print(f"{tally.passed} passed, {len(tally.failures)} failed", flush=True)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())

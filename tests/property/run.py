#!/usr/bin/python3
"""The stored result depends only on the set of containers received: random sets, in several orders
and from several sessions at a time, against a reference model. See model.py, sets.py, harness.py.

    tests/property/run.py --sets 10000            a full run (make property)
    tests/property/run.py --seed 1 --only 4711    one set again
"""

import argparse
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent, HERE.parents[1] / "docs"):
    sys.path.insert(0, str(folder))
sys.dont_write_bytecode = True
import harness as h  # noqa: E402
import sets as generator  # noqa: E402
from support import pg  # noqa: E402

AT_A_TIME = 300  # sets that share batches
SHOWN = 3  # failures worked out


def run_sets(harness, chosen, say=lambda text: None):
    """Reports of the sets that went wrong, at most SHOWN of them."""
    reports, wrong = [], 0
    for begin in range(0, len(chosen), AT_A_TIME):
        part = chosen[begin : begin + AT_A_TIME]
        runs, of = [], {}
        for s in part:
            for run in h.variants(s):
                of[id(run)] = s
                runs.append(run)
        failed = harness.check(runs)
        wrong += len(failed)
        first = {of[id(run)].number: run for run in reversed(failed)}
        for run in list(first.values())[: SHOWN - len(reports)]:
            reports.append(h.report(of[id(run)], run, h.minimise(harness, run)))
        say(f"{begin + len(part)} sets, {wrong} runs went wrong")
        if wrong:
            break
    reports += harness.log_errors()[:SHOWN]
    return reports


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--seed", type=int, help="default: from the clock")
    parser.add_argument("--only", type=int, help="the number of one set")
    parser.add_argument("--build", type=Path, default=HERE.parent.parent / "build")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(time.time())
    print(f"seed {seed}", flush=True)
    numbers = range(options.sets) if options.only is None else [options.only]
    chosen = [generator.make(seed, n) for n in numbers]
    begin = time.monotonic()
    with pg.Cluster() as cluster:
        harness = h.Harness(cluster, options.build)
        reports = run_sets(harness, chosen, lambda t: print(t, flush=True))
    for text in reports:
        print(text)
    print(f"{len(chosen)} sets in {time.monotonic() - begin:.0f} s: ", end="")
    print("something went wrong" if reports else "all as expected")
    return 1 if reports else 0


if __name__ == "__main__":
    sys.exit(main())

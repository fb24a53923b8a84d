"""Reading the Test Anything Protocol, as written by cmocka and pgTAP."""

import re

PLAN = re.compile(r"^1\.\.(\d+)")
CASE = re.compile(r"^(not )?ok\b\s*(\d*)\s*(?:-\s*)?([^#]*)(?:#\s*(\w*))?", re.IGNORECASE)


def count(text):
    """(passed, skipped, names of the failed cases, problem or None) of a program's output.

    The problem is a plan that is missing, not kept, or empty. Several plans add up: a program may
    hold several groups. A plan at the end, as pgTAP's no_plan() writes it, counts the same.
    """
    passed = skipped = planned = seen = plans = 0
    failures, problem = [], None
    for line in text.splitlines():
        if match := PLAN.match(line):
            plans += 1
            planned += int(match[1])
        elif line.startswith("Bail out!"):
            problem = line
        elif match := CASE.match(line):
            seen += 1
            directive = (match[4] or "").upper()
            if directive == "SKIP":
                skipped += 1
            elif match[1] and directive != "TODO":
                failures.append(match[3].strip() or f"case {match[2]}")
            elif match[1]:
                skipped += 1
            else:
                passed += 1
    if problem:
        pass
    elif not plans:
        problem = "wrote no plan"
    elif seen != planned:
        problem = f"planned {planned} cases, ran {seen}"
    elif not seen:
        problem = "ran no case"
    return passed, skipped, failures, problem

#!/usr/bin/python3
"""Prove the order of the house from its sources.

  - A layer of common/ includes only itself and layers below it (LAYERS, lowest first).
  - No daemon includes another daemon's files; only tests and deploy/ctl stand beside the daemons. deploy/ctl
    includes common alone (and its own files), unit tests also the modules that they test.
  - Every quoted include names a file that exists.
  - SQL text stands in common/store and common/db only (tests may hold any).
  - Every function prototype in a public header (not internal.h, not tests) is preceded by a comment: its
    contract. What stands together without a blank line shares it.

    layers.py [ROOT]     check a tree
    layers.py --self-test   check that each rule finds its violation
"""

import re
import sys
import tempfile
from pathlib import Path

LAYERS = ["util", "dm", "net", "db", "rpc", "store", "peer", "directory", "delivery", "daemon"]
DAEMONS = ["frontd", "deliveryd", "syncd"]
FOLDERS = ["common", *DAEMONS, "deploy/ctl", "tests"]
SQL_ALLOWED = ("common/store/", "common/db/", "tests/")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
SQL = re.compile(r"^\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\s|^\s*select\s.*\sfrom\s")
TOKEN = re.compile(
    r"""(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<char>'(?:[^'\\\n]|\\.)*')|(?P<string>"(?:[^"\\\n]|\\.)*")""",
    re.DOTALL,
)


def without_comments(text):
    """The text with comments blanked (line breaks stay), string literals kept."""

    def blank(match):
        return re.sub(r"[^\n]", " ", match[0]) if match["comment"] else match[0]

    return TOKEN.sub(blank, text)


def room_of(path):
    """Where a file belongs: "common/util", "frontd", "deploy/ctl", "tests"."""
    parts = path.split("/")
    if parts[0] in ("common", "deploy") and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0]


def may_include(room, other):
    if room == other or (room == "tests" and other in DAEMONS):
        return True
    if not other.startswith("common/") or other.removeprefix("common/") not in LAYERS:
        return False
    if room.startswith("common/"):
        layer = room.removeprefix("common/")
        return LAYERS.index(other.removeprefix("common/")) < LAYERS.index(layer)
    return True


def resolve(root, path, name):
    """The file that `#include "name"` in `path` means, in the compiler's order, or None."""
    for base in ((root / path).parent, root, root / "common"):
        target = (base / name).resolve()
        if target.is_file() and target.is_relative_to(root):
            return target.relative_to(root).as_posix()
    return None


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def check_includes(root, path, code):
    room = room_of(path)
    if room.startswith("common/") and room.removeprefix("common/") not in LAYERS:
        yield 1, f"{room} is no layer"
        return
    for match in INCLUDE.finditer(code):
        line = line_of(code, match.start(1))
        target = resolve(root, path, match[1])
        if target is None:
            yield line, f'"{match[1]}" does not exist'
        elif not may_include(room, room_of(target)):
            yield line, f"{room} must not include {target}"


def check_sql(path, code):
    if path.startswith(SQL_ALLOWED):
        return
    for match in STRING.finditer(code):
        if SQL.match(match[1]):
            yield line_of(code, match.start()), "SQL text outside common/store and common/db"


def check_contracts(text):
    """Walk a header's top level line by line; `documented` = a comment covers this line."""
    documented, depth, statement, macro, comment = False, 0, "", False, False
    lines = zip(text.splitlines(), without_comments(text).splitlines())
    for number, (raw, code) in enumerate(lines, 1):
        was_comment, comment = comment, comment_open(raw, comment)
        code = code.strip()
        if macro or code.startswith("#"):
            macro = code.endswith("\\")
            continue
        if not code:
            if not statement and depth == 0:
                documented = bool(raw.strip()) or was_comment
            continue
        if depth == 0:
            start = number if not statement else start
            statement += " " + code
        depth += code.count("{") - code.count("}")
        if depth > 0 or not (code.endswith(";") or code.endswith("}")):
            continue
        if is_prototype(statement):
            if not documented:
                yield start, f"no contract above: {' '.join(statement.split())[:70]}"
        statement, depth = "", 0


def comment_open(line, is_open):
    """Is a block comment open after `line`?"""
    last_open, last_close = line.rfind("/*"), line.rfind("*/")
    return last_open > last_close if (last_open >= 0 or last_close >= 0) else is_open


def is_prototype(statement):
    statement = statement.strip()
    return (
        statement.endswith(";")
        and "(" in statement
        and not statement.startswith(("typedef", "struct {", "enum", "_Static_assert", "static"))
        and "{" not in statement
    )


def check_tree(root):
    root = Path(root).resolve()
    findings = []
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.[ch]")):
            path = file.relative_to(root).as_posix()
            text = file.read_text()
            code = without_comments(text)
            found = [*check_includes(root, path, code), *check_sql(path, code)]
            if path.endswith(".h") and not path.endswith("internal.h") and room_of(path) != "tests":
                found += check_contracts(text)
            findings += [f"{path}:{line}: {message}" for line, message in found]
    return findings


# A tree in which each marked line breaks one rule, and nothing else does.
BAD_TREE = {
    "common/util/a.h": """/* What it is. */
#include <stdio.h>
int documented(void);
/* Contract of two. */
int one(void);
int two(int a,
        int b);

int naked(void); // BAD
struct a {
    int (*call)(void);
};
int also_naked(int x, // BAD
               int y);
/* Shared with what is inline. */
static inline int in(void)
{
    return 1;
}
int after(void);
#define M(x)                                                                                       \\
    int x(void);
typedef int (*a_cb)(void);
""".replace("int documented(void);\n", ""),
    "common/util/a.c": '#include "util/a.h"\n#include "dm/b.h" // BAD\n#include "../dm/b.h" // BAD\n',
    "common/dm/b.h": '#include "util/a.h"\n#include "gone.h" // BAD\n/* #include "db/c.h" */\n',
    "common/db/c.h": '#include "b_local.h"\n',
    "common/db/b_local.h": "",
    "common/db/internal.h": "int known_only_here(void);\n",
    "common/db/c.c": 'static const char *q = "SELECT 1";\n',
    "common/odd/x.c": "// BAD\n",
    "frontd/f.h": '#include "daemon/d.h"\n',
    "frontd/f.c": '#include "f.h"\n#include "frontd/f.h"\n'
    'static const char *q = "UPDATE users SET x"; // BAD\n'
    'static const char *r = "SELECTED \\" SELECT x";\n/* "SELECT 1" */\n'
    'static const char *s = "select 1 from x"; // BAD\n',
    "common/daemon/d.h": '#include "common/util/a.h"\n#include "frontd/f.h" // BAD\n',
    "syncd/s.c": '#include "frontd/f.h" // BAD\n#include "../frontd/f.h" // BAD\n',
    "deploy/ctl/m.c": '#include "daemon/d.h"\n#include "frontd/f.h" // BAD\n',
    "tests/unit/support_x.h": "int helper(void);\n",
    "tests/unit/t.c": '#include "daemon/d.h"\nstatic const char *q = "DELETE FROM x";\n',
}


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        expected = set()
        for path, text in BAD_TREE.items():
            target = Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            for number, line in enumerate(text.splitlines(), 1):
                if "// BAD" in line:
                    expected.add(f"{path}:{number}")
        found = {":".join(f.split(":")[:2]) for f in check_tree(folder)}
    return [f"self-test: {x} was not found" for x in sorted(expected - found)] + [
        f"self-test: {x} is no violation" for x in sorted(found - expected)
    ]


def main():
    if sys.argv[1:] == ["--self-test"]:
        findings = self_test()
    else:
        findings = check_tree(sys.argv[1] if len(sys.argv) > 1 else ".")
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

#!/bin/bash
# The quick parts of `make lint`; clang-tidy has its own rule in the Makefile, because it is slow and
# keeps stamps. Every part runs, so that one call shows everything there is to repair.
set -euo pipefail
cd "$(dirname "$0")/../.."
failed=0

step() {
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then
        echo "  $name: fine"
    else
        printf '%s\n  %s: FAILED\n' "$output" "$name"
        failed=1
    fi
}

sources() { # sources PATTERN...: files of the project, tracked or new, never what is built
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -z --cached --others --exclude-standard --deduplicate -- "$@" |
            while IFS= read -r -d '' f; do [[ ! -f $f ]] || printf '%s\0' "$f"; done
    else
        local tests=() p
        for p in "$@"; do tests+=(-o -name "${p##*/}"); done
        find . -path ./build -prune -o -type f \( "${tests[@]:1}" \) -print0
    fi
}

format_c() { sources '*.c' '*.h' | xargs -0 -r clang-format --dry-run -Werror; }

# A second opinion beside clang-tidy, which knows better than it that a failed shine_assert does
# not return (hence the suppressions).
second_opinion() {
    sources 'common/*.c' 'frontd/*.c' 'deliveryd/*.c' 'syncd/*.c' 'deploy/*.c' |
        xargs -0 -r cppcheck --quiet --std=c11 --enable=warning,portability --inline-suppr \
            --error-exitcode=1 -I. -Icommon --include=tests/lint/cppcheck.h \
            --suppress=nullPointerRedundantCheck --suppress=nullPointerArithmeticRedundantCheck \
            --suppress=ctunullpointer
}

syntax_shell() { sources '*.sh' '.ci/run' | xargs -0 -r -n 1 bash -n; }

# compile() writes no __pycache__ beside the sources.
syntax_python() {
    sources '*.py' | xargs -0 -r /usr/bin/python3 -c '
import sys
for name in sys.argv[1:]:
    compile(open(name, encoding="utf-8").read(), name, "exec")'
}

sorted_packages() { LC_ALL=C sort -cu deploy/packages.txt; }

step "clang-format" format_c
step "layers, self-test" /usr/bin/python3 -B tests/lint/layers.py --self-test
step "layers" /usr/bin/python3 -B tests/lint/layers.py
step "cppcheck" second_opinion
step "shell syntax" syntax_shell
step "python syntax" syntax_python
step "packages sorted" sorted_packages
exit $failed

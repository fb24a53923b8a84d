#!/bin/bash
# Run fuzz targets one after the other.
#
#   tests/fuzz/run.sh SECONDS BINARY...
#
# What is committed below tests/fuzz/corpus/NAME is the start; what a run finds goes to a folder in
# build/, so that the working copy stays clean. An input that crashes is kept in build/fuzz/crash.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=$1
shift
crashes=build/fuzz/crash
mkdir -p "$crashes"
failed=0
for target in "$@"; do
    name=$(basename "$target")
    work=build/fuzz/corpus/$name
    mkdir -p "$work"
    folders=("$work")
    [[ -d tests/fuzz/corpus/$name ]] && folders+=("tests/fuzz/corpus/$name")
    if "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$crashes/$name-" "${folders[@]}" >"build/fuzz/$name.log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$name.log")
        echo "  $name: $runs inputs, no finding"
    else
        tail -n 40 "build/fuzz/$name.log"
        echo "  $name: FAILED, the input is in $crashes"
        failed=1
    fi
done
exit $failed

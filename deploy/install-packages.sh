#!/bin/bash
# Install what deploy/packages.txt names and this machine lacks. Silent and quick when nothing is
# missing, so every entry point of the Makefile calls it. Debian 12 only; elsewhere provide the
# same things by other means and run make with SKIP_PACKAGES=1.
#
#   deploy/install-packages.sh [LIST]
set -euo pipefail

list=${1:-$(dirname "$0")/packages.txt}
mapfile -t wanted < <(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' "$list")

if ! command -v dpkg-query >/dev/null; then
    echo "This is no Debian system: install what $list names, then use SKIP_PACKAGES=1." >&2
    exit 1
fi

declare -A installed=()
while read -r status name; do
    [[ $status == installed ]] && installed[$name]=1
done < <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null || true)

missing=()
for name in "${wanted[@]}"; do
    [[ ${installed[$name]:-} ]] || missing+=("$name")
done
((${#missing[@]})) || exit 0

if ((EUID != 0)); then
    printf 'Packages are missing and only root can install them. As root:\n  apt-get install %s\n' \
        "${missing[*]}" >&2
    exit 1
fi

# Debian's package would create and start a server on port 5432 at once. The tests make their own,
# so say no, and say it before the package is there.
forbid_main_cluster() {
    local conf=/etc/postgresql-common/createcluster.conf
    [[ -e /usr/lib/postgresql/15/bin/postgres ]] && return
    mkdir -p /etc/postgresql-common
    [[ -e $conf ]] && sed -i '/^[[:space:]]*create_main_cluster[[:space:]=]/d' "$conf"
    echo 'create_main_cluster = false' >>"$conf"
}

echo "Installing ${#missing[@]} packages: ${missing[*]}"
# UCF_FORCE_CONFFOLD keeps the file written above. A second installation at the same time is
# waited for instead of failing.
export DEBIAN_FRONTEND=noninteractive UCF_FORCE_CONFFOLD=1
apt=(apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
forbid_main_cluster
if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    echo "Installing packages failed." >&2
    exit 1
fi

#!/usr/bin/env bash
# Time to find nothing to do on 100,000 unchanged files of 1 KiB in 1,000 directories, compared with rsync:
# seconds per round, alternating.
# Both copy locally, tmpfs to tmpfs. HAUL: the program [target/release/haul], ROUNDS [5], PLACE [/dev/shm].
set -euo pipefail
cd "$(dirname "$0")/../.."
haul=${HAUL:-target/release/haul}
place=$(mktemp -d "${PLACE:-/dev/shm}/haul-nothing.XXXXXX")
trap 'rm -rf "$place"' EXIT
python3 - "$place/src" <<'PYTHON'
import os, sys
for d in range(1000):
    os.makedirs(f"{sys.argv[1]}/d{d}")
    for f in range(100):
        with open(f"{sys.argv[1]}/d{d}/f{f}", "wb") as file:
            file.write(bytes(1024))
PYTHON
seconds() {
    local start
    start=$(date +%s.%N)
    # In a command substitution a failing command does not end the script by itself.
    "$@" >/dev/null || return
    echo "$(date +%s.%N) - $start" | bc
}
mkdir "$place/haul" "$place/rsync"
"$haul" cp -q "$place/src/." "$place/haul/"
rsync -a "$place/src/" "$place/rsync/"
# The measurement is valid only if there is nothing to do.
"$haul" cp --json "$place/src/." "$place/haul/" | grep -q '"kept_files":100000,'
echo "round haul rsync"
for round in $(seq "${ROUNDS:-5}"); do
    ours=$(seconds "$haul" cp -q "$place/src/." "$place/haul/")
    theirs=$(seconds rsync -a "$place/src/" "$place/rsync/")
    echo "$round $ours $theirs"
done

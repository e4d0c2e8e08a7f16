#!/usr/bin/env bash
# Every benchmark, one after the other.
set -euo pipefail
cd "$(dirname "$0")"
for script in veth fixed-loss memory first-data resume nothing-to-do small-files tmpfs stack recipe strangers busy-receiver; do
    echo "== $script"
    ./$script.sh
done
echo '== services'
# Without libudt the row of UDT says so.
if udt=$(./udt.sh); then set -- --udt "$udt"; fi
cargo run --quiet --release --package haul-lab -- services "$@"

#!/usr/bin/env bash
# Runs every benchmark in sequence.
set -euo pipefail
cd "$(dirname "$0")"
for script in veth fixed-loss memory first-data resume nothing-to-do small-files tmpfs stack recipe strangers busy-receiver; do
    echo "== $script"
    ./$script.sh
done
echo '== services'
# Without libudt the table's UDT row says so.
if udt=$(./udt.sh); then set -- --udt "$udt"; fi
cargo run --quiet --release --package haul-lab -- services "$@"

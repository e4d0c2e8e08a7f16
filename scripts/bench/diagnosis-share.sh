#!/usr/bin/env bash
# The diagnosis's share of the sender's CPU time, from samples of `perf`, on a path of 1 Gbit/s and 50 ms with
# loss LOSS. Needs root, perf, /dev/net/tun and `cargo build --release -p haul-lab -p haul-cli`.
# SECONDS_EACH=8: 15 seconds.
set -euo pipefail
cd "$(dirname "$0")/../.."
export HAUL="$PWD/${CARGO_TARGET_DIR:-target}/release/haul" SECONDS_EACH=${SECONDS_EACH:-8}
WORK="$(mktemp -d)"
export WORK
trap 'rm -rf "$WORK"' EXIT

cat >"$WORK/server" <<'SH'
exec "$HAUL" serve --quiet --root "$WORK" --host "$HAUL_WAN_B" --url-file "$WORK/url" >/dev/null 2>&1
SH
cat >"$WORK/client" <<'SH'
while [ ! -s "$WORK/url" ]; do sleep 0.05; done
perf record -q -F 4000 -e cpu-clock -o "$WORK/perf.data" "$HAUL" bench --json --time "${SECONDS_EACH}s" "$(cat "$WORK/url")"
SH

for loss in ${LOSS:-0.1% 1%}; do
    rm -f "$WORK/url"
    "${HAUL%/haul}/haul-lab" wan --rtt 50ms --rate 1Gbit --loss "$loss" --server "sh $WORK/server" -- sh "$WORK/client" >"$WORK/report" 2>"$WORK/log"
    share=$(perf report -i "$WORK/perf.data" --no-children -F overhead,sym 2>/dev/null | awk '/haul_(proto::)?diagnosis::/ { sum += $1 } END { print sum + 0 }')
    python3 -c 'import json, sys
print("{} lost: {:.0f} Mbit/s; the diagnosis takes {} %".format(sys.argv[2], json.load(open(sys.argv[1]))["goodput_bps"] / 1e6, sys.argv[3]))' \
        "$WORK/report" "$loss" "$share"
done

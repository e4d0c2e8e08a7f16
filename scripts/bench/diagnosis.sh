#!/usr/bin/env bash
# Accuracy of the shipped model under conditions outside its training data. One line per condition: windows by
# the verdict of their signatures during the transfers (short windows combined), the 95 % interval of wrong
# verdicts among windows in range (Clopper and Pearson), and the F1 score of all evidence, by packet counts.
# `ONLY=WORD` runs the conditions with that word in their name.
# Needs `cargo build --release -p haul-lab`; takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin="${CARGO_TARGET_DIR:-target}/release"
export PYTHONPATH="scripts/bench" PYTHONDONTWRITEBYTECODE=1
out="$(mktemp)"
trap 'rm -f "$out"' EXIT

# condition CAUSE NAME [--set KEY=VALUE]...
condition() {
    local cause="$1" name="$2"
    shift 2
    [[ "$cause $name" == *"${ONLY:-}"* ]] || return 0
    "$bin/haul-lab" sim "crates/lab/training/$cause.toml" --seed 77 "$@" >"$out"
    python3 - "$cause" "$name" "$out" <<'PY'
import collections, json, sys
from shares import clopper_pearson

cause, name, path = sys.argv[1:]
count, packets = collections.Counter(), collections.Counter()
by_host = ("nic_ring", "socket_buffer")
for run in json.load(open(path))["runs"]:
    for session in run["sessions"]:
        told = session["diagnosis"]
        count.update({what: told["windows_" + what] for what in ("host", "network", "inconclusive", "out_of_range")})
        died = sum(n for why, n in session["data"]["drops"].items() if (why in by_host) == (cause == "host") and why != "too_large")
        right = told["lost_by_host" if cause == "host" else "lost_by_congestion"]
        packets.update(died=died, right=min(right, died), told=sum(n for what, n in told.items() if what.startswith("lost_")))
right, wrong = ("host", "network") if cause == "host" else ("network", "host")
in_range = count[right] + count[wrong] + count["inconclusive"]
low, high = clopper_pearson(count[wrong], in_range)
f1 = 2 * packets["right"] / max(packets["died"] + packets["told"], 1)
print(f"| {cause} | {name} | {count[right]} | {count[wrong]} ({100 * low:.2f} to {100 * high:.2f} %) | {count['inconclusive']} "
      f"| {count['out_of_range']} | {packets['died']} | {f1:.4f} |", flush=True)
PY
}

one=(--set session.bulk.rate=900Mbit)
# Receivers that do not read for a while.
suspended() { printf 'host.rx.loads=[{ kind = "suspension", every = "%s", stop = "%s" }]' "$1" "$2"; }
jumbo=(--set session.bulk.datagram=8972 --set path.wan.forward.mtu=9000)
batches=(--set 'session.bulk.set={ "rate_control.max_batch" = "64" }')
short=(--set path.wan.forward.bottleneck.queue.tail_drop=20ms)
echo "| cause | condition | right | wrong | inconclusive | out of range | lost packets | F1, all evidence |"
echo "|---|---|---|---|---|---|---|---|"
condition host "RTT 10 ms" "${one[@]}" --set path.wan.forward.delay=5ms
condition host "RTT 200 ms" "${one[@]}" --set path.wan.forward.delay=100ms
condition host "400 Mbit/s" --set session.bulk.rate=400Mbit --set path.wan.forward.bottleneck.rate=500Mbit --set host.rx.per_packet=10us
condition host "jumbo frames" "${one[@]}" "${jumbo[@]}" --set "$(suspended 500ms 12ms)"
condition host "GRO" "${one[@]}" --set host.rx.gro=true
condition host "batches of 64" "${one[@]}" "${batches[@]}"
condition host "socket buffer 208 KiB" "${one[@]}" --set host.rx.socket_buffer=208KiB
condition host "socket buffer 4 MiB" "${one[@]}" --set host.rx.socket_buffer=4MiB --set "$(suspended 700ms 80ms)"
condition host "fair scheduler" "${one[@]}" --set host.rx.scheduler=fair
condition host "three processes" "${one[@]}" --set host.rx.loads.0.processes=3
condition host "computation" "${one[@]}" --set 'host.rx.loads=[{ kind = "generator", processes = 3, runs = ["20ms", "60ms"], pauses = ["500ms", "2s"] }]'
condition host "memory" "${one[@]}" --set 'host.rx.loads=[{ kind = "memory", processes = 1, at = "2s", length = "1s" }]'
condition host "forwarding" "${one[@]}" --set 'host.rx.loads=[{ kind = "forwarding", packets_per_second = 250000, per_packet = "3us", at = "2s", length = "1s" }]'
condition host "suspended" "${one[@]}" --set "$(suspended 500ms 12ms)"
condition network "RTT 10 ms" --set path.wan.forward.delay=5ms "${short[@]}"
condition network "RTT 200 ms" --set path.wan.forward.delay=100ms "${short[@]}"
condition network "half the rate" --set path.wan.forward.bottleneck.rate=650Mbit --set session.bulk.rate=352Mbit "${short[@]}"
condition network "jumbo frames" "${jumbo[@]}" "${short[@]}"
condition network "batches of 64" "${batches[@]}" "${short[@]}"
condition network "queue of 100 ms" --set path.wan.forward.bottleneck.queue.tail_drop=100ms
condition network "RED" --set 'path.wan.forward.bottleneck.queue={ red = { min = "500KB", max = "1500KB", limit = "20ms" } }'
condition network "CoDel" --set 'path.wan.forward.bottleneck.queue={ codel = { limit = "20ms" } }'
condition network-flows "access at the bottleneck's rate" --set traffic.flows.aggregate.access=1Gbit
condition network-flows "access at 0.99 of the bottleneck's rate" --set traffic.flows.aggregate.access=990Mbit

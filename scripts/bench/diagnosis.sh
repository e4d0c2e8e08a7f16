#!/usr/bin/env bash
# How the shipped model does in conditions that it was not trained in: one line each, with the windows by verdict.
# Needs `cargo build --release -p haul-lab -p haul-cli`; takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin="${CARGO_TARGET_DIR:-target}/release"
out="$(mktemp -d)"
trap 'rm -rf "$out"' EXIT

# condition CAUSE NAME [--set KEY=VALUE]...
condition() {
    local cause="$1" name="$2"
    shift 2
    rm -rf "$out/sig"
    "$bin/haul-lab" signatures "crates/lab/training/$cause.toml" --out "$out/sig" --seed 77 "$@" 2>"$out/log" || { cat "$out/log" >&2; exit 1; }
    { "$bin/haul" diagnose --json "$out"/sig/*.sig 2>/dev/null || true; } >"$out/told"
    python3 - "$cause" "$name" "$out/told" <<'PY'
import collections, json, sys
cause, name, path = sys.argv[1:]
count = collections.Counter()
for line in open(path):
    window = json.loads(line)
    if "metric" not in window:
        continue
    count["out" if window["metric"] == "none" else window["verdict"]] += 1
right, wrong = ("receiver_host", "congestion") if cause == "host" else ("congestion", "receiver_host")
print(f"| {cause} | {name} | {count[right]} | {count[wrong]} | {count['inconclusive']} | {count['out']} |", flush=True)
PY
}

one=(--set session.bulk.rate=900Mbit)
echo "| cause | condition | right | wrong | inconclusive | out of range |"
echo "|---|---|---|---|---|---|"
condition host "RTT 10 ms" "${one[@]}" --set path.wan.forward.delay=5ms
condition host "RTT 200 ms" "${one[@]}" --set path.wan.forward.delay=100ms
condition host "jumbo frames" "${one[@]}" --set session.bulk.datagram=8972 --set path.wan.forward.mtu=9000
condition host "GRO" "${one[@]}" --set host.rx.gro=true
condition host "batches of 64" "${one[@]}" --set 'session.bulk.set={ "rate_control.max_batch" = "64" }'
condition host "socket buffer 4 MiB" "${one[@]}" --set host.rx.socket_buffer=4MiB
condition host "fair scheduler" "${one[@]}" --set host.rx.scheduler=fair
condition host "three processes" "${one[@]}" --set host.rx.loads.0.processes=3
condition network "RTT 10 ms" --set path.wan.forward.delay=5ms --set path.wan.forward.bottleneck.queue.tail_drop=20ms
condition network "RTT 200 ms" --set path.wan.forward.delay=100ms --set path.wan.forward.bottleneck.queue.tail_drop=20ms
condition network "jumbo frames" --set session.bulk.datagram=8972 --set path.wan.forward.mtu=9000 --set path.wan.forward.bottleneck.queue.tail_drop=20ms
condition network "batches of 64" --set 'session.bulk.set={ "rate_control.max_batch" = "64" }' --set path.wan.forward.bottleneck.queue.tail_drop=20ms
condition network "queue of 100 ms" --set path.wan.forward.bottleneck.queue.tail_drop=100ms
condition network-flows "access at the bottleneck's rate" --set traffic.flows.aggregate.access=1Gbit

#!/usr/bin/env bash
# Runs the examples and benchmarks briefly, to check that they work. Measures nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

# Waits up to a minute until a process has bound this UDP port.
until_bound() {
    local entry looks
    entry=$(printf ':%04X ' "$1")
    for ((looks = 0; looks < 600; looks++)); do
        ! grep -q "$entry" /proc/net/udp || return 0
        sleep 0.1
    done
    echo "smoke: no process has bound UDP port $1 within a minute" >&2
    return 1
}

"$cargo" build --quiet --workspace --examples --features haul-cli/faults
blaster=$("$cargo" build --quiet --package haul-udp --example blaster --message-format json |
    sed -n 's/.*"executable":"\([^"]*\/blaster\)".*/\1/p')
for mode in '' --plain; do
    # shellcheck disable=SC2086
    "$blaster" recv --bind 127.0.0.1:27640 $mode 2>/dev/null &
    receiver=$!
    trap 'kill "$receiver" 2>/dev/null || true' EXIT
    until_bound 27640
    # shellcheck disable=SC2086
    "$blaster" send --to 127.0.0.1:27640 --seconds 0.3 $mode 2>/dev/null
    wait "$receiver"
    trap - EXIT
done

lab=$("$cargo" build --quiet --package haul-lab --message-format json |
    sed -n 's/.*"executable":"\([^"]*\/haul-lab\)".*/\1/p')
"$lab" stack-cost nanoseconds >/dev/null
modes=hand,base,raises=9,attributes=7,copies=3,push,push-no-pool
"$lab" stack-cost recv "$modes" --bind 127.0.0.1:27641 >"$(dirname "$lab")/stack-cost.out" &
receiver=$!
trap 'kill "$receiver" 2>/dev/null || true' EXIT
until_bound 27641
"$lab" stack-cost send "$modes" --to 127.0.0.1:27641 --seconds 0.3
wait "$receiver"
trap - EXIT
if [ "$(grep -c '^| .* | [0-9.]* | [0-9.]* | [0-9.]* |$' "$(dirname "$lab")/stack-cost.out")" != 7 ]; then
    echo 'smoke: stack-cost received nothing in at least one mode' >&2
    exit 1
fi

# A benchmark that runs as a test executes each of its cases once.
if compgen -G 'crates/*/benches/*.rs' >/dev/null; then
    "$cargo" test --quiet --workspace --benches --features haul-cli/faults
fi

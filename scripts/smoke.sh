#!/usr/bin/env bash
# Runs the examples and benchmarks for a moment, so that they are known to work. Measures nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

"$cargo" build --quiet --workspace --examples --features haul-cli/faults
blaster=$("$cargo" build --quiet --package haul-udp --example blaster --message-format json |
    sed -n 's/.*"executable":"\([^"]*\/blaster\)".*/\1/p')
for mode in '' --plain; do
    # shellcheck disable=SC2086
    "$blaster" recv --bind 127.0.0.1:27640 $mode 2>/dev/null &
    receiver=$!
    trap 'kill "$receiver" 2>/dev/null || true' EXIT
    sleep 0.3
    # shellcheck disable=SC2086
    "$blaster" send --to 127.0.0.1:27640 --seconds 0.3 $mode 2>/dev/null
    wait "$receiver"
    trap - EXIT
done

stack=$("$cargo" build --quiet --package haul-engine --example stack_cost --message-format json |
    sed -n 's/.*"executable":"\([^"]*\/stack_cost\)".*/\1/p')
"$stack" nanoseconds >/dev/null
for mode in hand base raises=9 attributes=7 copies=3 push push-no-pool; do
    "$stack" recv "$mode" --bind 127.0.0.1:27641 >"$(dirname "$stack")/stack_cost.out" &
    receiver=$!
    trap 'kill "$receiver" 2>/dev/null || true' EXIT
    sleep 0.2
    "$stack" send "$mode" --to 127.0.0.1:27641 --seconds 0.1
    wait "$receiver"
    trap - EXIT
    if grep -q '"bytes":0}' "$(dirname "$stack")/stack_cost.out"; then
        echo "stack_cost $mode: nothing has arrived" >&2
        exit 1
    fi
done

# A benchmark that is run as a test goes through each of its cases once.
if compgen -G 'crates/*/benches/*.rs' >/dev/null; then
    "$cargo" test --quiet --workspace --benches --features haul-cli/faults
fi

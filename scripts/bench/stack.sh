#!/usr/bin/env bash
# What the framework of micro-protocols costs: the base stack against the same loop by hand, with more events,
# attributes and copies, over veth with GSO and GRO. Everything in turn, ROUNDS times; medians and ratios of one run.
#
#   sudo scripts/bench/stack.sh                      # ROUNDS=7 SECONDS_EACH=2 PIN=1
#   sudo MODES='hand base' SIZES= scripts/bench/stack.sh      # of the modes and sizes only these
#
# To be reached: base >= 0.97 of hand; 9 more raises and 7 more attributes >= 0.97 of base.
. "$(dirname "$0")/lib.sh"

build_stack() {
    STACK=$(cargo build --quiet --release --package haul-engine --example stack_cost --message-format json |
        executable stack_cost)
    [ -x "$STACK" ] || die 'the build made no program'
}

run() { # FILE MODE [OPTIONS]: Gbit/s of message bytes that arrive
    local file=$1 pid
    shift
    "${RX_SIDE[@]}" "$STACK" recv "$1" --bind $RX_ADDRESS:7902 "${@:2}" >"$WORK/out" &
    pid=$!
    STARTED+=("$pid")
    sleep 0.3
    "${TX_SIDE[@]}" "$STACK" send "$1" --to $RX_ADDRESS:7902 --seconds "$SECONDS_EACH" "${@:2}"
    wait "$pid"
    number gbit_per_s <"$WORK/out" >>"$WORK/$file"
}

build_stack
connect
machine
read -ra MODES <<<"${MODES-hand base raises=9 attributes=7 copies=1 copies=2 copies=3 push push-no-pool}"
read -ra SIZES <<<"${SIZES-64 256 1024 1400 1453 2048 3072 4096 6144 8192 16384 32768 65536}"
for round in $(seq "$ROUNDS"); do
    for mode in "${MODES[@]}"; do
        run "$mode" "$mode"
    done
    for size in "${SIZES[@]}"; do
        run "size-$size" base --size "$size"
    done
    echo "round $round: $(tail -qn 1 "${MODES[@]/#/$WORK/}" | tr '\n' ' ')" >&2
done

row() { # NAME FILE BASE
    local value base
    [ -e "$WORK/$2" ] && [ -e "$WORK/$3" ] || return 0
    value=$(median <"$WORK/$2")
    base=$(median <"$WORK/$3")
    printf '| %-26s | %8.2f | %s |\n' "$1" "$value" "$(ratio "$value" "$base")"
}
printf '| median of %s, %s s each | Gbit/s | ratio |\n|---|---|---|\n' "$ROUNDS" "$SECONDS_EACH"
row 'by hand' hand hand
row 'base, to hand' base hand
row '9 more raises, to base' raises=9 base
row '7 more attributes, to base' attributes=7 base
for n in 1 2 3; do
    row "$n more copies, to base" copies=$n base
done
row 'queued, to base' push base
row 'queued, no pool, to queued' push-no-pool push
printf '\n| message bytes | Gbit/s |\n|---|---|\n'
for size in "${SIZES[@]}"; do
    printf '| %s | %.2f |\n' "$size" "$(median <"$WORK/size-$size")"
done
echo
"$STACK" nanoseconds

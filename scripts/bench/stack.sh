#!/usr/bin/env bash
# Cost of the micro-protocol framework: compares the base stack with the same loop written by hand, and with
# more events, attributes and copies, over veth with GSO and GRO. Alternates slices of 40 ms between the same
# two processes, so that other load affects all modes alike; prints medians of rates and of ratios within a
# turn.
#
#   sudo scripts/bench/stack.sh                      # SECONDS_EACH=60 PIN=1
#   sudo MODES=hand,base SIZES=base@4096,base@8192 scripts/bench/stack.sh
#
# Target: base >= 0.97 of hand; 9 more raises and 7 more attributes >= 0.97 of base; no dip over message
# sizes.
SECONDS_EACH=${SECONDS_EACH:-60}
. "$(dirname "$0")/lib.sh"
MODES=${MODES-hand,base,raises=9,attributes=7,copies=1,copies=2,copies=3,push,push-no-pool}
SIZES=${SIZES-base@64,base@256,base@1024,base@1400,base@1453,base@2048,base@3072,base@4096,base@6144,base@8192,base@16384,base@32768,base@65536}

build_stack() {
    LAB=$(cargo build --quiet --release --package haul-lab --message-format json | executable haul-lab)
    [ -x "$LAB" ] || die 'the build produced no executable'
}

compare() { # LIST: prints a table of delivered message bytes in Gbit/s
    local pid
    "${RX_SIDE[@]}" "$LAB" stack-cost recv "$1" --bind $RX_ADDRESS:7902 &
    pid=$!
    STARTED+=("$pid")
    sleep 0.3
    "${TX_SIDE[@]}" "$LAB" stack-cost send "$1" --to $RX_ADDRESS:7902 --seconds "$SECONDS_EACH"
    wait "$pid"
    echo
}

build_stack
connect
machine
for list in "$MODES" "$SIZES"; do
    [ -z "$list" ] || compare "$list"
done
"$LAB" run stack-cost

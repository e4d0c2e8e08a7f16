#!/usr/bin/env bash
# Compares the bulk transport as a recipe of micro-protocols with the two machines that it replaced, built
# from their last commit: over veth, and in the simulator without cipher, socket or payload. Runs alternate;
# prints medians of the pairs.
#
#   sudo scripts/bench/recipe.sh                    # ROUNDS=11 SECONDS_EACH=2 PIN=1
#
# Target: no slower than before: 0.98 of the machines' speed (CPU time: 1.02).
ROUNDS=${ROUNDS:-11}
SECONDS_EACH=${SECONDS_EACH:-2}
. "$(dirname "$0")/lib.sh"
# Last commit with the machines.
BEFORE=e00a8da

speed_of() { # DIRECTORY TARGET: builds the simulator's example there, and prints its path
    (cd "$1" && CARGO_TARGET_DIR=$2 cargo build --quiet --release --locked --package haul-sim --example speed \
        --message-format json) | executable speed
}

# In the target directory, so that later runs reuse the build.
build_before() {
    local target
    target=$(cargo metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/before
    mkdir -p "$target/source"
    git cat-file -e $BEFORE 2>/dev/null ||
        die "the history lacks commit $BEFORE, of the machines (a shallow clone? git fetch --unshallow)"
    git archive $BEFORE | tar -x -C "$target/source"
    OLD=$(cd "$target/source" && CARGO_TARGET_DIR=$target cargo build --quiet --release --locked --package haul-cli \
        --bin haul --message-format json | executable haul)
    OLD_SPEED=$(speed_of "$target/source" "$target")
    [ -x "$OLD" ] && [ -x "$OLD_SPEED" ] || die 'the build of the machines produced no executables'
}

simulate() { # PROGRAM: million packets per second of CPU time
    "$1" 10 20ms plain | sed -n 's/.* \([0-9.]*\) of core time$/\1/p'
}

bench() { # PROGRAM CIPHER: Gbit/s, CPU time per packet at the sender and at the receiver, us
    HAUL=$1
    serve --set crypto=none
    "${TX_SIDE[@]}" "$HAUL" bench --json --time "${SECONDS_EACH}s" --set crypto="$2" "$URL" \
        >"$WORK/bench.json" 2>"$WORK/bench.log" || die "$(cat "$WORK/bench.log")"
    stop "$SERVER"
    python3 - "$WORK/bench.json" <<'P'
import json, sys
result = json.load(open(sys.argv[1]))
packets, seconds = result["packets_sent"], result["cpu_seconds"]
print(result["goodput_bps"] / 1e9, seconds["sender"] / packets * 1e6, seconds["receiver"] / packets * 1e6)
P
}

note() { # NAME VALUES..: prints one line for this round
    local name=$1
    shift
    echo "$*" >>"$WORK/$name"
}

row() { # NAME FILE COLUMN: prints medians, and the median of the pairs
    local now before pairs
    now=$(awk -v c="$3" '{ print $c }' "$WORK/$2-now" | median)
    before=$(awk -v c="$3" '{ print $c }' "$WORK/$2-before" | median)
    pairs=$(paste "$WORK/$2-now" "$WORK/$2-before" | awk -v c="$3" '{ print $c / $(NF / 2 + c) }')
    printf '| %s | %.3f | %.3f | %.3f | %s to %s |\n' "$1" "$before" "$now" "$(median <<<"$pairs")" \
        "$(sort -g <<<"$pairs" | awk 'NR == 1 { printf "%.3f", $1 }')" \
        "$(sort -g <<<"$pairs" | awk 'END { printf "%.3f", $1 }')"
}

build
NEW=$HAUL
NEW_SPEED=$(speed_of . "$(dirname "$(dirname "$HAUL")")")
[ -x "$NEW_SPEED" ] || die 'the build produced no executable of the simulator'
build_before
connect
machine
for round in $(seq "$ROUNDS"); do
    # A run takes half a second and is subject to noise: runs several, alternating which build is first.
    for _ in 1 2 3; do
        note speed-before "$(simulate "$OLD_SPEED")"
        note speed-now "$(simulate "$NEW_SPEED")"
        note speed-now "$(simulate "$NEW_SPEED")"
        note speed-before "$(simulate "$OLD_SPEED")"
    done
    for cipher in aes-128-gcm none; do
        note $cipher-before "$(bench "$OLD" $cipher)"
        note $cipher-now "$(bench "$NEW" $cipher)"
    done
    echo "round $round: $(tail -qn 1 "$WORK"/*-before "$WORK"/*-now | tr '\n' ';')" >&2
done
echo "| median of $ROUNDS | machines | recipe | recipe / machines, median of the pairs | pairs |"
echo '|---|---|---|---|---|'
row 'simulator, million packets a second of processor time' speed 1
for cipher in aes-128-gcm none; do
    row "goodput, $cipher, Gbit/s" $cipher 1
    row "processor time for a packet at the sender, $cipher, us" $cipher 2
    row "the same at the receiver, $cipher" $cipher 3
done

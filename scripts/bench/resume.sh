#!/usr/bin/env bash
# Cost of an interruption: one side, sender and receiver in turn, is killed (SIGKILL) when half of the bytes
# have been sent, and the same command is run again. Measures bytes sent twice, the time until new bytes are
# sent, and the speed of verifying existing data.
#
#   sudo scripts/bench/resume.sh             # ROUNDS=5 SIZE_GB=10 PLACE=/tmp RATE=4Gbit HAUL=path
#
# Target: at most 1 % sent twice; new bytes after at most 2 s plus the time to verify at 1 GB/s.
PLACE=${PLACE:-/tmp}
export TMPDIR=$PLACE
. "$(dirname "$0")/lib.sh"
SIZE_GB=${SIZE_GB:-10}
RATE=${RATE:-4Gbit}
BYTES=$((SIZE_GB * 1000000000))

sent() { "${TX_SIDE[@]}" cat /sys/class/net/link0/statistics/tx_bytes; }
seconds() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f", (b - a) / 1e9 }'; }

copy() { # starts a copy of the file; sets COPY
    "${TX_SIDE[@]}" "$HAUL" cp --json "$@" "$WORK/source" "${URL/\/\?//copy?}" >"$WORK/json" 2>"$WORK/cp.log" &
    COPY=$!
    STARTED+=("$COPY")
}

await() { # COUNT: waits until this many bytes have been sent
    while [ "$(sent)" -lt "$1" ]; do
        kill -0 "$COPY" 2>/dev/null || die "the copy has ended: $(cat "$WORK/cp.log")"
        sleep 0.002
    done
}

[ -n "${HAUL:-}" ] || build
connect
machine
head -c "$BYTES" /dev/urandom >"$WORK/source"
serve

# The bytes of an uninterrupted copy, including headers and retransmissions.
before=$(sent)
copy --rate "$RATE"
wait "$COPY" || die "$(cat "$WORK/cp.log")"
whole=$(($(sent) - before))
for round in $(seq "$ROUNDS"); do
    rm -f "$WORK/copy"
    before=$(sent)
    copy --rate "$RATE"
    await $((before + whole / 2))
    victim=sender
    [ $((round % 2)) = 1 ] || victim=receiver
    if [ $victim = sender ]; then kill -KILL "$COPY"; else kill -KILL "$SERVER"; fi
    wait "$COPY" 2>/dev/null || true
    sleep 0.5
    first=$(($(sent) - before))
    [ $victim = sender ] || serve
    begin=$(date +%s%N)
    again=$(sent)
    copy --rate "$RATE"
    # More than handshakes and verification take.
    await $((again + 4000000))
    flowing=$(date +%s%N)
    wait "$COPY" || die "$(cat "$WORK/cp.log")"
    total=$((first + $(sent) - again))
    cmp -s "$WORK/source" "$WORK/copy" || die 'the copy differs'
    start=$(date +%s%N)
    copy --checksum
    wait "$COPY" || die "$(cat "$WORK/cp.log")"
    end=$(date +%s%N)
    awk -v total="$total" -v whole="$whole" -v size="$BYTES" -v flow="$(seconds "$begin" "$flowing")" \
        -v proof="$(seconds "$start" "$end")" -v round="$round, $victim" 'BEGIN {
            printf "round %s: twice %.3f %%, new bytes after %.3f s, proved at %.3f GB/s\n",
                round, (total - whole) * 100 / size, flow, size / proof / 1e9
        }' | tee -a "$WORK/rounds"
done
column() { awk -v n="$1" '{ print $n }' "$WORK/rounds" | median; }
echo "median of $ROUNDS, $SIZE_GB GB: $(column 5) % sent twice (target 1), new bytes after $(column 10) s," \
    "proved at $(column 14) GB/s"

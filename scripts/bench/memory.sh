#!/usr/bin/env bash
# Peak resident memory of either side for objects of different sizes.
#
#   sudo scripts/bench/memory.sh [SIZE...]          # 1GiB 100GiB
#
# Target: at most 256 MiB on either side, whatever the size.
. "$(dirname "$0")/lib.sh"
[ $# -gt 0 ] || set -- 1GiB 100GiB

peak() { # PROCESS: MiB
    awk '/^VmHWM:/ { printf "%.1f", $2 / 1024 }' "/proc/$1/status" 2>/dev/null || true
}

build
connect
machine
printf '| %-8s | %-9s | %12s | %14s | %8s |\n' size direction 'client MiB' 'server MiB' Gbit/s
echo '|---|---|---|---|---|'
for size in "$@"; do
    for direction in upload download; do
        options=()
        [ "$direction" = upload ] || options=(--reverse)
        serve
        "${TX_SIDE[@]}" "$HAUL" bench --json --bytes "$size" "${options[@]}" "$URL" >"$WORK/bench.json" 2>"$WORK/bench.log" &
        client=$!
        STARTED+=("$client")
        largest=
        while now=$(peak "$client") && [ -n "$now" ]; do
            largest=$now
            sleep 0.1
        done
        wait "$client" || die "$(cat "$WORK/bench.log")"
        printf '| %-8s | %-9s | %12s | %14s | %8.2f |\n' "$size" "$direction" "$largest" "$(peak "$SERVER")" \
            "$(number goodput_bps <"$WORK/bench.json" | awk '{ print $1 / 1e9 }')"
        stop "$SERVER"
    done
done

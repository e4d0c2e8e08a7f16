#!/usr/bin/env bash
# File transfer in memory compared with memory to memory: one file of each size from tmpfs to tmpfs, without
# sync, alternating with `haul bench` of the same size to the same server, over veth as in veth.sh; and `dd`
# of the same file, as the minimum cost of reading and writing.
#
#   sudo scripts/bench/tmpfs.sh              # ROUNDS=21 MEGABYTES="100 300 1000" PLACE=/dev/shm PIN=0 MTU=1500 WARM=1 HAUL=path
#
# A virtual machine may get its memory page by page, and lose it again seconds after it is freed; the first use
# of a page then costs more than the copy. Before each command as much memory as it needs is allocated and freed (WARM=0
# disables this).
# Target: 0.5 of memory to memory. Not pinned: each end has several threads, and PIN=1 would give it one core
# for all.
ROUNDS=${ROUNDS:-21}
PIN=${PIN:-0}
export TMPDIR=${PLACE:-/dev/shm}
. "$(dirname "$0")/lib.sh"
MEGABYTES=${MEGABYTES:-100 300 1000}

spent() { # CPU seconds of both ends, from the JSON object on stdin
    python3 -c 'import json, sys; cpu = json.load(sys.stdin)["cpu_seconds"]; print(round(cpu["sender"] + cpu["receiver"], 2))'
}

stolen() { # jiffies taken by the hypervisor, and all jiffies, so far
    awk '/^cpu / { for (n = 2; n <= 9; n++) all += $n; print $9, all }' /proc/stat
}

warm() { # MEGABYTES
    [ "${WARM:-1}" = 1 ] || return 0
    python3 -c 'import mmap, sys; mmap.mmap(-1, int(sys.argv[1]) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)' \
        $((3 * $1)) || die 'cannot allocate the memory in advance: reduce MEGABYTES, or set WARM=0'
}


round_of() { # MEGABYTES ROUND
    warm "$1"
    local theft all theft_after all_after dd cp bench
    read -r theft all < <(stolen)
    "${TX_SIDE[@]}" "$HAUL" cp --json --sync none "$WORK/source" "${URL/\/\?//copy?}" >"$WORK/cp.json" 2>"$WORK/cp.log" ||
        die "$(cat "$WORK/cp.log")"
    rm "$WORK/copy"
    read -r theft_after all_after < <(stolen)
    warm "$1"
    "${TX_SIDE[@]}" "$HAUL" bench --json --bytes "$1MB" "$URL" >"$WORK/bench.json" 2>"$WORK/bench.log" ||
        die "$(cat "$WORK/bench.log")"
    warm "$1"
    dd=$( { TIMEFORMAT='%U %S'; time dd if="$WORK/source" of="$WORK/copy" bs=1M status=none; } 2>&1 | awk '{ print $1 + $2 }')
    rm "$WORK/copy"
    cp=$(number goodput_bps <"$WORK/cp.json")
    bench=$(number goodput_bps <"$WORK/bench.json")
    ratio "$cp" "$bench" >>"$WORK/ratios"
    echo >>"$WORK/ratios"
    echo "$2 $(ratio "$cp" 1e9) $(ratio "$bench" 1e9) $(ratio "$cp" "$bench") | $(spent <"$WORK/cp.json") $(spent <"$WORK/bench.json") $dd | $(ratio $((100 * (theft_after - theft))) $((all_after - all)))"
}

[ -n "${HAUL:-}" ] || build
connect
machine
serve
for size in $MEGABYTES; do
    head -c "${size}000000" /dev/urandom >"$WORK/source"
    : >"$WORK/ratios"
    echo "$size MB; round cp bench ratio, Gbit/s | processor seconds: cp bench dd | % stolen during cp"
    for round in $(seq "$ROUNDS"); do
        round_of "$size" "$round"
    done
    echo "$size MB: median ratio of $ROUNDS: $(median <"$WORK/ratios") (target 0.5)"
done

#!/usr/bin/env bash
# Cost of the diagnosis on a loss-free path: `haul bench` between two network namespaces, in pairs with all
# evidence and with none (the order within pairs alternates), as in dickens-classifier, section 5 (83.5 and
# 81.2 % of the link).
# Needs root. ROUNDS=31, SECONDS_EACH=3, HAUL (path of the program): about four minutes. Prints the ratio of
# each pair, and their median with its 95 % interval (order statistics).
ROUNDS=${ROUNDS:-31} SECONDS_EACH=${SECONDS_EACH:-3}
source "$(dirname "$0")/lib.sh"
[ -x "${HAUL:-}" ] || build
connect
serve

goodput() { # MODE
    "${TX_SIDE[@]}" "$HAUL" bench --json --time "${SECONDS_EACH}s" --diagnosis "$1" "$URL" | number goodput_bps
}

machine
for round in $(seq "$ROUNDS"); do
    if [ $((round % 2)) = 0 ]; then
        on=$(goodput on) off=$(goodput off)
    else
        off=$(goodput off) on=$(goodput on)
    fi
    awk -v on="$on" -v off="$off" 'BEGIN { printf "%.4f %.0f %.0f\n", on / off, on / 1e6, off / 1e6 }' | tee -a "$WORK/pairs"
done
python3 - "$WORK/pairs" <<'PY'
import math, statistics, sys
pairs = [tuple(map(float, line.split())) for line in open(sys.argv[1])]
ratios = sorted(pair[0] for pair in pairs)
n = len(ratios)
# The largest rank below which the median lies with a probability of at most 2.5 %.
rank, below = 0, 0.0
while rank < n // 2 and below + math.comb(n, rank) / 2**n <= 0.025:
    below += math.comb(n, rank) / 2**n
    rank += 1
low, high = (ratios[rank - 1], ratios[n - rank]) if rank else (ratios[0], ratios[-1])
print(f"with {statistics.median(p[1] for p in pairs):.0f}, without {statistics.median(p[2] for p in pairs):.0f} Mbit/s (medians); "
      f"ratio {statistics.median(ratios):.4f} ({low:.4f} to {high:.4f})")
PY

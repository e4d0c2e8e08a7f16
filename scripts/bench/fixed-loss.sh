#!/usr/bin/env bash
# The fixed controller at 950 Mbit/s with 1 % random loss in both directions (iptables' statistic match):
# goodput relative to the maximum, and retransmission overhead.
#
#   sudo scripts/bench/fixed-loss.sh                # ROUNDS=5 SECONDS_EACH=10 PIN=0
#
# Target: goodput >= 0.97 x 950 x 0.99 Mbit/s; bytes sent <= 1.02 x the ideal, in which every packet of the
# object is retransmitted once per loss: 1 / 0.99.
PIN=${PIN:-0}
SECONDS_EACH=${SECONDS_EACH:-10}
. "$(dirname "$0")/lib.sh"
RATE=950

build
connect
for namespace in "$TX" "$RX"; do
    # Super-packets are segmented before the rule sees them, so that datagrams are lost singly.
    ip -n "$namespace" link set dev link0 gso_max_segs 1
    ip netns exec "$namespace" iptables -w -A INPUT -m statistic --mode random --probability 0.01 -j DROP
done

counter() { ip netns exec "$TX" cat "/sys/class/net/link0/statistics/$1"; }

machine
printf '| %5s | %13s | %8s | %12s | %14s | %16s |\n' round 'goodput Mbit/s' share 'packets sent' 'sent / ideal' 'datagrams on link'
echo '|---|---|---|---|---|---|'
for round in $(seq "$ROUNDS"); do
    serve
    before=$(counter tx_packets)
    "${TX_SIDE[@]}" "$HAUL" bench --json --preset fixed --rate ${RATE}Mbit --time "${SECONDS_EACH}s" "$URL" \
        >"$WORK/bench.json" 2>"$WORK/bench.log" || die "$(cat "$WORK/bench.log")"
    after=$(counter tx_packets)
    stop "$SERVER"
    goodput=$(number goodput_bps <"$WORK/bench.json")
    sent=$(number packets_sent <"$WORK/bench.json")
    resent=$(number packets_resent <"$WORK/bench.json")
    awk -v round="$round" -v goodput="$goodput" -v rate=$RATE -v sent="$sent" -v resent="$resent" \
        -v link=$((after - before)) 'BEGIN {
            share = goodput / 1e6 / (rate * 0.99)
            over = sent / ((sent - resent) / 0.99)
            printf "| %5d | %13.1f | %8.4f | %12d | %14.4f | %16d |\n", round, goodput / 1e6, share, sent, over, link
        }' | tee -a "$WORK/rows"
done
column() { awk -F'|' -v c="$1" '{ print $c }' "$WORK/rows" | median; }
echo "median of $ROUNDS: goodput $(column 3) Mbit/s, share $(column 4) (target 0.97), sent / ideal $(column 6) (target 1.02)"

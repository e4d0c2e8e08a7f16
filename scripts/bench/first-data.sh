#!/usr/bin/env bash
# Round trips from the end of the TCP handshake to the first data packet, measured with tcpdump at the
# client's end of the demo's emulated path.
#
#   sudo scripts/bench/first-data.sh                # ROUNDS=5 RTT_MS=1000
#
# Target: at most 2 round trips. (The fraction above a whole number is processing time, and shrinks as RTT_MS
# grows.)
. "$(dirname "$0")/lib.sh"
RTT_MS=${RTT_MS:-1000}
command -v tcpdump >/dev/null || die 'needs tcpdump (apt-get install tcpdump)'

packets() { tcpdump -nn -tt -r "$WORK/capture" "$1" 2>/dev/null; }

build
connect
machine
for round in $(seq "$ROUNDS"); do
    "${TX_SIDE[@]}" tcpdump -i lo -U -s 128 -w "$WORK/capture" 2>/dev/null &
    capture=$!
    STARTED+=("$capture")
    sleep 0.5
    "${TX_SIDE[@]}" "$HAUL" demo --no-tcp --rtt "${RTT_MS}ms" --loss 0 --size 4MB --files 4 >/dev/null 2>"$WORK/demo.log" ||
        die "$(cat "$WORK/demo.log")"
    sleep 0.3
    stop "$capture"
    # Byte 8 of a UDP packet is the first of its payload: 15 is a challenge, 1 and 2 are data. The first
    # challenge is sent to the near end of the path.
    near=$(packets 'udp[8] = 15' | awk 'NR == 1 { sub(":", "", $5); n = split($5, part, "."); print part[n] }')
    syn=$(packets "tcp dst port $near and tcp[tcpflags] = tcp-syn" | awk 'NR == 1 { print $1 }')
    data=$(packets "udp dst port $near and (udp[8] = 1 or udp[8] = 2)" | awk 'NR == 1 { print $1 }')
    # The emulated path accepts TCP connections immediately and adds the delay later; the handshake would take
    # one round trip.
    awk -v a="$syn" -v b="$data" -v rtt="$RTT_MS" -v round="$round" \
        'BEGIN { printf "round %d: %.3f round trips\n", round, (b - a) * 1000 / rtt - 1 }' | tee -a "$WORK/trips"
done
echo "median of $ROUNDS: $(awk '{ print $3 }' "$WORK/trips" | median) round trips of $RTT_MS ms (target 2)"

#!/usr/bin/env bash
# Memory to memory between two namespaces over veth, MTU 1500: haul with each cipher compared with a plain UDP
# blaster, with and without the kernel's offloads. Runs alternate, ROUNDS times; prints medians and their ratios.
#
#   sudo scripts/bench/veth.sh                      # ROUNDS=5 SECONDS_EACH=5 PIN=1
#
# Target: aes-128-gcm >= 0.20 and none >= 0.40 of the GSO/GRO blaster; with offloads off, aes-128-gcm >= 0.75
# of the sendmmsg/recvmmsg blaster.
. "$(dirname "$0")/lib.sh"

blast() { # Gbit/s received
    local options=("$@") pid
    "${RX_SIDE[@]}" "$BLASTER" recv --bind $RX_ADDRESS:7901 "${options[@]}" >"$WORK/blast" 2>/dev/null &
    pid=$!
    STARTED+=("$pid")
    sleep 0.5
    "${TX_SIDE[@]}" "$BLASTER" send --to $RX_ADDRESS:7901 --seconds "$SECONDS_EACH" "${options[@]}" >/dev/null 2>&1
    wait "$pid"
    number gbit_per_s <"$WORK/blast"
}

bench() { # CIPHER OFFLOAD: Gbit/s of object bytes
    serve --set crypto=none --set offload="$2"
    "${TX_SIDE[@]}" "$HAUL" bench --json --time "${SECONDS_EACH}s" --set crypto="$1" --set offload="$2" "$URL" \
        >"$WORK/bench.json" 2>"$WORK/bench.log" || die "$(cat "$WORK/bench.log")"
    stop "$SERVER"
    number goodput_bps <"$WORK/bench.json" | awk '{ printf "%.3f\n", $1 / 1e9 }'
}

build
connect
machine
for round in $(seq "$ROUNDS"); do
    blast >>"$WORK/gso"
    bench aes-128-gcm on >>"$WORK/aes"
    bench none on >>"$WORK/none"
    blast --plain >>"$WORK/plain"
    bench aes-128-gcm off >>"$WORK/aes-plain"
    echo "round $round: $(tail -qn 1 "$WORK/gso" "$WORK/aes" "$WORK/none" "$WORK/plain" "$WORK/aes-plain" |
        tr '\n' ' ')" >&2
done

row() { # NAME FILE BASE TARGET
    local value base
    value=$(median <"$WORK/$2")
    base=$(median <"$WORK/$3")
    printf '| %-34s | %8.2f | %6s | %6s |\n' "$1" "$value" "$(ratio "$value" "$base")" "$4"
}
printf '| %-34s | %8s | %6s | %6s |\n' "median of $ROUNDS, $SECONDS_EACH s each" Gbit/s ratio target
echo '|---|---|---|---|'
row 'blaster, GSO and GRO' gso gso ''
row 'haul bench, aes-128-gcm' aes gso 0.20
row 'haul bench, none' none gso 0.40
row 'blaster, sendmmsg and recvmmsg' plain plain ''
row 'haul bench, aes-128-gcm, no offloads' aes-plain plain 0.75

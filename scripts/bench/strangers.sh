#!/usr/bin/env bash
# Cost of clients that do not know the secret: the server's peak threads, sockets and memory, and the slowdown
# of a concurrent copy. Over loopback; an example of the engine makes the connections, so the same cores do
# the work of both sides.
#
#   scripts/bench/strangers.sh     # SECONDS_EACH=60 CONNECTIONS=3000 THREADS=16 RATE=200Mbit KINDS='proof plain hold'
#
# HAUL and STRANGERS are paths of built programs. Target with 3,000 wrong proofs per second: at most 200
# threads and 64 MB above idle, and a copy at most 10 % slower where there are enough cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
SECONDS_EACH=${SECONDS_EACH:-60}
CONNECTIONS=${CONNECTIONS:-3000}
THREADS=${THREADS:-16}
RATE=${RATE:-200Mbit}
KINDS=${KINDS:-proof plain hold}
WORK=$(mktemp -d)
SERVER=

clean_up() {
    [ -z "$SERVER" ] || kill "$SERVER" 2>/dev/null || true
    rm -rf "$WORK"
}
trap clean_up EXIT

built() { # NAME, cargo arguments: prints the path of a built program
    local name=$1
    shift
    cargo build --quiet --release "$@" --message-format json | sed -n 's/.*"executable":"\([^"]*\/'"$name"'\)".*/\1/p'
}

field() { sed -n "s/^$1:[^0-9]*\([0-9]*\).*/\1/p" "/proc/$SERVER/status"; }

watch() { # PROCESS: writes the server's maximum threads, sockets and KiB to a file until it ends
    local threads=0 sockets=0 memory=0 now
    while kill -0 "$1" 2>/dev/null; do
        now=$(field Threads) && [ "$now" -le "$threads" ] || threads=$now
        now=$(find "/proc/$SERVER/fd" -mindepth 1 2>/dev/null | wc -l) && [ "$now" -le "$sockets" ] || sockets=$now
        now=$(field VmRSS) && [ "$now" -le "$memory" ] || memory=$now
        sleep 0.1
    done
    echo "$threads $sockets $memory" >"$WORK/most"
}

copy() { # prints the rate of a copy in Mbit/s, while the strangers connect
    "$HAUL" cp --json --quiet --no-resume --rate "$RATE" "$WORK/source" "${URL/\/\?//copy-$RANDOM?}" >"$WORK/json" ||
        { echo 0; return; }
    sed -n 's/.*"goodput_bps":\([0-9.e+]*\).*/\1/p' "$WORK/json" | awk '{ printf "%.0f", $1 / 1e6 }'
}

HAUL=${HAUL:-$(built haul --package haul-cli --bin haul)}
STRANGERS=${STRANGERS:-$(built strangers --package haul-engine --example strangers)}
mkdir "$WORK/root"
bits=$(awk -v r="$RATE" 'BEGIN { n = r + 0; if (r ~ /Gbit/) n *= 1000; print n * 1000000 }')
# The copy takes two thirds of the time, so that it ends before the load does.
head -c "$((bits / 8 * SECONDS_EACH * 2 / 3))" /dev/urandom >"$WORK/source"
"$HAUL" serve --root "$WORK/root" --listen 127.0.0.1:0 --url-file "$WORK/url" >/dev/null 2>"$WORK/serve.log" &
SERVER=$!
until [ -s "$WORK/url" ]; do sleep 0.05; done
URL=$(cat "$WORK/url")
ADDRESS=$(sed 's|haul://\([^/]*\)/.*|\1|' "$WORK/url")

echo "$(nproc) cores, Linux $(uname -r), $(date -u +%F), $CONNECTIONS connections/s wanted, a copy at $RATE"
alone=$(copy)
# Measured after a copy, so that memory that the copy leaves allocated is not counted.
idle=$(field VmRSS)
echo "idle: $(field Threads) threads, $((idle / 1024)) MiB; a copy alone: $alone Mbit/s"
for kind in $KINDS; do
    rm -f "$WORK"/root/*
    "$STRANGERS" "$ADDRESS" "$kind" "$CONNECTIONS" "$SECONDS_EACH" "$THREADS" >"$WORK/load" &
    load=$!
    watch "$load" &
    watching=$!
    beside=$(copy)
    wait "$load" "$watching"
    read -r threads sockets memory <"$WORK/most"
    echo "$kind: $(cat "$WORK/load")"
    echo "$kind: at most $threads threads, $sockets descriptors, $(((memory - idle) / 1024)) MiB above idle;" \
        "a copy beside it $beside Mbit/s ($(awk -v a="$beside" -v b="$alone" 'BEGIN { printf "%.0f", 100 * a / b }') %)"
done
echo "lines in the server's log: $(wc -l <"$WORK/serve.log")"

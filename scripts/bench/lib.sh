# Shared functions of the benchmarks, to be sourced: two network namespaces connected by a veth pair, the
# release build, and commands pinned to one core each in the namespaces.
#
# Environment: ROUNDS (5), SECONDS_EACH (5), PIN (1 = sender on core 0, receiver on core 1; 0 = unpinned).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

ROUNDS=${ROUNDS:-5}
SECONDS_EACH=${SECONDS_EACH:-5}
PIN=${PIN:-1}
MTU=${MTU:-1500}
RX=haul-bench-$$-rx
TX=haul-bench-$$-tx
RX_ADDRESS=10.79.0.2
WORK=$(mktemp -d)
STARTED=()

die() {
    echo "bench: $*" >&2
    exit 1
}

clean_up() {
    for pid in "${STARTED[@]}"; do
        stop "$pid"
    done
    ip netns del "$TX" 2>/dev/null || true
    ip netns del "$RX" 2>/dev/null || true
    rm -rf "$WORK"
}
trap clean_up EXIT

executable() { # prints the path of a built binary, from cargo's JSON
    sed -n 's/.*"executable":"\([^"]*\/'"$1"'\)".*/\1/p'
}

build() {
    HAUL=$(cargo build --quiet --release --package haul-cli --bin haul --message-format json | executable haul)
    BLASTER=$(cargo build --quiet --release --package haul-udp --example blaster --message-format json |
        executable blaster)
    [ -x "$HAUL" ] && [ -x "$BLASTER" ] || die 'the build produced no executables'
}

connect() {
    [ "$(id -u)" = 0 ] || die 'needs root, for network namespaces'
    for namespace in "$TX" "$RX"; do
        ip netns add "$namespace"
        ip -n "$namespace" link set lo up
    done
    ip -n "$TX" link add link0 type veth peer name link0 netns "$RX"
    ip -n "$TX" addr add 10.79.0.1/24 dev link0
    ip -n "$RX" addr add $RX_ADDRESS/24 dev link0
    for namespace in "$TX" "$RX"; do
        ip -n "$namespace" link set dev link0 mtu "$MTU" up
    done
}

# Command prefix that runs a command on one side. Each part executes the next, so the started process is the
# command itself.
TX_SIDE=(ip netns exec "$TX")
RX_SIDE=(ip netns exec "$RX")
if [ "$PIN" = 1 ]; then
    TX_SIDE=(taskset -c 0 "${TX_SIDE[@]}")
    RX_SIDE=(taskset -c 1 "${RX_SIDE[@]}")
fi

stop() { # PROCESS: ends it and waits for it
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

serve() { # starts `haul serve` with further options; sets SERVER (process id) and URL
    rm -f "$WORK/url"
    "${RX_SIDE[@]}" "$HAUL" serve --root "$WORK" --listen 0.0.0.0:7900 --host $RX_ADDRESS --url-file "$WORK/url" "$@" \
        >/dev/null 2>"$WORK/serve.log" &
    SERVER=$!
    STARTED+=("$SERVER")
    for _ in $(seq 100); do
        [ -s "$WORK/url" ] && break
        sleep 0.05
    done
    [ -s "$WORK/url" ] || die "the server has not started: $(cat "$WORK/serve.log")"
    URL=$(cat "$WORK/url")
}

number() { # NAME: prints a number from the JSON object on stdin
    sed -n 's/.*"'"$1"'":\([-+0-9.eE]*\).*/\1/p'
}

median() { # median of numbers, one per line
    sort -g | awk '{ v[NR] = $1 } END { if (NR % 2) print v[(NR + 1) / 2]; else print (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f", a / b }'; }

machine() { # one line about the machine
    local cpu
    cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
    echo "$(nproc) cores, ${cpu:-unknown processor}, Linux $(uname -r), $(date -u +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo none)"
}

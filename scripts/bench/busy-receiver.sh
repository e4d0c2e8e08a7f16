#!/usr/bin/env bash
# Benefit of the diagnosis when the receiving host loses packets: a receiver with the socket buffer of an
# untuned host (208 KiB) that is suspended for 100 ms of each second, at a round-trip time of 100 ms.
# Alternates runs of HighSpeed's response (preset fobs-classifier) with and without the diagnosis.
# Needs root, /dev/net/tun and `cargo build --release -p haul-lab -p haul-cli`. ROUNDS=7, SECONDS_EACH=20,
# RTT=100ms, RATE=500Mbit, STOPPED=0.1 and RUNNING=0.9 (seconds): about six minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
export HAUL="$(realpath "${CARGO_TARGET_DIR:-target}")/release/haul"
lab="${HAUL%/haul}/haul-lab"
WORK="$(mktemp -d)"
export WORK SECONDS_EACH=${SECONDS_EACH:-20} RATE=${RATE:-500Mbit} STOPPED=${STOPPED:-0.1} RUNNING=${RUNNING:-0.9}
trap 'rm -rf "$WORK"' EXIT

cat >"$WORK/server" <<'SH'
exec "$HAUL" serve --quiet --root "$WORK" --host "$HAUL_WAN_B" --url-file "$WORK/url" >/dev/null 2>&1
SH

cat >"$WORK/client" <<'PY'
import json, os, signal, subprocess, sys, threading, time

work, haul = os.environ["WORK"], os.environ["HAUL"]
while not os.path.exists(f"{work}/url"):
    time.sleep(0.05)
server = int(subprocess.check_output(["pgrep", "-f", f"^{haul} serve.*{work}/url"]).split()[0])
done = threading.Event()

def suspend():
    while not done.wait(float(os.environ["RUNNING"])):
        os.kill(server, signal.SIGSTOP)
        time.sleep(float(os.environ["STOPPED"]))
        os.kill(server, signal.SIGCONT)

thread = threading.Thread(target=suspend)
thread.start()
told = subprocess.run(
    [haul, "bench", "--json", "--time", os.environ["SECONDS_EACH"] + "s", "--preset", "fobs-classifier", "--rate", os.environ["RATE"],
     "--set", "socket_buffer=208KiB", "--diagnosis", sys.argv[1], f"@{work}/url"], stdout=subprocess.PIPE, check=True).stdout
done.set()
thread.join()
report = json.loads(told)
causes = report["lost_by_cause"]
print(sys.argv[1], report["goodput_bps"] / 1e6, causes["receiver_host"], sum(causes.values()), flush=True)
PY

for _ in $(seq "${ROUNDS:-7}"); do
    for mode in on off; do
        rm -f "$WORK/url"
        "$lab" wan --rtt "${RTT:-100ms}" --rate 900Mbit --queue 50ms --server "sh $WORK/server" -- python3 "$WORK/client" "$mode" 2>"$WORK/log" |
            tee -a "$WORK/told"
        # Packets dropped by the path (ground truth).
        grep '^A to B' "$WORK/log" || true
    done
done
python3 - "$WORK/told" <<'PY'
import statistics, sys
rounds = [line.split() for line in open(sys.argv[1])]
of = lambda mode: [float(r[1]) for r in rounds if r[0] == mode]
on, off = of("on"), of("off")
ratios = sorted(a / b for a, b in zip(on, off))
print(f"with {statistics.median(on):.1f}, without {statistics.median(off):.1f} Mbit/s (medians); "
      f"ratio {statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})")
PY

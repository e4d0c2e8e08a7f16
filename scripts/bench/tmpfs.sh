#!/usr/bin/env bash
# Files in memory beside memory to memory: one file from tmpfs to tmpfs through a server on the loopback interface, without sync, in turn
# with `haul bench` of as many bytes to the same server; and `dd` of the same file, for what reading and writing cost at least.
# HAUL: the program [target/release/haul], ROUNDS [5], MEGABYTES [1000], PLACE [/dev/shm].
set -euo pipefail
cd "$(dirname "$0")/../.."
haul=$(realpath "${HAUL:-target/release/haul}")
megabytes=${MEGABYTES:-1000}
place=$(mktemp -d "${PLACE:-/dev/shm}/haul-tmpfs.XXXXXX")
server=
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$place"
}
trap finish EXIT
mkdir "$place/dst"
head -c "${megabytes}000000" /dev/urandom >"$place/source"
"$haul" serve --root "$place/dst" --listen 127.0.0.1:0 --url-file "$place/url" >/dev/null 2>&1 &
server=$!
for _ in $(seq 100); do
    [ -s "$place/url" ] && break
    sleep 0.1
done
url=$(cat "$place/url")
echo "round cp_gbps bench_gbps ratio cp_cpu_s bench_cpu_s dd_cpu_s"
for round in $(seq "${ROUNDS:-5}"); do
    "$haul" cp --json --sync none "$place/source" "${url/\/\?//copy?}" >"$place/cp.json"
    rm "$place/dst/copy"
    "$haul" bench --json --bytes "${megabytes}MB" "$url" >"$place/bench.json"
    python3 - "$round" "$place" <<'PYTHON'
import json, subprocess, sys, resource, os

round_, place = sys.argv[1:]
cp, bench = (json.load(open(f"{place}/{name}.json")) for name in ("cp", "bench"))
subprocess.run(["dd", f"if={place}/source", f"of={place}/dst/copy", "bs=1M", "status=none"], check=True)
os.remove(f"{place}/dst/copy")
dd = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu = lambda run: run["cpu_seconds"]["sender"] + run["cpu_seconds"]["receiver"]
print(
    round_,
    f"{cp['goodput_bps'] / 1e9:.2f} {bench['goodput_bps'] / 1e9:.2f} {cp['goodput_bps'] / bench['goodput_bps']:.3f}",
    f"{cpu(cp):.2f} {cpu(bench):.2f} {dd.ru_utime + dd.ru_stime:.2f}",
    flush=True,
)
PYTHON
done

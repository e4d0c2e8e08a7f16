#!/bin/sh
# Many small files compared with one large file of the same total size over the demo's path (50 ms, 1 Gbit/s),
# and the memory of both sides for a million files. Uses tmpfs; needs about 10 GB for a million files.
# Usage: small-files.sh [HAUL] [FILES FOR MEMORY]
set -eu
haul=$(realpath "${1:-$(dirname "$0")/../../target/release/haul}")
files=${2:-1000000}
place=$(mktemp -d /dev/shm/haul-small.XXXXXX)
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; rm -rf "$place"' EXIT INT TERM
cd "$place"
make_files() { # directory, number of files, bytes per file
    python3 - "$@" <<'PYTHON'
import os, sys
root, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.mkdir(root)
for number in range(count):
    if number % 1000 == 0:
        directory = f"{root}/directory {number // 1000:04}"
        os.mkdir(directory)
    with open(f"{directory}/file number {number:08}", "wb", buffering=0) as file:
        file.write(b"%010d" % number * (size // 10))
PYTHON
}
make_files small 100000 1020
mkdir large
head -c 102000000 /dev/urandom > large/file
for round in 1 2 3; do
    for what in large small; do
        TMPDIR=$place "$haul" demo $what --rtt 50ms --loss 0 --path-rate 1Gbit --no-tcp --json 2>/dev/null |
            python3 -c "import json, sys; r = json.load(sys.stdin); assert r['ok'], r['error']; print('$what', r['seconds'], 's')"
    done
done
rm -rf small large
make_files many "$files" 10
mkdir root
"$haul" serve --root root --listen 127.0.0.1:0 --url-file url --once 2>/dev/null >&2 &
server=$!
while ! test -s url; do sleep 0.1; done
"$haul" cp many "$(sed 's#/?#/x?#' url)" --json 2>/dev/null > result &
client=$!
peak=0
while kill -0 $client 2>/dev/null; do
    peak=$(awk '/VmHWM/ { print $2 }' "/proc/$server/status" 2>/dev/null || echo "$peak")
    sleep 0.5
done
python3 -c "import json; r = json.load(open('result')); print('sender', r['max_rss_bytes'] >> 20, 'MiB,', r['files'], 'files')"
echo "receiver $((peak / 1024)) MiB (half a second before its end at the latest)"

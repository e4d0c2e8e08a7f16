#!/usr/bin/env bash
# Accuracy of the shipped model on windows of real traffic outside its training data, by set: the 95 %
# interval of wrong verdicts (Clopper and Pearson), and the frequency of host losses by posterior probability.
# A window counts if nearly all of its losses have one cause according to the emulator's drop log, and if its
# loss rate is in the model's range.
# Needs `cargo build --release -p haul-cli`; takes some seconds. SETS="fourth ..." names the sets, MODEL
# another model.
set -euo pipefail
cd "$(dirname "$0")/../.."
export HAUL="$(realpath "${CARGO_TARGET_DIR:-target}")/release/haul" MODEL="${MODEL:-}"
export PYTHONPATH="$PWD/scripts/bench" PYTHONDONTWRITEBYTECODE=1
sets="${SETS:-fourth fifth sixth seventh eighth ninth}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2086
tar -xJf crates/lab/training/real.tar.xz -C "$work" $sets
cd "$work"
# shellcheck disable=SC2086
python3 - $sets <<'PY'
import collections, glob, json, os, subprocess, sys
from shares import clopper_pearson

INCONCLUSIVE = "inconclusive"
EDGES = [0.001, 0.05, 0.95, 0.999]

def windows(name):
    """Of each window in range: whether the host lost it, and what the model says."""
    model = ["--model", os.environ["MODEL"]] if os.environ["MODEL"] else []
    files = sorted(glob.glob(f"{name}/host-*.sig") + glob.glob(f"{name}/network-*.sig"))
    told = subprocess.run([os.environ["HAUL"], "diagnose", "--json", *model, *files], stdout=subprocess.PIPE, check=True, text=True).stdout
    for window in map(json.loads, told.splitlines()):
        if window["metric"] != "none":
            yield window["file"].startswith(f"{name}/host-"), window

print("| set | host | network | right | wrong | inconclusive |\n|---|---|---|---|---|---|")
bins = collections.defaultdict(list)
for name in sys.argv[1:]:
    count = collections.Counter()
    for by_host, window in windows(name):
        verdict = window["verdict"]
        right = (verdict == "receiver_host") == by_host
        count[INCONCLUSIVE if verdict == INCONCLUSIVE else "right" if right else "wrong"] += 1
        count["host" if by_host else "network"] += 1
        bins[sum(window["p_host"] >= edge for edge in EDGES)].append((window["p_host"], by_host))
    low, high = clopper_pearson(count["wrong"], count["host"] + count["network"])
    print(f"| {name} | {count['host']} | {count['network']} | {count['right']} "
          f"| {count['wrong']} ({100 * low:.2f} to {100 * high:.2f} %) | {count[INCONCLUSIVE]} |")

print("\n| told: the host, with | windows | mean | of the host | 95 % interval |\n|---|---|---|---|---|")
for place, seen in sorted(bins.items()):
    least, most = [0, *EDGES][place], [*EDGES, 1][place]
    hosts = sum(by_host for _, by_host in seen)
    low, high = clopper_pearson(hosts, len(seen))
    mean = sum(p for p, _ in seen) / len(seen)
    print(f"| {least} to {most} | {len(seen)} | {mean:.4f} | {hosts / len(seen):.4f} | {low:.4f} to {high:.4f} |")
PY

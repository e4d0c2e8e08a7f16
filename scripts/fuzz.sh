#!/usr/bin/env bash
# Runs every fuzz target for some seconds: scripts/fuzz.sh [SECONDS].
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-30}
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo 'fuzz: missing cargo-fuzz: cargo install cargo-fuzz; rustup toolchain install nightly' >&2
    exit 1
fi
cargo +nightly fuzz list | while read -r target; do
    echo "== $target, $seconds s"
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds"
done

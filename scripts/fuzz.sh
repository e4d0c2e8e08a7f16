#!/usr/bin/env bash
# Runs every fuzz target for some seconds: scripts/fuzz.sh [SECONDS]. With --if-installed, as in `make test`,
# a missing fuzzer is not an error: the same checks run as ordinary tests, with seeded inputs and the stored
# corpora.
set -euo pipefail
cd "$(dirname "$0")/.."
missing=error
if [ "${1:-}" = --if-installed ]; then
    missing=skip
    shift
fi
seconds=${1:-20}
if ! cargo fuzz --version >/dev/null 2>&1 || ! cargo +nightly --version >/dev/null 2>&1; then
    what='missing cargo-fuzz or a nightly toolchain: cargo install cargo-fuzz; rustup toolchain install nightly'
    if [ "$missing" = skip ]; then
        echo "SKIPPED fuzz: $what" >&2
        exit 0
    fi
    echo "fuzz: $what" >&2
    exit 1
fi
# Without a sanitizer: nearly all code is safe Rust, where a sanitizer finds nothing and halves the speed.
cargo +nightly fuzz build --sanitizer none
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
cargo +nightly fuzz list | while read -r target; do
    echo "== $target, $seconds s"
    mkdir -p "$found/$target"
    # New inputs are written to the first directory; the stored corpus is only read.
    cargo +nightly fuzz run --sanitizer none "$target" "$found/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -max_len=4096 -timeout=25 -verbosity=0 -print_final_stats=1 </dev/null
done

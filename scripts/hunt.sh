#!/usr/bin/env bash
# Runs the tests of all crates except the programs with new random cases for property tests: scripts/hunt.sh
# [ARGUMENTS OF cargo test].
# PROPTEST_RNG_SEED=N repeats a run, PROPTEST_CASES=N runs more cases.
set -euo pipefail
cd "$(dirname "$0")/.."
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
echo "PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"
exec "${CARGO:-cargo}" test --workspace --exclude haul-cli --exclude haul-lab --no-fail-fast "$@"

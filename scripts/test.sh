#!/usr/bin/env bash
# Runs all tests and prints a summary line with their number: scripts/test.sh [ARGUMENTS OF cargo test].
set -uo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

"${CARGO:-cargo}" test --workspace --no-fail-fast "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

echo
skipped=$(grep -c '^SKIPPED' "$log")
[ "$skipped" = 0 ] || echo "$skipped of these tests were skipped: grep for SKIPPED above"
grep '^test .* \.\.\. FAILED$' "$log"
grep -q '^error: could not compile' "$log" && echo 'a crate or test failed to compile: see above'
awk '/^test result:/ { passed += $4; failed += $6 } END { printf "%d passed, %d failed\n", passed, failed }' "$log"
exit "$status"

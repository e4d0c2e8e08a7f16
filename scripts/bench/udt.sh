#!/usr/bin/env bash
# Builds the UDT sender and receiver for `haul-lab services jitter`, and prints the program's path.
#
#   sudo haul-lab services jitter --udt "$(scripts/bench/udt.sh)"
#
# Needs g++ and UDT 4: `apt install g++ libudt-dev` on Debian. Environment: CXX (g++), CARGO_TARGET_DIR (target).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
CXX=${CXX:-g++}
mkdir -p "${CARGO_TARGET_DIR:-target}/udt"
FLOW=$(cd "${CARGO_TARGET_DIR:-target}/udt" && pwd)/flow

die() {
    echo "udt: $*" >&2
    exit 1
}

command -v "$CXX" >/dev/null || die "missing $CXX; on Debian: apt install g++"
echo '#include <udt/udt.h>' | "$CXX" -E -x c++ - >/dev/null 2>&1 || die 'missing udt/udt.h; on Debian: apt install libudt-dev'
"$CXX" -std=c++17 -O2 -Wall -Wextra -o "$FLOW" scripts/bench/udt/flow.cpp -ludt -lpthread >&2
echo "$FLOW"

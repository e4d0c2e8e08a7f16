#!/usr/bin/env bash
# Installs missing packages for building and testing; without root it prints what is missing.
set -euo pipefail

# A program, its Debian package, and its purpose.
needs='cc gcc build
make make build
cmake cmake build
ip iproute2 test
iptables iptables test
setpriv util-linux test
script bsdutils test
ssh openssh-client test
sshd openssh-server test
mount mount test
rsync rsync test
xz xz-utils test'

missing=() without_build=() without_test=()
while read -r program package purpose; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null && continue
    missing+=("$package")
    if [ "$purpose" = build ]; then without_build+=("$program"); else without_test+=("$program"); fi
done <<<"$needs"

if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "setup: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # Tests start the servers that they need; installing a package must not start it as a service
    # (policy-rc.d(8)).
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
    fi
    apt-get install -y -qq --no-install-recommends "${missing[@]}" libc6-dev >/dev/null
    case " ${missing[*]} " in
    *" openssh-server "*) systemctl disable --quiet ssh.service ssh.socket 2>/dev/null || true ;;
    esac
    missing=() without_build=() without_test=()
fi
if [ ${#without_test[@]} -gt 0 ]; then
    echo "setup: missing ${without_test[*]}: end-to-end tests that need them will be skipped" >&2
fi
if [ ${#without_build[@]} -gt 0 ]; then
    echo "setup: missing ${without_build[*]}" >&2
    echo "setup: as root: apt-get install ${missing[*]} libc6-dev" >&2
    # cmake is needed only where the cryptographic library has no prebuilt build description.
    [ "${without_build[*]}" = cmake ] || exit 1
fi
if ! command -v "${CARGO:-cargo}" >/dev/null; then
    echo "setup: missing cargo: install Rust 1.88 or later, see https://rustup.rs" >&2
    exit 1
fi

#!/usr/bin/env bash
# Checks licences, sources and known vulnerabilities of all dependencies against deny.toml, with cargo-deny.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo deny --version >/dev/null 2>&1; then
    echo 'SKIPPED deny: missing cargo-deny: cargo install cargo-deny --locked' >&2
    exit 0
fi
cargo deny --locked check licenses sources bans
# The vulnerability database is separate from the crates.io registry. If it cannot be fetched, the copy of an
# earlier run is used; if there is none, only this check is skipped.
databases=${CARGO_HOME:-$HOME/.cargo}/advisory-dbs
if timeout 120 cargo deny --locked fetch db >/dev/null 2>&1 ||
    [ -n "$(find "$databases" -name 'RUSTSEC-*' -print -quit 2>/dev/null)" ]; then
    cargo deny --locked check --disable-fetch advisories
else
    echo 'SKIPPED deny advisories: https://github.com/rustsec/advisory-db cannot be fetched' >&2
fi

# Targets: `make demo`, `make test`, `make hunt`, `make bench`, `make fuzz`; see `make help` and docs/testing.md.

CARGO ?= cargo
# Builds with HAUL_FAULTS, for the end-to-end tests only.
FAULTS := --features haul-cli/faults
FUZZ_SECONDS ?= 20

.PHONY: help demo test setup lint docs deny smoke unit hunt bench fuzz fuzz-if-installed

help:
	@echo 'make demo    build, and run a verified copy over an emulated long path'
	@echo 'make test    all checks: formatting, lints, documentation, dependencies, import rules, tests'
	@echo 'make hunt    property tests with new random cases'
	@echo 'make bench   the measurements of docs/performance.md (needs root and an idle machine; takes some minutes)'
	@echo 'make fuzz    every fuzz target for $(FUZZ_SECONDS) s (needs a nightly toolchain and cargo-fuzz)'
	@echo 'make setup   install missing packages (as root), or list them'

setup:
	@scripts/setup.sh

demo: setup
	$(CARGO) run --release --package haul-cli --bin haul -- demo

# The tests run last, so that the output ends with their summary.
# Property tests use the same cases in each run; `make hunt` draws new ones.
test smoke unit: export PROPTEST_RNG_SEED ?= 1
test: setup lint docs deny smoke fuzz-if-installed unit

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets $(FAULTS) -- -D warnings
	$(CARGO) clippy --workspace -- -D warnings

docs:
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps $(FAULTS)

deny:
	scripts/deny.sh

smoke:
	scripts/smoke.sh

# Includes crates/cli/tests/architecture.rs, which checks imports between crates.
unit:
	scripts/test.sh $(FAULTS)

hunt:
	scripts/hunt.sh

bench: setup
	scripts/bench/all.sh

fuzz:
	scripts/fuzz.sh $(FUZZ_SECONDS)

fuzz-if-installed:
	scripts/fuzz.sh --if-installed $(FUZZ_SECONDS)

# What there is to do here: `make demo`, `make test`, `make hunt`, `make bench`, `make fuzz`. docs/testing.md says more.

CARGO ?= cargo
# Builds with HAUL_FAULTS, for the end-to-end tests only.
FAULTS := --features haul-cli/faults
FUZZ_SECONDS ?= 20

.PHONY: help demo test setup lint docs deny smoke unit hunt bench fuzz fuzz-if-installed

help:
	@echo 'make demo    build, and show a verified copy over an emulated long path'
	@echo 'make test    everything that must hold: format, lints, documents, dependencies, import rules, tests'
	@echo 'make hunt    the property tests with cases that nobody has tried yet'
	@echo 'make bench   the figures of docs/performance.md (root, an idle machine, some minutes)'
	@echo 'make fuzz    every fuzz target for $(FUZZ_SECONDS) s (needs a nightly toolchain and cargo-fuzz)'
	@echo 'make setup   install what is missing (root), or say what it is'

setup:
	@scripts/setup.sh

demo: setup
	$(CARGO) run --release --package haul-cli --bin haul -- demo

# The tests come last, so that their summary is the last thing to be seen.
# Property tests draw the same cases in each run; `make hunt` draws new ones.
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

# crates/cli/tests/architecture.rs checks who imports whom.
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

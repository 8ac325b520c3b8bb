# Every target sets up what it needs. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

TARGET_DIR := target
# Profile of the sandboxd that the CLI embeds: `dev` for development, `tiny` for releases.
SANDBOXD_PROFILE ?= dev
EMBED := $(TARGET_DIR)/embed/sandboxd
QUIET ?= --quiet

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-19s %s\n", $$1, $$2}'

.PHONY: setup
setup: ## Check the toolchain, and list what is missing and how to get it
	@scripts/setup

.PHONY: sandboxd
sandboxd: setup ## Build the static sandboxd that the CLI embeds
	@mkdir -p $(dir $(EMBED))
	@built=$$(QUIET=$(QUIET) scripts/sandboxd $(SANDBOXD_PROFILE)); cmp -s "$$built" $(EMBED) || install -m 0755 "$$built" $(EMBED)

.PHONY: try
try: ## Build what is needed and run one command in a sandbox
	@scripts/try

.PHONY: build
build: setup ## Build the release binaries
	@$(MAKE) --no-print-directory sandboxd SANDBOXD_PROFILE=tiny
	cargo build --locked --release -p agent-sandbox

.PHONY: check
check: setup ## Formatting, lints, generated files
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo xtask conformance
	cargo xtask upstream
	@if command -v cargo-deny >/dev/null; then cargo deny check bans licenses sources; \
	else echo "SKIPPED: licences and sources of the dependencies need cargo-deny (cargo install --locked cargo-deny)"; fi
	@if command -v cargo-machete >/dev/null; then cargo machete $(filter-out crates/features,$(wildcard crates/*)) fuzz sdk/python xtask; \
	else echo "SKIPPED: unused dependencies need cargo-machete (cargo install --locked cargo-machete)"; fi

.PHONY: test
test: setup ## All tests
	@scripts/test

.PHONY: e2e
e2e: setup ## Whole-product tests only
	@scripts/test e2e

.PHONY: fuzz
fuzz: setup ## Fuzz every parser of untrusted bytes for FUZZ_SECONDS (600); TARGET=name for one
	@scripts/fuzz

.PHONY: bench
bench: setup ## Run the benchmarks, with peers for comparison
	@scripts/bench

.PHONY: generate
generate: ## Regenerate all committed generated files
	@scripts/generate

.PHONY: manifests
manifests: ## Render the CRDs, the chart's copy of them and the plain manifests into deploy/
	@scripts/manifests

.PHONY: deploy
deploy: ## Install or upgrade with the chart, on the cluster of the current kubeconfig
	$$(scripts/control-plane helm) upgrade --install agent-sandbox deploy/helm/agent-sandbox --set controller.extensions=true

.PHONY: docs
docs: ## Build the documentation site into target/site
	@scripts/docs

.PHONY: control-plane
control-plane: setup ## Start a real Kubernetes control plane with fake nodes on this machine
	@scripts/control-plane up

.PHONY: control-plane-down
control-plane-down: ## Stop that control plane
	@scripts/control-plane down

.PHONY: release
release: setup ## Build all release artifacts into dist/
	@scripts/release

.PHONY: images
images: ## Build the container images (needs docker)
	@scripts/images

# Every command of the project; CI calls the same ones.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
SERVERS := $(BIN)/python scripts/servers
ARGS ?=
ONLY ?=
UPGRADE ?=
# Those that need a server of scripts/servers.
SERVER_MARKS := kafka or s3 or postgres

.PHONY: help setup demo test test-fast test-k8s check bench results docs lock images servers-up \
	servers-down dashboard

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.setup ## Make .venv with all that the other targets need (TORCH_BACKEND=cpu|cu128|...)

.venv/.setup: pyproject.toml shared/pyproject.toml dashboard/pyproject.toml scripts/setup
	@scripts/setup
	@touch $@

demo: setup ## Run a small experiment in one process; writes overproof-report.html
	@$(BIN)/overproof run examples/quickstart.yaml --report overproof-report.html
	@echo "open overproof-report.html, or the dashboard with: make dashboard"

test: setup ## Run all tests beside the real servers (ARGS="-k name" picks some)
	@$(SERVERS) run $(BIN)/pytest $(ARGS)

test-fast: setup ## Run the tests that need no server
	@$(BIN)/pytest -m "not ($(SERVER_MARKS))" $(ARGS)

test-k8s: setup ## Run the tests beside a real API server, KEDA and the servers (first time: minutes)
	@OVERPROOF_TEST_K8S=1 $(SERVERS) run $(BIN)/pytest tests/k8s $(ARGS)

check: setup ## Format, lint, types and import rules; changes nothing
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy shared/src services dashboard tests benchmarks scripts
	@$(BIN)/lint-imports

bench: setup ## Run the benchmarks (ONLY=prefix picks some)
	@$(BIN)/python -m benchmarks --only "$(ONLY)"

results: setup ## Measure the published results again
	@$(BIN)/python -m benchmarks.results

docs: setup ## Write docs/settings.md and docs/metrics.md from the code
	@$(BIN)/python scripts/docs.py

lock: setup ## Pin each component's dependencies in locks/ (UPGRADE=1 takes the newest)
	@$(BIN)/python scripts/locks.py $(if $(UPGRADE),--upgrade)

servers-up: setup ## Start the real servers of the tests and print their variables
	@$(SERVERS) up

servers-down: setup ## Stop them and delete their data
	@$(SERVERS) down

dashboard: setup ## Show the dashboard in a browser
	@$(BIN)/overproof dashboard

images: setup ## Build the container images (ONLY=name, TORCH_BACKEND=cpu|cu128, TAG, REGISTRY)
	@$(BIN)/python -m scripts.images $(ONLY)

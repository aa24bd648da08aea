# Two commands do all set-up: `make demo` runs the main job on an embedded default, `make test` passes the tests.
# Both install what they need, system packages included where they are missing and this user may install them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow sim brute bench bench-placement lint types ci system clean proto help

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

system:
	@deploy/install-system-packages

$(STAMP): pyproject.toml | system
	@deploy/make-venv $(VENV) $(PYTHON)
	@touch $(STAMP)

demo: $(STAMP) ## the main job, end to end, on described hardware; ends by itself
	@$(BIN)/python deploy/demo.py

test: $(STAMP) ## lint, types, and every test that ends in minutes
	@$(MAKE) --no-print-directory lint types
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not gpu"

test-slow: $(STAMP) ## the tests that take minutes each
	@$(BIN)/python -m pytest -q -m slow --timeout 900

sim: $(STAMP) ## 1,000 simulation seeds, and the planted bugs
	@$(BIN)/python -m tests.sim.campaign --seeds 1000

brute: $(STAMP) ## placement and its refusals against trying everything, on 4,000 random small clusters
	@$(BIN)/python -m tests.support.brute_campaign --seeds 4000 --jobs 2

bench: $(STAMP) ## submit to all ranks running, 64 ranks on 8 agents: p50 and p99
	@$(BIN)/python -m bench.launch

bench-placement: $(STAMP) ## 10,000 GPUs: time and proof of each placement, beside a live Slurm where there is one
	@$(BIN)/python -m bench.placement

lint: $(STAMP) ## ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .

types: $(STAMP) ## mypy --strict
	@$(BIN)/mypy

proto: $(STAMP) ## generate the Python code of proto/fmproto/v1/*.proto
	@$(BIN)/python -m fmproto.generate

clean: ## remove what the targets above made
	rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis

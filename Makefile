# Cleave: every chore by name. `make` alone lists them; each one that needs the environment builds it first.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
READY := .venv/.ready
# One more than cores: most tests on real servers wait for somebody else a fifth of their time.
WORKERS ?= 3
PROCESSES ?= 2
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist loadgroup --max-worker-restart 3
TYPED := $(wildcard controller cleave_provider pulsar_cleave spark_jobs dags plugins docs benchmarks)
ARGS ?=

# Where it is set, every process of every test compiles all its libraries anew: half of most of them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## Build .venv from constraints.txt (needs Python >= 3.11 and the network)
	@:
$(READY): pyproject.toml constraints.txt .ci/setup
	@.ci/setup

.PHONY: demo
demo: $(READY) ## The whole stack on this machine with live traffic (KEEP=1, TRACE=file, PLANE=pulsar, DAY_SECONDS=210)
	@KEEP="$(KEEP)" TRACE="$(TRACE)" PLANE="$(PLANE)" DAY_SECONDS="$(DAY_SECONDS)" $(PY) -m controller.demo $(ARGS)

.PHONY: test
test: $(READY) ## All tests but the long chaos runs and the installations of matrix, on real servers (WORKERS=3, ARGS=...)
	@$(PYTEST) tests $(ARGS)

.PHONY: test-fast
test-fast: $(READY) ## Tests that start nothing: seconds
	@$(PYTEST) tests -m "not (integration or spark or airflow or pulsar or chaos or browser)" $(ARGS)

.PHONY: matrix
matrix: $(READY) ## Smallest and largest PostgreSQL, Airflow, SQLAlchemy, PySpark; pip beside Airflow; chart; Compose (ONLY="pyspark 3.1")
	@$(PY) -m tests.matrix $(ONLY)

.PHONY: mutants
mutants: $(READY) ## Safety-critical code changed place by place, each change to be noticed by a named test (ONLY="sessions leases")
	@$(PY) -m tests.mutants --processes $(PROCESSES) $(ONLY) $(ARGS)

MODULE ?= controller/domain/*
TESTS ?= tests/unit/domain
COMMA := ,
WIDE := .cache/mutmut
.PHONY: mutants-wide
mutants-wide: $(READY) ## Every operator, value and call of a module changed by mutmut (MODULE=controller/domain/seek_target.py TESTS="tests/unit/domain")
	@rm -rf $(WIDE) && mkdir -p $(WIDE) && ln -s $(filter-out %/Makefile %/pyproject.toml,$(wildcard $(CURDIR)/*)) $(WIDE)
	@sed -e 's#^only_mutate = .*#only_mutate = ["$(MODULE)"]#' \
		-e 's#^\(pytest_add_cli_args_test_selection\) = .*#\1 = [$(patsubst %,"%"$(COMMA),$(TESTS))]#' pyproject.toml >$(WIDE)/pyproject.toml
	@cd $(WIDE) && $(CURDIR)/$(PY) -m tests.mutants.server $(CURDIR)/$(PY) -m mutmut run --max-children $(PROCESSES)
	@cd $(WIDE) && $(CURDIR)/$(PY) -m mutmut results

.PHONY: chaos
chaos: $(READY) ## Hours of kills, pauses and outages under load, brokers' too; then random cases by the thousand
	@CLEAVE_KEEP_FIGURES=1 $(PY) -m pytest tests -m chaos --timeout 1800 $(ARGS)
	@CLEAVE_THOROUGH=1 $(PYTEST) tests -m drawn --timeout 1800 $(ARGS)

.PHONY: soak
soak: $(READY) ## Rounds of producers and consumers on a broker beside a busy machine (ARGS="--rounds 500 --minutes 600 --figures")
	@$(PY) -m tests.chaos.soak $(ARGS)

.PHONY: bench
bench: $(READY) ## Benchmarks and benchmarks/RESULTS.md from them (ONLY="decide operations")
	@$(PY) -m benchmarks $(ONLY) $(ARGS)

.PHONY: bench-compare
bench-compare: $(READY) ## Key benchmarks on this tree and on a commit in turns, as ratios (BASE=commit ONLY="decide" ARGS="--rounds 5")
	@test -n "$(BASE)" || { echo "give the commit to compare with: make bench-compare BASE=main" >&2; exit 2; }
	@$(PY) -m benchmarks.compare "$(BASE)" $(ONLY) $(ARGS)

.PHONY: release-check
release-check: $(READY) ## What a release needs beyond the tests: no published figure of code that has changed since
	@$(PY) -m benchmarks.staleness

.PHONY: lint
lint: $(READY) ## Ruff: rules and format
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

.PHONY: fix
fix: $(READY) ## Ruff: repair what can be repaired, and format
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

.PHONY: types
types: $(READY) ## mypy, strict
	@$(PY) -m mypy $(TYPED)

.PHONY: contract
contract: $(READY) ## The floors: who may import whom
	@.venv/bin/lint-imports --no-logo --cache-dir .cache/import-linter

.PHONY: lock
lock: $(READY) ## Resolve pyproject.toml anew into constraints.txt
	@.ci/lock

.PHONY: clean
clean: ## Remove the environment, caches and local state
	@rm -rf .venv .cache .cleave build dist *.egg-info clients/java/target
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

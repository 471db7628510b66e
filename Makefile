# Two commands are all a newcomer needs: `make demo` and `make test`.
# Each creates its own virtual environment from pinned versions; nothing outside this folder changes.

PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
RUN := $(VENV)/bin

.PHONY: demo test test-fast lint docs docs-serve bench study-tables test-oldest lock clean help

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/ready  ## Train the paper's Gaussian mixtures, ten paired seeds; report and figures in demo/
	$(RUN)/python -m atomsep.cli.demo --out demo

test: $(VENV)/ready lint  ## Format, lint, types, tests, doctests
	$(RUN)/python -m pytest -n auto --dist worksteal -rs

test-fast: $(VENV)/ready  ## The tests without the slow ones, for the inner loop: two minutes
	$(RUN)/python -m pytest -n auto --dist worksteal -m "not slow"

lint: $(VENV)/ready  ## Format check, lint, type check
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy

docs: $(VENV)/ready  ## Build the documentation into site/, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict

docs-serve: $(VENV)/ready  ## Serve the documentation on this machine
	$(RUN)/mkdocs serve

bench: $(VENV)/ready  ## Measure speed and memory against named alternatives
	$(RUN)/python -m benchmarks.cpu

study-tables: $(VENV)/ready  ## Fill in the tables of docs/results/ from the collected runs
	$(RUN)/python -m study tables

test-oldest: $(OLDEST)/ready  ## The tests on the oldest supported dependencies
	$(OLDEST)/bin/python -m pytest -n auto --dist worksteal -W "ignore::DeprecationWarning"  # of old libraries on newer ones

$(VENV)/ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "atomsep needs Python 3.10 or newer; pass one with make PYTHON=...")'
	$(PYTHON) -m venv --clear $(VENV)
	$(RUN)/pip install --quiet --disable-pip-version-check "uv>=0.5"
	$(RUN)/uv pip install --quiet --compile-bytecode --python $(RUN)/python -r requirements.lock
	$(RUN)/uv pip install --quiet --python $(RUN)/python --no-deps --editable .
	touch $@

$(OLDEST)/ready: requirements-oldest.lock pyproject.toml | $(VENV)/ready
	$(PYTHON) -m venv --clear $(OLDEST)
	$(RUN)/uv pip install --quiet --compile-bytecode --python $(OLDEST)/bin/python -r requirements-oldest.lock
	$(RUN)/uv pip install --quiet --python $(OLDEST)/bin/python --no-deps --editable .
	touch $@

LOCK := $(RUN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.10 --no-annotate --no-header --quiet

lock: $(VENV)/ready  ## Update both lock files (they record names and versions, no addresses)
	$(LOCK) --group dev --upgrade --output-file requirements.lock
	$(LOCK) --group test --resolution lowest-direct --upgrade --output-file requirements-oldest.lock

clean:  ## Remove what the other targets created
	rm -rf $(VENV) $(OLDEST) site demo dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

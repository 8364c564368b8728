# Each target builds the virtual environment it needs, so every one of them works in a fresh clone.

PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$python && break; done)
BIN := .venv/bin
VENV := .venv/installed
OLD := .venv-compat
FRESH := .venv-dist

export NO_MKDOCS_2_WARNING := 1

.PHONY: demo test test-slow check compat bench docs dist clean

demo: $(VENV)
	$(BIN)/pilekit demo --out demo

# Three processes with a third of the tests each, in order, so that a file's fixtures are mostly made once. A process that
# is done takes tests from another's end. Tests wait for processes, disks and pauses, so three keep two cores busy.
PARALLEL := -n 3 --dist worksteal

test: $(VENV)
	$(BIN)/pytest $(PARALLEL)

test-slow: $(VENV)
	$(BIN)/pytest -m 'slow or hypothesis' $(PARALLEL)

# The tests check the order of imports too (tests/test_imports.py).
check: $(VENV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mkdocs build --strict
	$(BIN)/pytest $(PARALLEL)

# The oldest versions that pyproject.toml allows, gigabytes of them, under the tests of everything but `train`.
compat: $(OLD)/installed
	$(OLD)/bin/pytest $(PARALLEL) --ignore=tests/train --ignore=tests/frameworks --ignore=tests/cli/test_train.py \
		--ignore=tests/cli/test_demo.py --ignore=tests/report/test_report.py tests

# One script after the other: each compares pilekit with its peers in one run, on an otherwise idle machine.
bench: $(VENV)
	set -e; for script in tests/benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script; done

docs: $(VENV)
	$(BIN)/mkdocs build --strict

# Wheel and source archive, checked. The wheel runs the demo's first command in an environment that has nothing else.
dist: $(VENV)
	rm -rf dist $(FRESH)
	$(BIN)/python -m hatchling build -d dist
	$(PYTHON) -m venv $(FRESH)
	$(FRESH)/bin/python -m pip install --quiet --disable-pip-version-check twine
	$(FRESH)/bin/twine check --strict dist/*
	$(PYTHON) -m venv --clear $(FRESH)
	$(FRESH)/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt dist/*.whl
	cd $(FRESH) && export PYTHONPATH= && bin/python -P -c 'from pathlib import Path; \
		from pilekit.assemble.demo import write_demo_sources; write_demo_sources(Path("sources"))' \
		&& bin/pilekit assemble sources/demo.toml --out corpus && bin/pilekit stats corpus --manifest demo

clean:
	rm -rf .venv $(OLD) $(FRESH) site dist build demo .bench

# constraints.txt holds the versions that were tested together. The stamp is written last: a broken install is no install.
$(VENV): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or later with venv found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Installing pilekit and its packages into .venv, about 2.6 GB: 2 to 3 minutes with a CPU build of torch"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(OLD)/installed: pyproject.toml
	$(PYTHON) -m venv --clear $(OLD)
	$(OLD)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(OLD)/bin/uv pip install --quiet --python $(OLD)/bin/python --resolution lowest-direct --editable .
	$(OLD)/bin/uv pip install --quiet --python $(OLD)/bin/python \
		aiohttp hatchling hypothesis pytest pytest-timeout pytest-xdist pyzstd
	@touch $@

# Everything runs in .venv, made on first use; the stamp files in it make a second run start at once.
# Every pip call uses the constraints: an unpinned torch may bring several GB of CUDA packages.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow lint docs bench results clean

demo: $(VENV)/.demo
	$(BIN)/equinorm demo

test: lint
	$(BIN)/python -m pytest -n $(WORKERS)

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src

docs: $(VENV)/.dev
	$(BIN)/python -m equinorm.rules
	$(BIN)/python -m equinorm.experiments

# On a machine that is quiet otherwise: 45 minutes. Then the README's table.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks
	$(BIN)/python -m equinorm.bench.readme

# The paper's figures and tables, shortened; the page of results, and the README's table.
DATA ?= data
results: $(VENV)/.dev
	$(BIN)/equinorm reproduce all --preset quick --data-dir $(DATA) --output results
	$(BIN)/equinorm report results --readme README.md

clean:
	rm -rf $(VENV)

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit("equinorm needs Python 3.10 or newer: make PYTHON=python3.x" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# torch first and by its exact pin, so that pip takes a local CPU build where the machine has one.
$(VENV)/.torch: $(VENV)/.made constraints.txt
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) -e ".[cli,plot]"
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) -e ".[dev]"
	@touch $@

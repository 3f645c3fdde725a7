# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint format docs clean

$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[report]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.demo

demo: $(VENV)/.demo  ## install, then SloMo-Fast and four baselines on a drifting stream (about three minutes)
	$(BIN)/slomofast demo --out demo

lint: $(VENV)/.dev  ## format, style and types
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy src

test: lint  ## lint, then all tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

format: $(VENV)/.dev
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

clean:
	rm -rf $(VENV) demo runs report build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

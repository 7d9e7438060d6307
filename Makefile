# Every way into the project starts here: `make repro` for people who want the result, `make test` for people who change the code.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup repro replicate words serve test test-all lint lock audit clean-scratch

PYTHON ?= python3
PYTEST_WORKERS ?= 2
PORT ?= 4200
JOBS ?= 2
FAST ?=
# Of `make words`: the folder of the problems' files, where it runs, and what runs it.
DATA ?=
FOLDER ?= $(CURDIR)/../words
DEVICE ?= cpu
# The tested torch. It is named, not resolved: the newest one of an open range may be a build of several GB for another CUDA.
TORCH ?= 2.13.0

# DVC starts the stages with whatever `python` it finds first.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Nothing is reported to anyone, and no model or data set is fetched behind the user's back.
export DO_NOT_TRACK := 1
export DVC_NO_ANALYTICS := 1
export GX_ANALYTICS_ENABLED := false
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_ROOT_USER_ACTION := ignore

# DeepSpeed is source only: with DS_BUILD_OPS=0 it installs without compiling and builds an op when it is first used.
PIP_INSTALL = DS_BUILD_OPS=0 $(1)/bin/python -m pip install --quiet --progress-bar off

PYTEST = OMP_NUM_THREADS=1 python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.stamp  ## create .venv and install the locked packages; does nothing when they are up to date

.venv/.stamp: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Python 3.11 or later is needed; name one with: make PYTHON=...' >&2; exit 1; }
	@.venv/bin/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@echo 'Installing the locked packages into .venv (about 2 GB, a few minutes) ...'
	@$(call PIP_INSTALL,.venv) -r requirements.lock
	@$(call PIP_INSTALL,.venv) --no-deps -e .
	@touch $@

repro: setup  ## rerun what changed of the whole chain, then print the result table and the report's path
	@python -m flows.repro
	@.venv/bin/tracerl summary

replicate: setup  ## the papers' claims on small models, some hours on two cores (a look in minutes: make replicate FAST=1)
	@OMP_NUM_THREADS=1 python -m replication.run $(if $(FAST),--fast) --jobs $(JOBS)

words: setup  ## a language model becomes a block-diffusion reasoner, about four hours on two cores: make words DATA=DIR
	@[ -n '$(DATA)' ] || { echo 'name the folder of the problems: make words DATA=DIR (docs/words.md)' >&2; exit 1; }
	@OMP_NUM_THREADS=1 python -m profiles.words --data '$(DATA)' --folder '$(FOLDER)' --device '$(DEVICE)'

serve: setup  ## Prefect's server, worker and schedules with the report's pages, until Ctrl-C; another port: make serve PORT=4300
	@exec python -m flows.serve --port $(PORT)

test: lint  ## lint, then the tests of every law, in ten minutes on two cores
	$(PYTEST) -m 'not slow'

test-all: lint  ## lint, then the whole test suite: what CI runs
	$(PYTEST)

lint: setup  ## style, format and types
	ruff check .
	ruff format --check .
	mypy $(wildcard src stages flows tests benchmarks profiles replication)

lock:  ## resolve pyproject.toml afresh and rewrite requirements.lock
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && set -e && \
	$(PYTHON) -m venv "$$scratch" && \
	$(call PIP_INSTALL,"$$scratch") 'torch==$(TORCH)' -e '.[deepspeed,dev]' && \
	"$$scratch/bin/python" -m pip freeze --exclude-editable > "$$scratch/freeze" && \
	{ echo '# Exact versions of the core and of the extras deepspeed and dev. Written by `make lock`; do not edit.'; \
	  echo '# What torch brings for a GPU is left out: the same lock serves its builds with and without CUDA.'; \
	  grep -Eiv '^(nvidia|cuda|triton)\b' "$$scratch/freeze" | sed 's/^\([^+]*\)+.*$$/\1/'; } > "$$scratch/lock" && \
	mv "$$scratch/lock" requirements.lock

audit:  ## known security holes of the locked packages, where a package index answers
	@$(PYTHON) .ci/audit.py requirements.lock

clean-scratch:  ## remove unfinished work of killed stages (data/scratch) and of stopped experiments
	rm -rf data/scratch .dvc/tmp/cells

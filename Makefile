# Needs make and Python 3.11 or newer. Everything is installed into .venv, and again only when a lock file changes.
PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL_LOCKED := $(PIP) install --quiet --require-hashes --only-binary :all:

PROJECT := $(STAMPS)/project
HOST := $(STAMPS)/host
DEV := $(STAMPS)/dev
CLUSTER := $(STAMPS)/cluster
TORCH := $(STAMPS)/torch

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-recording test test-slow bench cluster mjcf lint types imports clean distclean lock

help:
	@echo 'make demo       robot, daemon, host and simulation live, in a minute and a half; without torch'
	@echo 'make demo-recording  the same fit on a recording, in 12 s'
	@echo 'make test       lint, types, import contracts and all tests but the slow ones'
	@echo 'make test-slow  the tests that take minutes'
	@echo 'make bench      install what the scripts in benchmarks/ need'
	@echo 'make cluster    install Ray, for training data from a cluster and its slow test: 300 MB'
	@echo 'make mjcf       put public models into build/mjcf, for a slow test: 0.7 GB'
	@echo 'make lint       ruff check and ruff format --check'
	@echo 'make clean      remove caches and build products; distclean removes .venv as well'
	@echo 'make lock       resolve requirements/*.txt again from pyproject.toml'

demo: $(PROJECT)
	$(BIN)/python benchmarks/demo.py

demo-recording: $(PROJECT)
	$(BIN)/python benchmarks/demo_recording.py

test: lint types imports $(PROJECT) $(TORCH)
	$(BIN)/python -m pytest -m 'not slow'

test-slow: $(PROJECT) $(TORCH)
	$(BIN)/python -m pytest -m slow

bench: $(PROJECT) $(TORCH)
	@echo 'Ready: run a script of benchmarks/ with $(BIN)/python.'

cluster: $(PROJECT) $(CLUSTER)
	@echo 'Ready: $(BIN)/gaptrain data MODELDIR --ray ADDRESS'

# Only their models are read: nothing of these wheels runs, so that what they depend on is not needed.
mjcf: $(PROJECT)
	$(PIP) install --quiet --no-deps --only-binary :all: --target build/mjcf --upgrade \
	    dm_control==1.0.50 gymnasium==1.4.0 gymnasium-robotics==1.4.2 robosuite==1.5.2

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

types: $(PROJECT) $(TORCH)
	$(BIN)/mypy

imports: $(PROJECT) $(DEV)
	$(BIN)/lint-imports

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache MUJOCO_LOG.TXT
	find daemon trainer tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf $(VENV)

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo 'gapd needs Python 3.11 or newer: make PYTHON=python3.11 ...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(HOST): requirements/host.txt $(STAMPS)/venv
	@echo 'installing into $(VENV), a minute or two'
	$(INSTALL_LOCKED) -r requirements/host.txt
	@touch $@

# The lock of the host holds the build backend, so the project needs no isolated build and nothing unlocked.
$(PROJECT): pyproject.toml $(HOST)
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(DEV): requirements/dev.txt $(HOST)
	$(INSTALL_LOCKED) -r requirements/dev.txt
	@touch $@

$(CLUSTER): requirements/cluster.txt $(DEV)
	$(INSTALL_LOCKED) -r requirements/cluster.txt
	@touch $@

$(TORCH): requirements/torch.txt $(DEV)
	$(PIP) install --quiet --prefer-binary -r requirements/torch.txt
	@touch $@

# The locks are made with Python 3.11, the oldest supported, and name no index, so that any mirror serves them.
LOCK_VENV := build/lock
COMPILE = CUSTOM_COMPILE_COMMAND='make lock' $(LOCK_VENV)/bin/pip-compile --quiet --no-config --generate-hashes \
    --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options

lock:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	    { echo 'the locks are made with Python 3.11: make lock PYTHON=python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install --quiet pip-tools==7.6.2
	$(COMPILE) --output-file requirements/robot.txt pyproject.toml
	$(COMPILE) --extra host --build-deps-for editable --output-file requirements/host.txt pyproject.toml
	$(COMPILE) --extra host --extra dev --output-file requirements/dev.txt pyproject.toml
	$(COMPILE) --extra cluster --output-file requirements/cluster.txt pyproject.toml

# Two commands do all the set-up: `make maxbatch` answers the main question on the built-in
# ResNet-50, `make test` runs all the tests. Both make the environment first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: maxbatch test test-emulator lint types check clean

# What an answer needs, and no more. torch is pinned to the release that the traces are tested with;
# the plain name may pull a CUDA build of several gigabytes.
$(VENV)/.run: pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or later is needed, this is " + sys.version'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# MXNet 1.9.1, the last release, needs an old numpy, so it has an environment of its own.
.venv-mxnet/.made:
	$(PYTHON) -m venv .venv-mxnet
	.venv-mxnet/bin/python -m pip install --quiet --disable-pip-version-check mxnet==1.9.1 numpy==1.23.5
	touch $@

maxbatch: $(VENV)/.run
	$(BIN)/dnnmem-maxbatch --model resnet50 --gpu V100-16GB

test: $(VENV)/.dev .venv-mxnet/.made
	$(BIN)/python -m pytest -n auto --dist loadfile

# The CUDA build of PyTorch without NVIDIA's libraries, which the emulated card replaces: 1.5 GB in place of 5.5.
EMULATOR := .venv-emulator

$(EMULATOR)/.ready:
	$(PYTHON) -m venv $(EMULATOR)
	$(EMULATOR)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps torch==2.14.1
	$(EMULATOR)/bin/python -m pip install --quiet --disable-pip-version-check \
	    filelock typing-extensions sympy networkx jinja2 fsspec numpy
	touch $@

test-emulator: $(VENV)/.dev $(EMULATOR)/.ready
	DNNMEM_TORCH_PYTHON=$(CURDIR)/$(EMULATOR)/bin/python \
	    $(BIN)/python -m pytest -n auto --dist loadfile -m "not slow" tests/emulator tests/frontends/torch/emulated

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf $(VENV) $(EMULATOR) .venv-mxnet .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

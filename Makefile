# The project's verbs. Needs Python 3.11 or newer with pip, and a C compiler; everything else is installed
# into .venv. A stamp per set of dependencies makes every target a no-op when nothing changed.

MODEL ?=
SEEDS ?= 0:10000
ARGS ?=
ROOMS ?= tests
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
DEPENDENCIES := pyproject.toml constraints.txt CMakeLists.txt $(shell find csrc -path csrc/tests -prune -o -type f -print)

.DEFAULT_GOAL := help
.PHONY: help install locked lock audit modes serve check format test simulations native-test native-sanitize bench docs stubs torture soak clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## create .venv and install headrace into it

locked: $(BIN)/python ## install what requirements.lock names, digest by digest (CPython 3.11, Linux, x86-64)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $(VENV)/.installed $(VENV)/.installed-test

lock: $(VENV)/.installed-test ## write requirements.lock: what pip would install today, within constraints.txt
	$(BIN)/python -m tests.lock

audit: $(VENV)/.installed-test ## ask PyPI's advisory service about everything in requirements.lock
	$(BIN)/python -m pip install --quiet pip-audit==2.10.1
	$(BIN)/python -m pip_audit --strict --require-hashes --disable-pip -r requirements.lock

serve: install ## serve MODEL (default: smollm2, fetched once) with flags ARGS
	$(BIN)/headrace serve $(MODEL) $(ARGS)

check: $(VENV)/.installed-test ## format, lint, types, architecture
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

format: $(VENV)/.installed-test ## format the code and apply safe lint fixes
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

test: $(VENV)/.installed-test ## run every test; ARGS go to pytest
	$(BIN)/python -m pytest $(ARGS)

modes: $(VENV)/.installed-test ## the tests without asserts (-O), then in development mode (-X dev); ROOMS chooses
	PYTHONOPTIMIZE=1 $(BIN)/python -m pytest $(ROOMS) $(ARGS)
	PYTHONDEVMODE=1 $(BIN)/python -m pytest $(ROOMS) $(ARGS)

simulations: $(VENV)/.installed-test ## ten thousand random loads, and as many lives of a server with faults; SEEDS=A:B
	$(BIN)/python -m tests.sim.random_simulations $(SEEDS)
	$(BIN)/python -m tests.simulation $(SEEDS)

native-test: build/native/build.ninja ## build and run the tests of csrc
	$(BIN)/ninja -C build/native native_tests
	build/native/native_tests $(ARGS)

native-sanitize: build/sanitize/build.ninja build/race/build.ninja ## the same under sanitizers, threads under theirs
	$(BIN)/ninja -C build/sanitize native_tests
	build/sanitize/native_tests $(ARGS)
	$(BIN)/ninja -C build/race thread_pool_tests
	build/race/thread_pool_tests

bench: install ## measure, and compare with the last recorded run; ARGS=--record keeps the result
	$(BIN)/python benchmarks/suite.py $(ARGS)

torture: $(VENV)/.installed-test ## the long runs against faults and abuse; WHAT=NAME is one of them, WHAT=help lists them
	$(BIN)/python -m tests.torture $(or $(WHAT),all) $(ARGS)

soak: $(VENV)/.installed-test ## mixed load for MINUTES (10), then silence; nothing may be left
	$(BIN)/python -m tests.torture soak --minutes $(or $(MINUTES),10) $(ARGS)

docs: install ## write the pages that are generated from code
	$(BIN)/python -m headrace.core.settings_reference > docs/reference/settings.md
	$(BIN)/python -m headrace.engine.metrics_reference > docs/reference/metrics.md
	$(BIN)/python -m tests.error_texts > docs/reference/errors.md

stubs: $(VENV)/.installed-test ## write the types of the native module, generated from the module itself
	$(BIN)/python -m nanobind.stubgen -q -m headrace.native._native -o src/headrace/native/_native.pyi

CONFIGURE = $(BIN)/cmake -G Ninja -S . -B $(@D) -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DHEADRACE_TESTS=ON \
	-DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir)

build/native/build.ninja: CMakeLists.txt | $(VENV)/.installed-test
	$(CONFIGURE)

build/sanitize/build.ninja: CMakeLists.txt | $(VENV)/.installed-test
	$(CONFIGURE) -DCMAKE_BUILD_TYPE=Debug \
		-DCMAKE_CXX_FLAGS="-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"

build/race/build.ninja: CMakeLists.txt | $(VENV)/.installed-test
	$(CONFIGURE) -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="-O1 -g1 -fsanitize=thread"

clean: ## remove .venv and every cache
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed: $(DEPENDENCIES) | $(BIN)/python
	@echo "installing headrace into $(VENV); this takes a few minutes the first time"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

# contains everything that .installed does, so it stamps both
$(VENV)/.installed-test: $(DEPENDENCIES) | $(BIN)/python
	@echo "installing headrace and what its tests need into $(VENV); this takes a few minutes the first time"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch,test]'
	@touch $(VENV)/.installed $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no python3 found; install Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is too old; set PYTHON to Python 3.11 or newer" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# make demo: the main job on the bundled sample.   make check: style, types and layers.   make test: the part of the tests.
# Every change must pass `make check` and `make test`.   make test-changed: the tests that changed files reach.
# make docs: the site, into build/site.
# make test-all: all of the tests, and what needs more than Python, make, git and a C++ compiler (docs/testing.md).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Stamps: the package alone, which is enough for the demo, and with it the test and lint extras.
PACKAGE := $(VENV)/.package
STAMP := $(VENV)/.installed
SOURCES := pyproject.toml $(shell find qdqtool/npu/ep -type f) $(wildcard passes/qdq_passes/numerics/counting/*.cc)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# The commit that `make test-changed` compares with.
BASE ?= origin/main

# What starts a process reads modules that were compiled before.
export PYTHONDONTWRITEBYTECODE :=

.NOTPARALLEL:  # two recipes install into one environment
.PHONY: install demo test test-changed test-all check bench bench-quick docs clean

install: $(STAMP)

demo: $(PACKAGE)
	@mkdir -p .demo
	$(BIN)/qdqtool demo -o .demo/digits_int8.onnx --overwrite

test: $(STAMP)
	$(BIN)/python -m pytest -q -m "not extra" -n auto --dist worksteal

test-changed: $(STAMP)
	$(BIN)/python -m tests.changed --base $(BASE) -- -q -m "not extra" -n auto --dist worksteal

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test-all: $(STAMP) check
	PYTHON="$(PYTHON)" $(BIN)/python -m tests.extra

bench: $(STAMP)
	$(BIN)/python -m tests.bench

# Start-up and quantization beside onnxruntime's own: three minutes.
bench-quick: $(STAMP)
	$(BIN)/python -m tests.bench --quick

# The site, into build/site: mkdocs has an environment of its own.
docs: $(STAMP)
	$(BIN)/python -m tests.extra site

# A package that is there already is not built twice: its build folder stays.
$(STAMP): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "pip>=24"
	$(PIP) -e ".[test,lint]"
	touch $(PACKAGE) $@

$(PACKAGE): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "pip>=24"
	$(PIP) -e .
	touch $@

clean:
	rm -rf $(VENV) build .demo

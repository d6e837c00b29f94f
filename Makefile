# make demo: the main job on the bundled sample.   make test: what every change must pass: lint, and a part of the tests, ten minutes.
# make docs: the site, into build/site.
# make test-all: all of the tests, and what needs more than Python, make, git and a C++ compiler (docs/testing.md).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TYPES := $(BIN)/mypy && $(BIN)/lint-imports --no-cache

# What starts a process reads modules that were compiled before.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install demo test test-all lint style bench docs clean

install: $(STAMP)

demo: $(STAMP)
	@mkdir -p .demo
	$(BIN)/qdqtool demo -o .demo/digits_int8.onnx --overwrite

# Types and layers take one core a minute: they are looked at beside the tests, and speak behind them.
test: $(STAMP) style
	@said=$$(mktemp); { $(TYPES); } > $$said 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -q -m "not extra" -n auto --dist worksteal; tests=$$?; \
	wait $$types; types=$$?; cat $$said; rm $$said; exit $$((tests || types))

lint: style
	$(TYPES)

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

test-all: $(STAMP)
	PYTHON="$(PYTHON)" $(BIN)/python -m tests.extra

bench: $(STAMP)
	$(BIN)/python -m tests.bench

# The site, into build/site: mkdocs has an environment of its own.
docs: $(STAMP)
	$(BIN)/python -m tests.extra site

$(STAMP): pyproject.toml $(shell find qdqtool/npu/ep -type f) $(wildcard passes/qdq_passes/numerics/counting/*.cc)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=24"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test,lint]"
	touch $@

clean:
	rm -rf $(VENV) build .demo

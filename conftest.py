"""Settings of PyTorch for tests, and what pytest leaves out."""

import os
from importlib.util import find_spec

# Test processes share the cores: PyTorch's threads must not spin while they wait. Read when PyTorch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

collect_ignore = ["src/clientwise/template"]  # the template of `clientwise new`
if find_spec("flwr") is None:
    collect_ignore.append("src/clientwise/flower")
# `--doctest-modules` would import each of these as `conftest`, and fail at the second one.
collect_ignore_glob = ["*/conftest.py"]

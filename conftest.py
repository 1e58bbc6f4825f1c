"""What pytest leaves out: the template of `clientwise new`, and what needs Flower where it is not installed."""

import os
from importlib.util import find_spec

# Test processes share the cores: PyTorch's threads must not spin while they wait. Read when PyTorch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

collect_ignore = ["src/clientwise/template"]
if find_spec("flwr") is None:
    collect_ignore.append("src/clientwise/flower")

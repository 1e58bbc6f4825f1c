"""What pytest leaves out: the template of `clientwise new`, and what needs Flower where it is not installed."""

from importlib.util import find_spec

collect_ignore = ["src/clientwise/template"]
if find_spec("flwr") is None:
    collect_ignore.append("src/clientwise/flower")

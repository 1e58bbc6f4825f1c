"""One script per system, each in an environment of its own: `VENV/bin/python -m peers.NAME W3`, from lab/speed/."""

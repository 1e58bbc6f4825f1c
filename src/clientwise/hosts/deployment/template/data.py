"""Reads this node's own data. Change it to read yours. It stays on this node and runs only here.

For a CSV file, see "Members with tables" in docs/deployment.md of clientwise.
"""

from clientwise.flower import OwnData, load_npz


def load(path: str) -> OwnData:
    """The samples at the path that deploy/supernode.sh was given; in a simulation, at data/NAME."""
    return load_npz(path)

"""Where this node's own data come from. Change it to read yours: it stays here, and runs here and nowhere else."""

from clientwise.flower import OwnData, load_npz


def load(path: str) -> OwnData:
    """The samples behind the path that deploy/supernode.sh was given; in a simulation, behind data/NAME."""
    return load_npz(path)

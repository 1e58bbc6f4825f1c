"""Where a node's own data come from. Change this to read yours; it runs on the node and nowhere else."""

from clientwise.flower import OwnData, load_npz


def load(path: str) -> OwnData:
    """The samples behind the path that the node was started with: --node-config 'data="/path/to/it"'."""
    return load_npz(path)

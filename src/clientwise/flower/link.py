"""The SuperLink of a deployment.

    python -m clientwise.flower.link ...    arguments as for flower-superlink

Members' updates do not reach its disk: see `retention.py`.
"""

from __future__ import annotations

import os
import sys

from flwr.superlink.cli import flower_superlink

from .retention import KEEP, keep_updates_in_memory


def main() -> None:
    """Run `flower-superlink`."""
    if os.environ.get(KEEP) != "true":
        keep_updates_in_memory(sys.argv)
    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()

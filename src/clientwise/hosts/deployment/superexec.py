"""The SuperExec of a node, which starts a process for each message.

    python -m clientwise.hosts.deployment.superexec ...    arguments as for flower-superexec

It is Flower's, with processes that are forks: see `zygote.py`.
"""

from __future__ import annotations

import os
import sys

from .known_flower import known_flower
from .zygote import Zygote

with known_flower(__name__):
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    from .patches import replace_popen

# Seconds between two looks for a message that the node has received; Flower's default is 1.
POLL = ("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.5")


def main() -> None:
    """Run `flower-superexec`."""
    os.environ.setdefault(*POLL)
    replace_popen(subprocess_executor, Zygote().start)
    sys.argv[0] = "flower-superexec"
    flower_superexec()


if __name__ == "__main__":
    main()

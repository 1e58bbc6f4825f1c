"""A process that has imported PyTorch, Flower and clientwise, and forks itself for each message to a node.

Flower starts a new Python for each message, which imports them anew: about 7 seconds of processor time. A fork has
them at once. It loads the app and the data itself, so no message finds anything that an earlier one left.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points

import numpy

PROGRAM = "flwr-clientapp"  # Flower's, which answers one message
# What it imports for a message: `torch.optim` imports the last one with its first step.
IMPORTED = ("clientwise.hosts.flower.client_app", "flwr.supernode.cli", "torch._dynamo")


class Zygote:
    """Starts the zygote; again, if it was killed."""

    def __init__(self) -> None:
        self._process = self._started()

    def start(self, arguments: Sequence[str], **options: object) -> None:
        """Run a program in a fork, if it is `PROGRAM`; in the place of `subprocess.Popen`."""
        if arguments[0] != PROGRAM or options:
            subprocess.Popen(arguments, **options)  # type: ignore[call-overload]
            return
        try:
            self._write(arguments)
        except BrokenPipeError:
            self._process = self._started()
            self._write(arguments)

    def _write(self, arguments: Sequence[str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(arguments)}\n".encode())

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, bufsize=0)


def main() -> None:
    """Fork for every line of the standard input: a program's arguments as JSON. Ends with the input."""
    for name in IMPORTED:
        import_module(name)
    gc.freeze()  # else the first collection of a fork copies all of it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the end of the input ends it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    for line in sys.stdin:
        if os.fork() == 0:
            run(json.loads(line))


def run(arguments: list[str]) -> None:
    """Run a program as if this were its process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    numpy.random.seed()  # all forks have its state; Python, OpenSSL and the noise do not depend on it
    sys.argv = arguments
    (program,) = entry_points(group="console_scripts", name=arguments[0])
    sys.exit(program.load()())


if __name__ == "__main__":
    main()

"""Try many hostile inputs in a process with limits of time and memory, and name those that break it.

`python guarded.py MODULE:FUNCTION` calls the function with every line of its input; what the function raises is a
fault. A case that takes too long ends the process, and a new one goes on behind it.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

SECONDS = 5.0  # of CPU, for one case
ADDRESSES = 6 * 2**30  # bytes the process may ask for
RESIDENT = 2**30  # bytes a case may use


def faults(function: str, cases: Sequence[str]) -> dict[str, str]:
    """The cases that did not end as they must, and how they ended."""
    found: dict[str, str] = {}
    todo = list(cases)
    while todo:
        ended, result = _some(function, todo)
        found |= {case: what for case, what in zip(todo, ended, strict=False) if what}
        if len(ended) < len(todo):
            reason = f"over {SECONDS:.0f} s" if result == -signal.SIGPROF else f"the process ended with {result}"
            found[todo[len(ended)]] = reason
        todo = todo[len(ended) + 1 :]
    return found


def _some(function: str, cases: Sequence[str]) -> tuple[list[str], int]:
    """How as many of the cases ended as a process got through, and what it ended with."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2", "COLUMNS": "200"}
    process = subprocess.run(
        [sys.executable, __file__, function],
        input="\n".join(cases),
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=False,
    )
    return [json.loads(line) for line in process.stdout.splitlines()], process.returncode


def _peak() -> int:
    """The most memory this process had since it was last asked, in bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    Path("/proc/self/clear_refs").write_text("5")
    return 1024 * int(status["VmHWM"].split()[0])


def _main(function: str) -> None:
    module, _, name = function.partition(":")
    attempt = getattr(importlib.import_module(module), name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints is no answer
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    _peak()
    for case in sys.stdin.read().split("\n"):
        before, what = _peak(), ""
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            attempt(case)
        except BaseException:
            what = traceback.format_exc(limit=-3)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if (grown := _peak() - before) > RESIDENT:
            what += f"used {grown / 2**30:.1f} GB"
        answers.write(json.dumps(what) + "\n")
        answers.flush()


if __name__ == "__main__":
    _main(sys.argv[1])

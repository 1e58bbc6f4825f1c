"""Try many hostile inputs in processes with limits of time and memory, and name those that break them.

`python guarded.py MODULE:FUNCTION` calls the module's `prepare`, then the function with every line of its input; what
the function raises is a fault. A case that takes too long ends the process, and a new one goes on behind it.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

SECONDS = 5.0  # of an ordinary core, for one case
WAITING = 600  # seconds by the clock, for one case: whoever waits so long waits for ever
ADDRESSES = 6 * 2**30  # bytes a process may ask for
RESIDENT = 2**30  # bytes a case may use


def faults(function: str, cases: Sequence[str], **environment: str) -> dict[str, str]:
    """The cases that did not end as they must, and how they ended."""
    todo, found = list(cases), dict[str, str]()
    while todo:
        ended, result = _try(function, todo, environment)
        found |= {case: what for case, what in zip(todo, ended, strict=False) if what}
        if len(ended) < len(todo):
            late = {
                -signal.SIGPROF: f"over {SECONDS:.0f} s of CPU",
                -signal.SIGALRM: f"over {WAITING} s",
            }
            found[todo[len(ended)]] = late.get(result, f"the process ended with {result}")
        todo = todo[len(ended) + 1 :]
    return found


def _try(function: str, cases: Sequence[str], environment: dict[str, str]) -> tuple[list[str], int]:
    """How as many of the cases ended as a process got through, and what it ended with."""
    process = subprocess.run(
        [sys.executable, __file__, function],
        input="\n".join(cases),
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "2",
            "COLUMNS": "200",
            **environment,
        },
        check=False,
    )
    return [json.loads(line) for line in process.stdout.splitlines()], process.returncode


def _peak() -> int:
    """The most memory this process had since it was last asked, in bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    Path("/proc/self/clear_refs").write_text("5")
    return 1024 * int(status["VmHWM"].split()[0])


def _slowness() -> float:
    """How many times the processor time of an ordinary core this one takes; at least 1."""
    began, total = time.process_time(), 0
    for number in range(2_000_000):
        total += number
    return max(1.0, (time.process_time() - began) / 0.08)


def _main(function: str) -> None:
    module, _, name = function.partition(":")
    attempts = importlib.import_module(module)
    attempts.prepare()
    attempt = getattr(attempts, name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints is no answer
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    _peak()
    seconds = SECONDS * _slowness()
    for case in sys.stdin.read().split("\n"):
        before, what = _peak(), ""
        signal.setitimer(signal.ITIMER_PROF, seconds)  # whose signals end the process
        signal.alarm(WAITING)
        try:
            attempt(case)
        except BaseException:
            what = traceback.format_exc(limit=-3)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        if (used := _peak() - before) > RESIDENT:
            what += f"used {used / 2**30:.1f} GB"
        answers.write(json.dumps(what) + "\n")
        answers.flush()


if __name__ == "__main__":
    _main(sys.argv[1])

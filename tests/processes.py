"""Processes for tests, and how long to wait for them.

A fork server has imported PyTorch for all of them, which takes seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

COMMAND = "from clientwise.cli import main; main()"
SERVER = multiprocessing.get_context("forkserver")
# What most commands import, if only while they run: `torch.optim` imports `torch._dynamo` with its first step.
_PRELOADED = [
    "clientwise.cli",
    "clientwise.fitting",
    "clientwise.report.progress",
    "clientwise.report.page",
    "clientwise.report.terminal",
    "sklearn.datasets",
    "torch._dynamo",
]
SERVER.set_forkserver_preload(_PRELOADED)


IDLE_SECONDS = 0.4  # what the loop in `slowness` takes on an ordinary idle machine
_slowest = 1.0


def slowness() -> float:
    """How many times longer a computation takes now than on an ordinary idle machine; at least 1."""
    began = time.perf_counter()
    total = 0
    for number in range(10_000_000):
        total += number
    return max(1.0, (time.perf_counter() - began) / IDLE_SECONDS)


def pace() -> float:
    """The largest slowness measured in this process so far, measured once more.

    A factor for time limits.
    """
    global _slowest
    _slowest = max(_slowest, slowness())
    return _slowest


def in_time(took: float, seconds: float) -> bool:
    """Whether seconds that were measured are below a limit for an ordinary idle machine."""
    return took < seconds or took < seconds * pace()


def wait_until(
    condition: Callable[[], bool],
    seconds: float,
    what: str,
    describe: Callable[[], str] = str,
) -> None:
    """Wait until the condition holds; AssertionError if it does not in time.

    `seconds` is the limit on an ordinary idle machine. It grows with `pace`, which is measured when
    the limit is reached. `describe` is added to the error.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > seconds * _slowest and waited > seconds * pace():
            raise AssertionError(f"waited {waited:.0f} s in vain for {what}: {describe()}")
        time.sleep(0.5)


def start(
    program: str,
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] = os.environ,
    stdout: Path | str = os.devnull,
    stderr: Path | str = os.devnull,
) -> BaseProcess:
    """Start a program (Python as text), as `python -c` would; its output goes into files."""
    argv = ["clientwise", *map(str, arguments)]
    files = [os.path.abspath(file) for file in (stdout, stderr)]
    process = SERVER.Process(
        target=_main, args=(program, argv, cwd or Path.cwd(), dict(env), files)
    )
    process.start()
    return process


def run(
    program: str,
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] = os.environ,
    seconds: float = 240,
) -> CompletedProcess[str]:
    """Run a program to its end; it is killed after `seconds`."""
    with TemporaryDirectory() as folder:
        stdout = Path(folder, "stdout")
        stderr = Path(folder, "stderr")
        process = start(program, *arguments, cwd=cwd, env=env, stdout=stdout, stderr=stderr)
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
        said = stdout.read_text("utf-8")
        complained = stderr.read_text("utf-8")
        return CompletedProcess(arguments, process.exitcode, said, complained)


def _main(program: str, argv: list[str], cwd: Path, env: dict[str, str], files: list[str]) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # what a shell starts in the background ignores it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # likewise under nohup
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = argv
    exec(program, {"__name__": "__main__"})

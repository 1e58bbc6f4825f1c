"""Processes that need not import PyTorch each, which takes seconds: a fork server has done so for all of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

COMMAND = "from clientwise.cli import main; main()"
_SERVER = multiprocessing.get_context("forkserver")
_PRELOADED = ["clientwise.cli", "clientwise.experiment.runner", "clientwise.report.export"]
_SERVER.set_forkserver_preload([*_PRELOADED, "matplotlib.figure", "sklearn.datasets"])


def slowness() -> float:
    """How many times longer than an ordinary idle machine this one takes at the moment, at least 1: for time limits."""
    began = time.perf_counter()
    total = 0
    for number in range(10_000_000):
        total += number
    return max(1.0, (time.perf_counter() - began) / 0.4)


def start(
    program: str,
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] = os.environ,
    stdout: Path | str = os.devnull,
    stderr: Path | str = os.devnull,
) -> BaseProcess:
    """Start a program (Python as text), as `python -c` would; what it prints goes into files."""
    argv = ["clientwise", *map(str, arguments)]
    files = [os.path.abspath(file) for file in (stdout, stderr)]
    process = _SERVER.Process(target=_main, args=(program, argv, cwd or Path.cwd(), dict(env), files))
    process.start()
    return process


def run(
    program: str,
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] = os.environ,
    seconds: float = 240,
) -> CompletedProcess[str]:
    """Run a program to its end, which is to come in time."""
    with TemporaryDirectory() as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        process = start(program, *arguments, cwd=cwd, env=env, stdout=stdout, stderr=stderr)
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
        return CompletedProcess(arguments, process.exitcode, *(file.read_text("utf-8") for file in (stdout, stderr)))


def _main(program: str, argv: list[str], cwd: Path, env: dict[str, str], files: list[str]) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = argv
    exec(program, {"__name__": "__main__"})

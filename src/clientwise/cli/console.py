"""What every command prints with: results to stdout, errors and progress to stderr."""

from __future__ import annotations

import codecs
import io
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from ..errors import shortened
from ..report import escape

LONGEST_LINE = 1_500  # of an error message
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def print_in_any_locale() -> None:
    """Let stdout and stderr take any text, also where their encoding is ASCII: what it lacks is "?"."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="replace")


def fail(message: str) -> NoReturn:
    """Print every line of a message as an error, and end the command with status 2."""
    print_error(message)
    sys.exit(2)


def print_error(message: str) -> None:
    """Print every line of a message as an error."""
    for line in message.splitlines():
        text = escape(shortened(line, LONGEST_LINE))
        err.print(f"[bold red]error:[/] {text}", soft_wrap=True)


def print_lines(lines: Iterable[str]) -> None:
    """Print texts that may contain anything: they are no markup."""
    for line in lines:
        out.print(escape(line), soft_wrap=True)


def command_name() -> str:
    """How to call this command here: by its name where the shell finds it, else by its path."""
    if shutil.which("clientwise"):
        return "clientwise"
    if sys.argv[0].endswith("__main__.py"):
        return "python -m clientwise"
    return shlex.quote(sys.argv[0])


def resume_command(folder: Path) -> str:
    """The command that continues a run."""
    return f"{command_name()} run {shlex.quote(str(folder))} --resume"


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Within this context, SIGTERM and SIGHUP interrupt as Ctrl-C does; nohup stays in force.

    SIGHUP comes when the terminal is closed. What is said then goes nowhere, instead of ending the command.
    """
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, signal.default_int_handler)}
    hangup = getattr(signal, "SIGHUP", None)  # not on Windows
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        before[hangup] = signal.signal(hangup, _hung_up)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hung_up(number: int, frame: FrameType | None) -> None:
    """Interrupt. Output to a terminal that is gone would fail: it is thrown away."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    signal.default_int_handler(number, frame)


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """An error of the file system names the file, or this place where it has none (a full disk).

    On Ctrl-C, SIGTERM or SIGHUP, a line says that this place was not completed.
    """
    try:
        with interrupted_by_signals():
            yield
    except OSError as error:
        fail(reason(error, path))
    except KeyboardInterrupt:
        message = f"Stopped: {path} was not completed. Give the same command again."
        err.print(escape(message), soft_wrap=True)
        sys.exit(130)


def reason(error: OSError, path: Path | str = "clientwise") -> str:
    """An error of the file system in one line: the file and what is wrong with it."""
    return f"{error.filename or path}: {error.strerror or error}"

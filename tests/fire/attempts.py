"""What is tried with hostile input: everything but the command's own way to refuse is raised."""

from __future__ import annotations

import functools
import io
import sys
from contextlib import redirect_stderr, redirect_stdout

import typer.main

from clientwise import cli
from clientwise.data.datasets import DATASETS

LONGEST = 2_000  # characters of a message that is still a line

for _name in ("digits", "mnist5k", "diabetes"):  # read once, not once per config
    DATASETS._parts[_name] = functools.cache(DATASETS.get(_name))
    DATASETS.get(_name)(None)
cli.app = typer.main.get_command(cli.app)  # built once likewise


def command(*arguments: str) -> tuple[int, str, str]:
    """What the command ends with, says and complains of; whatever it raises goes on."""
    said, complaint = io.StringIO(), io.StringIO()
    sys.argv = ["clientwise", *arguments]
    with redirect_stdout(said), redirect_stderr(complaint):
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return code, said.getvalue(), complaint.getvalue()


def check(path: str) -> None:
    """`clientwise check`: says what would run, or what is wrong with the config in lines a person can read."""
    code, said, complaint = command("check", path)
    if code == 0:
        assert said.splitlines()[-1].startswith("ok: "), said
    else:
        assert code == 2, code
        assert complaint, "nothing was said"
    for line in complaint.splitlines():
        assert line.startswith("error: "), line[:LONGEST]
        assert len(line) < LONGEST, f"{len(line)} characters: {line[:200]}"
        assert "alloc" not in line, line

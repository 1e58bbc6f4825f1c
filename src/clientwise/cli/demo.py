"""See it work: `clientwise demo`."""

from __future__ import annotations

import shlex
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from .console import command_name, out, print_next_steps
from .experiments import run_and_show
from .options import SetOption, load_single

INTRODUCTION = """\
Twenty clients hold unequal, skewed shares of real handwritten digits. Two of them are
hostile: their labels are wrong and they ignore the global model. Every method meets the
same data and the same clients in every round.
"""


def demo(
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Run folder. Default: runs/demo-DATE-TIME.", show_default=False),
    ] = None,
    changes: SetOption = None,
) -> None:
    """Compare methods on real handwritten digits with two hostile clients, in half a minute.

    Example: clientwise demo
    """
    with as_file(files("clientwise") / "demo.toml") as file:
        experiment = load_single(file, changes)
    out.print(INTRODUCTION)
    folder = run_and_show(experiment, out_folder)
    command = command_name()
    where = shlex.quote(str(folder))
    audit = f"{command} show {where} --round {experiment.rounds} --method AdaFedSquared"
    print_next_steps(
        [
            (f"{command} report {where}", "a page with all figures and tables"),
            (audit, "the weight of every client in a round, and why"),
            (f"{command} run {where}/config.toml --seeds 1-5", "confidence intervals over 5 seeds"),
            (f"{command} list criteria", "all criteria that clients can be weighed by"),
            ("docs/tutorial.md", "your own experiment in ten minutes"),
        ]
    )

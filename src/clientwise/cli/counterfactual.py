"""Run a finished run once more with one thing changed: `clientwise counterfactual`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..report.output.markup import escape
from .console import fail, out, print_lines
from .experiments import stop_politely
from .options import NamedRunArgument

if TYPE_CHECKING:
    from ..experiment.config.schema import Experiment


def counterfactual(
    folder: NamedRunArgument,
    without: Annotated[
        str | None,
        typer.Option(
            metavar="CLIENT",
            help="Never ask this client, by its name or number.",
            show_default=False,
        ),
    ] = None,
    uniform: Annotated[
        bool, typer.Option("--uniform", help="Give all clients equal weights.")
    ] = False,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Use the bounds of this TOML file: the keys of methods.bounds.",
            show_default=False,
        ),
    ] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Run folder. Default: beside RUN, named after the change. A run there is resumed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run an experiment again with one thing changed, and compare: same seeds, data and batches.

    Example: clientwise counterfactual runs/mine --without Basel
    """
    from ..launch import run as run_experiment
    from ..record.files import plain_name
    from ..report.progress import show_progress

    if [without is not None, uniform, policy is not None].count(True) != 1:
        fail("give one of --without CLIENT, --uniform and --policy FILE")
    experiment, change = _changed(folder, without, policy)
    target = out_folder or folder.with_name(f"{folder.resolve().name}-{plain_name(change)}")
    resume = (target / "config.toml").exists()
    with stop_politely(), show_progress(out) as on_round:
        run_experiment(experiment, target, resume=resume, on_round=on_round)
    _print_comparison(folder, target)
    print_lines([f"\nRun folder  {target}"])


def _changed(folder: Path, without: str | None, policy: Path | None) -> tuple[Experiment, str]:
    """The experiment with one thing changed, and a name for the change."""
    from ..experiment.running.rerun import with_equal_weights, with_policy, without_client

    if without is not None:
        return without_client(folder, without), f"without-{without}"
    if policy is not None:
        return with_policy(folder, policy), f"policy-{policy.stem}"
    return with_equal_weights(folder), "uniform"


def _print_comparison(before: Path, after: Path) -> None:
    from ..record.reading.folder import RunFolder
    from ..report.paired import comparison
    from ..report.terminal import plain_table

    sentences, tables = comparison(RunFolder(before), RunFolder(after))
    for found in tables:
        out.print(plain_table(found, found.title))
    if tables:
        out.print(escape(tables[0].note))
    for line in sentences:
        out.print(escape(line))

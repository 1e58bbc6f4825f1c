"""Write trained models: `clientwise export`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import (
    err,
    fail,
    print_lines,
    writing_to,
)
from .options import RunArgument

if TYPE_CHECKING:
    from ..record.run import After
    from ..results import Run


def export(
    folder: RunArgument = None,
    method: Annotated[
        str | None, typer.Option(help="Only this method.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Only this seed.", show_default=False)] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of the models. Default: models in the run.", show_default=False
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--round",
            help="A round that `keep_every` in the config kept, or best. Default: the last, or "
            'the best with keep = "best".',
            show_default=False,
        ),
    ] = None,
    onnx: Annotated[
        bool,
        typer.Option(
            "--onnx", help="Also write ONNX; this imports the plugins of the run's config."
        ),
    ] = False,
) -> None:
    """Write the trained models as safetensors files: tensors by name, and what `predict` needs.

    Example: clientwise export runs/mine --method FedAvg --round best
    """
    from ..experiment.running.resume import newest_run
    from ..results import Run

    wanted = parse_round(after)
    run = Run(folder or newest_run())
    chosen = _chosen_lanes(run, method, seed)
    target = out_folder or run.folder / "models"
    with writing_to(target), err.status("Writing the models"):
        for name, number in chosen:
            if method is None and not run.has_model(name):
                continue
            paths = run.export(name, number, target, onnx=onnx, after=wanted)
            print_lines(str(path) for path in paths)


def parse_round(text: str | None) -> After:
    """None (the default), "best", or the number of a round.

    >>> parse_round("12")
    12
    """
    if text is None:
        return None
    if text == "best":
        return "best"
    if not re.fullmatch("[0-9]{1,9}", text):
        fail(f"--round {text}: write the number of a round, or best")
    return int(text)


def _chosen_lanes(run: Run, method: str | None, seed: int | None) -> list[tuple[str, int]]:
    """The methods and seeds to write; an error that lists what there is where none fits."""
    if run.lanes.empty:
        fail(f"{run.folder}: has no model yet")
    chosen = []
    for name, number in zip(run.lanes["method"], run.lanes["seed"].tolist(), strict=True):
        if method in (None, name) and seed in (None, number):
            chosen.append((name, number))
    if not chosen:
        method = method or run.methods[0]
        run.lane(method, run.first_seed(method) if seed is None else seed)  # raises
    return chosen

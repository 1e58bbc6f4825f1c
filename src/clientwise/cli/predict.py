"""Predict new rows by a trained model: `clientwise predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from ..report.output.markup import escape
from .console import (
    err,
    fail,
    out,
    print_lines,
    writing_to,
)

MOST_ROWS = 20  # in the terminal


def predict(
    model: Annotated[
        Path, typer.Argument(help="A model that `clientwise export` wrote.", show_default=False)
    ],
    rows: Annotated[
        Path,
        typer.Argument(help="Rows to predict: a CSV, TSV or Parquet file.", show_default=False),
    ],
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Write all rows with their predictions to a CSV file; a CSV file's separator is kept.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Predict the rows of a file by a model that was trained on a table.

    Example: clientwise predict runs/mine/models/FedAvg-seed1.safetensors new.csv --out predicted.csv
    """
    from ..data.table import read_rows, separator_of
    from ..prediction import load_predictor
    from ..writing import replacing

    if out_file is not None and out_file.suffix != ".csv":
        fail(f"--out {out_file}: write a name that ends in .csv")
    with err.status("Predicting"):
        predictor = load_predictor(model)
        frame = read_rows(rows, predictor.table)
        predictions = predictor.predict(frame, source=str(rows))
    if out_file is not None:
        taken = {name: f"{name} (new)" for name in frame.columns}
        separator = separator_of(rows) if rows.name.endswith((".csv", ".csv.gz")) else ","
        joined = frame.join(predictions.rename(columns=taken))
        with writing_to(out_file), replacing(out_file) as temporary:
            joined.to_csv(temporary, sep=separator, index=False)
        print_lines([f"Predictions  {out_file}"])
        return
    first = predictions.head(MOST_ROWS).to_dict("list")
    are_classes = predictor.problem.num_classes > 0
    out.print(_table(first, predictor.table.target, are_classes))
    if len(predictions) > MOST_ROWS:
        more = len(predictions) - MOST_ROWS
        print_lines([f"{more:,} more rows; --out FILE.csv writes all of them."])


def _table(columns: dict[str, list[Any]], target: str, are_classes: bool) -> Table:
    """Predictions by column; row 1 is the first below the column names."""
    table = Table(
        title=f"Predictions of {escape(target)}", title_justify="left", box=box.SIMPLE_HEAD
    )
    table.add_column("row", justify="right")
    for name in columns:
        table.add_column(escape(name), justify="right")
    for row, values in enumerate(zip(*columns.values(), strict=True), start=1):
        cells = [_shown(value, are_classes) for value in values]
        table.add_row(str(row), *map(escape, cells))
    return table


def _shown(value: str | float, are_classes: bool) -> str:
    """A class by its name and its probability by three digits; any other number by six that count."""
    if isinstance(value, str):
        return value
    return f"{value:.3f}" if are_classes else f"{value:.6g}"

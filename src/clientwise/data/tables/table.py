"""The dataset `table`: CSV and Parquet files of a user's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ...core.objective.problem import Survival
from ...errors import shortened
from ..cache import Writer
from ..federated import DATASETS, Samples
from ..folder import DataError, reason
from .columns import Standardise
from .files import ENDINGS, read_chunks, read_header
from .joining import Kind, SampleTable, Sheet, cached_table, join


@DATASETS.register("table")
def table(
    data_dir: Path | None,
    *,
    files: str,
    target: str,
    kind: Kind | Literal["survival"] = "classification",
    event: str | None = None,
    client: str | None = None,
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
    standardise: Standardise = "pooled",
) -> Samples:
    """Your own table, CSV or Parquet: one file per client, or a column that names the client.

    Every column is an input but the target, the client and those in `ignore`. Empty cells, NA
    and ? are missing values. See docs/data.md for what becomes of numbers and categories.

    Args:
        data_dir: the data folder; without one, paths start in the current folder.
        files: a path or pattern in the data folder, as in "hospitals/*.csv".
        target: the column to predict; rows without a value in it are left out.
        kind: "classification", "regression" for a target of numbers, or "survival" for times.
        event: of survival, the column that is 1 where the event happened at that time and 0 where
            it had not happened by then.
        client: the column that names the client of a row; without one, every file is a client.
        categories: columns that become one-hot inputs; all others must hold numbers.
        ignore: columns that are left out.
        standardise: by the training samples of all clients ("pooled"), of each ("client"), or not.

    Returns:
        Samples whose inputs [N, columns] become [N, F] once clients hold them.
    """
    if (kind == "survival") != (event is not None):
        raise DataError('`event` names a column for kind = "survival", and for no other kind')
    paths = _matching(data_dir, files)
    texts = list(categories)
    if client is not None:
        texts.append(client)
    if kind == "classification":
        texts.append(target)

    def read(arrays: Writer) -> SampleTable:
        sheets = [
            Sheet(path, read_header(path), read_chunks(path, texts), path.name.partition(".")[0])
            for path in paths
        ]
        return join(
            arrays,
            sheets,
            target=target,
            kind="classification" if kind == "classification" else "regression",
            event=event,
            client=client,
            categories=categories,
            ignore=ignore,
        )

    options = [target, kind, event, client, *categories, None, *ignore]
    made = cached_table("table", paths, read, options)
    return made.samples(standardise, Survival() if event is not None else None)


def _matching(data_dir: Path | None, files: str) -> list[Path]:
    """The files of a path or pattern, sorted."""
    folder = Path(data_dir) if data_dir else Path()
    try:
        if Path(files).is_absolute() and Path(files).is_file():
            found = [Path(files)]
        else:
            found = sorted(path for path in folder.glob(files) if path.is_file())
    except (ValueError, NotImplementedError, OSError) as error:
        raise DataError(f"files = {shortened(files)!r}: {reason(error)}") from None
    if not found:
        raise DataError(
            f"{shortened(str(folder / files))}: no such file; paths start from `data_dir`"
        )
    for path in found:
        if not path.name.endswith(ENDINGS):
            raise DataError(
                f"{path}: a table is a file {', '.join(ENDINGS)}; give `files` a pattern such as *.csv"
            )
    return found

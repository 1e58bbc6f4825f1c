"""CSV and Parquet files as pandas frames, read with limits."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import shortened
from ..limits import gigabytes, memory
from .folder import DataError, read_file, reason

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
MOST_COLUMNS = 100_000
PART_OF_MEMORY = 8  # a table is copied several times before clients train on it
VALUE_BYTES = 8  # of a number in a table
MOST_RATIO = 1_000  # bytes of values for every byte of a Parquet file
SMALL_TABLE = 2**27  # bytes of values; smaller tables may have any ratio
DECIMAL_COMMA = r"^\s*([+-]?\d+),(\d+)\s*$"


def read_table(path: Path, texts: Sequence[str]) -> DataFrame:
    """The rows of a CSV, TSV or Parquet file.

    A CSV file whose header is separated by semicolons may have decimal commas.

    Args:
        path: the file; its ending says what it is.
        texts: columns that stay as written, so that 1 stays 1 in a file with empty cells.
    """
    if path.suffix == ".parquet":
        return _read_parquet(path)
    content = read_file(path, memory() // PART_OF_MEMORY)
    if not content.strip():
        raise DataError(f"{path}: is empty; write a line of column names and a line for every row")
    first_line = content.partition(b"\n")[0]
    separator = "\t" if ".tsv" in path.name else _separator(first_line)
    _refuse_wide(path, first_line.count(separator.encode()) + 1)
    _refuse_repeated(path, _header(path, content, separator))
    frame = parse_csv(path, content, sep=separator, dtype=dict.fromkeys(texts, str))
    if separator == ";":
        for name in frame.columns.difference(texts):
            if _has_texts(frame[name]):
                frame[name] = frame[name].str.replace(DECIMAL_COMMA, r"\1.\2", regex=True)
    return frame


def _has_texts(column: Series[Any]) -> bool:
    """Whether a column has texts, and not numbers or truth values."""
    import pandas

    return bool(pandas.api.types.infer_dtype(column, skipna=True) == "string")


def _separator(first_line: bytes) -> str:
    """The separator of a CSV file: what its header has more of, outside of quotes."""
    plain = re.sub(b'"[^"]*"', b"", first_line)
    return ";" if plain.count(b";") > plain.count(b",") else ","


def read_csv(path: Path, most: int, **options: Any) -> DataFrame:
    """The rows of a CSV file of at most `most` bytes; see `parse_csv`."""
    return parse_csv(path, read_file(path, most), **options)


def parse_csv(path: Path, content: bytes, **options: Any) -> DataFrame:
    """The rows of a CSV file with this content; empty cells, NA and ? are missing values.

    Options are those of `pandas.read_csv`.
    """
    import pandas

    try:
        with warnings.catch_warnings():
            # Rows longer than the header
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            return pandas.read_csv(
                io.BytesIO(content),
                na_values=["?"],
                index_col=False,
                skipinitialspace=True,
                low_memory=False,
                **options,
            )
    except UnicodeDecodeError:
        raise _not_utf8(path) from None
    except Exception as error:
        raise DataError(
            f"{path}: not a table of rows and columns ({reason(error)}); correct the file"
        ) from None


def _header(path: Path, content: bytes, separator: str) -> list[str]:
    """The column names in the first line that is not empty."""
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
    try:
        rows = csv.reader(text, delimiter=separator, skipinitialspace=True)
        return next((row for row in rows if row), [])
    except UnicodeDecodeError:
        raise _not_utf8(path) from None
    except csv.Error as error:
        raise DataError(
            f"{path}: not a table of rows and columns ({reason(error)}); correct the file"
        ) from None


def _not_utf8(path: Path) -> DataError:
    return DataError(
        f'{path}: is not UTF-8 text; save it as "CSV UTF-8", or convert it with iconv -f WINDOWS-1252 -t UTF-8'
    )


def _refuse_wide(path: Path, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise DataError(
            f"{path}: has {columns:,} columns, {MOST_COLUMNS:,} at most are read; remove some"
        )


def _refuse_repeated(path: Path, names: Sequence[str]) -> None:
    """DataError where two columns have one name: one may be a copy of the target."""
    seen: set[str] = set()
    for name in filter(None, names):
        if name in seen:
            raise DataError(
                f"{path}: two columns are called {shortened(name)!r}; one may leak the target. Rename or remove one"
            )
        seen.add(name)


def _read_parquet(path: Path) -> DataFrame:
    """The rows of a Parquet file, whose metadata is checked before any value is read."""
    try:
        from pyarrow import concat_tables
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(
            f"{path}: Parquet needs another package: pip install 'clientwise[parquet]'"
        ) from None
    try:
        with ParquetFile(path) as file:
            _refuse_large(path, file.metadata)
            _refuse_repeated(path, file.schema_arrow.names)
            texts = _text_columns(file.schema_arrow)
        # Texts stay encoded: a file of a few bytes may repeat a long one a million times.
        with ParquetFile(path, read_dictionary=texts) as file:
            parts = [file.schema_arrow.empty_table()]
            size = 0
            for index in range(file.num_row_groups):
                parts.append(file.read_row_group(index))
                size += parts[-1].nbytes
                if size > memory() // PART_OF_MEMORY:
                    raise ValueError(f"more than {gigabytes(memory() / PART_OF_MEMORY)} unpacked")
            frame: DataFrame = concat_tables(parts).unify_dictionaries().to_pandas()
        encoded = frame.select_dtypes("category").columns
        frame = frame.astype(dict.fromkeys(encoded, object))
        return frame.reset_index(drop=True)  # the file may have an index of anything
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{path}: not a Parquet file that can be read ({reason(error)}); write it again"
        ) from None


def _refuse_large(path: Path, metadata: Any) -> None:
    """DataError where the metadata announces more values than fit, or far more than the file can hold."""
    _refuse_wide(path, metadata.num_columns)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    encoded = sum(group.total_byte_size for group in groups)
    size = max(VALUE_BYTES * metadata.num_rows * metadata.num_columns, encoded)
    if size > memory() // PART_OF_MEMORY:
        limit = gigabytes(memory() / PART_OF_MEMORY)
        raise DataError(
            f"{path}: has {gigabytes(size)} of values, {limit} at most are read here; remove rows or columns"
        )
    packed = path.stat().st_size
    if size > SMALL_TABLE and size > MOST_RATIO * packed:
        raise DataError(
            f"{path}: announces {gigabytes(size)} of values in {packed:,} bytes, "
            f"more than {MOST_RATIO:,} times as much; remove constant columns and repeated rows"
        )


def _text_columns(schema: Any) -> list[str]:
    from pyarrow import types

    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return [field.name for field in schema if any(test(field.type) for test in tests)]

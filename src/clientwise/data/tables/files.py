"""CSV and Parquet files as pandas frames, whole or in chunks, read with limits."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import needing, shortened
from ...limits import gigabytes, memory
from ..folder import DataError, read_file, reason

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
MOST_COLUMNS = 100_000
CHUNK = 2**23  # bytes: the text and the values of the rows that are read at once
MANY_COLUMNS = 2_048  # with more, chunks are larger: pandas takes time for every column of each
LONG_ROW = 2**15  # bytes of text: what a row is taken for until some were read
LONGEST_HEADER = 2**26  # bytes
BUFFER = 2**20  # bytes
COLUMN_BUFFER = 2**12  # bytes, of Parquet: without one, a whole row group is in memory
PART_OF_MEMORY = 8  # what is read at once is copied several times
MOST_UNPACKED = 100  # bytes for every byte of a .gz file that does not fit into memory
VALUE_BYTES = 8  # of a number in a table
MOST_RATIO = 1_000  # bytes of values for every byte of a Parquet file
SMALL_TABLE = 2**27  # bytes of values; smaller tables may have any ratio
DECIMAL_COMMA = r"^\s*([+-]?\d+),(\d+)\s*$"


def read_table(path: Path, texts: Sequence[str]) -> DataFrame:
    """The rows of a CSV, TSV or Parquet file, in memory.

    A CSV file whose header is separated by semicolons may have decimal commas.

    Args:
        path: the file; its ending says what it is.
        texts: columns that stay as written, so that 1 stays 1 in a file with empty cells.
    """
    return next(_frames(path, texts, None))


def read_chunks(path: Path, texts: Sequence[str]) -> Iterator[DataFrame]:
    """The rows as `read_table` reads them, some at a time: the file may be larger than memory."""
    yield from _frames(path, texts, CHUNK)


def read_header(path: Path) -> list[str]:
    """The names of the columns."""
    return [str(name) for name in next(_frames(path, (), chunk=1)).columns]


def separator_of(path: Path) -> str:
    """The separator of a CSV or TSV file; of a CSV file, what its header has more of, outside of quotes."""
    if ".tsv" in path.name:
        return "\t"
    plain = re.sub(b'"[^"]*"', b"", _first_line(path))
    return ";" if plain.count(b";") > plain.count(b",") else ","


def _frames(path: Path, texts: Sequence[str], chunk: int | None) -> Iterator[DataFrame]:
    """One frame at least, each of about so many bytes; None: one frame of all rows."""
    if path.suffix == ".parquet":
        return _parquet_frames(path, chunk)
    return _csv_frames(path, texts, chunk)


def _rows_of(chunk: int, columns: int, row_bytes: float) -> int:
    """The rows of a chunk, where the text of a row has so many bytes."""
    if columns > MANY_COLUMNS:
        chunk = chunk * columns // MANY_COLUMNS
    return max(1, int(chunk / (row_bytes + VALUE_BYTES * columns)))


def _csv_frames(path: Path, texts: Sequence[str], chunk: int | None) -> Iterator[DataFrame]:
    separator = separator_of(path)
    first_line = _first_line(path)
    columns = first_line.count(separator.encode()) + 1
    _refuse_wide(path, columns)
    _refuse_repeated(path, _header(path, separator))
    row_bytes: float = max(LONG_ROW, len(first_line))
    count = 0
    with _LimitedFile(path) as raw, io.BufferedReader(raw, BUFFER) as file:
        with _parsing(path):
            reader = _read_csv(file, sep=separator, dtype=dict.fromkeys(texts, str), iterator=True)
        while True:
            rows = None if chunk is None else _rows_of(chunk, columns, row_bytes)
            with _parsing(path):
                try:
                    frame = reader.get_chunk(rows)
                except StopIteration:
                    return
            count += len(frame)
            row_bytes = raw.count / max(1, count)
            if separator == ";":
                for name in frame.columns.difference(texts):
                    if _has_texts(frame[name]):
                        frame[name] = frame[name].str.replace(DECIMAL_COMMA, r"\1.\2", regex=True)
            yield frame
            raw.begin_chunk()


class _LimitedFile(io.RawIOBase):
    """The content of a file, unpacked if its name ends in .gz; DataError where it is too much."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.count = 0  # bytes read so far
        self._of_chunk = 0
        self._most_at_once = memory() // PART_OF_MEMORY
        try:
            is_packed = path.suffix == ".gz"
            self._most = path.stat().st_size * MOST_UNPACKED if is_packed else math.inf
            opened = gzip.open if is_packed else open
            self._file = opened(path, "rb")
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except OSError as error:
            raise self._unreadable(error) from None

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def begin_chunk(self) -> None:
        """Count anew what is in memory at once."""
        self._of_chunk = 0

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._file.read(len(buffer))
        except MemoryError:
            raise _too_little_memory(self._path) from None
        except Exception as error:  # a damaged file makes gzip raise anything
            raise self._unreadable(error) from None
        self._of_chunk += len(content)
        self.count += len(content)
        if self._of_chunk > self._most_at_once:
            raise DataError(
                f"{self._path}: more than {gigabytes(self._most_at_once)} of it must be in memory at once; "
                "divide the file, or shorten its longest rows"
            )
        if self.count > max(self._most, self._most_at_once):
            raise DataError(
                f"{self._path}: unpacks to more than {MOST_UNPACKED} times its size; unpack it yourself if it is right"
            )
        buffer[: len(content)] = content
        return len(content)

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(f"{self._path}: cannot be read ({reason(error)}); get the file again")


def _first_line(path: Path) -> bytes:
    """The first line that is not empty."""
    with _LimitedFile(path) as raw, io.BufferedReader(raw, BUFFER) as file:
        while line := file.readline(LONGEST_HEADER):
            if len(line) == LONGEST_HEADER:
                raise DataError(
                    f"{path}: its first line has {LONGEST_HEADER:,} bytes or more; write column names there"
                )
            if line.strip():
                return line
    raise DataError(f"{path}: is empty; write a line of column names and a line for every row")


def _has_texts(column: Series[Any]) -> bool:
    """Whether a column has texts, and not numbers or truth values."""
    import pandas

    return bool(pandas.api.types.infer_dtype(column, skipna=True) == "string")


def read_csv(path: Path, most: int, **options: Any) -> DataFrame:
    """The rows of a CSV file of at most `most` bytes; see `parse_csv`."""
    return parse_csv(path, read_file(path, most), **options)


def parse_csv(path: Path, content: bytes, **options: Any) -> DataFrame:
    """The rows of a CSV file with this content; empty cells, NA and ? are missing values.

    Options are those of `pandas.read_csv`.
    """
    with _parsing(path):
        frame: DataFrame = _read_csv(io.BytesIO(content), **options)
    return frame


def _read_csv(file: io.BufferedIOBase, **options: Any) -> Any:
    import pandas

    return pandas.read_csv(
        file, na_values=["?"], index_col=False, skipinitialspace=True, low_memory=False, **options
    )


@contextmanager
def _parsing(path: Path) -> Iterator[None]:
    """DataError where the content of the file is no table."""
    with needing("tables", f"{path}: a table"):
        import pandas
    try:
        with warnings.catch_warnings():
            # Rows longer than the header
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            yield
    except DataError:
        raise
    except MemoryError:
        raise _too_little_memory(path) from None
    except UnicodeDecodeError:
        raise _not_utf8(path) from None
    except Exception as error:
        raise DataError(
            f"{path}: not a table of rows and columns ({reason(error)}); correct the file"
        ) from None


def _header(path: Path, separator: str) -> list[str]:
    """The column names in the first line that is not empty."""
    with (
        _parsing(path),
        _LimitedFile(path) as raw,
        io.BufferedReader(raw, BUFFER) as file,
        io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text,
    ):
        rows = csv.reader(text, delimiter=separator, skipinitialspace=True)
        return next((row for row in rows if row), [])


def _not_utf8(path: Path) -> DataError:
    return DataError(
        f'{path}: is not UTF-8 text; save it as "CSV UTF-8", or convert it with iconv -f WINDOWS-1252 -t UTF-8'
    )


def _too_little_memory(path: Path) -> DataError:
    return DataError(
        f"{path}: too little memory to read it; end other programs, or raise the limit of this process"
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


def _parquet_frames(path: Path, chunk: int | None) -> Iterator[DataFrame]:
    """Frames of a Parquet file, whose metadata is checked before any value is read."""
    with needing("parquet", f"{path}: Parquet"):
        import pandas  # noqa: F401  for `to_pandas`
        from pyarrow import Table
        from pyarrow.parquet import ParquetFile
    try:
        with ParquetFile(path) as file:
            _refuse_wide(path, file.metadata.num_columns)
            _refuse_large(path, file.metadata, in_memory=chunk is None)
            _refuse_repeated(path, file.schema_arrow.names)
            texts = _text_columns(file.schema_arrow)
        # Texts stay encoded: a file of a few bytes may repeat a long one a million times.
        with ParquetFile(
            path, read_dictionary=texts, pre_buffer=False, buffer_size=COLUMN_BUFFER
        ) as file:
            read = 0
            for batches in _parquet_batches(file, chunk):
                frame = Table.from_batches(batches, file.schema_arrow)
                frame = frame.unify_dictionaries().to_pandas()
                encoded = frame.select_dtypes("category").columns
                frame = frame.astype(dict.fromkeys(encoded, object))
                # The file may have an index of anything
                yield frame.set_axis(range(read, read + len(frame)))
                read += len(frame)
    except DataError:
        raise
    except MemoryError:
        raise _too_little_memory(path) from None
    except Exception as error:
        raise DataError(
            f"{path}: not a Parquet file that can be read ({reason(error)}); write it again"
        ) from None


def _parquet_batches(file: Any, chunk: int | None) -> Iterator[list[Any]]:
    """What makes a frame: a batch of so many bytes, or all; none where the file has no rows."""
    row_bytes = _encoded_bytes(file.metadata) / max(1, file.metadata.num_rows)
    rows = _rows_of(chunk or CHUNK, file.metadata.num_columns, row_bytes)
    most = memory() // PART_OF_MEMORY
    size = 0
    found = []
    is_empty = True
    for batch in file.iter_batches(batch_size=rows):
        found.append(batch)
        size += batch.nbytes
        if size > most:
            raise ValueError(f"more than {gigabytes(most)} unpacked")
        if chunk is not None:
            yield found
            size = 0
            found = []
            is_empty = False
    if chunk is None or is_empty:
        yield found


def _refuse_large(path: Path, metadata: Any, *, in_memory: bool) -> None:
    """DataError where the metadata announces more values than fit, or far more than the file can hold."""
    size = max(VALUE_BYTES * metadata.num_rows * metadata.num_columns, _encoded_bytes(metadata))
    if in_memory and size > memory() // PART_OF_MEMORY:
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


def _encoded_bytes(metadata: Any) -> int:
    """The bytes of all values, unpacked."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return sum(group.total_byte_size for group in groups)


def _text_columns(schema: Any) -> list[str]:
    from pyarrow import types

    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return [field.name for field in schema if any(test(field.type) for test in tests)]

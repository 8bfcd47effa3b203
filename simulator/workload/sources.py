"""Reading trace files: bytes -> header and record batches. No meaning is given to a value here (see `parse`).

A source yields batches of the columns asked for, in bounded memory, and can say afterwards where in the
file a row stands. Row numbers count data rows from 1; line numbers count lines of the file from 1.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from simulator.config import listed, shown
from simulator.errors import TraceError
from simulator.text import several

from .files import DROPPED, MAX_PARSED, READ_ERRORS, lines, open_bytes, regular
from .json_source import BATCH_ROWS, JsonLinesSource, json_source

_BLOCK_BYTES: Final = 4 << 20
MAX_ROWS: Final = 10**9
"""Most rows of a trace file."""
MAX_HEADER: Final = 2**18
"""Longest header line of a CSV file [characters]."""
_DECIMAL_COMMA: Final = r"^\s*([+-]?\d*),(\d+)\s*$"


class Source(Protocol):
    """What every reader offers."""

    path: Path
    header: list[str]
    unreadable: int
    """Rows skipped because they have the wrong shape (only with drop_bad)."""
    results: int
    """Benchmark results the file holds, each with a clock of its own; 0 when it is not of that kind."""

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Columns `names`, in file order. Raises TraceError naming the row that cannot be read."""
        ...

    def locate(self, index: int) -> str:
        """Place of the index-th row that was yielded (from 0): `FILE: data row R (line L)`."""
        ...


def open_source(path: Path, drop_bad: bool = False) -> Source:
    """Choose the reader by suffix (.csv .tsv .jsonl .ndjson .json .parquet, each text kind also .gz).

    Raises TraceError for a missing file, an unknown suffix or an unreadable header.
    """
    regular(path)
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
    if suffix not in _READERS:
        raise TraceError(f"{path}: unknown suffix {shown(suffix)}; accepted: {', '.join(_READERS)}")
    try:
        return _READERS[suffix](path, drop_bad)
    except (*READ_ERRORS, pa.ArrowException, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The library's words, cut: some repeat the input."""
    text = str(error) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


class CsvSource:
    """Text with a header line; blank lines are skipped. Values come as strings.

    Separated by tabs, commas, or semicolons where the header has these and no comma: then a comma within a
    number is its decimal point, as spreadsheets write it.
    """

    def __init__(self, path: Path, drop_bad: bool) -> None:
        self.path, self.unreadable, self.results = path, 0, 0
        self._drop_bad = drop_bad
        first = next(lines(path), (1, ""))[1]
        if len(first) > MAX_HEADER:
            raise TraceError(f"{path}:1: a header of {len(first):,} characters; accepted: at most {MAX_HEADER:,}")
        self._separator = "\t" if ".tsv" in path.suffixes else ";" if ";" in first and "," not in first else ","
        self.header = next((record for _, record in self._records()), [])
        if not self.header:
            raise TraceError(f"{path}: empty trace: the file has no header line")
        _distinct(f"{path}:1", self.header)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self.unreadable = 0
        try:
            with self._stream() as stream:
                reader = pa_csv.open_csv(
                    stream,
                    read_options=pa_csv.ReadOptions(block_size=_BLOCK_BYTES),
                    parse_options=pa_csv.ParseOptions(delimiter=self._separator, invalid_row_handler=self._invalid),
                    convert_options=pa_csv.ConvertOptions(
                        include_columns=list(names), column_types={name: pa.string() for name in self.header}
                    ),
                )
                for batch in reader:
                    yield self._points(batch) if self._separator == ";" else batch
        except (*READ_ERRORS, pa.ArrowException) as error:
            raise self._explain(error) from error

    def locate(self, index: int) -> str:
        width = len(self.header)
        rows = enumerate(islice(self._records(), 1, None), start=1)
        readable = ((row, line) for row, (line, record) in rows if not self._drop_bad or len(record) == width)
        try:
            row, line = next(islice(readable, index, None))
        except (StopIteration, csv.Error, UnicodeDecodeError):  # the two CSV readers count otherwise here
            return f"{self.path}: data row {index + 1}"
        return f"{self.path}: data row {row} (line {line})"

    def _stream(self) -> pa.NativeFile:
        packed = self.path.suffix == ".gz"
        return pa.PythonFile(open_bytes(self.path), mode="r") if packed else pa.OSFile(str(self.path))

    def _points(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [pc.replace_substring_regex(column, _DECIMAL_COMMA, r"\1.\2") for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _invalid(self, _: Any) -> str:
        self.unreadable += 1
        return "skip" if self._drop_bad else "error"

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """(line on which the record starts, fields) of every record that is not blank, header first."""
        start: list[int] = []

        def texts() -> Iterator[str]:
            for number, text in lines(self.path):
                start.append(number)
                yield text

        for record in csv.reader(texts(), delimiter=self._separator):
            if record:
                yield start[0], record
            start.clear()

    def _explain(self, error: Exception) -> TraceError:
        try:
            for row, (line, record) in enumerate(islice(self._records(), 1, None), start=1):
                if len(record) != len(self.header):
                    return TraceError(
                        f"{self.path}: data row {row} (line {line}): unreadable row: {several(len(record), 'field')}, "
                        f"accepted: {len(self.header)} ({listed(self.header)}); {DROPPED}"
                    )
        except TraceError as reason:
            return reason
        except (*READ_ERRORS, csv.Error) as reason:
            return TraceError(f"{self.path}: cannot be read: {_reason(reason)}")
        return TraceError(f"{self.path}: cannot be read: {_reason(error)}")


class ParquetSource:
    """A parquet file, memory-mapped and read a batch at a time; values keep their types."""

    def __init__(self, path: Path, drop_bad: bool) -> None:
        self.path, self.unreadable, self.results = path, 0, 0
        self._file = pa_parquet.ParquetFile(path, memory_map=True)
        self.header = [field.name for field in self._file.schema_arrow]
        _distinct(str(path), self.header)
        facts = self._file.metadata
        if facts.num_rows > MAX_ROWS:
            raise TraceError(f"{path}: holds {facts.num_rows:,} rows; accepted: at most {MAX_ROWS:,}")
        largest = max((facts.row_group(k).total_byte_size for k in range(facts.num_row_groups)), default=0)
        if largest > 4 * MAX_PARSED:
            raise TraceError(f"{path}: a row group of {largest:,} bytes; accepted: at most {4 * MAX_PARSED:,}")

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._file.iter_batches(batch_size=BATCH_ROWS, columns=list(names))
        except (pa.ArrowException, OSError) as error:
            raise TraceError(f"{self.path}: cannot be read: {_reason(error)}") from error

    def locate(self, index: int) -> str:
        return f"{self.path}: data row {index + 1}"


def _distinct(where: str, header: Sequence[str]) -> None:
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise TraceError(f"{where}: column names must differ, got {listed(twice)} more than once")


_READERS: Final[dict[str, Callable[[Path, bool], Source]]] = {
    ".csv": CsvSource,
    ".tsv": CsvSource,
    ".jsonl": JsonLinesSource,
    ".ndjson": JsonLinesSource,
    ".json": json_source,
    ".parquet": ParquetSource,
}

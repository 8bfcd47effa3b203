"""Reading trace files: bytes -> header and record batches. No meaning is given to a value here (see `parse`).

A source yields batches of the columns asked for, in bounded memory, and can say afterwards where in the
file a row stands. Row numbers count data rows from 1; line numbers count lines of the file from 1.
"""

import csv
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from simulator.errors import TraceError

BATCH_ROWS: Final = 131_072
_BLOCK_BYTES: Final = 4 << 20


class Source(Protocol):
    """What every reader offers."""

    path: Path
    header: list[str]
    unreadable: int
    """Rows skipped because they have the wrong shape (only with drop_bad)."""

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Columns `names`, in file order. Raises TraceError naming the row that cannot be read."""
        ...

    def locate(self, index: int) -> str:
        """Place of the index-th row that was yielded (from 0): `FILE: data row R (line L)`."""
        ...


def file_sha256(path: Path) -> str:
    """SHA-256 of the file's bytes, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_text(path: Path) -> IO[str]:
    """UTF-8 text, byte-order mark skipped, .gz unpacked."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def open_source(path: Path, drop_bad: bool = False) -> Source:
    """Choose the reader by suffix (.csv .tsv .jsonl .ndjson .json .parquet, each text kind also .gz).

    Raises TraceError for a missing file, an unknown suffix or an unreadable header.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such trace file")
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
    if suffix not in _READERS:
        raise TraceError(f"{path}: unknown suffix {suffix!r}; accepted: {', '.join(_READERS)}")
    try:
        return _READERS[suffix](path, drop_bad)
    except (UnicodeDecodeError, OSError, EOFError, pa.ArrowInvalid, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error


class CsvSource:
    """Comma- or tab-separated text with a header line; blank lines are skipped. Values come as strings."""

    def __init__(self, path: Path, drop_bad: bool) -> None:
        self.path, self.unreadable = path, 0
        self._drop_bad = drop_bad
        self._tab = "\t" if ".tsv" in path.suffixes else ","
        self.header = next((record for _, record in self._records()), [])
        if not self.header:
            raise TraceError(f"{path}: empty trace: the file has no header line")
        if len(set(self.header)) < len(self.header):
            raise TraceError(f"{path}:1: column names must differ, got {', '.join(self.header)}")

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self.unreadable = 0
        try:
            with pa.input_stream(str(self.path), compression="detect") as stream:
                yield from pa_csv.open_csv(
                    stream,
                    read_options=pa_csv.ReadOptions(block_size=_BLOCK_BYTES),
                    parse_options=pa_csv.ParseOptions(delimiter=self._tab, invalid_row_handler=self._invalid),
                    convert_options=pa_csv.ConvertOptions(
                        include_columns=list(names), column_types={name: pa.string() for name in self.header}
                    ),
                )
        except (pa.ArrowInvalid, OSError) as error:
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

    def _invalid(self, _: Any) -> str:
        self.unreadable += 1
        return "skip" if self._drop_bad else "error"

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """(line on which the record starts, fields) of every record that is not blank, header first."""
        with open_text(self.path) as file:
            reader = csv.reader(file, delimiter=self._tab)
            start = 1
            for record in reader:
                if record:
                    yield start, record
                start = reader.line_num + 1

    def _explain(self, error: Exception) -> TraceError:
        try:
            for row, (line, record) in enumerate(islice(self._records(), 1, None), start=1):
                if len(record) != len(self.header):
                    return TraceError(
                        f"{self.path}: data row {row} (line {line}): unreadable row: {len(record)} fields, "
                        f"accepted: {len(self.header)} ({', '.join(self.header)})"
                    )
        except (UnicodeDecodeError, EOFError, csv.Error) as reason:
            return TraceError(f"{self.path}: cannot be read: {reason}")
        return TraceError(f"{self.path}: cannot be read: {error}")


class ParquetSource:
    """A parquet file, memory-mapped and read a batch at a time; values keep their types."""

    def __init__(self, path: Path, drop_bad: bool) -> None:
        self.path, self.unreadable = path, 0
        self._file = pa_parquet.ParquetFile(path, memory_map=True)
        self.header = [field.name for field in self._file.schema_arrow]

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._file.iter_batches(batch_size=BATCH_ROWS, columns=list(names))
        except (pa.ArrowInvalid, OSError) as error:
            raise TraceError(f"{self.path}: cannot be read: {error}") from error

    def locate(self, index: int) -> str:
        return f"{self.path}: data row {index + 1}"


def _text(value: Any) -> str | None:
    """A JSON value as the text the parsers read; None stays missing, lone surrogates stay escaped."""
    if isinstance(value, str):
        return json.dumps(value) if any("\ud800" <= letter <= "\udfff" for letter in value) else value
    return None if value is None else json.dumps(value)


def _batch(records: list[Mapping[str, Any]], names: Sequence[str]) -> pa.RecordBatch:
    columns = [pa.array([_text(record.get(name)) for record in records], pa.string()) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def _chunks(records: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    left = iter(records)
    while chunk := list(islice(left, BATCH_ROWS)):
        yield _batch(chunk, names)


class JsonLinesSource:
    """One JSON object a line; blank lines are skipped. A key that is absent is a missing value."""

    def __init__(self, path: Path, drop_bad: bool) -> None:
        self.path, self.unreadable = path, 0
        self._drop_bad = drop_bad
        self.header = list(next(self._objects(), {}))
        if not self.header:
            raise TraceError(f"{path}: empty trace: the file holds no JSON object")

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self.unreadable = 0
        yield from _chunks(self._objects(), names)

    def locate(self, index: int) -> str:
        found = ((row, line) for row, line, text in self._lines() if not self._drop_bad or _parsed(text))
        row, line = next(islice(found, index, None))
        return f"{self.path}: data row {row} (line {line})"

    def _lines(self) -> Iterator[tuple[int, int, str]]:
        row = 0
        with open_text(self.path) as file:
            for line, text in enumerate(file, start=1):
                if text.strip():
                    row += 1
                    yield row, line, text

    def _objects(self) -> Iterator[Mapping[str, Any]]:
        try:
            for row, line, text in self._lines():
                record = _parsed(text)
                if record is not None:
                    yield record
                elif self._drop_bad:
                    self.unreadable += 1
                else:
                    raise TraceError(
                        f"{self.path}: data row {row} (line {line}): unreadable row: {text.strip()[:60]!r}, "
                        "accepted: one JSON object a line"
                    )
        except (UnicodeDecodeError, OSError, EOFError) as error:
            raise TraceError(f"{self.path}: cannot be read: {error}") from error


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class JsonSource:
    """A whole JSON document: a list of records, or an object of equally long lists (one a column)."""

    def __init__(self, path: Path, drop_bad: bool) -> None:
        self.path, self.unreadable = path, 0
        self._rows = _records_of(path)
        self.header = sorted({name for row in self._rows for name in row})

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from _chunks(self._rows, names)

    def locate(self, index: int) -> str:
        return f"{self.path}: data row {index + 1}"


def _records_of(path: Path) -> list[dict[str, Any]]:
    try:
        with open_text(path) as file:
            document = json.load(file)
    except (ValueError, OSError, EOFError, RecursionError) as error:
        raise TraceError(f"{path}: cannot be read as JSON: {error}") from error
    if isinstance(document, dict):
        return _transposed(path, document)
    if not isinstance(document, list) or not document:
        raise TraceError(f"{path}: empty trace; accepted: a list of records, or an object of lists")
    for row, record in enumerate(document, start=1):
        if not isinstance(record, dict):
            raise TraceError(f"{path}: data row {row}: unreadable row: {record!r:.60}, accepted: an object")
    return [_flat_turns(record) for record in document]


def _transposed(path: Path, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Object of lists -> records; other keys of the document are left out.

    The columns of a request are those as long as `input_lens` (vLLM's detailed benchmark result), or as
    the longest.
    """
    lists = {name: value for name, value in document.items() if isinstance(value, list)}
    rows = len(lists["input_lens"]) if "input_lens" in lists else max(map(len, lists.values()), default=0)
    if rows == 0:
        raise TraceError(f"{path}: empty trace; accepted: a list of records, or an object of lists")
    columns = {name: value for name, value in lists.items() if len(value) == rows}
    return [{name: column[row] for name, column in columns.items()} for row in range(rows)]


_TURN_COUNTS: Final = ("tokens", "num_tokens", "token_count")


def _flat_turns(record: dict[str, Any]) -> dict[str, Any]:
    """ShareGPT record with counts on its turns -> prompt_tokens and output_tokens of the first exchange."""
    turns = record.get("conversations")
    if not isinstance(turns, list):
        return record
    flat = dict(record)
    for name, turn in zip(("prompt_tokens", "output_tokens"), turns[:2], strict=False):
        count = next((turn[key] for key in _TURN_COUNTS if isinstance(turn, dict) and key in turn), None)
        if count is not None:
            flat.setdefault(name, count)
            flat.pop("conversations", None)
    return flat


_READERS: Final[dict[str, Callable[[Path, bool], Source]]] = {
    ".csv": CsvSource,
    ".tsv": CsvSource,
    ".jsonl": JsonLinesSource,
    ".ndjson": JsonLinesSource,
    ".json": JsonSource,
    ".parquet": ParquetSource,
}

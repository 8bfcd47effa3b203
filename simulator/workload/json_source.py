"""JSON traces: one object a line, or a whole document."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from simulator.config import shown
from simulator.errors import TraceError

from .files import DROPPED, MAX_PARSED, READ_ERRORS, lines, open_bytes, parsed_bytes
from .records import MAX_NAMES, Record, expanded, names_of, transposed, value_at

BATCH_ROWS: Final = 131_072
HASHES: Final = "hash_ids"
"""The one column that may be a list of whole numbers."""
_WHOLE: Final = ("experiments", "benchmarks", "request_throughput")
"""Keys of reports whose lists are no columns."""
_LOOKED_AT: Final = 100
"""Records whose names make the header."""


class JsonLinesSource:
    """One JSON object a line; blank lines are skipped. A key that is absent is a missing value."""

    def __init__(self, path: Path, drop_bad: bool) -> None:
        self.path, self.unreadable, self.results = path, 0, 0
        self._drop_bad = drop_bad
        self.header = _header(path, (record for *_, record in islice(self._records(), _LOOKED_AT)))

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self.unreadable = self.results = 0
        yield from _chunks((record for *_, record in self._records()), names)

    def locate(self, index: int) -> str:
        row, line, _ = next(islice(self._records(), index, None))
        return f"{self.path}: data row {row} (line {line})"

    def _records(self) -> Iterator[tuple[int, int, Record]]:
        """(data row, line, record); an object that describes several requests gives as many records."""
        try:
            for row, (line, text) in enumerate(lines(self.path), start=1):
                value = _object(f"{self.path}: data row {row} (line {line})", text)
                if value is not None:
                    for number, record in expanded(value, self.results):
                        self.results = number
                        yield row, line, record
                elif self._drop_bad:
                    self.unreadable += 1
                else:
                    raise TraceError(
                        f"{self.path}: data row {row} (line {line}): unreadable row: {shown(text.strip())}, "
                        f"accepted: one JSON object a line; {DROPPED}"
                    )
        except READ_ERRORS as error:
            raise TraceError(f"{self.path}: cannot be read: {error}") from error


class JsonSource:
    """A whole JSON document: a list of records, an object of equally long lists (one a column), or the report of
    a benchmark."""

    def __init__(self, path: Path, drop_bad: bool) -> None:
        self.path, self.unreadable, self.results = path, 0, 0
        self._rows: list[Record] = []
        for number, value in enumerate(_document(path), start=1):
            if not isinstance(value, dict):
                raise TraceError(f"{path}: data row {number}: unreadable row: {shown(value)}, accepted: an object")
            for result, record in expanded(value, self.results):
                self.results = result
                self._rows.append(record)
        self.header = _header(path, iter(self._rows[:_LOOKED_AT]))

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from _chunks(iter(self._rows), names)

    def locate(self, index: int) -> str:
        return f"{self.path}: data row {index + 1}"


def json_source(path: Path, drop_bad: bool) -> JsonLinesSource | JsonSource:
    """A document, or lines of objects under the name of one (vllm bench serve --append-result)."""
    try:
        return JsonSource(path, drop_bad)
    except _ManyValues:
        return JsonLinesSource(path, drop_bad)


class _ManyValues(Exception):
    """The file holds JSON values one after the other."""


def _document(path: Path) -> list[Any]:
    """The records of a document. Raises _ManyValues for JSON lines, TraceError else."""
    try:
        with open_bytes(path) as file:
            parts, needed = [], 0
            while part := file.read(1 << 20):
                parts.append(part)
                needed += parsed_bytes(part)
                if needed > MAX_PARSED:
                    raise TraceError(_too_large(str(path)))
        document = json.loads(b"".join(parts).decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise _ManyValues from error
        raise TraceError(f"{path}:{error.lineno}: cannot be read as JSON: {error.msg}") from error
    except RecursionError as error:
        raise TraceError(f"{path}: cannot be read as JSON: nested too deeply") from error
    except (ValueError, *READ_ERRORS) as error:
        raise TraceError(f"{path}: cannot be read as JSON: {error}") from error
    if isinstance(document, dict):
        columns = not set(_WHOLE) & set(document) and next(expanded(document), (0, None))[1] is document
        document = (transposed(document) if columns else None) or [document]
    if not isinstance(document, list) or not document:
        raise TraceError(f"{path}: empty trace; accepted: a list of records, or an object of lists")
    return document


def _too_large(where: str) -> str:
    return (f"{where}: JSON that needs more than {MAX_PARSED >> 30} GiB of memory; "
            "accepted: one object a line in a .jsonl file, or parquet")


def _object(where: str, text: str) -> dict[str, Any] | None:
    if parsed_bytes(text) > MAX_PARSED:
        raise TraceError(_too_large(where))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _header(path: Path, records: Iterator[Record]) -> list[str]:
    """Names of the first records, in order of appearance."""
    names: dict[str, None] = {}
    for record in records:
        for name in names_of(record):
            names[name] = None
            if len(names) > MAX_NAMES:
                raise TraceError(f"{path}: more than {MAX_NAMES} columns; accepted: one record a request")
    if not names:
        raise TraceError(f"{path}: empty trace: the file holds no JSON object with a key")
    return list(names)


def _text(value: Any) -> str | None:
    """A JSON value as the text the parsers read; None stays missing, lone surrogates stay escaped."""
    if isinstance(value, str):
        return json.dumps(value) if any("\ud800" <= letter <= "\udfff" for letter in value) else value
    return None if value is None else json.dumps(value)


def _hashes(value: Any) -> list[int] | None:
    whole = isinstance(value, list) and all(type(each) is int and 0 <= each < 2**62 for each in value)
    return value if whole else None


def _batch(records: list[Record], names: Sequence[str]) -> pa.RecordBatch:
    columns = []
    for name in names:
        values = [value_at(record, name) for record in records]
        if name == HASHES:
            columns.append(pa.array(map(_hashes, values), pa.list_(pa.int64())))
        else:
            columns.append(pa.array(map(_text, values), pa.string()))
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def _chunks(records: Iterator[Record], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    while chunk := list(islice(records, BATCH_ROWS)):
        yield _batch(chunk, names)



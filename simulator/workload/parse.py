"""Column values -> int64 arrays with a mask of the rows that cannot be used. Nothing is read or raised here."""

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .formats import UNITS_NS
from .trace import Int64s

Bools = npt.NDArray[np.bool_]
_FLOAT_LIMIT: Final = 9.2e18


def parse_tokens(column: pa.Array) -> tuple[Int64s, Bools]:
    """Whole numbers, as integers, as floats without fraction or as text of either, also `1,024`. Shapes (N,), (N,)."""
    values, bad = _numbers(_without_thousands(_decoded(column)))
    if values.dtype == np.int64:
        return values, bad
    bad = bad | ~np.isfinite(values) | (np.abs(values) > _FLOAT_LIMIT)
    safe = np.where(bad, 0.0, values)
    bad |= safe != np.rint(safe)
    return safe.astype(np.int64), bad


_THOUSANDS: Final = r"^\s*[+-]?\d{1,3}(,\d{3})+(\.\d*)?\s*$"


def _without_thousands(column: pa.Array) -> pa.Array:
    """`1,024` -> `1024`, where a text has commas before groups of three digits only (no decimal comma can)."""
    if not _is_text(column.type):
        return column
    marked = pc.match_substring_regex(column, _THOUSANDS)
    return pc.if_else(marked, pc.replace_substring(column, ",", ""), column) if pc.any(marked).as_py() else column


def has_fraction(column: pa.Array) -> bool:
    """Whether a time that can be read is no whole number."""
    values, bad = _numbers(column)
    return values.dtype != np.int64 and bool(np.any(~bad & (values != np.rint(values))))


def parse_optional(column: pa.Array) -> Int64s:
    """Whole numbers; -1 where there is none. Shape (N,)."""
    values, bad = parse_tokens(column)
    return np.where(bad | (values < 0), -1, values)


def parse_hashes(column: pa.Array) -> tuple[Int64s, Int64s]:
    """Lists of whole numbers -> (all of them one after the other, how many each row has)."""
    lists = column if pa.types.is_list(column.type) or pa.types.is_large_list(column.type) else None
    if lists is None or not pa.types.is_integer(lists.type.value_type):
        return np.zeros(0, dtype=np.int64), np.zeros(len(column), dtype=np.int64)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
    values = pc.fill_null(pc.list_flatten(lists).cast(pa.int64()), -1)
    return np.asarray(values, dtype=np.int64), np.asarray(lengths, dtype=np.int64)


def parse_times(column: pa.Array, unit: str) -> tuple[Int64s, Bools]:
    """Times in `unit` (s, ms, us, ns or iso) -> nanoseconds. Shapes (N,), (N,).

    Numbers with a fraction pass through float64: exact to 1 ns up to 104 days, to 0.3 us for epoch seconds.
    ISO 8601 text may have up to 9 digits of fraction and a zone; text without a zone is read as UTC.
    """
    if pa.types.is_timestamp(column.type):
        return _timestamps(column)
    if unit == "iso":
        return _iso(column)
    values, bad = _numbers(column)
    factor = UNITS_NS[unit]
    if values.dtype == np.int64:
        bad = bad | (np.abs(values.astype(np.float64)) > _FLOAT_LIMIT / factor)
        return np.where(bad, 0, values) * factor, bad
    bad = bad | ~np.isfinite(values)
    ns = np.where(bad, 0.0, values) * factor
    bad = bad | (np.abs(ns) > _FLOAT_LIMIT)
    return np.rint(np.where(bad, 0.0, ns)).astype(np.int64), bad


def parse_labels(column: pa.Array) -> tuple[list[str], npt.NDArray[np.int32], Bools]:
    """(labels in order of appearance, code per row, mask of missing ones)."""
    column = _decoded(column)
    try:
        text = pc.utf8_trim_whitespace(column.cast(pa.string()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # lists, structs, bytes that are no text
        return [], np.zeros(len(column), dtype=np.int32), np.ones(len(column), dtype=np.bool_)
    coded = text.dictionary_encode()
    nothing = pc.or_(pc.equal(text, ""), pc.match_substring(text, "\0"))
    bad = _mask(pc.is_null(text)) | _mask(pc.fill_null(nothing, False))
    codes = np.asarray(pc.fill_null(coded.indices, 0), dtype=np.int32)
    return [str(label) for label in coded.dictionary.to_pylist()], codes, bad


def suggest_unit(column: pa.Array) -> str | None:
    """`iso` for timestamps and for text like 2023-11-16..., None where a number could be in any unit."""
    if pa.types.is_timestamp(column.type):
        return "iso"
    first = column[0].as_py() if len(column) else None
    return "iso" if isinstance(first, str) and first.count("-") >= 2 and ":" in first else None


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _mask(column: pa.Array) -> Bools:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _numbers(column: pa.Array) -> tuple[npt.NDArray[Any], Bools]:
    """(int64 or float64 values, mask of null or unreadable rows)."""
    column = _decoded(column)
    if pa.types.is_boolean(column.type):
        return np.zeros(len(column), dtype=np.int64), np.ones(len(column), dtype=np.bool_)
    if _is_text(column.type):
        column = pc.utf8_trim_whitespace(column)
    for kind in (pa.int64(), pa.float64()):
        if pa.types.is_floating(column.type) and kind == pa.int64():
            continue
        try:
            cast = column.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
        bad = _mask(cast.is_null())
        return np.asarray(pc.fill_null(cast, 0)), bad
    values = np.array([_number(value) for value in column.to_pylist()], dtype=np.float64)
    return values, np.isnan(values)


def _number(value: Any) -> float:
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _timestamps(column: pa.Array) -> tuple[Int64s, Bools]:
    zone = column.type.tz
    try:
        cast = column.cast(pa.timestamp("ns", zone)).cast(pa.int64())
    except pa.ArrowInvalid:
        return np.zeros(len(column), dtype=np.int64), np.ones(len(column), dtype=np.bool_)
    return np.asarray(pc.fill_null(cast, 0)), _mask(cast.is_null())


def _iso(column: pa.Array) -> tuple[Int64s, Bools]:
    column = _decoded(column)
    if not _is_text(column.type):
        return np.zeros(len(column), dtype=np.int64), np.ones(len(column), dtype=np.bool_)
    text = pc.utf8_trim_whitespace(column)
    parsed = _iso_cast(text)
    if parsed is None:
        parts = [_iso_cast(text.slice(row, 1)) for row in range(len(text))]
        parsed = pa.array([None if part is None else part[0].as_py() for part in parts], pa.int64())
    return np.asarray(pc.fill_null(parsed, 0)), _mask(parsed.is_null())


def _iso_cast(text: pa.Array) -> pa.Array | None:
    for zone in (None, "UTC"):
        try:
            return text.cast(pa.timestamp("ns", zone)).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
    return None

"""load_trace: a file -> Trace."""

import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from simulator.config import listed, shown
from simulator.errors import ConfigError, TraceError
from simulator.text import several
from simulator.units import MAX_TICKS

from .files import file_sha256
from .formats import Layout, resolve_layout
from .parse import has_fraction, suggest_unit
from .records import RESULT
from .rows import BEYOND_LIMIT, EPOCH_NS, Collector, classes_of
from .sources import Source, open_source
from .store import open_columns
from .trace import Trace, TraceMeta, first_repeat, make_trace
from .transform import cap_output, head, scale_rate, superpose, window, with_own_rate

UNREADABLE = "unreadable row"


def load_trace(
    path: str | os.PathLike[str],
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    sort: bool = False,
    limit: int | None = None,
    start_s: float | None = None,
    end_s: float | None = None,
    rate_scale: float = 1.0,
    copies: int = 1,
    copy_shift_s: float | None = None,
    *,
    where: Mapping[str, str | int] | None = None,
    shift_to_zero: bool | None = None,
    max_tokens: int | None = None,
    bad_rows: Literal["error", "drop"] = "error",
    seed: int = 0,
    replication: int = 0,
) -> Trace:
    """Read a trace file, or a folder written by save_columns.

    format         auto | a name of published.FORMATS | sharegpt | generic | columns (folder)
    columns        part -> column name, over the format's own: arrival, prompt, output, max_tokens, cached,
                   class, id, session, turn, delay, priority, tenant, predicted, ttft_target; nested JSON by
                   dotted names
    time_unit      s | ms | us | ns | iso, when the format or the column's name (arrival_ms) does not say
    sort           sort stably by arrival instead of refusing a file that is out of order
    where          column -> text: only rows that hold it
    start_s,end_s  [s] since the first arrival; with start_s, that moment becomes time 0
    limit          keep the first so many requests (of the window)
    shift_to_zero  subtract the first arrival. None: for epoch and ISO times and benchmark clocks; relative
                   times stay
    rate_scale, copies, copy_shift_s, max_tokens: see transform.scale_rate, superpose, cap_output (in that
    order)
    A file without arrival times gives a trace whose arrivals are all 0 and whose meta.untimed says why:
    for closed and grouped loads.
    bad_rows       error: the first row that cannot be used raises; drop: such rows are dropped and counted
    seed, replication  by how much copies are turned; they change nothing else

    Raises TraceError (file, data row, line, column, value, what is accepted) and ConfigError for options.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"{path}: limit must be >= 1, got {limit}")
    if bad_rows not in ("error", "drop"):
        raise ConfigError(f"{path}: bad_rows must be error or drop, got {bad_rows!r}")
    place = Path(path)
    if format == "columns" or (format == "auto" and place.is_dir()):
        given = (columns, time_unit, where, shift_to_zero)
        if sort or bad_rows == "drop" or any(option is not None for option in given):
            raise ConfigError(f"{place}: a folder of saved columns takes no reading options; remove them")
        trace = open_columns(place)
    else:
        early = limit if start_s is None and end_s is None else None
        trace = _read(
            place, format, columns, time_unit, sort, early, where, shift_to_zero, bad_rows == "drop"
        )
    if trace.meta.untimed:
        _no_times_to_change(place, start_s=start_s, end_s=end_s, time_unit=time_unit, shift_to_zero=shift_to_zero,
                            rate_scale=None if rate_scale == 1 else rate_scale, copy_shift_s=copy_shift_s)
    trace = window(trace, start_s, end_s)
    if limit is not None:
        trace = head(trace, limit, BEYOND_LIMIT)
    if rate_scale != 1:
        trace = with_own_rate(trace)
    trace = superpose(scale_rate(trace, rate_scale), copies, copy_shift_s, seed, replication)
    return trace if max_tokens is None else cap_output(trace, max_tokens)


def _no_times_to_change(path: Path, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{path}: {name} has no effect on a trace without arrival times; remove it")


def load_lengths(
    path: str | os.PathLike[str],
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, str | int] | None = None,
) -> Trace:
    """Like load_trace for files whose arrivals do not matter or are not there (ShareGPT with token counts):
    every arrival is 0, every row in file order. For empirical and joint lengths."""
    place = Path(path)
    if place.is_dir():
        return open_columns(place)
    source = open_source(place)
    layout = resolve_layout(str(place), source.header, format, columns)
    kept = {part: name for part, name in layout.columns.items() if part != "arrival"}
    collector = _collect(source, replace(layout, columns=kept), "ns", where or {}, True, False, None)
    return _trace(place, collector, collector.finish(), 0, layout)


def _read(
    path: Path,
    format: str,
    columns: Mapping[str, str] | None,
    time_unit: str | None,
    sort: bool,
    limit: int | None,
    where: Mapping[str, str | int] | None,
    shift: bool | None,
    drop_bad: bool,
) -> Trace:
    source = open_source(path, drop_bad)
    layout = resolve_layout(str(path), source.header, format, columns, time_unit)
    unsorted = sort or layout.sort
    collector = _collect(
        source, layout, layout.unit, where or {}, unsorted, drop_bad, None if unsorted else limit
    )
    values = collector.finish()
    if source.results > 1 and "arrival" in layout.columns and RESULT not in (where or {}):
        raise TraceError(f"{path}: holds {source.results} benchmark results, each with a clock of its own; choose one "
                         f"with where: {{{RESULT}: 1}}, on the command line --where {RESULT}=1")
    if layout.untimed:
        return _trace(path, collector, values, 0, layout)
    origin = _origin(path, values, layout, shift)
    values["arrival"] -= origin
    if values["arrival"].size and values["arrival"].max() > MAX_TICKS:
        raise TraceError(
            f"{path}: arrival (column {layout.columns['arrival']!r}) must be <= {MAX_TICKS / 1e9:.3g} s "
            f"after the start, got {values['arrival'].max() / 1e9:.3g} s; check time_unit"
        )
    trace = _trace(path, collector, values, origin, layout)
    return trace if limit is None or not unsorted else head(trace, limit, BEYOND_LIMIT)


def _collect(
    source: Source,
    layout: Layout,
    unit: str | None,
    where: Mapping[str, str | int],
    sort: bool,
    drop_bad: bool,
    limit: int | None,
) -> Collector:
    for name in where:
        if name not in source.header:
            raise TraceError(
                f"{source.path}: where: no column {shown(name)}; the file has: {listed(source.header)}"
            )
    batches = iter(source.batches(list(dict.fromkeys([*layout.names, *where]))))
    first = next(batches, None)
    if first is None:
        raise TraceError(f"{source.path}: empty trace: the file holds no data row")
    texts = {name: str(value) for name, value in where.items()}
    collector = Collector(
        layout, _unit(source, layout, first, unit), source.locate, texts, sort, drop_bad, limit
    )
    for batch in chain([first], batches):
        collector.add(batch)
        if collector.full:
            break
    if source.unreadable:
        collector.rows += source.unreadable
        collector.dropped[UNREADABLE] = source.unreadable
    if collector.kept == 0:
        counts = ", ".join(f"{count} {reason}" for reason, count in collector.dropped.items())
        raise TraceError(f"{source.path}: empty trace: all of {several(collector.rows, 'row')} dropped ({counts})")
    return collector


def _unit(source: Source, layout: Layout, batch: pa.RecordBatch, unit: str | None) -> str:
    name = layout.columns.get("arrival")
    if name is None or (unit is not None and layout.fraction_unit is None):
        return unit or "ns"
    column = batch.column(batch.schema.get_field_index(name))
    if unit is not None and layout.fraction_unit is not None:
        return layout.fraction_unit if has_fraction(column) else unit
    unit = suggest_unit(column)
    if unit is None:
        raise ConfigError(
            f"{source.path}: say the unit of column {name!r}: time_unit: s, ms, us, ns or iso (or --time-unit s)"
        )
    return unit


def _origin(path: Path, values: Mapping[str, npt.NDArray[Any]], layout: Layout, shift: bool | None) -> int:
    """What to subtract from the times [ns]."""
    if values["arrival"].size == 0:
        return 0
    first = int(values["arrival"].min())
    absolute = first >= EPOCH_NS
    if shift is False and absolute:
        raise ConfigError(
            f"{path}: shift_to_zero must not be false for epoch times (36 years are the longest run)"
        )
    return first if shift or (shift is None and (absolute or layout.clock)) else 0


def _trace(
    path: Path, collector: Collector, values: dict[str, npt.NDArray[Any]], origin: int, layout: Layout
) -> Trace:
    _check_ids(collector, values)
    extras, not_used = collector.extras(values)
    asks = collector.asks(values)
    meta = TraceMeta(path.name, layout.name, file_sha256(path), collector.rows, collector.dropped, origin,
                     unit=collector.unit if "arrival" in layout.columns else "", untimed=layout.untimed,
                     not_used=not_used)
    arrival = values.get("arrival")
    try:
        return make_trace(
            np.zeros(collector.kept, dtype=np.int64) if arrival is None else arrival,
            values["prompt"],
            values["output"],
            max_tokens=values.get("max_tokens"),
            cached=values.get("cached", 0),
            cls=values.get("cls", 0),
            class_names=classes_of(collector),
            ids=values["id"],
            meta=meta,
            extras=extras,
            asks=asks,
            sort=collector.sort,
        )
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _check_ids(collector: Collector, values: Mapping[str, npt.NDArray[Any]]) -> None:
    again = first_repeat(values["id"])
    if again is not None:
        place = collector.locate(int(values["row"][again]))
        name = collector.layout.columns["id"]
        raise TraceError(f"{place}: id (column {name!r}) must be unique, got {values['id'][again]} again")

"""Traces as a folder of .npy columns, opened as memory maps: many processes share one copy of a large trace."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulator.atomic import atomic
from simulator.errors import TraceError
from simulator.reading import ReadError, read_json

from .asks import Asks
from .extras import Extras
from .trace import COLUMN_TYPES, Trace, TraceMeta, checked

META_FILE: Final = "trace.json"
VERSION: Final = 1
KEPT: Final = tuple(name for name, _ in Extras().columns())
"""Columns beside the requests that a folder may hold."""
ASKED: Final = tuple(each.name for each in fields(Asks) if each.name != "tenants")
"""Likewise, one row a request."""


def save_columns(trace: Trace, directory: str | os.PathLike[str]) -> Path:
    """Write one .npy file a column and trace.json (written last: a folder without it is not a trace).
    Returns the folder. Each file appears whole or not at all. Raises OSError when the folder cannot be
    written."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / META_FILE).unlink(missing_ok=True)
    beside = {name: column for name, column in trace.extras.columns() if column is not None}
    for name, column in (*trace.columns(), *beside.items(), *trace.asks.columns()):
        with atomic(folder / f"{name}.npy") as part, part.open("wb") as file:
            np.lib.format.write_array(file, np.asarray(column), allow_pickle=False)
    text = {
        "version": VERSION,
        "rows": len(trace),
        "extras": {name: int(column.size) for name, column in beside.items()},
        "hash_block": trace.extras.hash_block,
        "asks": [name for name, _ in trace.asks.columns()],
        "tenants": trace.asks.tenants,
        "class_names": trace.class_names,
        "meta": _plain(trace.meta),
    }
    with atomic(folder / META_FILE) as part:
        part.write_text(json.dumps(text, indent=1, sort_keys=True), encoding="utf-8")
    return folder


def open_columns(directory: str | os.PathLike[str]) -> Trace:
    """Open what save_columns wrote; columns are read-only views of memory maps, read once to check them.

    Raises TraceError for a missing, foreign or damaged folder, and for values that no trace has.
    """
    folder = Path(directory)
    text = _meta(folder)
    try:
        columns = {name: _mapped(folder / f"{name}.npy", int(text["rows"])) for name in COLUMN_TYPES}
        beside = {name: _mapped(folder / f"{name}.npy", int(size)) for name, size in text.get("extras", {}).items()
                  if name in KEPT}
        meta = TraceMeta(**text["meta"] | {"not_used": tuple(text["meta"].get("not_used", ()))})
        extras = Extras(**beside, hash_block=int(text.get("hash_block", 0)))
        asked = {name: _mapped(folder / f"{name}.npy", int(text["rows"])) for name in text.get("asks", ())
                 if name in ASKED}
        asks = Asks(**asked, tenants=tuple(text.get("tenants", ())))
        trace = Trace(**columns, class_names=tuple(text["class_names"]), meta=meta, extras=extras, asks=asks)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise TraceError(f"{folder / META_FILE}: not the description of a saved trace: {error}") from error
    try:
        _check_extras(extras, len(trace))
        return checked(trace)
    except TraceError as error:
        raise TraceError(f"{folder}: saved columns: {error}") from None


def _check_extras(extras: Extras, rows: int) -> None:
    """Raise TraceError where what stands beside the requests is not theirs."""
    for name, column in extras.columns():
        if column is not None and name != "hash_ids" and column.size != rows:
            raise TraceError(f"{name} must hold {rows} rows, got {column.size}")
    if (extras.hash_ids is None) != (extras.hash_ends is None):
        raise TraceError("hash_ids and hash_ends belong together")
    if (extras.opening is None) != (extras.opening_tokens is None):
        raise TraceError("opening and opening_tokens belong together")
    if extras.hash_ids is not None and extras.hash_ends is not None:
        ends = np.concatenate(([0], extras.hash_ends))
        if np.any(np.diff(ends) < 0) or ends[-1] != extras.hash_ids.size or extras.hash_block < 1:
            raise TraceError(f"hash_ends must rise from 0 to {extras.hash_ids.size}, hash_block be at least 1")


def _plain(meta: TraceMeta) -> dict[str, Any]:
    return asdict(meta) | {"rows_dropped": dict(meta.rows_dropped)}


def _meta(folder: Path) -> Mapping[str, Any]:
    try:
        text = read_json(folder / META_FILE)
    except ReadError as error:
        raise TraceError(f"{folder}: not a folder of saved trace columns: {error}") from error
    if not isinstance(text, dict) or text.get("version") != VERSION:
        raise TraceError(f"{folder / META_FILE}: version must be {VERSION}; save the trace again")
    return text


def _mapped(path: Path, rows: int) -> Any:
    try:
        column = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: column cannot be opened: {error}") from error
    wanted = COLUMN_TYPES.get(path.stem, np.int64)
    if column.shape != (rows,) or column.dtype != wanted:
        raise TraceError(f"{path}: must hold {rows} {np.dtype(wanted)}, got {column.shape} {column.dtype}")
    return column

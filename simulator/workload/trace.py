"""The one form every workload ends in: columns of equal length, sorted stably by arrival."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.errors import TraceError
from simulator.state import LARGEST_COUNT
from simulator.text import several
from simulator.units import MAX_TICKS

from .asks import Asks
from .extras import Extras

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

MAX_TOKENS: Final = LARGEST_COUNT
"""Largest accepted token count of one request: sums over 2**31 requests stay inside int64."""
COLUMN_TYPES: Final[Mapping[str, type[np.signedinteger]]] = MappingProxyType(
    {
        "id": np.int64,
        "arrival_ns": np.int64,
        "prompt": np.int64,
        "output": np.int64,
        "max_tokens": np.int64,
        "cached": np.int64,
        "cls": np.int32,
    }
)
DEFAULT_CLASS: Final = "default"


@dataclass(frozen=True)
class TraceMeta:
    """Where a trace came from.

    `sha256` is that of the file's bytes, or of the columns for a generated trace. `origin_ns` [ns] is what
    was subtracted from the times in the file (epoch times start at 0 here). `rows_read` = rows kept + rows
    dropped; `rows_dropped` counts by reason. `copies` > 1 when turned copies were superposed afterwards.
    `log_per_s` [requests/s] is the rate of the file's own arrivals, 0 unless copies or rate_scale make another of it.
    `unit` is that of the times in the file. `untimed`: why there are no arrival times (every arrival is 0,
    for closed and grouped loads only), empty when there are. `not_used`: what the file says that is not simulated.
    """

    source: str = "memory"
    format: str = "columns"
    sha256: str = ""
    rows_read: int = 0
    rows_dropped: Mapping[str, int] = field(default_factory=dict)
    origin_ns: int = 0
    rate_scale: float = 1.0
    copies: int = 1
    unit: str = ""
    untimed: str = ""
    not_used: tuple[str, ...] = ()
    log_per_s: float = 0.0

    @property
    def notable(self) -> bool:
        """Whether there is more to say than how many rows there are."""
        return bool(self.rows_dropped or self.not_used or self.untimed or self.copies > 1 or self.log_per_s)

    @property
    def facts(self) -> dict[str, Any]:
        """The account as plain data; `account` is empty where there is nothing notable in it."""
        return {"source": self.source, "sha256": self.sha256, "rows_read": self.rows_read,
                "rows_dropped": dict(self.rows_dropped), "not_simulated": list(self.not_used), "copies": self.copies,
                "account": self.account if self.notable else "",
                **({"log_per_s": self.log_per_s} if self.log_per_s else {})}

    @property
    def account(self) -> str:
        """One line for reports: rows read and dropped, what was read but is not simulated, and another rate made of
        the log's own."""
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in self.rows_dropped.items())
        parts = [f"{several(self.rows_read, 'row')} read" + (f", dropped: {dropped}" if dropped else "")]
        if self.untimed:
            parts.append("no arrival times")
        if self.not_used:
            parts.append(f"read but not simulated: {', '.join(self.not_used)}")
        if self.copies > 1 or self.log_per_s:
            parts.append(self._made())
        return "; ".join(parts)

    def _made(self) -> str:
        """`4 copies: 2.28 requests/s, where the log has 0.57`."""
        copies = f"{self.copies:,} copies" if self.copies > 1 else ""
        if not self.log_per_s:
            return copies
        scale = f"{'at ' if copies else ''}{self.rate_scale:.3g} times its speed" if self.rate_scale != 1 else ""
        made = self.log_per_s * self.copies * self.rate_scale
        what = " ".join(filter(None, (copies, scale)))
        return f"{what}: {made:.3g} requests/s, where the log has {self.log_per_s:.3g}"


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests as read-only, contiguous columns of shape (N,), sorted stably by `arrival_ns`.

    id          int64  row of the source, counted from 0, or its id column; unique
    arrival_ns  int64  [ns] >= 0
    prompt      int64  [tokens] >= 1
    output      int64  [tokens] >= 1, the true output length (policies must not read it)
    max_tokens  int64  [tokens] >= output, the limit the client asked for
    cached      int64  [tokens] 0..prompt, prompt tokens already in a prefix cache
    cls         int32  index into class_names
    extras      conversations, pauses and prefix hashes of the same rows: for prefix hits and turns that follow answers
    asks        priority, tenant, prediction, wanted time to first token: for policies that need them
    """

    id: Int64s
    arrival_ns: Int64s
    prompt: Int64s
    output: Int64s
    max_tokens: Int64s
    cached: Int64s
    cls: Int32s
    class_names: tuple[str, ...] = (DEFAULT_CLASS,)
    meta: TraceMeta = field(default_factory=TraceMeta)
    extras: Extras = field(default_factory=Extras)
    asks: Asks = field(default_factory=Asks)

    def __len__(self) -> int:
        return int(self.id.size)

    def columns(self) -> Iterator[tuple[str, npt.NDArray[np.signedinteger]]]:
        """(name, column) in the order of COLUMN_TYPES."""
        for name in COLUMN_TYPES:
            yield name, getattr(self, name)

    @property
    def span_ns(self) -> int:
        """Last arrival - first arrival [ns]."""
        return int(self.arrival_ns[-1] - self.arrival_ns[0])

    def take(self, rows: npt.NDArray[np.int64] | slice) -> "Trace":
        """The rows asked for, in that order (the caller keeps arrivals sorted)."""
        chosen: dict[str, Any] = {
            name: freeze(np.ascontiguousarray(column[rows])) for name, column in self.columns()
        }
        return replace(self, **chosen, extras=self.extras.take(rows, len(self)), asks=self.asks.take(rows))


def freeze(column: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.signedinteger]:
    """Mark a column read-only (in place) and return it."""
    column.setflags(write=False)
    return column


def _column(name: str, values: npt.ArrayLike, rows: int) -> npt.NDArray[np.signedinteger]:
    given = np.asarray(values)
    if given.dtype.kind not in "iu":
        raise TraceError(f"column {name} must hold integers, got {given.dtype}")
    wanted = COLUMN_TYPES[name]
    column = np.ascontiguousarray(np.broadcast_to(given, (rows,)) if given.ndim == 0 else given, dtype=wanted)
    if column.shape != (rows,):
        raise TraceError(f"column {name} must have shape ({rows},) like arrival_ns, got {column.shape}")
    return freeze(column.view() if column is values else column)


def _check(trace: Trace) -> None:
    rules = (
        ("arrival_ns", trace.arrival_ns < 0, "must be >= 0"),
        ("arrival_ns", trace.arrival_ns > MAX_TICKS, f"must be <= {MAX_TICKS} ns"),
        ("prompt", (trace.prompt < 1) | (trace.prompt > MAX_TOKENS), f"must be 1..{MAX_TOKENS} tokens"),
        ("output", (trace.output < 1) | (trace.output > MAX_TOKENS), f"must be 1..{MAX_TOKENS} tokens"),
        (
            "max_tokens",
            (trace.max_tokens < trace.output) | (trace.max_tokens > MAX_TOKENS),
            f"must be output..{MAX_TOKENS} tokens",
        ),
        ("cached", (trace.cached < 0) | (trace.cached > trace.prompt), "must be 0..prompt tokens"),
        ("cls", (trace.cls < 0) | (trace.cls >= len(trace.class_names)), "must index class_names"),
    )
    for name, bad, text in rules:
        if bad.any():
            row = int(bad.argmax())
            raise TraceError(f"row {row + 1}: {name} {text}, got {int(getattr(trace, name)[row])}")


def make_trace(
    arrival_ns: npt.ArrayLike,
    prompt: npt.ArrayLike,
    output: npt.ArrayLike,
    *,
    max_tokens: npt.ArrayLike | None = None,
    cached: npt.ArrayLike = 0,
    cls: npt.ArrayLike = 0,
    class_names: tuple[str, ...] = (DEFAULT_CLASS,),
    ids: npt.ArrayLike | None = None,
    meta: TraceMeta | None = None,
    extras: Extras | None = None,
    asks: Asks | None = None,
    sort: bool = False,
) -> Trace:
    """Columns -> checked Trace. Scalars are repeated; `max_tokens` defaults to `output`, `ids` to 0..N-1.

    Raises TraceError (naming the row, counted from 1) for an empty trace, a value out of range, ids that
    repeat, or arrivals out of order when `sort` is off.
    """
    rows = int(np.asarray(arrival_ns).size)
    if rows == 0:
        raise TraceError("empty trace: no request is left; accepted: at least 1")
    longest = _column("output", output, rows)
    trace = Trace(
        id=_column("id", np.arange(rows) if ids is None else ids, rows),
        arrival_ns=_column("arrival_ns", arrival_ns, rows),
        prompt=_column("prompt", prompt, rows),
        output=longest,
        max_tokens=longest if max_tokens is None else _column("max_tokens", max_tokens, rows),
        cached=_column("cached", cached, rows)
        if np.ndim(cached) or cached
        else freeze(np.zeros(rows, np.int64)),
        cls=_column("cls", cls, rows) if np.ndim(cls) or cls else freeze(np.zeros(rows, np.int32)),
        class_names=class_names,
        meta=meta or TraceMeta(rows_read=rows),
        extras=extras or Extras(),
        asks=asks or Asks(),
    )
    _check(trace)
    if ids is not None:
        _check_ids(trace)
    return _ordered(trace, sort)


def checked(trace: Trace) -> Trace:
    """The trace, made elsewhere, if make_trace would have made it. Raises TraceError naming the row."""
    _check(trace)
    _check_ids(trace)
    return _ordered(trace, sort=False)


def _check_ids(trace: Trace) -> None:
    row = first_repeat(trace.id)
    if row is not None:
        raise TraceError(f"row {row + 1}: id must be unique, got {int(trace.id[row])} again")


def first_repeat(ids: Int64s) -> int | None:
    """First row whose id stands in a row above it, or None."""
    if np.all(ids[1:] > ids[:-1]):
        return None
    order = np.argsort(ids, kind="stable")
    repeats = order[1:][ids[order[1:]] == ids[order[:-1]]]
    return int(repeats.min()) if repeats.size else None


def _ordered(trace: Trace, sort: bool) -> Trace:
    back = trace.arrival_ns[1:] < trace.arrival_ns[:-1]
    if not back.any():
        return trace
    if not sort:
        row = int(back.argmax()) + 1
        raise TraceError(
            f"row {row + 1}: arrival {int(trace.arrival_ns[row])} ns is before the row above "
            f"({int(trace.arrival_ns[row - 1])} ns); accepted: sorted arrivals, or sort: true"
        )
    return trace.take(np.argsort(trace.arrival_ns, kind="stable"))


def content_sha256(trace: Trace) -> str:
    """SHA-256 over class names and columns (little-endian, in COLUMN_TYPES order, then those of asks and extras)."""
    digest = hashlib.sha256("\0".join(trace.class_names).encode())
    beside = [(name, column) for name, column in trace.extras.columns() if column is not None]
    for name, column in (*trace.columns(), *trace.asks.columns(), *beside):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<")).data)
    return digest.hexdigest()

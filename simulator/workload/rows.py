"""Batches of file rows -> checked columns. Every row is kept, dropped with a counted reason, or an error
naming it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from simulator.config import shown
from simulator.errors import TraceError

from .asks import MOST_PRIORITY, Asks
from .extras import NONE, Extras, rooted
from .files import DROPPED
from .formats import Layout, suffix
from .parse import Bools, parse_hashes, parse_labels, parse_optional, parse_times, parse_tokens
from .published import Failure
from .trace import DEFAULT_CLASS, MAX_TOKENS, Int64s

EPOCH_NS: Final = 946_684_800 * 10**9
"""2000-01-01 UTC: later times count as epoch times, earlier ones as times since a start."""
NOTED: Final = {"images": "images", "prefix": "prefix lengths"}
"""Parts that only leave a note when they are not 0, in its words."""
KEPT: Final = ("session", "chat", "parent", "turn", "delay", "hash_ids", *NOTED)
"""Parts that are kept beside the request and may be missing (workload.extras)."""
FILTERED: Final = "not selected by where"
BEYOND_LIMIT: Final = "beyond limit"


@dataclass(frozen=True)
class Check:
    """Rows (mask) of one part that break one rule, and the rule in words."""

    part: str
    bad: Bools
    rule: str


@dataclass
class Collector:
    """Grows the columns batch by batch.

    `locate(row)` names the place of the row-th row read; `where` maps column -> text a row must hold;
    `limit` stops after so many kept rows. After `add` calls: `rows` read, `kept`, `dropped` by reason,
    `finish()` the columns.
    """

    layout: Layout
    unit: str
    locate: Callable[[int], str]
    where: Mapping[str, str] = field(default_factory=dict)
    sort: bool = False
    drop_bad: bool = False
    limit: int | None = None
    rows: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    class_names: list[str] = field(default_factory=list)
    tenants: list[str] = field(default_factory=list)
    _parts: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    _sessions: dict[str, int] = field(default_factory=dict)
    _first: int | None = None
    _last: int | None = None

    @property
    def full(self) -> bool:
        return self.limit is not None and self.kept >= self.limit

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch, no more than the limit leaves room for."""
        start = 0
        while start < batch.num_rows and not self.full:
            room = batch.num_rows - start
            piece = batch.slice(start, room if self.limit is None else min(room, self.limit - self.kept))
            self._add(piece)
            self.rows += piece.num_rows
            start += piece.num_rows

    def finish(self) -> dict[str, npt.NDArray[Any]]:
        """The columns by part (arrival in ns as in the file); the pieces are given up."""
        return {part: np.concatenate(self._parts.pop(part)) for part in list(self._parts)}

    def extras(self, values: dict[str, npt.NDArray[Any]]) -> tuple[Extras, tuple[str, ...]]:
        """What was kept beside the requests, taken out of `values`; and in words all that is not simulated."""
        counts = {part: values.pop(part, None) for part in NOTED}
        session, turn, delay = (_unless_empty(values.pop(part, None)) for part in ("session", "turn", "delay"))
        chat, parent = values.pop("chat", None), values.pop("parent", None)
        if chat is not None and parent is not None:
            session = rooted(chat.tolist(), parent.tolist())
        ids, lengths = values.pop("hash_ids", None), values.pop("hash_lengths", None)
        ends = None if ids is None or lengths is None or not ids.size else np.cumsum(lengths)
        extras = Extras(session, turn, delay, None if ends is None else ids, ends, self.layout.hash_block)
        noted = (NOTED[part] for part, count in counts.items() if count is not None and count.max(initial=0) > 0)
        return extras, (*extras.unused(), *noted)

    def asks(self, values: dict[str, npt.NDArray[Any]]) -> Asks:
        """What requests ask of the scheduler, taken out of `values`."""
        names = {"priority": "priority", "tenant": "tenant", "predicted": "predicted", "ttft_target": "target_ns"}
        columns = {names[part]: values.pop(part).astype(np.int64) for part in list(values) if part in names}
        return Asks(**columns, tenants=tuple(self.tenants))

    def _add(self, batch: pa.RecordBatch) -> None:
        values, checks = self._parsed(batch)
        row = np.arange(batch.num_rows)
        keep = self._selected(batch)
        self._drop(FILTERED, ~keep)
        if self.layout.failed is not None:
            failed = keep & (values["output"] == 0) & ~_unreadable(checks, "output")
            self._drop(self.layout.failed, failed)
            keep &= ~failed
        for rule in self.layout.failures:
            broken = keep & _failed(batch.column(batch.schema.get_field_index(rule.column)), rule)
            self._drop(rule.reason, broken)
            keep &= ~broken
        keep = self._apply(checks, keep, batch)
        if "arrival" in values:
            self._origins(values["arrival"], keep)
            self._order(values["arrival"], keep)
        # The place in the file is kept only where ids do not tell it.
        values["row" if "id" in values else "id"] = row + self.rows
        values |= self._beside(batch)
        for part, column in values.items():
            if part == "hash_ids":
                rows = keep if keep.all() else np.repeat(keep, values["hash_lengths"])
                self._parts.setdefault(part, []).append(column if keep.all() else column[rows])
            else:
                self._parts.setdefault(part, []).append(column if keep.all() else column[keep])
        self.kept += int(keep.sum())

    def _beside(self, batch: pa.RecordBatch) -> dict[str, npt.NDArray[Any]]:
        """Parts that are kept and not checked; -1 or an empty text where a row has none."""
        found: dict[str, npt.NDArray[Any]] = {}
        for part in KEPT:
            if part not in self.layout.columns:
                continue
            column = batch.column(batch.schema.get_field_index(self.layout.columns[part]))
            if part == "turn" or part in NOTED:
                found[part] = parse_optional(column)
            elif part == "delay":
                delay, bad = parse_times(column, self.layout.delay_unit)
                found[part] = np.where(bad | (delay < 0), NONE, delay)
            elif part == "hash_ids":
                found[part], found["hash_lengths"] = parse_hashes(column)
            else:
                labels, codes, bad = parse_labels(column)
                table = np.array([*labels, ""], dtype=object)
                found[part] = table[np.where(bad, len(labels), codes)]
                if part == "session":
                    numbers = np.array([self._sessions.setdefault(each, len(self._sessions)) for each in labels] or [0])
                    found[part] = np.where(bad, NONE, numbers[codes])
        return found

    def _parsed(self, batch: pa.RecordBatch) -> tuple[dict[str, npt.NDArray[Any]], list[Check]]:
        values: dict[str, npt.NDArray[Any]] = {}
        checks: list[Check] = []
        for part, name in self.layout.columns.items():
            if part in KEPT:
                continue
            column = batch.column(batch.schema.get_field_index(name))
            if part == "arrival":
                values[part], bad = parse_times(column, self.unit)
                kind = "ISO 8601 text" if self.unit == "iso" else f"a number in {self.unit} within 292 years"
                checks.append(Check(part, bad, f"must be {kind}"))
                checks.append(Check(part, values[part] < 0, "must be >= 0"))
            elif part == "cls":
                filled = _filled(column) if part in self.layout.maybe else column
                values[part], bad = _coded(filled, self.class_names)
                checks.append(Check(part, bad, "must name a class"))
            elif part == "tenant":
                values[part], bad = _coded(column, self.tenants)
                checks.append(Check(part, bad, "must name a tenant"))
            elif part == "priority":
                values[part], bad = parse_tokens(column)
                bad = bad | (np.abs(values[part]) > MOST_PRIORITY)
                checks.append(Check(part, bad, f"must be a whole number within +-{MOST_PRIORITY}"))
            elif part == "ttft_target":
                values[part], bad = parse_times(column, suffix(name) or "s")
                checks.append(Check(part, bad | (values[part] <= 0), "must be a time > 0"))
            else:
                values[part], bad = parse_tokens(column)
                if part in self.layout.maybe:
                    bad = bad & ~np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)
                low = 0 if part in ("cached", "id") else 1
                checks.append(Check(part, bad, f"must be a whole number >= {low}"))
                checks.append(Check(part, values[part] < low, f"must be >= {low}"))
                if part != "id":
                    checks.append(Check(part, values[part] > MAX_TOKENS, f"must be <= {MAX_TOKENS} tokens"))
        if "max_tokens" in values:
            short = values["max_tokens"] < values["output"]
            checks.append(Check("max_tokens", short, "must be >= output tokens"))
        if "cached" in values:
            checks.append(Check("cached", values["cached"] > values["prompt"], "must be <= prompt tokens"))
        return values, checks

    def _selected(self, batch: pa.RecordBatch) -> Bools:
        keep = np.ones(batch.num_rows, dtype=np.bool_)
        for name, wanted in self.where.items():
            try:
                text = batch.column(batch.schema.get_field_index(name)).cast(pa.string())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise TraceError(f"{self.locate(self.rows)}: where: column {shown(name)} holds no text") from error
            keep &= np.asarray(pc.fill_null(pc.equal(text, wanted), False).to_numpy(zero_copy_only=False))
        return keep

    def _apply(self, checks: list[Check], keep: Bools, batch: pa.RecordBatch) -> Bools:
        relevant = (replace(check, bad=check.bad & keep) for check in checks)
        broken = [check for check in relevant if check.bad.any()]
        if not broken:
            return keep
        if not self.drop_bad:
            raise self._error(min(broken, key=lambda check: int(check.bad.argmax())), batch)
        for check in broken:
            self._drop(f"{check.part} {check.rule}", check.bad & keep)
            keep = keep & ~check.bad
        return keep

    def _error(self, check: Check, batch: pa.RecordBatch) -> TraceError:
        row = int(check.bad.argmax())
        name = self.layout.columns[check.part]
        value = batch.column(batch.schema.get_field_index(name))[row].as_py()
        got = "nothing (missing value)" if value is None or value == "" else shown(value)
        where = self.locate(self.rows + row)
        label = "class" if check.part == "cls" else check.part
        return TraceError(f"{where}: {label} (column {name!r}) {check.rule}, got {got}; {DROPPED}")

    def _drop(self, reason: str, mask: Bools) -> None:
        count = int(mask.sum())
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def _origins(self, arrival: Int64s, keep: Bools) -> None:
        """Refuse a file that mixes epoch times with times since a start."""
        rows = np.flatnonzero(keep)
        if rows.size == 0:
            return
        if self._first is None:
            self._first = int(arrival[rows[0]])
        odd = (arrival[rows] >= EPOCH_NS) != (self._first >= EPOCH_NS)
        if odd.any():
            row = int(rows[odd.argmax()])
            raise TraceError(
                f"{self._arrival_at(row)}: epoch and relative times are mixed: {arrival[row] / 1e9:.3f} s "
                f"after {self._first / 1e9:.3f} s in the first row; accepted: one kind throughout"
            )

    def _arrival_at(self, row: int) -> str:
        return f"{self.locate(self.rows + row)}: arrival (column {self.layout.columns['arrival']!r})"

    def _moment(self, at: int) -> str:
        """A time [ns] as the file has it: `12.500000 s`, or in UTC `2026-11-27T21:40:07.000000Z`."""
        if self.unit != "iso":
            return f"{at / 1e9:.6f} s"
        return f"{np.datetime64(at, 'ns').astype('datetime64[us]')}Z"

    def _order(self, arrival: Int64s, keep: Bools) -> None:
        rows = np.flatnonzero(keep)
        if self.sort or rows.size == 0:
            return
        last = arrival[rows[0]] if self._last is None else self._last
        before = np.concatenate(([last], arrival[rows[:-1]]))
        back = arrival[rows] < before
        if back.any():
            at = int(back.argmax())
            raise TraceError(
                f"{self._arrival_at(int(rows[at]))} must not be before the row above, got "
                f"{self._moment(int(arrival[rows[at]]))} after {self._moment(int(before[at]))}; sort: true accepts any "
                "order (--set workload.trace.sort=true; trace inspect: --sort)"
            )
        self._last = int(arrival[rows[-1]])


def _coded(column: pa.Array, names: list[str]) -> tuple[npt.NDArray[np.int32], Bools]:
    """The place of each text among `names`, which grow, and a mask of rows without one."""
    labels, codes, bad = parse_labels(column)
    for label in labels:
        if label and label not in names:
            names.append(label)
    known = {label: code for code, label in enumerate(names)}
    table = np.array([known.get(label, 0) for label in labels] or [0], dtype=np.int32)
    return table[codes], bad


def _unless_empty(column: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
    return None if column is None or np.all(column == NONE) else column


def _filled(column: pa.Array) -> pa.Array:
    """Texts of a column of classes, the default class where there is none."""
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.fill_null(pc.equal(column, ""), True), DEFAULT_CLASS, column)


def _failed(column: pa.Array, rule: Failure) -> Bools:
    """Rows that hold another text than those the rule calls fine; an empty one is fine."""
    try:
        text = pc.utf8_lower(pc.utf8_trim_whitespace(column.cast(pa.string())))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return np.zeros(len(column), dtype=np.bool_)
    fine = pc.is_in(text, value_set=pa.array(["", *rule.fine]))
    bad = pc.and_(pc.is_valid(text), pc.invert(fine))
    return np.asarray(bad.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _unreadable(checks: list[Check], part: str) -> Bools:
    """Rows whose value of `part` could not be read at all (the first check of a part)."""
    return next(check.bad for check in checks if check.part == part)


def classes_of(collector: Collector) -> tuple[str, ...]:
    """Class names in order of appearance; one default class when the file names none."""
    return tuple(collector.class_names) or (DEFAULT_CLASS,)

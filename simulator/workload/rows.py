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

from .formats import Layout
from .parse import Bools, parse_labels, parse_times, parse_tokens
from .trace import DEFAULT_CLASS, MAX_TOKENS, Int64s

EPOCH_NS: Final = 946_684_800 * 10**9
"""2000-01-01 UTC: later times count as epoch times, earlier ones as times since a start."""
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
    _parts: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
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

    def _add(self, batch: pa.RecordBatch) -> None:
        values, checks = self._parsed(batch)
        row = np.arange(batch.num_rows)
        keep = self._selected(batch)
        self._drop(FILTERED, ~keep)
        if self.layout.failed is not None:
            failed = keep & (values["output"] == 0) & ~_unreadable(checks, "output")
            self._drop(self.layout.failed, failed)
            keep &= ~failed
        keep = self._apply(checks, keep, batch)
        if "arrival" in values:
            self._origins(values["arrival"], keep)
            self._order(values["arrival"], keep)
        # The place in the file is kept only where ids do not tell it.
        values["row" if "id" in values else "id"] = row + self.rows
        for part, column in values.items():
            self._parts.setdefault(part, []).append(column if keep.all() else column[keep])
        self.kept += int(keep.sum())

    def _parsed(self, batch: pa.RecordBatch) -> tuple[dict[str, npt.NDArray[Any]], list[Check]]:
        values: dict[str, npt.NDArray[Any]] = {}
        checks: list[Check] = []
        for part, name in self.layout.columns.items():
            column = batch.column(batch.schema.get_field_index(name))
            if part == "arrival":
                values[part], bad = parse_times(column, self.unit)
                kind = "ISO 8601 text" if self.unit == "iso" else f"a number in {self.unit} within 292 years"
                checks.append(Check(part, bad, f"must be {kind}"))
                checks.append(Check(part, values[part] < 0, "must be >= 0"))
            elif part == "cls":
                values[part], bad = self._classes(column)
                checks.append(Check(part, bad, "must name a class"))
            else:
                values[part], bad = parse_tokens(column)
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

    def _classes(self, column: pa.Array) -> tuple[npt.NDArray[np.int32], Bools]:
        labels, codes, bad = parse_labels(column)
        for label in labels:
            if label and label not in self.class_names:
                self.class_names.append(label)
        known = {label: code for code, label in enumerate(self.class_names)}
        table = np.array([known.get(label, 0) for label in labels] or [0], dtype=np.int32)
        return table[codes], bad

    def _selected(self, batch: pa.RecordBatch) -> Bools:
        keep = np.ones(batch.num_rows, dtype=np.bool_)
        for name, wanted in self.where.items():
            text = batch.column(batch.schema.get_field_index(name)).cast(pa.string())
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
        return TraceError(f"{where}: {label} (column {name!r}) {check.rule}, got {got}")

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
                f"{arrival[rows[at]] / 1e9:.6f} s after "
                f"{before[at] / 1e9:.6f} s; sort: true accepts any order"
            )
        self._last = int(arrival[rows[-1]])


def _unreadable(checks: list[Check], part: str) -> Bools:
    """Rows whose value of `part` could not be read at all (the first check of a part)."""
    return next(check.bad for check in checks if check.part == part)


def classes_of(collector: Collector) -> tuple[str, ...]:
    """Class names in order of appearance; one default class when the file names none."""
    return tuple(collector.class_names) or (DEFAULT_CLASS,)

"""A result as data for pictures: who held which slot when, levels over time.

Everything comes from the request columns; where the step log was kept it makes slots of static batches,
running sequences and KV use exact (`exact` says so). Ticks are int64 nanoseconds, as in `simulator.state`.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.run import Result
from simulator.state import FINISHED, RUNNING
from simulator.units import NEVER, NS_PER_S

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BINS: Final = 500
"""Time bins of a level: more than a picture of usual width can show."""


@dataclass(frozen=True)
class Spans:
    """Slots held, one row a request that was ever scheduled; shape (M,), sorted by (replica, slot, held).

    The slot is held over [start, held), useful work ends at `useful` <= held: beyond it a static batch holds the
    slot, mostly computing padding. A preempted request is shown in its last slot, from its first admission or
    from where the one before it left that slot. One that is handed over has a row at each of its replicas: at the
    first until its first token, in the lowest slot that is free (as the engine takes them), at the other from when its
    KV has come and its slot is free.
    """

    row: Int64s  # index into the request columns
    replica: Int64s
    slot: Int64s
    start: Int64s  # [tick]
    useful: Int64s  # [tick]
    held: Int64s  # [tick]
    exact: bool  # False: ends inside static batches are estimated, the step log was not kept

    def only(self, keep: npt.NDArray[Any]) -> "Spans":
        """The rows that a mask or index array picks."""
        return Spans(
            self.row[keep],
            self.replica[keep],
            self.slot[keep],
            self.start[keep],
            self.useful[keep],
            self.held[keep],
            self.exact,
        )


@dataclass(frozen=True)
class Level:
    """A quantity over time: time-weighted mean and peak in each bin; `edges` [s] from the first arrival."""

    edges: Floats  # (B + 1,)
    mean: Floats  # (B,)
    peak: Floats  # (B,)
    exact: bool


def start_tick(result: Result) -> int:
    """[tick] of the first arrival: the origin of every time axis."""
    return int(np.min(result.requests.arrival))


def end_tick(result: Result) -> int:
    """[tick] of the last output of any replica, or of the last arrival when nothing was put out."""
    arrivals = np.asarray(result.requests.arrival)
    known = arrivals[arrivals < NEVER]
    return max(int(result.totals["last"].max()), int(known.max()), start_tick(result) + 1)


def slot_spans(result: Result) -> Spans:
    """Who held which slot when; see `Spans`."""
    req, delay = result.requests, int(result.setup.cost.frontend_out_ns)
    row = np.flatnonzero((req.scheduled < NEVER) & (req.slot >= 0)).astype(np.int64)
    start = req.scheduled[row].astype(np.int64)
    last = np.where(req.last[row] < NEVER, req.last[row] - delay, start)
    open_end = np.where(req.status[row] == RUNNING, end_tick(result), last)
    held = np.maximum(np.where(req.status[row] == FINISHED, last, open_end), start)
    useful, exact = held, True
    if result.setup.policy.name == "static":
        held = _batch_ends(req.replica[row], start, held)
        if result.setup.limits.stream == 0:
            useful, exact = _useful_ends(result, row, start, held)
    spans = Spans(
        row,
        req.replica[row].astype(np.int64),
        req.slot[row].astype(np.int64),
        start,
        np.minimum(useful, held),
        held,
        exact,
    )
    if len(req.source):
        return _both_halves(result, spans)
    return _apart(spans, req.preempted[row] > 0)


def _both_halves(result: Result, spans: Spans) -> Spans:
    """Spans of where each request was last, with those of the first halves of who is handed over."""
    req = result.requests
    row, out = spans.row, req.first - int(result.setup.cost.frontend_out_ns)
    moved = req.source[row] >= 0
    begun = ~moved | (req.done[row] > 1) | (req.status[row] == RUNNING)
    start = np.where(moved, np.minimum(np.maximum(spans.start, req.landed[row]), spans.held), spans.start)
    last = replace(spans, start=start).only(begun)
    half = replace(spans, replica=req.source[row].astype(np.int64), useful=out[row], held=out[row]).only(moved)
    rows, replica, slot, start, useful, held = (
        np.concatenate([getattr(last, name), getattr(half, name)]) for name in Spans.__annotations__ if name != "exact")
    for r in np.unique(half.replica):
        mine = np.flatnonzero(replica == r)
        slot[mine] = _lowest_free(start[mine], held[mine])
    late = np.append((moved | (req.preempted[row] > 0))[begun], np.zeros(len(half.row), dtype=bool))
    return _apart(Spans(rows, replica, slot, start, useful, held, spans.exact), late)


def _lowest_free(start: Int64s, held: Int64s) -> Int64s:
    """Slots of intervals, each the lowest that is free at its start."""
    slot = np.zeros(len(start), dtype=np.int64)
    ends: list[int] = []
    for k in np.lexsort((held, start)):
        at = next((s for s, end in enumerate(ends) if end <= start[k]), len(ends))
        ends[at : at + 1] = [int(held[k])]
        slot[k] = at
    return slot


def _batch_ends(replica: Int64s, start: Int64s, held: Int64s) -> Int64s:
    """[tick] when the batch of each request ends: a static batch is what a replica started at one tick."""
    _, batch = np.unique(np.stack([replica, start]), axis=1, return_inverse=True)
    ends = np.zeros(int(batch.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(ends, batch.reshape(-1), held)
    return np.asarray(ends[batch.reshape(-1)])


def _useful_ends(result: Result, row: Int64s, start: Int64s, held: Int64s) -> tuple[Int64s, bool]:
    """[tick] of each request's last useful step in a batch that is answered whole.

    From the step log: the end of the `done`-th step after its start. Without: in proportion to the batch.
    """
    req = result.requests
    done = req.done[row].astype(np.int64)
    if result.log is None:
        _, batch = np.unique(np.stack([req.replica[row], start]), axis=1, return_inverse=True)
        longest = np.zeros(len(row), dtype=np.int64)
        np.maximum.at(longest, batch.reshape(-1), done)
        share = done / np.maximum(longest[batch.reshape(-1)], 1)
        return start + np.rint(share * (held - start)).astype(np.int64), False
    useful = held.copy()
    for r in np.unique(req.replica[row]):
        mine = np.flatnonzero(req.replica[row] == r)
        log = result.log[result.log["replica"] == r]
        if len(log):
            useful[mine] = _step_ends(log, start[mine], done[mine])
    return useful, True


def _step_ends(log: npt.NDArray[np.void], start: Int64s, count: Int64s) -> Int64s:
    """[tick] at which the `count`-th step from the one scheduled at `start` ended; `log` of one replica."""
    steps, wall, end = (log[name] for name in ("steps", "wall_ns", "end"))
    total = np.cumsum(steps)
    first = np.searchsorted(log["start"], start)
    target = np.where(first > 0, total[first - 1], 0) + count
    at = np.minimum(np.searchsorted(total, target), len(log) - 1)
    left = np.maximum(total[at] - target, 0) / steps[at]
    return np.asarray(end[at] - np.rint(left * wall[at]).astype(np.int64))


def _apart(spans: Spans, preempted: npt.NDArray[np.bool_]) -> Spans:
    """Sort by (replica, slot, end); a preempted request begins where the one before it left the slot."""
    order = np.lexsort((spans.start, spans.held, spans.slot, spans.replica))
    spans, preempted = spans.only(order), preempted[order]
    place = spans.replica << 32 | spans.slot
    free = np.zeros(len(place), dtype=np.int64)
    free[1:] = np.where(place[1:] == place[:-1], spans.held[:-1], 0)
    start = np.where(preempted, np.maximum(spans.start, free), spans.start)
    return Spans(
        spans.row, spans.replica, spans.slot, start, np.maximum(spans.useful, start), spans.held, spans.exact
    )


def level(start: Int64s, end: Int64s, value: npt.ArrayLike, edges: Int64s, exact: bool = True) -> Level:
    """Sum of `value` over the intervals [start, end) that cover a tick, in bins between `edges` (ticks)."""
    weight = np.broadcast_to(np.asarray(value, dtype=np.float64), start.shape)
    ticks = np.concatenate([start, end, edges])
    change = np.concatenate([weight, -weight, np.zeros(len(edges))])
    order = np.argsort(ticks, kind="stable")
    ticks, change = ticks[order], np.cumsum(change[order])
    last = np.append(ticks[1:] > ticks[:-1], True)
    ticks, height = ticks[last], np.maximum(change[last], 0.0)
    area = np.append(0.0, np.cumsum(height[:-1] * np.diff(ticks).astype(np.float64)))
    at = np.searchsorted(ticks, edges)
    mean = np.diff(area[at]) / np.maximum(np.diff(edges), 1)
    peak = np.maximum.reduceat(height, at)[:-1]
    return Level((edges - edges[0]) / NS_PER_S, mean, np.maximum(peak, mean), exact)


def bin_edges(result: Result, bins: int = BINS) -> Int64s:
    """[tick] edges of equal bins from the first arrival to the last output."""
    first, last = start_tick(result), end_tick(result)
    return np.unique(np.linspace(first, last, min(bins, last - first) + 1).astype(np.int64))


def levels(result: Result, bins: int = BINS) -> dict[str, Level]:
    """`running`, `waiting` [requests] and `kv` [blocks in use] over time, summed over replicas.

    Without the step log, `running` ignores the waits of preempted requests, and `kv` grows each
    running request's blocks evenly from its prompt to its end: both are then marked not exact.
    """
    edges, req, spans = bin_edges(result, bins), result.requests, slot_spans(result)
    queued = np.flatnonzero(req.queued < NEVER)
    left = np.minimum(req.scheduled[queued], end_tick(result))
    refused = req.status[queued] > FINISHED
    left = np.where(refused, req.queued[queued], np.maximum(left, req.queued[queued]))
    preempted = bool(result.totals["preemptions"].sum())
    waiting = level(req.queued[queued], left, 1, edges, not preempted)
    if result.log is None:
        running = level(spans.start, spans.held, 1, edges, not preempted)
        return {"running": running, "waiting": waiting, "kv": _kv_estimate(result, spans, edges)}
    log = result.log
    start, end = log["end"] - log["wall_ns"], log["end"]
    if preempted:
        waiting = level(start, end, log["waiting"], edges)
    return {
        "running": level(start, end, log["running"], edges),
        "waiting": waiting,
        "kv": level(start, end, log["blocks"], edges),
    }


_PIECES: Final = 4
"""Steps in which an estimated request grows from prompt to full length."""


def _kv_estimate(result: Result, spans: Spans, edges: Int64s) -> Level:
    """Blocks in use without a step log: every held slot grows from its prompt to prompt + done tokens."""
    req, size = result.requests, result.setup.limits.block_size
    prompt, done = req.prompt[spans.row].astype(np.float64), req.done[spans.row]
    if len(req.source):
        done = np.where(req.source[spans.row] == spans.replica, 0, done)
    starts, ends, blocks = [], [], []
    for k in range(_PIECES):
        starts.append(spans.start + (spans.held - spans.start) * k // _PIECES)
        ends.append(spans.start + (spans.held - spans.start) * (k + 1) // _PIECES)
        blocks.append(np.ceil((prompt + done * (k + 0.5) / _PIECES) / size))
    return level(np.concatenate(starts), np.concatenate(ends), np.concatenate(blocks), edges, False)

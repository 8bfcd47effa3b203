"""Per-request times and their statistics: what each request lived through, and percentiles that hide nobody.

A request that was rejected, given up by its client, lost with its replica or not ended counts as +infinity in every
percentile of what it was due. Times of a request submitted several times count from the first submission, its queue
time from the last.
Percentiles interpolate linearly between order statistics (Hyndman and Fan 1996, doi 10.2307/2684934, type 7,
numpy's default); one that touches an infinite value is None.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.result import Result
from simulator.state import ABORTED, FINISHED, LOST, REFUSALS, log_bin_edges
from simulator.units import NEVER, NS_PER_S, to_ticks

Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]
Stats = dict[str, Any]

PERCENTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999))
TIMES: Final = ("ttft_s", "tpot_s", "e2e_s", "queue_s", "prefill_s", "frontend_s", "normalized_latency_s")


FATES: Final = ("arrived", "completed", "rejected", "aborted", "lost", "unfinished")
"""Counts of every summary, of a class and of a pool: the first is the sum of the others."""


@dataclass(frozen=True)
class Fates:
    """What became of each request, bool columns of shape (N,).

    arrived    submitted by the client before the horizon; = completed, rejected, aborted, lost or unfinished
    completed  its whole answer reached the client
    rejected   refused on arrival, for good
    aborted    given up by its client, for good
    lost       with its replica, for good
    measured   arrived and not part of the warm-up
    """

    arrived: Bools
    completed: Bools
    rejected: Bools
    aborted: Bools
    lost: Bools
    measured: Bools

    @property
    def unfinished(self) -> Bools:
        """Arrived, not refused, not given up, not lost, not ended."""
        return self.arrived & ~self.completed & ~self.rejected & ~self.aborted & ~self.lost


def fates(result: Result) -> Fates:
    """Sort the requests of a result by what became of them.

    A batch returned whole keeps its KV blocks until then: a sequence in it that ended is not yet completed.
    """
    req, scenario = result.requests, result.scenario
    horizon = NEVER if scenario.horizon_s is None else to_ticks(scenario.horizon_s)
    arrived = (req.queued != NEVER) & (req.arrival <= horizon)
    completed = req.status == FINISHED
    if result.setup.limits.stream == 0:
        completed &= req.blocks == 0
    rejected = (req.status >= REFUSALS[0]) & (req.status <= REFUSALS[1])
    measured = arrived.copy()
    measured[: int(scenario.warmup_fraction * np.count_nonzero(arrived))] = False
    return Fates(arrived, completed, rejected, req.status == ABORTED, req.status == LOST, measured)


def times(result: Result, name: str, rows: Bools | Rows) -> Floats:
    """[ns] the time called `name` (one of TIMES) of the chosen requests; float64 (rows,).

    They must be completed. tpot_s: the chosen must have more than one output token.
    """
    req, out = result.requests, int(result.setup.cost.frontend_out_ns)
    if name == "ttft_s":
        value = req.first[rows] - req.arrival[rows]
    elif name == "tpot_s":
        value = (req.last[rows] - req.first[rows]) / (req.done[rows] - 1)
    elif name == "e2e_s":
        value = req.last[rows] - req.arrival[rows]
    elif name == "queue_s":
        value = req.scheduled[rows] - req.queued[rows]
    elif name == "prefill_s":
        value = req.first[rows] - req.scheduled[rows] - out
    elif name == "frontend_s":
        value = req.queued[rows] - (req.sent if req.sent.size else req.arrival)[rows] + out
    else:
        value = (req.last[rows] - req.arrival[rows]) / req.done[rows]
    return np.asarray(value, dtype=np.float64)


def due(result: Result, name: str) -> Bools | None:
    """Requests that can have the time called `name`, bool (N,); None = all of them."""
    if name != "tpot_s":
        return None
    several: Bools = result.requests.output > 1
    return several if result.setup.limits.stream else np.zeros_like(several)


def seconds(result: Result, name: str, fate: Fates | None = None) -> Floats:
    """[s] the time called `name` of every request, (N,): +inf where it is due and never came, NaN where none is due.

    None is due to a request that came after the horizon, and no TPOT to a one-token answer or one returned whole.
    """
    fate, able = fate or fates(result), due(result, name)
    wanted = fate.arrived if able is None else fate.arrived & able
    column = np.where(wanted, np.inf, np.nan)
    rows = np.flatnonzero(wanted & fate.completed)
    column[rows] = times(result, name, rows) / NS_PER_S
    return column


def time_stats(result: Result, name: str, fate: Fates, within: Bools | None = None) -> Stats:
    """Statistics [s] of one time over the measured requests (of a class, when `within` is given)."""
    rows = fate.measured if within is None else fate.measured & within
    able = due(result, name)
    rows = rows if able is None else rows & able
    done = rows & fate.completed
    values = times(result, name, done)
    return describe(values, int(np.count_nonzero(rows)) - values.size)


def describe(values_ns: Floats, missing: int = 0) -> Stats:
    """Mean, percentiles [s] and count of finite times [ns], beside `missing` infinite ones.

    The mean and `count` are over the finite ones, percentiles over all. None where there is no finite answer.
    """
    points = quantiles(values_ns, missing, [q for _, q in PERCENTILES])
    stats: Stats = {"mean": float(values_ns.mean()) / NS_PER_S if values_ns.size else None}
    stats |= {
        name: None if p is None else p / NS_PER_S for (name, _), p in zip(PERCENTILES, points, strict=True)
    }
    return stats | {"count": int(values_ns.size)}


def quantiles(values: Floats, missing: int, shares: Sequence[float]) -> list[float | None]:
    """Quantiles of finite `values`, in any order, and `missing` times +infinity; None = infinite or none."""
    finite = values.size
    total = finite + missing
    spots = [(total - 1) * share for share in shares]
    lows = [int(spot) for spot in spots]
    wanted = sorted({k for low in lows for k in (low, low + 1) if 0 <= k < finite})
    placed = np.partition(values, wanted) if wanted else values
    return [
        _between(placed, low, spot - low) if total else None for low, spot in zip(lows, spots, strict=True)
    ]


def _between(placed: Floats, low: int, share: float) -> float | None:
    """The value `share` of the way from order statistic `low` to the next; None when that is infinite."""
    high = low if share == 0 else low + 1
    if high >= placed.size:
        return None
    a, b = float(placed[low]), float(placed[high])
    return a + (b - a) * share if share < 0.5 else b - (b - a) * (1 - share)  # exact at both ends


def itl_stats(result: Result) -> Stats:
    """Statistics [s] of the gaps between tokens of one request, from the histogram (bins at most 0.4 % wide).

    All delivered tokens count, those of the warm-up too. The mean is exact: gaps add up to last - first.
    """
    count = int(result.itl.sum())
    if count == 0:
        return describe(np.zeros(0))
    mean = gap_mean_ns(result)
    points = histogram_quantiles(result.itl, [q for _, q in PERCENTILES], mean, float(result.requests.itl_max.max()))
    stats: Stats = {"mean": mean / NS_PER_S}
    stats |= {name: p / NS_PER_S for (name, _), p in zip(PERCENTILES, points, strict=True)}
    return stats | {"count": count}


def gap_mean_ns(result: Result) -> float:
    """[ns] mean of the gaps between tokens of one request, those of attempts that a later one replaced too; NaN of
    none."""
    req, count = result.requests, int(result.itl.sum())
    given = req.done > 1
    whole = float((req.last[given] - req.first[given]).astype(np.float64).sum()) + result.again_ns
    return whole / count if count else math.nan


def histogram_quantiles(
    counts: npt.NDArray[np.int64], shares: Sequence[float], mean: float, largest: float
) -> list[float]:
    """[ns] quantiles of values known by bin (state.log_bin_edges), their exact mean and largest value.

    The values of a bin are taken as spread evenly over it; when one bin holds them all, as equal to the mean.
    """
    used = np.flatnonzero(counts)
    if used.size == 1:
        return [mean] * len(shares)
    edges = log_bin_edges()
    low, high = edges[used], np.minimum(edges[used + 1], largest)
    held = counts[used]
    before = np.cumsum(held) - held
    last = int(held.sum()) - 1
    spots = np.asarray(shares) * last
    whole = np.floor(spots)
    below, above = (_ranked(before, held, low, high, rank) for rank in (whole, np.minimum(whole + 1, last)))
    return [float(value) for value in below + (above - below) * (spots - whole)]


def _ranked(
    before: npt.NDArray[np.int64], held: npt.NDArray[np.int64], low: Floats, high: Floats, ranks: Floats
) -> Floats:
    """Order statistics by rank (from 0) of bins that hold `held` values each, `before` lying below them."""
    at = np.searchsorted(before, ranks, side="right") - 1
    spread: Floats = low[at] + (ranks - before[at] + 0.5) / held[at] * (high[at] - low[at])
    return spread

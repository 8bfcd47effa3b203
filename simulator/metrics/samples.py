"""How far one sample carries: requests that a percentile needs, an interval from within one run, worst windows."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.metrics.intervals import Interval, interval, t_quantile
from simulator.metrics.latency import quantiles

Floats = npt.NDArray[np.float64]

BLOCKS: Final = 10
"""Blocks of successive requests whose spread gives the interval of one run."""
DIFFERENCE_DF: Final = 6
"""Degrees of freedom of BLOCKS - 1 squared successive differences: two thirds of them (von Neumann 1941)."""


def needed(share: float, level: float = 0.9) -> int:
    """Requests below which the quantile `share` has no upper bound at a two-sided confidence `level`.

    The largest of n values exceeds the quantile with probability 1 - share^n (Wilks, Annals of Mathematical
    Statistics 12, 1941, doi 10.1214/aoms/1177731788): 299 for p99 at 90 %.
    """
    return math.ceil(math.log((1 - level) / 2) / math.log(share) - 1e-9)


def percentile(values: Floats, share: float) -> float:
    """Quantile of values of which some may be +infinity; NaN of none."""
    finite = values[np.isfinite(values)]
    if values.size == 0:
        return math.nan
    found = quantiles(finite, values.size - finite.size, [share])[0]
    return math.inf if found is None else found


def mean(values: Floats) -> float:
    """Mean; +infinity as soon as one value is, NaN of none."""
    return float(values.mean()) if values.size else math.nan


def within_run(values: Floats, share: float | None, level: float) -> Interval:
    """Interval of a quantile (None: of the mean) from one run's `values` in order of arrival.

    The share of values beyond the quantile is taken in BLOCKS blocks; its error from the differences of neighbouring
    blocks, so that a trend over the day is no error, and at least that of independent values; then back to the
    quantile (Woodruff 1952, doi 10.1080/01621459.1952.10483443). It holds where a block is long against the time in
    which the queue forgets; near saturation it is too short.
    """
    if share is None:
        if values.size < BLOCKS:
            return Interval(mean(values), -math.inf, math.inf, 1, level)
        return interval([part.mean() for part in np.array_split(values, BLOCKS)], level)
    at, count = percentile(values, share), values.size
    if count < needed(share, level):
        return Interval(at, -math.inf, math.inf, 1, level)
    below = np.array([np.mean(part <= at) for part in np.array_split(values, min(BLOCKS, count))])
    steps = np.diff(below)
    spread = max(float(steps @ steps) / 2 / steps.size / below.size, share * (1 - share) / count)
    reach = t_quantile(0.5 + level / 2, DIFFERENCE_DF) * math.sqrt(spread)
    ordered = np.sort(values)
    low, high = math.floor((share - reach) * count) - 1, math.ceil((share + reach) * count)
    return Interval(at, float(ordered[low]) if low >= 0 else -math.inf,
                    float(ordered[high]) if high < count else math.inf, 1, level)  # fmt: skip


@dataclass(frozen=True)
class Worst:
    """The worst window: its value, start [s] after the first arrival, and requests that arrived in it."""

    value: float
    start_s: float
    requests: int


def worst_window(
    at_s: Floats, values: Floats, window_s: float, share: float | None, least: int, after_s: float | None = None
) -> Worst | None:
    """Largest quantile (None: mean) over windows by time of arrival `at_s` [s], one every half window.

    Windows with fewer than `least` requests tell nothing and are left out; None when none is left. `after_s`: these
    are part of a longer run, whose first arrival was so long before; its windows that lie within the part are taken.
    """
    if at_s.size == 0:
        return None
    order = np.argsort(at_s, kind="stable")
    at, sorted_values = at_s[order] - at_s[order[0]], values[order]
    starts = np.arange(0.0, max(at[-1] - window_s, 0.0) + window_s / 2, window_s / 2)
    if after_s is not None:
        starts = starts + -after_s % (window_s / 2)
        starts = starts[starts <= at[-1] - window_s]
    edges = np.searchsorted(at, np.stack([starts, starts + window_s]), side="left").T
    found: Worst | None = None
    for start, (low, high) in zip(starts, edges, strict=True):
        if high - low < max(1, least):
            continue
        part = sorted_values[low:high]
        value = mean(part) if share is None else percentile(part, share)
        if found is None or value > found.value:
            found = Worst(value, float(start), int(high - low))
    return found

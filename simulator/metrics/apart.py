"""Whether two runs differ, or one run of each merely happened to: the requests in parts, and who is better in each.

A sign test over PARTS parts that follow each other in time (Conover, Practical Nonparametric Statistics, section 3.4):
of two runs that do not differ one is better in all ten with a probability of 2 x 0.5^10 = 0.2 %.
Requests that are written out in the scenario are no sample: what they take is what they take.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.metrics.latency import PERCENTILES, fates, seconds
from simulator.metrics.summary import meets_slo
from simulator.result import Result
from simulator.state import ABORTED, LOST
from simulator.units import NS_PER_S
from simulator.workload.spec import Inline

Floats = npt.NDArray[np.float64]

CLOSE: Final = 1.03
"""Values up to so many times the best of a ranking, or down to the best over it, are named beside it: prices and
searches move by more."""
NEAR_PCT: Final = f"{100 * (CLOSE - 1):.0f} %"
PARTS: Final = 10
_QUANTILES: Final = dict(PERCENTILES)
_PER_SPAN: Final = ("throughput.requests_per_s", "throughput.output_tokens_per_s", "makespan_s")


def is_sample(result: Result) -> bool:
    """Whether other requests of the same kind could have come: all but those written out in the scenario."""
    return not isinstance(result.scenario.parsed_workload(), Inline)


def can_be_proved(results: Sequence[Result]) -> bool:
    """Whether there are requests enough for a star, or none are needed."""
    least = min(result.summary["requests"]["completed"] for result in results)
    return least >= 2 * PARTS or not any(map(is_sample, results))


def better_in_all(one: Result, other: Result, path: str, sign: int) -> bool:
    """Whether the metric of the summary called `path` is better for `one` in every part; `sign` -1: less is better.

    False where a run has too few requests for parts of several each.
    """
    a, b = parts_of(one, path), parts_of(other, path)
    return bool(a.size and b.size and np.all(sign * a > sign * b))


def parts_of(result: Result, path: str) -> Floats:
    """The metric of each part, (PARTS,); empty below two requests a part. +inf where a percentile is infinite."""
    if path in _PER_SPAN:
        return _rates(result, path)
    column, kind = _column(result, path)
    column = column[~np.isnan(column)]
    if len(column) < 2 * PARTS:
        return np.empty(0)
    return np.array([_one(part, kind) for part in np.array_split(column, PARTS)])


def _one(part: Floats, kind: str) -> float:
    """A mean of what is finite, or a quantile of all."""
    if kind in _QUANTILES:
        with np.errstate(invalid="ignore"):
            value = float(np.quantile(part, _QUANTILES[kind]))
        return np.inf if np.isnan(value) else value  # between two infinite ones
    finite = part[np.isfinite(part)]
    return float(finite.mean()) if finite.size else float("nan")


def _column(result: Result, path: str) -> tuple[Floats, str]:
    """A number of each request in order of submission, NaN where it has none, and which statistic of it."""
    fate, name, kind = fates(result), *path.split(".", 1)
    if name.endswith("_s"):
        return np.where(fate.measured, seconds(result, name, fate), np.nan), kind
    if name == "goodput":
        met = meets_slo(result, fate)
        values = np.full(len(fate.arrived), np.nan) if met is None else met.astype(float)
    else:
        status = result.requests.status
        values = {"preemptions": result.requests.preempted, "rejected": fate.rejected, "aborted": status == ABORTED,
                  "lost": status == LOST, "unfinished": fate.unfinished}[kind].astype(float)  # fmt: skip
    return np.where(fate.arrived, values, np.nan), "mean"


def _rates(result: Result, path: str) -> Floats:
    """[s] from the first submission of a part to its last answer; or requests or tokens a second in that time."""
    fate, req = fates(result), result.requests
    rows = np.flatnonzero(fate.completed)
    if len(rows) < 2 * PARTS:
        return np.empty(0)
    parts = np.array_split(rows, PARTS)
    spans = np.array([req.last[part].max() - req.arrival[part].min() for part in parts]) / NS_PER_S
    if path == "makespan_s":
        return spans
    tokens = path == "throughput.output_tokens_per_s"
    work = [req.done[part].sum() if tokens else len(part) for part in parts]
    return np.asarray(work, dtype=float) / spans

"""Is it in steady state? Backlog verdict, Little's law, warm-up."""

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from simulator.metrics.intervals import t_quantile
from simulator.result import Result
from simulator.text import several
from simulator.units import NEVER, NS_PER_S, to_ticks

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
__all__ = [
    "Stability",
    "backlog_verdict",
    "little",
    "mser",
    "stability",
]

Verdict = Literal["stable", "overloaded", "undecided"]

BLOCKS: Final = 16
POINTS: Final = 256
"""The arrival window is cut into POINTS; regression is over BLOCKS means of them."""
LEVEL: Final = 0.99
FEWEST: Final = 50
"""Arrivals below which no verdict is given."""
FILL_SHARE: Final = 0.2
"""Least share of the arrival window that is left out as the system fills."""


@dataclass(frozen=True)
class Stability:
    """Verdict on the backlog. `slope_per_s` [requests/s]: growth of the number in the system, or None."""

    verdict: Verdict
    slope_per_s: float | None
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """For summary.json."""
        return {"verdict": self.verdict, "backlog_slope_per_s": self.slope_per_s, "reason": self.reason}


def stability(result: Result) -> Stability:
    """Does the number of requests in the system grow while requests arrive?

    Looks only at the time between first and last arrival, so what is simulated after it (drain, horizon)
    cannot change the verdict. The first fifth, or twice the mean service time, is left out as filling.
    """
    if result.scenario.load.kind != "open":
        return Stability(
            "stable",
            None,
            f"{result.scenario.load.kind} load: at most {result.scenario.load.width} "
            "in the system at once, by construction",
        )
    arrivals, ends, service_s = _stays(result)
    begin, end = _window(result, arrivals)
    if arrivals.size < FEWEST or end <= begin:
        return Stability(
            "undecided",
            None,
            f"{several(int(arrivals.size), 'request')} let in within {(end - begin) / NS_PER_S:g} s "
            f"{'is' if arrivals.size == 1 else 'are'} too few to tell; needed: {FEWEST} spread over time",
        )
    fill = max(FILL_SHARE, 2 * service_s * NS_PER_S / (end - begin))
    if fill > 0.5:
        return Stability(
            "undecided",
            None,
            "arrivals last less than four mean service times "
            f"({service_s:.3g} s): the system is still filling",
        )
    begin += int(fill * (end - begin))
    seen = int(np.count_nonzero((arrivals > begin) & (arrivals <= end)))
    return backlog_verdict(number_in_system(arrivals, ends, begin, end), (end - begin) / NS_PER_S, seen)


def _stays(result: Result) -> tuple[Int64s, Int64s, float]:
    """[tick] arrivals and ends (NEVER = not ended) of requests that were let in; mean service time [s].

    Where requests wait at their clients for a place in flight, they are inside from the moment the trace says.
    """
    from simulator.metrics.latency import fates

    req, fate = result.requests, fates(result)
    inside = fate.arrived & ~fate.rejected
    ends = np.where(fate.completed, req.last, NEVER)
    ends[fate.aborted] = _given_up(result)[fate.aborted]
    if req.lost_at.size:
        ends[fate.lost] = req.lost_at[fate.lost]
    ends = ends[inside]
    done = fate.completed
    service = float((req.last[done] - req.scheduled[done]).mean()) / NS_PER_S if done.any() else 0.0
    arrivals = req.arrival if result.scenario.load.max_in_flight is None else result.trace.arrival_ns
    return arrivals[inside], ends, service


def _given_up(result: Result) -> Int64s:
    """[tick] when each client gives up, where it does: at the time-out that was not met."""
    req, load = result.requests, result.scenario.load
    if not req.sent.size:
        return np.full(len(req.arrival), NEVER)
    first, whole = (to_ticks(limit or 0) for limit in (load.ttft_timeout_s, load.timeout_s))
    return np.asarray(req.sent + np.where((req.first == NEVER) & (first > 0), first, whole))


def _window(result: Result, arrivals: Int64s) -> tuple[int, int]:
    """[tick] first arrival and last arrival, or the horizon where that came first."""
    if arrivals.size == 0:
        return 0, 0
    horizon = result.scenario.horizon_s
    last = int(arrivals.max())
    return int(arrivals.min()), last if horizon is None else min(last, to_ticks(horizon))


def number_in_system(arrivals: Int64s, ends: Int64s, begin: int, end: int, points: int = POINTS) -> Floats:
    """Requests in the system at `points` equally spaced ticks in (begin, end], the last one being `end`."""
    step = (end - begin) / points

    def count_by(ticks: Int64s) -> Int64s:
        """How many of `ticks` are at or before each point."""
        inside = ticks[ticks <= end]
        place = np.clip(np.ceil((inside - begin) / step).astype(np.int64), 1, points) - 1
        return np.cumsum(np.bincount(place, minlength=points))

    return (count_by(arrivals) - count_by(ends)).astype(np.float64)


def backlog_verdict(number: Floats, seconds: float, arrivals: int) -> Stability:
    """Verdict from the number in system at equally spaced times over `seconds` that saw `arrivals` arrivals.

    Least-squares slope over block means. Two errors of the growth over the window are weighed:
    - if the backlog is a random walk (at or above capacity), the error of `walk_error`. Overloaded: growth is
      above zero by this error, and is over 1 % of the arrivals or half the mean backlog;
    - if it is stationary, the residuals give the error. Stable: growth with this error stays below
      sqrt(arrivals), what a queue just at capacity would drift by chance.
    """
    means = number.reshape(BLOCKS, -1).mean(axis=1)
    time = np.arange(BLOCKS) - (BLOCKS - 1) / 2
    slope = float(time @ means / (time @ time))  # requests per block
    residual = means - means.mean() - slope * time
    walk = walk_error(means)
    still = math.sqrt(residual @ residual / (BLOCKS - 2) / (time @ time))
    growth = slope * BLOCKS
    margin = t_quantile(0.5 + LEVEL / 2, BLOCKS - 2) * BLOCKS
    per_s = slope * BLOCKS / seconds
    change = (f"by {abs(growth):.1f} requests over {several(arrivals, 'arrival')}, with {means.mean():.1f} in the "
              "system on average")
    text = f"the backlog {'rose' if growth >= 0 else 'fell'} {change}"
    material = max(3.0, min(0.01 * arrivals, 0.5 * float(means.mean())))
    if growth - margin * walk > 0 and growth > material:
        return Stability("overloaded", per_s, f"the backlog grows as long as requests arrive: {change}")
    if growth + margin * still < max(3.0, math.sqrt(arrivals)):
        return Stability("stable", per_s, text.replace("rose", "hardly grew,"))
    return Stability("undecided", per_s, f"{text}: too close to call, a longer run would tell")


def walk_error(means: Floats) -> float:
    """Standard error of the least-squares slope per block of a random walk, from its block means.

    The slope's variance is 6/5 of that of the mean step (Durlauf and Phillips, Econometrica 56, 1988); block means
    differ by 2/3 of a block's own variance, as averaging smooths the walk (Working, Econometrica 28, 1960).
    """
    return math.sqrt(1.2 * 1.5 * float(np.diff(means).var(ddof=1)) / (means.size - 1))


def little(result: Result) -> dict[str, float | None]:
    """Little's law over the arrival window: lambda [1/s] x W [s] against the measured number in the system L.

    L is the time average between first and last arrival, W the mean over completed requests. They differ by
    what is still inside when arrivals end: small for a long stable run, large under overload (Little 1961,
    doi 10.1287/opre.9.3.383). Rejected requests were never inside.
    """
    arrivals, ends, _ = _stays(result)
    begin, end = _window(result, arrivals)
    done = ends < NEVER
    if end <= begin or not done.any():
        return {
            "arrival_rate": None,
            "mean_in_system": None,
            "mean_time_in_system_s": None,
            "relative_gap": None,
        }
    seconds = (end - begin) / NS_PER_S
    inside = float((np.minimum(ends, end) - np.minimum(arrivals, end)).astype(np.float64).sum()) / (
        end - begin
    )
    stay = float((ends[done] - arrivals[done]).astype(np.float64).mean()) / NS_PER_S
    rate = arrivals.size / seconds
    gap = (rate * stay - inside) / inside if inside > 0 else None
    return {
        "arrival_rate": rate,
        "mean_in_system": inside,
        "mean_time_in_system_s": stay,
        "relative_gap": gap,
    }


def mser(values: npt.ArrayLike, batch: int = 5) -> int:
    """Observations to drop as warm-up by MSER-5: the cut that makes the standard error of the rest smallest.

    White, Cobb and Spratt, Winter Simulation Conference 2000. Cuts beyond half the run are not considered.
    """
    series = np.asarray(values, dtype=np.float64)
    count = series.size // batch
    if count < 2:
        return 0
    means = series[: count * batch].reshape(count, batch).mean(axis=1)
    means = means - means.mean()
    left = np.arange(count, 0, -1)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum(means[::-1] ** 2)[::-1]
    error = (squares - sums**2 / left) / left.astype(np.float64) ** 2
    return int(np.argmin(error[: count // 2 + 1])) * batch

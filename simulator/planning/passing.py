"""When a judgement passes, and how far it is from passing: by the mean, surely, possibly."""

import math
from collections.abc import Callable

from simulator.planning.statistics import Judged, Judgement

Passes = Callable[[Judgement], bool]


def by_mean(judged: Judgement) -> bool:
    """Every level within its limit by the mean."""
    return judged.holds


def surely(judged: Judgement) -> bool:
    """Every level within its limit by its whole interval."""
    return judged.verdict == "meets"


def possibly(judged: Judgement) -> bool:
    """No level beyond its limit by its whole interval."""
    return judged.verdict != "misses"


def excess(judged: Judgement, passes: Passes) -> float:
    """How far the worst level is beyond its limit, as a logarithm with the sign of `passes`; infinite = overloaded."""
    if judged.overloaded:
        return math.inf
    ratio = max(_over(_decides(level, passes), level.limit) for level in judged.levels)
    size = math.log(max(ratio, 1e-6)) if math.isfinite(ratio) else math.inf
    return min(size, 0.0) if passes(judged) else max(size, 1e-9)


def _decides(level: Judged, passes: Passes) -> float:
    """The end of the interval that decides; by the mean, and for a single recorded trace, the value itself."""
    if level.interval.n == 1 or passes is by_mean:
        return level.interval.mean
    return level.interval.high if passes is surely else level.interval.low


def _over(value: float, limit: float) -> float:
    if limit > 0 and math.isfinite(value):
        return value / limit
    return math.inf if value > limit else 0.0

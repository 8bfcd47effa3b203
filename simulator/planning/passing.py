"""When a judgement passes, and how far it is from passing: by the mean, surely, possibly."""

import math
from collections.abc import Callable
from typing import Final

from simulator.planning.statistics import Judged, Judgement

Passes = Callable[[Judgement], bool]
CLEAR: Final = 0.5
"""Share of a limit within which one replication is enough."""


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


def clear(look: Judgement, count: int) -> float | None:
    """The excess of one replication that speaks for `count` of them; None where all must be run.

    One that is `count` times its limit puts the mean beyond it whatever the others are; one at less than CLEAR of every
    limit would need others beyond theirs. A share of requests that miss says no such thing: none in one replication
    stands beside several per cent in the next.
    """
    ratio = max(_over(level.interval.mean, level.limit) for level in look.levels)
    if ratio >= count:
        return math.inf if look.overloaded or math.isinf(ratio) else math.log(ratio)
    shares = any(level.target is None for level in look.levels)
    return math.log(max(ratio, 1e-6)) if ratio <= CLEAR and not look.overloaded and not shares else None


def early(two: Judgement, passes: Passes) -> float | None:
    """The excess of two replications that speaks for more of them, for the ends of a range; None where it does not.

    Beyond a limit by the mean of two is not surely within it, within all of them is possibly within; an interval of two
    that is clear, though it is the widest there is, is clear.
    """
    if two.holds != (passes is surely):
        return excess(two, by_mean)
    return excess(two, passes) if two.verdict == ("meets" if passes is surely else "misses") else None


def _decides(level: Judged, passes: Passes) -> float:
    """The end of the interval that decides; by the mean, and for a single recorded trace, the value itself."""
    if level.interval.n == 1 or passes is by_mean:
        return level.interval.mean
    return level.interval.high if passes is surely else level.interval.low


def _over(value: float, limit: float) -> float:
    if limit > 0 and math.isfinite(value):
        return value / limit
    return math.inf if value > limit else 0.0

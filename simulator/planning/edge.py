"""The edge between what passes and what does not, along a number such as a rate: bracketed, then by secants.

Levels grow like 1 / (1 - load) towards the wall, so limit / level falls nearly straight: a line through two points
of it lands near the edge. A bracket keeps the secants honest where it does not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

Excess = Callable[[float], float]
"""How far beyond its limit the worst level is, as a logarithm: at or below 0 passes, infinite = overloaded."""
RATE_STEP: Final = 0.01
"""Rates are searched to this relative accuracy."""
TIE: Final = 200 * RATE_STEP
"""[points] Two walls are searched to RATE_STEP each: gains that differ by less are not told apart."""
END_STEP: Final = 0.03
"""The ends of a rate's range, to this one."""
FIRST: Final = 1.15
"""Least first step away from the start; each further one is larger."""
SLOPE: Final = 2.0
"""Per cent that a level is taken to grow by with one per cent of the rate, to step to where it meets its limit."""
MOST: Final = math.log(2.0)
"""Longest step of the bracket, as a logarithm."""
FAR: Final = 1.0
"""A level this far below its limit, as a logarithm, says only that the edge is far."""


@dataclass(frozen=True)
class Edge:
    """`passes` is the largest number that was seen to pass (0 = none), `fails` the smallest that was not (infinite:
    nothing failed up to the end of the search)."""

    passes: float
    fails: float


def find_edge(excess: Excess, start: float, *, lowest: float, highest: float, step: float = RATE_STEP,
              first: float = FIRST, known: float = 0.0) -> Edge:
    """Bracket from `start` and close in until `fails` is at most `step` above `passes`, relatively.

    Nothing below `lowest` or above `highest` is tried. A start that is a good guess has a small `first` step. `known`
    is a number below `start` that passes for sure.
    """
    low, high, at_low, at_high = known, math.inf, -step if known else -math.inf, math.inf
    at, least = start, math.log(first)
    while low == 0.0 or math.isinf(high):
        value = excess(at)
        far = abs(value) / SLOPE + step / 2 if math.isfinite(value) else math.log(FIRST)
        away = math.exp(min(MOST, max(least, far)))
        least *= 2
        if value <= 0:
            low, at_low = at, value
            if math.isinf(high):
                if at >= highest:
                    return Edge(low, math.inf)
                at = min(highest, at * away)
        else:
            high, at_high = at, value
            if low == 0.0:
                if at <= lowest:
                    return Edge(0.0, high)
                at = max(lowest, at / away)
    return _closed(excess, low, high, at_low, at_high, step)


def _closed(excess: Excess, low: float, high: float, at_low: float, at_high: float, step: float) -> Edge:
    """Secants of limit / level, which falls nearly straight towards the wall; the middle where they get stuck."""
    stuck = 0
    while high / low > 1 + step:
        width = math.log(high / low)
        at = _guess(low, high, at_low, at_high, step) if stuck < 2 else math.sqrt(low * high)
        value = excess(at)
        if value <= 0:
            low, at_low = at, value
        else:
            high, at_high = at, value
        stuck = stuck + 1 if math.log(high / low) > width / 2 else 0
    return Edge(low, high)


def _guess(low: float, high: float, at_low: float, at_high: float, step: float) -> float:
    """Where the secant crosses, half a step beyond, on the side that is further off, so that it closes the bracket."""
    above, below = math.exp(min(-at_low, FAR)) - 1, 1 - math.exp(-at_high)
    share = above / (above + below) if above + below > 0 else 0.5
    at = low + share * (high - low)
    at *= 1 + step / 2 if share < 0.5 else 1 / (1 + step / 2)
    margin = 1 + step / 3
    return min(max(at, low * margin), high / margin)

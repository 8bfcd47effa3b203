"""CONTROL: a forecast of how many replicas an autoscaler will want when one ordered now has started.

The Predictive Horizontal Pod Autoscaler 0.13 (jthomperoo/predictive-horizontal-pod-autoscaler), its model `Linear`:
a straight line by least squares through the last `historySize` numbers that the formula asked for, each with its time,
read `lookAhead` after now and rounded up (algorithms/linear_regression/linear_regression.py); the larger of it and of
what the formula asks for now counts (internal/controllers/predictivehorizontalpodautoscaler_controller.go,
processModels and decideTargetReplicas with decisionType maximum, the default). One number makes no line.

Decisions are `sync` apart, so with y_j the number asked for j decisions ago, j = 0 .. n-1, the line h periods ahead is

    (S2 sum(y) - S1 sum(j y) - h (n sum(j y) - S1 sum(y))) / (n S2 - S1^2),    S1 = sum(j), S2 = sum(j^2)

the normal equations of y = a + b j at j = -h: a ratio of whole numbers, exact here, in doubles there.
"""

from typing import Final

from simulator.engines.world import Scaling
from simulator.jit import jitable

AHEAD: Final = 1000
"""Scaler.ahead is in this part of the time between two decisions."""
MOST_HISTORY: Final = 240
MOST_AHEAD: Final = 1000
"""[decisions] up to which whole numbers stay below 2^63: sum(j y) < 3e9, n S2 < 1.1e9 with MOST_ASKED."""
MOST_ASKED: Final = 100_000
"""Replicas; more asked for count as so many, far more than there can be."""


@jitable
def foreseen(scaling: Scaling, k: int, asked: int) -> int:
    """Replicas that autoscaler k wants, of which its formula asks for `asked` now; it remembers them for its next
    decisions."""
    scaler = scaling.scalers[k]
    at = k * scaling.ring
    scaling.past[at + scaler.n_past % scaling.ring].asked = min(asked, MOST_ASKED)
    n = min(int(scaler.history), int(scaler.n_past) + 1)
    if n < 2:
        return asked
    total, moment = 0, 0
    for j in range(n):
        past = scaling.past[at + (scaler.n_past - j) % scaling.ring]
        total += past.asked
        moment += j * past.asked
    s1 = n * (n - 1) // 2
    s2 = n * (n - 1) * (2 * n - 1) // 6
    above = AHEAD * (s2 * total - s1 * moment) - scaler.ahead * (n * moment - s1 * total)
    return max(asked, -(-above // (AHEAD * (n * s2 - s1 * s1))))

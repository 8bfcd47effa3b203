"""Student-t confidence intervals of replications, and what they say about a limit."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from simulator.errors import ConfigError


@dataclass(frozen=True)
class Interval:
    """A mean of `n` replications and its confidence interval; infinite bounds where too little is known."""

    mean: float
    low: float
    high: float
    n: int
    level: float

    @property
    def half_width(self) -> float:
        """Half of high - low."""
        return (self.high - self.low) / 2 if math.isfinite(self.high) else math.inf

    def against(self, limit: float) -> Literal["below", "above", "open"]:
        """Does the whole interval lie at or below `limit`, above it, or neither?"""
        if self.high <= limit:
            return "below"
        return "above" if self.low > limit else "open"


def interval(values: npt.ArrayLike, level: float = 0.9) -> Interval:
    """Student-t interval of the mean of independent `values`; one value or an infinite one gives no bound.

    Raises ConfigError for no value, NaN or a level outside (0, 1).
    """
    data = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if data.size == 0 or np.isnan(data).any() or not 0 < level < 1:
        raise ConfigError(
            f"interval needs numbers and a level in (0, 1), got {data.tolist()[:5]} and {level}"
        )
    if np.isinf(data).any():
        low = math.inf if np.isinf(data).all() and data.size > 1 else -math.inf
        return Interval(math.inf, low, math.inf, data.size, level)
    mean = float(data.mean())
    if data.size == 1:
        return Interval(mean, -math.inf, math.inf, 1, level)
    reach = t_quantile(0.5 + level / 2, data.size - 1) * float(data.std(ddof=1)) / math.sqrt(data.size)
    return Interval(mean, mean - reach, mean + reach, data.size, level)


def paired(a: npt.ArrayLike, b: npt.ArrayLike, level: float = 0.9) -> Interval:
    """Interval of the mean of b - a, run with common random numbers (value k of both from replication k)."""
    return interval(np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64), level)


def t_cdf(t: float, df: int) -> float:
    """Student's t distribution, integer `df` >= 1: Abramowitz and Stegun 26.7.3 and 26.7.4 (finite sums)."""
    angle = math.atan2(t, math.sqrt(df))
    sine, cos2 = math.sin(angle), math.cos(angle) ** 2
    odd = df % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range((df - odd) // 2):
        total += term
        term *= cos2 * (2 * k + 2) / (2 * k + 3) if odd else cos2 * (2 * k + 1) / (2 * k + 2)
    inner = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 + inner / 2


def t_quantile(p: float, df: int) -> float:
    """t with t_cdf(t, df) = p, 0 < p < 1, by bisection. Raises ConfigError outside."""
    if not 0 < p < 1 or df < 1:
        raise ConfigError(f"t quantile needs 0 < p < 1 and df >= 1, got {p} and {df}")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        low, high = high, high * 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2

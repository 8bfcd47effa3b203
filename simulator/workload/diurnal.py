"""A rate that changes over the day: piecewise linear or stepped, with its integral and the inverse of that."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.errors import ConfigError

Floats = npt.NDArray[np.float64]
HOURS = 24.0


@dataclass(frozen=True, eq=False)
class RateCurve:
    """Periodic rate [requests/s] on K segments.

    edges        [s] shape (K + 1,), from 0 to the period
    left, right  [requests/s] shape (K,), the rate at both ends of each segment, linear between
    mean_count   [1] shape (K + 1,), expected arrivals from 0 to each edge
    """

    edges: Floats
    left: Floats
    right: Floats
    mean_count: Floats

    def rate(self, t: npt.ArrayLike) -> Floats:
        """Rate [requests/s] at times t [s]."""
        segment, x = self._place(np.asarray(t, dtype=np.float64) % self.edges[-1])
        return self.left[segment] + self._slope(segment) * x

    def count(self, t: float) -> float:
        """Expected arrivals from 0 to t [s]."""
        days, rest = divmod(t, float(self.edges[-1]))
        segment, x = self._place(np.asarray(rest))
        part = self.mean_count[segment] + self.left[segment] * x + self._slope(segment) * x * x / 2
        return float(days * self.mean_count[-1] + part)

    def inverse(self, count: Floats) -> Floats:
        """Times [s] by which `count` (sorted) arrivals are expected, shape as given.

        Within a segment of slope s solves left x + s x^2 / 2 = c, in the form that is accurate for small s.
        """
        days, rest = np.divmod(count, self.mean_count[-1])
        segment = np.clip(np.searchsorted(self.mean_count, rest, side="right") - 1, 0, self.left.size - 1)
        c = rest - self.mean_count[segment]
        left = self.left[segment]
        root = np.sqrt(np.maximum(left * left + 2 * self._slope(segment) * c, 0.0))
        denominator = left + root
        x = np.divide(2 * c, denominator, out=np.zeros_like(c), where=denominator > 0)
        width = self.edges[segment + 1] - self.edges[segment]
        return np.maximum.accumulate(days * self.edges[-1] + self.edges[segment] + np.minimum(x, width))

    def _place(self, t: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
        segment = np.clip(np.searchsorted(self.edges, t, side="right") - 1, 0, self.left.size - 1)
        return segment, t - self.edges[segment]

    def _slope(self, segment: npt.NDArray[np.int64]) -> Floats:
        width = self.edges[segment + 1] - self.edges[segment]
        return (self.right[segment] - self.left[segment]) / width


def _curve(edges: Floats, left: Floats, right: Floats) -> RateCurve:
    mean_count = np.concatenate(([0.0], np.cumsum((left + right) / 2 * np.diff(edges))))
    if not np.isfinite(mean_count[-1]) or mean_count[-1] <= 0:
        raise ConfigError("arrivals.curve must have a rate > 0 somewhere")
    return RateCurve(edges, left, right, mean_count)


def sinusoid(rate: float, amplitude: float, peak_hour: float, period_s: float) -> RateCurve:
    """rate * (1 + amplitude cos(2 pi (t - peak))), sampled at 1,440 points: within 3e-6 of the sinusoid."""
    edges = np.linspace(0.0, period_s, 1_441)
    phase = 2 * np.pi * (edges / period_s - peak_hour / HOURS)
    values = rate * (1 + amplitude * np.cos(phase))
    return _curve(edges, values[:-1], values[1:])


def curve_from_points(
    points: Sequence[tuple[float, float]], kind: str, scale: float, period_s: float
) -> RateCurve:
    """((hour, requests/s), ...) with rising hours in [0, 24) -> periodic curve; the last point joins the first.

    Raises ConfigError for hours out of order or range, negative rates, an unknown kind, no rate > 0.
    """
    if kind not in ("linear", "step"):
        raise ConfigError(f"arrivals.curve_kind must be linear or step, got {kind!r}")
    if not points or any(len(point) != 2 for point in points):
        raise ConfigError(f"arrivals.curve must hold [hour, rate] pairs, got {points!r}")
    table = np.asarray(points, dtype=np.float64)
    hours, rates = table[:, 0], table[:, 1] * scale
    if not (np.all(hours >= 0) and np.all(hours < HOURS) and np.all(np.diff(hours) > 0)):
        raise ConfigError(f"arrivals.curve hours must rise within 0..24 (24 excluded), got {hours.tolist()}")
    if not (np.all(np.isfinite(rates)) and np.all(rates >= 0)):
        raise ConfigError(f"arrivals.curve rates must be >= 0, got {table[:, 1].tolist()}")
    inner = hours[hours > 0]
    edges = np.concatenate(([0.0], inner, [HOURS]))
    if kind == "step":
        values = rates[np.searchsorted(hours, edges[:-1], side="right") - 1]
        return _curve(edges * period_s / HOURS, values, values)
    values = np.interp(edges, hours, rates, period=HOURS)
    return _curve(edges * period_s / HOURS, values[:-1], values[1:])

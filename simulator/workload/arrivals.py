"""Arrival processes: when requests come, as sorted int64 nanoseconds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.errors import ConfigError, UnknownNameError
from simulator.memory import check_requests
from simulator.units import LONGEST_S, MAX_TICKS, NS_PER_S

from .diurnal import RateCurve, curve_from_points, sinusoid
from .trace import Int64s

MAX_REQUESTS: Final = 1_000_000_000
_BLOCK: Final = 65_536
_CV: Final = (1e-3, 1e3)
"""Accepted spread of gamma gaps: beyond it float64 holds only zeros between the gaps, or no spread."""
_ACCEPTS: Final[dict[str, tuple[frozenset[str], frozenset[str]]]] = {
    # kind: (needed, optional), besides requests / duration_s / start_s
    "poisson": (frozenset({"rate"}), frozenset()),
    "gamma": (frozenset({"rate", "cv"}), frozenset()),
    "constant": (frozenset({"rate"}), frozenset()),
    "burst": (frozenset(), frozenset()),
    "diurnal": (
        frozenset(),
        frozenset({"rate", "amplitude", "peak_hour", "curve", "curve_kind", "rate_scale", "period_s"}),
    ),
}
_OPTIONS: Final = ("rate", "cv", "amplitude", "peak_hour", "curve", "curve_kind", "rate_scale", "period_s")


@dataclass(frozen=True)
class Arrivals:
    """One arrival process.

    kind        poisson | gamma | constant | burst | diurnal
    rate        [requests/s] mean rate; for diurnal the mean of the sinusoid
    cv          coefficient of variation of the gaps (gamma; 1 is Poisson, > 1 bursty)
    requests    how many [1]; or `duration_s` [s]: all that come before it. Exactly one of the two
    start_s     [s] added to every arrival
    amplitude   0..1, swing of the sinusoid around `rate` (diurnal; default 0.5)
    peak_hour   hour of the sinusoid's maximum (diurnal; default 14)
    curve       ((hour, requests/s), ...) instead of the sinusoid, repeated each period
    curve_kind  linear (default) | step: between the points of `curve`
    rate_scale  factor on the rate of `curve` (diurnal)
    period_s    [s] length of a day (diurnal; default 86,400); hours are period / 24

    Options that the kind does not use are refused: none is silently ignored.
    """

    kind: str
    rate: float | None = None
    cv: float | None = None
    requests: int | None = None
    duration_s: float | None = None
    start_s: float = 0.0
    amplitude: float | None = None
    peak_hour: float | None = None
    curve: tuple[tuple[float, float], ...] | None = None
    curve_kind: str | None = None
    rate_scale: float | None = None
    period_s: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in _ACCEPTS:
            raise UnknownNameError("arrivals", self.kind, _ACCEPTS)
        self._check_options()
        self._check_extent()
        for name in ("rate", "cv", "rate_scale", "period_s"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value > 0):
                raise ConfigError(f"arrivals.{name} must be > 0, got {value}")
        if self.cv is not None and not _CV[0] <= self.cv <= _CV[1]:
            raise ConfigError(f"arrivals.cv must be {_CV[0]}..{_CV[1]:.0f}, got {self.cv}")
        if self.peak_hour is not None and not np.isfinite(self.peak_hour):
            raise ConfigError(f"arrivals.peak_hour must be a finite number, got {self.peak_hour}")
        if self.amplitude is not None and not 0 <= self.amplitude <= 1:
            raise ConfigError(f"arrivals.amplitude must be 0..1, got {self.amplitude}")
        if self.kind == "diurnal":
            self.rate_curve()

    def _check_options(self) -> None:
        needed, optional = _ACCEPTS[self.kind]
        for name in _OPTIONS:
            given = getattr(self, name) is not None
            if name in needed and not given:
                raise ConfigError(f"arrivals.{name} is needed by kind {self.kind!r}")
            if given and name not in needed | optional:
                raise ConfigError(f"arrivals.{name} has no effect on kind {self.kind!r}; remove it")

    def _check_extent(self) -> None:
        if (self.requests is None) == (self.duration_s is None):
            raise ConfigError("arrivals needs exactly one of requests and duration_s")
        if self.requests is not None and not 1 <= self.requests <= MAX_REQUESTS:
            raise ConfigError(f"arrivals.requests must be 1..{MAX_REQUESTS}, got {self.requests}")
        if self.kind == "burst" and self.requests is None:
            raise ConfigError("arrivals.requests is needed by kind 'burst'")
        if self.duration_s is not None and not 0 < self.duration_s <= LONGEST_S:
            raise ConfigError(f"arrivals.duration_s must be > 0 and <= {LONGEST_S:.0f}, got {self.duration_s}")
        if not 0 <= self.start_s <= LONGEST_S:
            raise ConfigError(f"arrivals.start_s must be 0..{LONGEST_S:.0f}, got {self.start_s}")

    def rate_curve(self) -> RateCurve:
        """The diurnal rate over one period. Raises ConfigError where sinusoid and curve options are mixed."""
        period = 86_400.0 if self.period_s is None else self.period_s
        if self.curve is None:
            if self.rate is None or self.curve_kind is not None or self.rate_scale is not None:
                raise ConfigError("arrivals of kind 'diurnal' need rate (a sinusoid) or curve, not a mix")
            amplitude = 0.5 if self.amplitude is None else self.amplitude
            return sinusoid(self.rate, amplitude, 14.0 if self.peak_hour is None else self.peak_hour, period)
        if self.rate is not None or self.amplitude is not None or self.peak_hour is not None:
            raise ConfigError("arrivals of kind 'diurnal' need rate (a sinusoid) or curve, not a mix")
        scale = 1.0 if self.rate_scale is None else self.rate_scale
        return curve_from_points(self.curve, self.curve_kind or "linear", scale, period)


def sample_arrivals(arrivals: Arrivals, rng: np.random.Generator) -> Int64s:
    """Draw arrival times [ns], int64, sorted, shape (N,).

    The same draws are stretched for another rate, and a longer run only adds arrivals at the end, so runs at
    different rates or lengths see common random numbers. Raises ConfigError when nothing arrives, more than
    MAX_REQUESTS would, or a time is beyond the longest horizon.
    """
    _check_memory(arrivals)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # told by the checks below
        seconds = _SAMPLERS[arrivals.kind](arrivals, rng) + arrivals.start_s
    if seconds.size == 0:
        raise ConfigError(
            f"arrivals: nothing arrives within duration_s = {arrivals.duration_s}; make it longer"
        )
    if not float(seconds[-1]) * NS_PER_S <= MAX_TICKS:
        raise ConfigError(
            f"arrivals: the last arrival is at {seconds[-1]:.3g} s, beyond {LONGEST_S:.3g} s"
        )
    return np.rint(seconds * NS_PER_S).astype(np.int64)


def _check_memory(arrivals: Arrivals) -> None:
    """Refuse more requests than this machine can hold, where their number is known before they are drawn."""
    if arrivals.requests is not None:
        check_requests(arrivals.requests, "arrivals.requests")
    elif arrivals.rate is not None and arrivals.rate * _end(arrivals) <= MAX_REQUESTS:
        check_requests(arrivals.rate * _end(arrivals), "arrivals.duration_s")


def _until(arrivals: Arrivals, draw: Callable[[int], np.ndarray], end: float) -> np.ndarray:
    """Cumulated gaps: the first `requests`, or all below `end` (same unit as the gaps)."""
    if arrivals.requests is not None:
        return np.cumsum(draw(arrivals.requests))
    if end > MAX_REQUESTS:
        raise ConfigError(f"arrivals: more than {MAX_REQUESTS} requests within duration_s")
    blocks: list[np.ndarray] = []
    last, total = 0.0, 0
    while last < end:
        # The carry enters the running sum, as it would in one long cumsum.
        block = np.cumsum(np.concatenate(([last], draw(_BLOCK))))[1:]
        blocks.append(block)
        last = float(block[-1])
        total += block.size
        if total > MAX_REQUESTS:
            raise ConfigError(f"arrivals: more than {MAX_REQUESTS} requests within duration_s")
    times = np.concatenate(blocks)
    return times[times < end]


def _end(arrivals: Arrivals) -> float:
    return 0.0 if arrivals.duration_s is None else arrivals.duration_s


def _poisson(arrivals: Arrivals, rng: np.random.Generator) -> np.ndarray:
    rate = arrivals.rate or 0.0
    return _until(arrivals, rng.standard_exponential, _end(arrivals) * rate) / rate


def _gamma(arrivals: Arrivals, rng: np.random.Generator) -> np.ndarray:
    """Gaps of mean 1/rate and coefficient of variation cv: shape 1/cv^2, scale cv^2/rate."""
    rate, shape = arrivals.rate or 0.0, 1 / (arrivals.cv or 1.0) ** 2
    return _until(arrivals, lambda n: rng.standard_gamma(shape, n) / shape, _end(arrivals) * rate) / rate


def _constant(arrivals: Arrivals, _: np.random.Generator) -> np.ndarray:
    rate = arrivals.rate or 0.0
    count = arrivals.requests or int(min(np.ceil(_end(arrivals) * rate), MAX_REQUESTS)) + 1
    if count > MAX_REQUESTS:
        raise ConfigError(f"arrivals: more than {MAX_REQUESTS} requests within duration_s")
    times = np.arange(count) / rate
    return times if arrivals.duration_s is None else times[times < arrivals.duration_s]


def _burst(arrivals: Arrivals, _: np.random.Generator) -> np.ndarray:
    return np.zeros(arrivals.requests or 0)


def _diurnal(arrivals: Arrivals, rng: np.random.Generator) -> np.ndarray:
    """Non-homogeneous Poisson process by time change: unit-rate arrivals mapped through the inverse mean
    count (Cinlar, Introduction to Stochastic Processes, 1975, section 4.7)."""
    curve = arrivals.rate_curve()
    times = curve.inverse(_until(arrivals, rng.standard_exponential, curve.count(_end(arrivals))))
    return times if arrivals.duration_s is None else times[times < arrivals.duration_s]


_SAMPLERS: Final[dict[str, Callable[[Arrivals, np.random.Generator], np.ndarray]]] = {
    "poisson": _poisson,
    "gamma": _gamma,
    "constant": _constant,
    "burst": _burst,
    "diurnal": _diurnal,
}

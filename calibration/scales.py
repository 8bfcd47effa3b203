"""Fit how much slower than the profiles a user's host and GPU are: two factors, with error bars.

Simulated moments (McFadden 1989): the means of calibration.observed as measured against the simulator's, under all CPU
times x `cpu` and all GPU times x `gpu`, weighted by the inverse of their covariance. Error bars are 90 % profile
likelihood intervals: the values of one factor for which some value of the other is not worse than the best by more than
2.71 (chi-square, one degree of freedom), widened where the best fit is itself worse than its noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from calibration.fit_operators import least_squares, scipy_part
from calibration.observed import Mean, Observation, model_spread
from simulator.errors import CalibrationError

Array = npt.NDArray[np.float64]
Axes = tuple[Array, Array]

CPU_RANGE: Final = (0.1, 10.0)
GPU_RANGE: Final = (0.25, 4.0)
"""Factors looked at: shipped hosts are 0.42 to 2, GPUs of one kind differ by less than 2."""
_BOUNDS: Final = np.log(np.array([CPU_RANGE, GPU_RANGE])).T
"""Logarithms, row by row: the least and the most of (cpu, gpu)."""
CPU_KNOWN: Final = 3.0
GPU_KNOWN: Final = 1.5
"""Upper over lower end of an interval up to which a factor counts as told by the runs."""
_DROP: Final = 2.706
_STEP: Final = 0.03
_GRID: Final = (9, 9)
_STARTS: Final = 3
_LOCAL: Final = (11, 9)
_LOCAL_CPU: Final = 3.0
_LOCAL_GPU: Final = 1.6
_FINE: Final = 161


@dataclass(frozen=True)
class Factor:
    """A fitted factor: `value` is used, [low, high] its 90 % interval; not `known`: the runs do not tell it, and
    `value` is the one nearest to 1 inside, or of two such for the GPU the one that fits best beside the CPU's."""

    value: float
    low: float
    high: float
    known: bool


@dataclass(frozen=True)
class Scales:
    """The fit. `rows`: every mean as measured, predicted with the profiles as they are, and with the factors [s]."""

    cpu: Factor
    gpu: Factor
    tied: float  # correlation of the two factors' errors
    misfit: float  # chi-square over degrees of freedom
    rows: list[dict[str, Any]]

    @property
    def sentences(self) -> list[str]:
        """What the runs tell and what they do not."""
        return _sentences(self)


class _Surface:
    """Distance of prediction and measurement over the plane of the two factors; every point is simulated once."""

    def __init__(self, observed: Sequence[Observation], noise: Array) -> None:
        self.observed = observed
        self.measured = np.concatenate([each.measured for each in observed])
        self._known: dict[tuple[float, float], Array] = {}
        self.weigh(noise)

    def weigh(self, noise: Array) -> None:
        """Set the covariance of the means."""
        self._factor = np.linalg.inv(np.linalg.cholesky(noise + 1e-12 * np.eye(len(noise))))

    def predicted(self, place: Array) -> Array:
        """Means at (ln cpu, ln gpu)."""
        key = (round(float(place[0]), 9), round(float(place[1]), 9))
        if key not in self._known:
            cpu, gpu = np.exp(place)
            self._known[key] = np.concatenate([each.predicted(float(cpu), float(gpu)) for each in self.observed])
        return self._known[key]

    def off(self, place: Array) -> Array:
        """Residuals in units of their noise."""
        result: Array = self._factor @ (self.predicted(place) - self.measured)
        return result

    def distance(self, place: Array) -> float:
        return float(np.sum(self.off(place) ** 2))

    def grid(self, cpu: Array, gpu: Array) -> Array:
        """Distances, shape (cpu, gpu)."""
        return np.array([[self.distance(np.array([c, g])) for g in gpu] for c in cpu])


def fit_scales(observed: Sequence[Observation]) -> Scales:
    """The factors that fit all observations together. Raises CalibrationError where there is too little to fit."""
    means = [mean for each in observed for mean in each.means]
    if len(means) < 2:
        raise CalibrationError("a fit of two factors needs TTFT and TPOT: requests with more than one output token")
    model = model_spread(means)
    surface = _Surface(observed, model)
    grid = _axes(_BOUNDS[0], _BOUNDS[1], _GRID)
    place = _best(surface, grid)
    surface.weigh(model + _spreads(observed, place))
    place = _refined(surface, place)
    return _summed(surface, place, grid, means)


def _spreads(observed: Sequence[Observation], place: Array) -> Array:
    """Covariance of the measured means, run by run."""
    cpu, gpu = (float(each) for each in np.exp(place))
    whole: Array = scipy_part("linalg").block_diag(*(each.spread(cpu, gpu) for each in observed))
    return whole


def _axes(low: Array, high: Array, points: tuple[int, int]) -> Axes:
    """Points of the two logarithms from one corner to the other."""
    return (np.linspace(float(low[0]), float(high[0]), points[0]),
            np.linspace(float(low[1]), float(high[1]), points[1]))


def _best(surface: _Surface, axes: Axes) -> Array:
    """The best place that a descent finds from the _STARTS lowest points of a grid."""
    values = surface.grid(*axes)
    lowest = [np.unravel_index(flat, values.shape) for flat in np.argsort(values, axis=None)[:_STARTS]]
    places = [_refined(surface, np.array([axes[0][i], axes[1][j]]), (_STEP,)) for i, j in lowest]
    return min(places, key=surface.distance)


def _refined(surface: _Surface, start: Array, steps: Sequence[float] = (_STEP, _STEP / 10)) -> Array:
    """The best place near `start`. Steps of 3 %: a simulation is not smooth below that."""
    place = np.clip(start, _BOUNDS[0] + 1e-6, _BOUNDS[1] - 1e-6)
    for step in steps:
        origin, slope = place, _jacobian(surface, step)  # from its origin scipy's first step is not bound to be tiny
        found = least_squares(lambda x, at=origin: surface.off(at + x), np.zeros(2), bounds=_BOUNDS - origin,
                              jac=lambda x, at=origin, by=slope: by(at + x), xtol=1e-4, max_nfev=10)
        place = origin + found.x if found.cost * 2 <= surface.distance(place) else place
    result: Array = place
    return result


def _jacobian(surface: _Surface, step: float) -> Any:
    def slope(place: Array) -> Array:
        columns = []
        for k in range(2):
            low, high = place.copy(), place.copy()
            low[k], high[k] = max(place[k] - step, _BOUNDS[0][k]), min(place[k] + step, _BOUNDS[1][k])
            columns.append((surface.off(high) - surface.off(low)) / (high[k] - low[k]))
        return np.stack(columns, axis=1)

    return slope


def _summed(surface: _Surface, place: Array, grid: Axes, means: list[Mean]) -> Scales:
    degrees = max(1, len(means) - 2)
    best = surface.distance(place)
    misfit = best / degrees
    drop = best + _DROP * max(1.0, misfit)
    around = np.array([np.log(_LOCAL_CPU), np.log(_LOCAL_GPU)])
    local = _axes(place - around, place + around, _LOCAL)
    ends = [_interval(surface, local, grid, axis, drop, float(place[axis])) for axis in (0, 1)]
    cpu, gpu = (_factor(float(place[k]), *ends[k], limit) for k, limit in ((0, CPU_KNOWN), (1, GPU_KNOWN)))
    used = _used(surface, place, cpu, gpu)
    cpu, gpu = _at(cpu, used[0]), _at(gpu, used[1])
    return Scales(cpu, gpu, _tied(surface, place), misfit, _rows(surface, means, used))


def _interval(surface: _Surface, local: Axes, whole: Axes, axis: int, drop: float, at: float) -> tuple[float, float]:
    """[low, high] of one factor's logarithm: where the best over the other stays below `drop`. First close to the best
    place, then over the whole range where the interval does not end there."""
    low = high = at
    for axes in (local, whole):
        line = axes[axis]
        fine, profile = _profile(surface, axes, axis)
        inside = np.append(fine[profile <= drop], at)
        low, high = float(inside.min()), float(inside.max())
        if low > line[0] and high < line[-1]:
            break
    return max(low, float(_BOUNDS[0][axis])), min(high, float(_BOUNDS[1][axis]))


def _profile(surface: _Surface, axes: Axes, axis: int) -> tuple[Array, Array]:
    """Many values of one factor's logarithm, and the least distance over the other at each; the means interpolated."""
    off = np.array([[surface.off(np.array([cpu, gpu])) for gpu in axes[1]] for cpu in axes[0]])
    fine = [np.linspace(each[0], each[-1], _FINE) for each in axes]
    off = _between(_between(off, axes[0], fine[0]).swapaxes(0, 1), axes[1], fine[1]).swapaxes(0, 1)
    return fine[axis], (off**2).sum(axis=2).min(axis=1 - axis)


def _between(values: Array, line: Array, fine: Array) -> Array:
    """Values at equal distances on `line`, interpolated along their first axis at `fine`."""
    place = np.clip((fine - line[0]) / (line[1] - line[0]), 0, len(line) - 1)
    below = np.minimum(place.astype(np.int64), len(line) - 2)
    share = (place - below)[:, None, None]
    result: Array = (1.0 - share) * values[below] + share * values[below + 1]
    return result


def _factor(at: float, low: float, high: float, limit: float) -> Factor:
    known = np.exp(high - low) <= limit
    value = at if known else min(max(0.0, low), high)
    return Factor(float(np.exp(value)), float(np.exp(low)), float(np.exp(high)), bool(known))


def _used(surface: _Surface, place: Array, cpu: Factor, gpu: Factor) -> Array:
    """The place used: that of the best fit, or with an unknown factor near 1 (of two, the CPU's) the best of
    the other."""
    if cpu.known and gpu.known:
        return place
    fixed = 0 if not cpu.known else 1
    value = float(np.log(cpu.value if fixed == 0 else gpu.value))
    bounds = _BOUNDS[:, 1 - fixed]

    def place_of(other: float) -> Array:
        return np.array([value, other] if fixed == 0 else [other, value])

    start = float(np.clip(place[1 - fixed], bounds[0] + 1e-6, bounds[1] - 1e-6))
    found = least_squares(lambda x: surface.off(place_of(start - 1.0 + float(x[0]))), np.ones(1),
                          bounds=tuple(bounds - start + 1.0), diff_step=_STEP, xtol=1e-5, max_nfev=25)
    return place_of(start - 1.0 + float(found.x[0]))


def _at(factor: Factor, place: float) -> Factor:
    return Factor(float(np.exp(place)), factor.low, factor.high, factor.known)


def _tied(surface: _Surface, place: Array) -> float:
    slopes = _jacobian(surface, _STEP)(place)
    information = slopes.T @ slopes
    size = np.sqrt(information[0, 0] * information[1, 1])
    return float(-information[0, 1] / size) if size > 0 else 0.0


def _rows(surface: _Surface, means: list[Mean], used: Array) -> list[dict[str, Any]]:
    before, after = surface.predicted(np.zeros(2)), surface.predicted(used)
    names = [each.name for each in surface.observed for _ in each.means]
    return [{"run": name, "metric": mean.metric, "of": mean.label, "requests": mean.size,
             "measured_s": float(np.exp(m)), "before_s": float(np.exp(b)), "after_s": float(np.exp(a))}
            for name, mean, m, b, a in zip(names, means, surface.measured, before, after, strict=True)]


def _sentences(found: Scales) -> list[str]:
    cpu, gpu = found.cpu, found.gpu
    lines = []
    for what, factor in (("CPU", cpu), ("GPU", gpu)):
        if factor.known:
            lines.append(f"{what} times x {factor.value:.2f}, 90 % between {factor.low:.2f} and {factor.high:.2f}.")
        else:
            taken = "the nearest to the profile" if cpu.known or factor is cpu else "the best beside that CPU scale"
            lines.append(f"The {what} scale is not told by these runs: {factor.low:.2f} to {factor.high:.2f} fit as "
                         f"well; {factor.value:.2f}, {taken}, is taken.")
    if not (cpu.known and gpu.known) and abs(found.tied) > 0.8:
        lines.append("These runs cannot tell CPU from GPU apart: a slower one and a faster other explain them alike. "
                     "Lone short prompts tell the CPU, long prompts and large batches the GPU.")
    if found.misfit > 3:
        lines.append(f"Even at their best the two factors leave {found.misfit:.1f} times the expected spread: "
                     "something else differs (limits, engine version, a shared prefix, another load on the machine).")
    return lines

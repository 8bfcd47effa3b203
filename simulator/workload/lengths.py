"""Token lengths of prompts and outputs: named distributions over whole tokens >= 1."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.errors import ConfigError, UnknownNameError

from .trace import MAX_TOKENS, Int64s

_NEEDS: Final[dict[str, frozenset[str]]] = {
    "fixed": frozenset({"value"}),
    "lognormal": frozenset(),
    "exponential": frozenset({"mean"}),
    "uniform": frozenset({"min", "max"}),
    "empirical": frozenset({"values"}),
}
_MAY: Final[dict[str, frozenset[str]]] = {
    "fixed": frozenset(),
    "lognormal": frozenset({"mean", "cv", "median", "sigma", "min", "max"}),
    "exponential": frozenset({"min", "max"}),
    "uniform": frozenset(),
    "empirical": frozenset({"min", "max"}),
}
_WIDEST: Final = 1e6
"""Largest accepted cv or sigma: its square stays a number."""
_FIELDS: Final = ("value", "mean", "cv", "median", "sigma", "min", "max", "values")


@dataclass(frozen=True)
class Lengths:
    """One length distribution [tokens].

    fixed        value
    lognormal    mean and cv (of the unclipped distribution), or median and sigma (of the logarithm); min, max
    exponential  mean; min, max (max is the cap)
    uniform      every whole number from min to max, both included
    empirical    values: an integer column, drawn with replacement; min, max

    Draws are rounded to the nearest token, then clipped to min (default 1) and max: mass beyond max sits
    at max.
    """

    kind: str
    value: int | None = None
    mean: float | None = None
    cv: float | None = None
    median: float | None = None
    sigma: float | None = None
    min: int | None = None
    max: int | None = None
    values: Any = None

    def __post_init__(self) -> None:
        if self.kind not in _NEEDS:
            raise UnknownNameError("lengths", self.kind, _NEEDS)
        self._check_options()
        self._check_values()
        if self.kind == "lognormal":
            pairs = {(self.mean is None, self.cv is None), (self.median is None, self.sigma is None)}
            if pairs != {(True, True), (False, False)}:
                raise ConfigError("lengths of kind 'lognormal' need mean and cv, or median and sigma")

    def _check_options(self) -> None:
        needed, optional = _NEEDS[self.kind], _MAY[self.kind]
        for name in _FIELDS:
            given = getattr(self, name) is not None
            if name in needed and not given:
                raise ConfigError(f"lengths.{name} is needed by kind {self.kind!r}")
            if given and name not in needed | optional:
                raise ConfigError(f"lengths.{name} has no effect on kind {self.kind!r}; remove it")

    def _check_values(self) -> None:
        for name in ("value", "min", "max"):
            value = getattr(self, name)
            if value is not None and not (1 <= value <= MAX_TOKENS and value == int(value)):
                raise ConfigError(f"lengths.{name} must be a whole number 1..{MAX_TOKENS}, got {value}")
        for name in ("mean", "median"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= MAX_TOKENS:
                raise ConfigError(f"lengths.{name} must be > 0 and <= {MAX_TOKENS}, got {value}")
        for name in ("cv", "sigma"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= _WIDEST:
                raise ConfigError(f"lengths.{name} must be >= 0 and <= {_WIDEST:.0f}, got {value}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ConfigError(f"lengths.min must be <= lengths.max, got {self.min} > {self.max}")
        if self.values is not None:
            try:
                pool = np.asarray(self.values)
            except ValueError:  # lists of different lengths
                pool = np.zeros(0)
            _check_pool(pool)


def _check_pool(values: npt.NDArray[np.generic]) -> None:
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iu":
        raise ConfigError("lengths.values must be a non-empty list of whole numbers")
    low, high = int(values.min()), int(values.max())
    if low < 1 or high > MAX_TOKENS:
        raise ConfigError(f"lengths.values must be 1..{MAX_TOKENS}, got {low}..{high}")


def sample_lengths(lengths: Lengths, n: int, rng: np.random.Generator) -> Int64s:
    """n draws [tokens], int64, each >= 1, shape (n,)."""
    raw = _SAMPLERS[lengths.kind](lengths, n, rng)
    top = MAX_TOKENS if lengths.max is None else lengths.max
    drawn: Int64s = np.clip(np.rint(raw), lengths.min or 1, top).astype(np.int64)
    return drawn


def lognormal_parameters(lengths: Lengths) -> tuple[float, float]:
    """(mu, sigma) of the logarithm. From mean m and cv c: sigma^2 = ln(1 + c^2), mu = ln m - sigma^2 / 2
    (moments of the lognormal distribution, Johnson, Kotz & Balakrishnan, vol. 1, 1994, ch. 14)."""
    if lengths.median is not None and lengths.sigma is not None:
        return float(np.log(lengths.median)), lengths.sigma
    variance = float(np.log1p((lengths.cv or 0.0) ** 2))
    return float(np.log(lengths.mean or 1.0)) - variance / 2, variance**0.5


def _lognormal(lengths: Lengths, n: int, rng: np.random.Generator) -> np.ndarray:
    mu, sigma = lognormal_parameters(lengths)
    # exp(22) > MAX_TOKENS: the cut only keeps the later rounding finite.
    return np.exp(np.minimum(mu + sigma * rng.standard_normal(n), 22.0))


_SAMPLERS: Final[dict[str, Callable[[Lengths, int, np.random.Generator], np.ndarray]]] = {
    "fixed": lambda lengths, n, rng: np.full(n, lengths.value),
    "lognormal": _lognormal,
    "exponential": lambda lengths, n, rng: (lengths.mean or 0.0) * rng.standard_exponential(n),
    "uniform": lambda lengths, n, rng: rng.integers(lengths.min or 1, lengths.max or 1, n, endpoint=True),
    "empirical": lambda lengths, n, rng: rng.choice(np.asarray(lengths.values), n),
}

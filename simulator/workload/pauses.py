"""Pauses of clients: think time of people, time of the tools an agent calls."""

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from simulator.config import Section
from simulator.units import NS_PER_S

LONGEST_S = 1e7
"""[s] longest accepted pause, four months."""


class Pauses(Section):
    """A distribution of pauses [s]: exponential (mean), or lognormal (mean and cv)."""

    kind: Literal["exponential", "lognormal"]
    mean: float = Field(gt=0, le=LONGEST_S)
    cv: float | None = Field(default=None, gt=0, le=100)

    @model_validator(mode="after")
    def _consistent(self) -> "Pauses":
        if (self.kind == "lognormal") != (self.cv is not None):
            raise ValueError("cv belongs to kind: lognormal, which needs it")
        return self


def sample_pauses(pauses: float | Pauses, n: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """n pauses [ns], each at most LONGEST_S, shape (n,). A lognormal of mean m and cv c: sigma^2 = ln(1 + c^2),
    mu = ln m - sigma^2 / 2 (Johnson, Kotz & Balakrishnan, vol. 1, 1994, ch. 14)."""
    if not isinstance(pauses, Pauses):
        seconds = np.full(n, float(pauses))
    elif pauses.cv is None:
        seconds = pauses.mean * rng.standard_exponential(n)
    else:
        variance = np.log1p(pauses.cv**2)
        seconds = np.exp(np.log(pauses.mean) - variance / 2 + np.sqrt(variance) * rng.standard_normal(n))
    drawn: npt.NDArray[np.int64] = np.rint(np.minimum(seconds, LONGEST_S) * NS_PER_S).astype(np.int64)
    return drawn

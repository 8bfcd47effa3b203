"""Texts that prompts begin with: every request has one of a few system prompts, some more popular than others."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.errors import ConfigError

from .lengths import Lengths, sample_lengths
from .streams import stream
from .trace import Int64s

MOST_GROUPS: Final = 1_000_000
MOST_SKEW: Final = 4.0


@dataclass(frozen=True)
class Prefixes:
    """Who begins with what.

    groups   how many texts there are
    length   [tokens] of each text: drawn once a text
    skew     exponent of Zipf's law for how often each is used: the k-th most popular as 1 / k^skew; 0 = all alike
    """

    groups: int
    length: Lengths
    skew: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.groups <= MOST_GROUPS:
            raise ConfigError(f"prefix.groups must be 1..{MOST_GROUPS}, got {self.groups}")
        if not 0 <= self.skew <= MOST_SKEW:
            raise ConfigError(f"prefix.skew must be 0..{MOST_SKEW:g}, got {self.skew}")


def shares(spec: Prefixes) -> np.ndarray:
    """How often each text is used, (groups,), sum 1 (Zipf, "Human Behavior and the Principle of Least Effort" 1949)."""
    weight = np.arange(1, spec.groups + 1, dtype=np.float64) ** -spec.skew
    return np.asarray(weight / weight.sum())


def sample_prefixes(spec: Prefixes, n: int, seed: int, name: str, replication: int = 0) -> tuple[Int64s, Int64s]:
    """(number of the text, its length [tokens]) of n requests or sessions, shape (n,) each."""
    edges = np.cumsum(shares(spec))
    drawn = stream(seed, name, replication).random(n) * edges[-1]
    group = np.minimum(np.searchsorted(edges, drawn, side="right"), spec.groups - 1).astype(np.int64)
    length = sample_lengths(spec.length, spec.groups, stream(seed, f"{name} length", replication))
    return group, length[group]

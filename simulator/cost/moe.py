"""A layer of experts: how many of them a batch touches, and what reading and computing them takes.

A token picks `active` of `routed` experts. Expert e is left out by all of T tokens with probability (1 - a_e)^T, where
the share a_e of the tokens picks it (active / routed where the router has no preference), so a batch touches
sum(1 - (1 - a_e)^T) of them: few tokens read few experts, and soon all are read. All weights of a touched expert are
read once; the products are small and far from the GPU's best rate, so reading, computing and the elementwise work
between them add up.

With expert parallelism every GPU of a tensor-parallel group holds routed / ep whole experts and sees every token; what
it computes is summed by the all-reduce that ends the layer, as without (vLLM 0.24, fused_moe/config.py,
use_all2all_kernels: tokens are exchanged only between data-parallel ranks). The slowest rank sets the time.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.errors import ConfigError
from simulator.profiles.shape import Experts

Array = npt.NDArray[np.float64]

WIDE: Final = 1536
"""[columns] Experts at least this wide on one GPU run at the rate of large products where the engine has tuned its
kernel for them. Qwen3-30B-A3B's 768 stay at a third of it, Mixtral's 3,584 and 7,168 reach it (aiconfigurator)."""
TUNED_MOST: Final = {2: 7168, 1: 14336}
"""[columns] Widest experts with a tuned kernel on the H100, by bytes of an operand (vLLM 0.14, fused_moe/configs)."""
NORMAL_MAX: Final = {1: 0.0, 2: 0.5642, 4: 1.0294, 8: 1.4236, 16: 1.7660, 32: 2.0697, 64: 2.3437, 128: 2.5947}
"""Expected largest of n standard normal values (Harter 1961, Biometrika 48, table 1): the slowest of n equal ranks."""
SHUFFLES: Final = 32
"""Placements of popular experts on ranks that are averaged: which expert is popular is not known."""


@dataclass(frozen=True)
class Routing:
    """Which experts tokens pick, on `ranks` GPUs of expert parallelism (1: none). `skew`: exponent of Zipf's law for
    the experts' popularity, 0 without preferences; `shares`: popularity of every expert instead, in order of placement.
    """

    ranks: int = 1
    skew: float = 0.0
    shares: tuple[float, ...] = ()

    def picked(self, experts: Experts) -> Array:
        """Chance that a token picks each expert; they sum to `active`, none is above 1. Raises ConfigError."""
        if self.shares and len(self.shares) != experts.routed:
            raise ConfigError(f"must hold {experts.routed} shares, one an expert, got {len(self.shares)}")
        popular = np.array(self.shares) if self.shares else np.arange(1.0, experts.routed + 1) ** -self.skew
        if np.count_nonzero(popular) < experts.active:
            raise ConfigError(f"must give {experts.active} experts or more a share above 0, as many as a token uses")
        chance = popular * experts.active / popular.sum()
        while chance.max() > 1.0 + 1e-12:  # nobody is picked twice by a token: the rest goes to the others
            full = chance >= 1.0
            left = experts.active - np.count_nonzero(full)
            chance = np.where(full, 1.0, chance * left / chance[~full].sum())
        result: Array = chance
        return result

    def placements(self, experts: Experts) -> list[Array]:
        """`picked` in order of placement on the ranks: as given, or shuffled when only the skew is known."""
        chance = self.picked(experts)
        if self.shares or self.skew == 0.0 or self.ranks == 1:
            return [chance]
        random = np.random.default_rng(0)
        return [random.permutation(chance) for _ in range(SHUFFLES)]

    def slowest(self, rows: Array, experts: Experts) -> tuple[Array, Array]:
        """(experts read, token-expert pairs computed) of the rank with most, expected, for `rows` tokens."""
        if experts.routed % self.ranks:
            raise ConfigError(f"expert parallelism over {self.ranks} GPUs does not divide {experts.routed} experts")
        levels = _levels(rows)
        read, pairs = np.mean([self._placed(levels, chance) for chance in self.placements(experts)], axis=0)
        return np.interp(rows, levels, read), np.interp(rows, levels, pairs)

    def _placed(self, rows: Array, chance: Array) -> tuple[Array, Array]:
        used = 1.0 - (1.0 - chance[None, :]) ** rows[:, None]
        grouped = used.reshape(len(rows), self.ranks, -1)
        pairs = chance.reshape(self.ranks, -1).sum(axis=1).max() * rows
        other = 1.0 / self.ranks  # variance of a rank; as the ranks' sum is fixed, what one has another lacks
        above = NORMAL_MAX.get(self.ranks, float(np.sqrt(2 * np.log(max(self.ranks, 2)))))
        spread = above * np.sqrt(np.maximum((used * (1.0 - used)).sum(axis=1), 0.0) * other)
        read = np.minimum(grouped.sum(axis=2).max(axis=1) + spread, len(chance) / self.ranks)
        return read, np.minimum(pairs + above * np.sqrt(chance.sum() * rows * other), chance.sum() * rows)


NO_PREFERENCE: Final = Routing()
"""A router without preferences, experts on every GPU."""


@dataclass(frozen=True)
class ExpertTime:
    """Times of the fused experts kernel of one layer, fitted on operator measurements."""

    start_s: float        # routing, sorting tokens by expert, two grouped products: start and drain
    bandwidth: float      # [B/s] expert weights in 16 bits
    rate: float           # [FLOP/s] 16-bit, narrow experts and those without a tuned kernel
    wide_rate: float      # [FLOP/s] 16-bit, wide experts
    elementwise: float    # [B/s] activation, gathering and summing
    untuned: float        # share of bandwidth and start-up that is reached with expert parallelism (no tuned table)
    fp8_start: float      # of `start_s` with 8-bit weights: activations are quantised besides
    fp8_read: float       # of `bandwidth`
    fp8_gain: float       # of `rate` with 8-bit weights
    wide_fp8_gain: float  # of `wide_rate`
    mxfp4_read: float     # of `bandwidth` with weights in mxfp4
    mxfp4_gain: float     # of `rate`, weights made 16 bits on the way

    def seconds(self, rows: Array, experts: Experts, hidden: int, tp: int, matrices: int, weight_bytes: float,
                fp8: bool = False, mxfp4: bool = False, routing: Routing = NO_PREFERENCE) -> Array:
        """[s] for `rows` tokens through one layer's routed experts, each split over `tp` GPUs or, with expert
        parallelism, dealt out whole: `matrices` products (3 with a gate, 2 without), weights of `weight_bytes`."""
        width = experts.width if routing.ranks > 1 else experts.width / tp
        weights = matrices * hidden * width
        touched_most, pairs = routing.slowest(rows, experts)
        # there is no table for a part of the experts in 16 bits; 8-bit ones then run in grouped products (DeepGEMM)
        wide = WIDE <= width <= TUNED_MOST[1 if fp8 else 2] and (routing.ranks == 1 or fp8)
        rate = self.wide_rate if wide else self.rate
        tuned = self.untuned if routing.ranks > 1 else 1.0
        bandwidth, start = self.bandwidth * tuned, self.start_s / tuned
        if fp8:
            start *= self.fp8_start
            rate *= self.wide_fp8_gain if wide else self.fp8_gain
            bandwidth *= self.fp8_read
        elif mxfp4:
            rate *= self.mxfp4_gain
            bandwidth *= self.mxfp4_read
        read = touched_most * weights * weight_bytes / bandwidth
        computed = 2.0 * pairs * weights / rate
        between = 2.0 * rows * experts.active * (2 * hidden + 2 * matrices * width) / self.elementwise
        result: Array = start + read + computed + between
        return result


def _levels(rows: Array) -> Array:
    """Numbers of tokens that are computed; between the more than 1,024 of them the results are as good as straight."""
    levels = np.unique(rows)
    few = levels[levels <= 1024]
    return levels if len(levels) - len(few) < 256 else np.concatenate([few, np.geomspace(1025, levels[-1], 256)])


def touched(rows: Array, experts: Experts, routing: Routing = NO_PREFERENCE) -> Array:
    """Expected number of distinct experts that `rows` tokens use, on all GPUs together."""
    chance = routing.picked(experts)
    result: Array = (1.0 - (1.0 - chance) ** np.asarray(rows, dtype=np.float64)[..., None]).sum(axis=-1)
    return result

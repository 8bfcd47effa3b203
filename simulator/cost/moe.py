"""A layer of experts: how many of them a batch touches, and what reading and computing them takes.

A token picks `active` of `routed` experts. With a router that has no preference an expert is left out by all of T
tokens with probability (1 - active / routed)^T, so a batch touches routed x (1 - (1 - active / routed)^T) of them: few
tokens read few experts, and soon all are read. Preferences touch fewer; none are assumed. All weights of a touched
expert are read once; the products are small and far from the GPU's best rate, so reading and computing add up.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.profiles.shape import Experts

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ExpertTime:
    """Times of the fused experts kernel of one layer, fitted on operator measurements."""

    start_s: float  # routing, sorting tokens by expert, two grouped products: start and drain
    bandwidth: float  # [B/s] expert weights
    rate: float  # [FLOP/s] 16-bit

    def seconds(self, rows: Array, experts: Experts, hidden: int, tp: int, matrices: int, weight_bytes: float,
                rate_factor: float) -> Array:
        """[s] for `rows` tokens through one layer's routed experts, each split over `tp` GPUs into `matrices` products'
        weights (3 with a gate, 2 without) of `weight_bytes` each."""
        weights = matrices * hidden * experts.width / tp
        read = touched(rows, experts) * weights * weight_bytes / self.bandwidth
        computed = 2.0 * rows * experts.active * weights / (self.rate * rate_factor)
        result: Array = self.start_s + read + computed
        return result


def touched(rows: Array, experts: Experts) -> Array:
    """Expected number of distinct experts that `rows` tokens use, for a router without preferences."""
    left_out = 1.0 - experts.active / experts.routed
    result: Array = experts.routed * (1.0 - left_out**rows)
    return result

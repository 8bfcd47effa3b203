"""Time of a matrix product from three measured numbers: bandwidth, rate and start-up.

    t(m, n, k) = ((start + bytes / bandwidth)^p + (2 m n k / rate)^p)^(1/p)

The two limits of the roofline (Williams et al. 2009, doi:10.1145/1498765.1498785) joined smoothly: near the
ridge a real product is slower than both. The start-up hides behind the arithmetic of large products, so it
stands in the memory term. An optional curve over m corrects what the formula misses (tile and wave sizes).
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulator.profiles.model import ACTIVATION_BYTES

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GemmTime:
    """Products in 16 bits on one GPU; `rate_factor` of `seconds` stands for faster formats."""

    start_s: float
    bandwidth: float  # [B/s]
    rate: float  # [FLOP/s] 16-bit
    exponent: float  # p above
    correction_rows: Array = field(default_factory=lambda: np.ones(1), hash=False)
    correction_ratio: Array = field(default_factory=lambda: np.ones(1), hash=False)

    def seconds(
        self, rows: Array, n: int, k: int, weight_bytes: float = 2.0, rate_factor: float = 1.0
    ) -> Array:
        """[s] for (rows, k) x (k, n); `rows` of any shape, weights of `weight_bytes` each."""
        traffic = weight_bytes * n * k + ACTIVATION_BYTES * rows * float(n + k)
        memory = self.start_s + traffic / self.bandwidth
        compute = 2.0 * rows * n * k / (self.rate * rate_factor)
        times: Array = (memory**self.exponent + compute**self.exponent) ** (1.0 / self.exponent)
        return times * np.interp(rows, self.correction_rows, self.correction_ratio)

"""All-reduce times: the measured curve of a GPU where there is one, else the ring formula on its link.

A tensor-parallel layer reduces (tokens, hidden) twice, after the output projection and after the MLP
(Shoeybi et al. 2019, arXiv:1909.08053, section 3).
"""

import numpy as np
import numpy.typing as npt

from simulator.cost.gpu_times import GpuTimes
from simulator.profiles.gpu import Gpu

Array = npt.NDArray[np.float64]

HOP_S = 0.8e-6
"""[s] per ring hop: NCCL all-reduce of 512 bytes takes 6.2, 9.6, 15.5 us over 2, 4, 8 H100 (2, 6, 14 hops);
ai-dynamo/aiconfigurator 095f58a, Apache-2.0."""
START_S = 4.7e-6
"""[s] the same three points extrapolated to no hop."""
LINK_SHARE = 0.71
"""Reached share of the link: 320 of 450 GB/s for 512 MiB over 2 H100, same source."""


def all_reduce_s(gpu: Gpu, times: GpuTimes, gpus: int, message: Array) -> Array:
    """[s] to all-reduce `message` bytes (any shape) over `gpus` GPUs of one host; zero for one GPU."""
    if gpus == 1:
        return np.zeros_like(message)
    measured = times.reduce_s(gpus, message)
    if measured is not None:
        return measured
    hops = 2 * (gpus - 1)
    start, hop = START_S * gpu.time_scale, HOP_S * gpu.time_scale
    ring: Array = start + hops * (hop + message / gpus / (gpu.link_bandwidth * LINK_SHARE))
    return ring + times.all_reduce_sync_s

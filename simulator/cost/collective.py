"""All-reduce times: the measured curve of a GPU where there is one, over PCIe that through host memory, else the ring
formula on its link.

A tensor-parallel layer reduces (tokens, hidden) twice, after the output projection and after the MLP
(Shoeybi et al. 2019, arXiv:1909.08053, section 3).
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.cost.gpu_times import GpuTimes, along
from simulator.profiles.gpu import Gpu, over_pcie

Array = npt.NDArray[np.float64]

HOP_S = 0.8e-6
"""[s] per ring hop: NCCL all-reduce of 512 bytes takes 6.2, 9.6, 15.5 us over 2, 4, 8 H100 (2, 6, 14 hops);
ai-dynamo/aiconfigurator 095f58a, Apache-2.0."""
START_S = 4.7e-6
"""[s] the same three points extrapolated to no hop."""
LINK_SHARE = 0.71
"""Reached share of the link: 320 of 450 GB/s for 512 MiB over 2 H100, same source."""


PCIE_GBPS: Final = 64.0
"""[GB/s] per direction of the PCIe 5 x16 that the curve below was measured over."""
THROUGH_HOST: Final = np.array([
    [4096, 15.7], [8192, 16.4], [16384, 16.9], [32768, 17.9], [65536, 21.2], [131072, 27.1], [262144, 40.1],
    [524288, 51.4], [1048576, 66.6], [2097152, 102.0], [4194304, 171.6], [8388608, 308.5], [16777216, 592.2],
    [33554432, 1169.6], [67108864, 2315.3]])
"""[bytes, us]: NCCL 2.28.9 over two GPUs through host memory (NCCL_P2P_DISABLE=1), in CUDA graphs; two H200, driver
580.159.04 (calibration/measurements/comm-h200-pair.json). At most 29 of 64 GB/s; GPUs that may copy to each other over
PCIe are faster."""


def through_host_s(gpu: Gpu, gpus: int, message: Array) -> Array:
    """[s] for an all-reduce over PCIe: the curve of two GPUs, its bytes by link and ring (2 (n - 1) / n), and half its
    shortest time for each hop beyond two: both assumed."""
    sizes, times = THROUGH_HOST[:, 0], THROUGH_HOST[:, 1] * 1e-6
    moved = message * (2.0 * (gpus - 1) / gpus) * (PCIE_GBPS / gpu.link_gbps)
    hops = (2 * (gpus - 1) - 2) * times[0] / 2.0
    result: Array = (along(moved, sizes, times) + hops) * gpu.time_scale
    return result


def all_reduce_s(gpu: Gpu, times: GpuTimes, gpus: int, message: Array) -> Array:
    """[s] to all-reduce `message` bytes (any shape) over `gpus` GPUs of one host; zero for one GPU."""
    if gpus == 1:
        return np.zeros_like(message)
    measured = times.reduce_s(gpus, message)
    if measured is not None:
        return measured
    if over_pcie(gpu):
        return through_host_s(gpu, gpus, message) + times.all_reduce_sync_s
    hops = 2 * (gpus - 1)
    start, hop = START_S * gpu.time_scale, HOP_S * gpu.time_scale
    ring: Array = start + hops * (hop + message / gpus / (gpu.link_bandwidth * LINK_SHARE))
    return ring + times.all_reduce_sync_s

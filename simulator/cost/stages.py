"""What pipeline stages add to a step: hidden states sent on, the scheduler's part, workers that launch in turn.

After its layers a stage sends hidden states and residual to the next, two tensors of (tokens, hidden) in 16 bits; with
tensor parallelism each GPU sends its share and the receivers gather the others' (vLLM 0.24
vllm/distributed/parallel_state.py, GroupCoordinator.isend_tensor_dict).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.cost.device import PREFILL_SAMPLES, Device
from simulator.profiles.gpu import Gpu, over_pcie
from simulator.profiles.host import HostTimes
from simulator.profiles.model import ACTIVATION_BYTES, ModelShape

Array = npt.NDArray[np.float64]

TENSORS: Final = 2
"""Hidden states and residual."""
SEND_S: Final = 8e-6
SEND_SHARE: Final = 0.75
"""[s] of a send over NVLink and share of the link it reaches: 16 and 64 MiB take 58 and 199 us, 337 of 450 GB/s
(calibration/measurements/comm-h200-pair.json, mode nvlink; smaller ones were bound by their launch)."""
SEND_HOST_S: Final = 25e-6
SEND_HOST_SHARE: Final = 0.56
"""The same through host memory: 16 KiB and 64 MiB take 25 us and 1.86 ms, 36 of 64 GB/s (mode shm)."""
CROWDED: Final = 1.11
"""By how much GPU times grow while several stages compute at a time: full prefill steps that follow each other come out
1.095 to 1.12 times as far apart as half a step on one GPU takes, alone 0.99 (medians of calibration/measurements/
llama8b-h200-pp2, batch_b32 to batch_b256, prefill_b8_p2k, pre_p4096). That kernels which wait for the other stage hold
some of the processors is a guess."""
PAUSE_S: Final = 1e-3
"""[s] of sleep after a round without anything to compute (vLLM 0.24 vllm/v1/engine/core.py, _process_engine_step)."""


@dataclass(frozen=True)
class Hop:
    """[s] from one stage to the next: fixed, and per batched token."""

    fixed_s: float
    token_s: float


def hop(gpu: Gpu, model: ModelShape, tp: int) -> Hop:
    """Sending a step's tokens from one stage to the next."""
    start, share = (SEND_HOST_S, SEND_HOST_SHARE) if over_pcie(gpu) else (SEND_S, SEND_SHARE)
    token = TENSORS * float(ACTIVATION_BYTES * model.hidden)
    sent, gathered = token / tp, token * (tp - 1) / tp
    return Hop(TENSORS * start * gpu.time_scale, (sent + gathered) / (gpu.link_bandwidth * share))


def head_s(device: Device, tokens: npt.NDArray[np.int64], drawn: Array) -> Array:
    """[s] (2, T+1) that only the last stage computes: vocabulary projection and sampling; `drawn` is what a sampler
    takes beyond greedy. Greedy sampling of a step with prefill is left with the layers."""
    real = tokens.astype(np.float64)
    sampled = real * device.times.sample_sequence_s * device.vocab_share
    result: Array = np.stack([device.head_s(real) + sampled, device.head_s(np.minimum(real, PREFILL_SAMPLES))]) + drawn
    result[:, 0] = 0.0
    return result


def plan_s(times: HostTimes, stages: int) -> tuple[float, float, float]:
    """[s] of the scheduler a step, of it per sequence, and of its pause after a round without work; zero without
    stages."""
    return (times.stage_plan_s, times.stage_plan_sequence_s, PAUSE_S) if stages > 1 else (0.0, 0.0, 0.0)

"""What a step takes longer for sampling other than greedy and for LoRA adapters, beyond the plain step.

Both were measured as differences of decode gaps within one engine (vLLM 0.24.0 on one H200): same model, same batches,
with and without (calibration/measurements/llama8b-h200-sampling, -lora).
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.cost.gpu_times import GpuTimes, along
from simulator.profiles.adapters import Lora
from simulator.profiles.model import ModelShape

Array = npt.NDArray[np.float64]

GREEDY: Final = "greedy"
MEASURED_VOCAB: Final = 128_256


def sampling_s(times: GpuTimes, model: ModelShape, sampling: str, rows: Array) -> Array:
    """[s] that sampling `rows` sequences takes longer than greedily, in proportion to the vocabulary."""
    if sampling == GREEDY:
        return np.zeros_like(rows)
    points, seconds = times.sampler[sampling]
    drawn: Array = np.where(rows > 0, along(rows, points, seconds), 0.0)
    return drawn * (model.vocab / MEASURED_VOCAB)


def lora_s(times: GpuTimes, model: ModelShape, lora: Lora, tokens: Array, sequences: Array) -> Array:
    """[s] that a step of `tokens` takes longer when its sequences bring adapters; none where none of them has one."""
    if not lora.adapters:
        return np.zeros_like(tokens)
    first = along(tokens, *times.lora_layer)
    more = np.maximum(lora.met(sequences) - 1.0, 0.0) * times.lora_adapter_s
    result: Array = np.where(tokens > 0, (first + more) * model.layers, 0.0)
    return result

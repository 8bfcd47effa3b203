"""LoRA adapters an engine serves beside its model (Hu et al. 2021, arXiv:2106.09685): sizes, how many a step meets.

An adapter adds to each of a layer's seven products the product of two matrices of its rank (vLLM 0.24, lora/layers).
The engine keeps `max_loras` of them in GPU memory, each as large as its largest rank allows.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.errors import ConfigError
from simulator.profiles.quantisation import ACTIVATION_BYTES
from simulator.profiles.shape import ModelShape

LARGEST_RANK: Final = 16
"""Step times were measured with this rank; smaller ones are assumed to take as long."""


@dataclass(frozen=True)
class Lora:
    """`adapters`: how many requests ask for, each as often, one a request; 0: none of them does."""

    max_loras: int
    rank: int
    adapters: int

    def memory_bytes(self, model: ModelShape) -> int:
        """[bytes] of the slots on one GPU, 16 bits: rank x (inputs + outputs) of a layer's products, those that run
        fused (q, k and v; gate and up) each with a first matrix of its own."""
        query, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
        first = 5 * model.hidden + query + model.intermediate
        second = query + 2 * kv + 2 * model.hidden + 2 * model.intermediate
        return self.max_loras * self.rank * (first + second) * model.layers * ACTIVATION_BYTES

    def met(self, sequences: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Adapters that a step of so many sequences is expected to meet: A (1 - (1 - 1/A)^n)."""
        if not self.adapters:
            return np.zeros_like(sequences)
        return np.asarray(self.adapters * (1.0 - (1.0 - 1.0 / self.adapters) ** sequences))


def check_lora(lora: Lora, model: ModelShape, tp: int, engine: str) -> None:
    """Raise ConfigError for adapters whose step times are not modelled."""
    if engine != "vllm-0.24":
        raise ConfigError(f"adapters are modelled for engine vllm-0.24, where they were measured, got {engine}")
    if model.experts or model.latent:
        raise ConfigError(f"adapters on {'experts' if model.experts else 'latent attention'} are not modelled "
                          f"({model.name}); accepted: dense models with grouped-query attention")
    if tp > 1:
        raise ConfigError(f"adapters are modelled on one GPU, where they were measured, got tensor_parallel {tp}")
    if lora.rank > LARGEST_RANK:
        raise ConfigError(f"rank must be <= {LARGEST_RANK}, the rank that was measured, got {lora.rank}")

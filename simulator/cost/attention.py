"""Attention's part of a step that depends on contexts: seconds per context token, query-key pair and sequence.

Grouped-query attention reads the keys and values of every context token once a step and computes two products per
query-key pair. Latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) decodes with the up-projections absorbed
into queries and outputs: one latent row per context token and layer is read for all heads, on every GPU alike (it is
not split by tensor parallelism), and each head multiplies with the row and its compressed part. Prefill expands keys
and values and runs as attention with separate heads.
"""

from dataclasses import dataclass
from typing import Final

from simulator.cost.gpu_times import GpuTimes
from simulator.profiles.gpu import Gpu
from simulator.profiles.model import KV_BYTES, ModelShape, dtype_name

LATENT_RATE: Final = 660.0 / 989.4
"""Reached share of the 16-bit peak by latent decode attention limited by arithmetic: 660 TFLOP/s on one H800 SXM, whose
peak is the H100's (deepseek-ai/FlashMLA, README of 2025-04-22, MIT)."""
LATENT_BANDWIDTH: Final = 3000.0 / 3350.0
"""Reached share of the memory bandwidth by the same kernel where that is the limit (same source)."""
LATENT_HEADS: Final = 64
"""Heads are computed in tiles of so many rows: 16 heads of one GPU take as long as 64."""


@dataclass(frozen=True)
class AttentionTime:
    """Attention of `layers` layers on one GPU of `tp`; a Cost has one for full, one for windowed layers."""

    gpu: Gpu
    times: GpuTimes
    model: ModelShape
    tp: int
    kv_dtype: str

    @property
    def eight_bit(self) -> bool:
        return KV_BYTES[dtype_name(self.kv_dtype, KV_BYTES)] == 1.0

    def context_s(self, layers: int) -> float:
        """[s] of decode attention per context token."""
        size = self.model.kv_layer_bytes(self.kv_dtype, self.tp)
        slower = self.times.fp8_kv_rate if self.eight_bit else 1.0  # 8-bit KV is converted while it is read
        if not self.model.latent:
            return layers * size / (self.times.decode_bandwidth * slower)
        read = size / (self.gpu.bandwidth * LATENT_BANDWIDTH * slower)
        return layers * max(read, self.latent_flops() / (self.gpu.peak_flops("bf16") * LATENT_RATE))

    def beside_s(self, layers: int) -> float:
        """[s] by which that is longer in a step with prefill; latent attention has a kernel of its own for each."""
        return 0.0 if self.model.latent else (self.times.decode_beside_prefill - 1.0) * self.context_s(layers)

    def latent_flops(self) -> float:
        """[FLOP] per layer and context token of one decoding sequence: scores over the row, values over its part."""
        latent = self.model.latent
        if latent is None:
            return 0.0
        heads = -(-(self.model.heads // self.tp) // LATENT_HEADS) * LATENT_HEADS
        return 2.0 * heads * (latent.row + latent.kv_rank)

    def pair_s(self, layers: int) -> float:
        """[s] of prefill attention per query-key pair."""
        return self.model.attention_flops_per_pair(self.tp) / self.model.layers * layers / self.times.prefill_rate

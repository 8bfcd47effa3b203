"""One GPU of a tensor-parallel group running its share of a model: seconds by batched tokens, contexts left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.cost.collective import all_reduce_s
from simulator.cost.gpu_times import GpuTimes
from simulator.cost.moe import NO_PREFERENCE, Routing
from simulator.cost.roofline import padded
from simulator.profiles.gpu import HOPPER, Gpu
from simulator.profiles.model import ACTIVATION_BYTES, ModelShape
from simulator.profiles.quantisation import WeightFormat
from simulator.profiles.shape import Gemm

Array = npt.NDArray[np.float64]
Table = npt.NDArray[np.int64]

LATENT_KERNELS: Final = 4
"""Small kernels that a layer of latent attention has beside those of grouped-query attention: a norm of the row, a
second product in the latent space, the queries put together, the parts of a split sequence joined (vLLM 0.24,
model_executor/layers/mla.py), each as long as a product takes to start. DeepSeek-V2-Lite, whose decode steps of 1 to
128 sequences come out within 4 % (calibration/measurements/deepseek-v2-lite-h200/batch_*)."""
USUAL_NORMS: Final = 2
"""Norms of a layer whose time is in its fixed time; each further one (Gemma: behind attention and the MLP too) is a
kernel that takes as long as a product to start."""
MXFP4_KERNELS: Final = 6
"""Small kernels that a layer of experts in mxfp4 has beside those of the other formats (vLLM 0.24, fused_moe/experts/
gpt_oss_triton_kernels_moe.py: tokens sorted by bit matrices), each as long as a product takes to start: a decode step
of one sequence of gpt-oss-20b lasts 0.74 ms longer than its reads (measurements/gpt-oss-20b-h200/batch_b1)."""
FP8_BYTES: Final = 1
CLUSTER_ROWS: Final = 256
DEEP_GEMM: Final = HOPPER
"""Compute capability (Hopper) from which on vLLM takes DeepGEMM, which its wheel holds, for products of fp8 weights in
blocks (vLLM 0.24, vllm/utils/deep_gemm.py; VLLM_USE_DEEP_GEMM)."""
PREFILL_SAMPLES: Final = 8
"""Rows through the head in a step with prefill: its decodes and finished prompts are few beside its tokens."""
UNSPLIT: Final = 52.0
"""[sequences x KV heads on a GPU] over which unequal contexts come to fill it unevenly. While these are fewer than its
132 processors, FlashAttention-3 splits each context among several, so that they end together; from about as many on
each has one, and the longest ends last (Dao-AILab/flash-attention, hopper/heuristics.h, num_splits_heuristic). Decode
steps show it: 4 unequal sequences of the 8B last as long as equal ones, 8 and more 7 us a layer longer, and with
tensor parallelism 2 it takes twice as many (calibration/measurements/llama8b-h200-f, llama8b-h200-tp2-b)."""


def unsplit(others: Array, heads: int) -> Array:
    """Share of the loss by unequal contexts that a sequence beside `others` meets, with so many KV heads on the GPU."""
    share: Array = 1.0 - np.exp(-((others * heads / UNSPLIT) ** 3))
    return share


TILED_WEIGHTS: Final = 4096 * (6144 + 4096 + 28672 + 14336)
"""Weights of a layer of Llama-3.1-8B, which `fp8_extra` of a profile is of."""


@dataclass(frozen=True)
class Device:
    """One GPU of `tp`. Times in seconds."""

    gpu: Gpu
    times: GpuTimes
    model: ModelShape
    tp: int
    weights: WeightFormat
    routing: Routing = NO_PREFERENCE
    queries: int = 1  # tokens of a sequence in a pure decode step: 1 + drafts
    unequal: float = 1.0  # of contexts, from 0 to 1 (workload.unequal)
    deep_gemm: bool = True  # the engine has DeepGEMM compute products of fp8 weights in blocks, where the GPU can

    @property
    def vocab_share(self) -> float:
        """Sampling reads logits: measured for a vocabulary of 128,256 on one GPU."""
        return self.model.vocab / 128_256

    @property
    def eight_bit(self) -> bool:
        """Products of quantised weights run in fp8."""
        return self.gpu.compute_dtype(self.weights.dtype) == "fp8"

    @property
    def in_blocks(self) -> bool:
        """Those products have a scale for each block of weights."""
        return self.eight_bit and self.weights.in_blocks

    @property
    def one_scale(self) -> bool:
        """Those products have a scale a tensor or row."""
        return self.eight_bit and not self.weights.in_blocks

    @property
    def cutlass_blocks(self) -> bool:
        """CUTLASS computes those products, not DeepGEMM, which there is from Hopper on and whose products take as long
        as with one scale a tensor (deepseek-ai/DeepGEMM 7a70b43, README: 16 shapes on an H800, 1 % off in the mean)."""
        return not self.deep_gemm or 0 < self.gpu.compute_capability < DEEP_GEMM

    @property
    def four_bits(self) -> bool:
        """Products of 4-bit weights run in 16 bits."""
        return self.weights.dtype == "int4"

    @property
    def rate_factor(self) -> float:
        """How much faster products run in the weights' format than in 16 bits: measured for fp8, else by the
        datasheet's peaks."""
        if self.eight_bit:
            return self.times.fp8_gain
        return self.gpu.peak_flops(self.weights.dtype) / self.gpu.peak_flops("bf16")

    def elementwise_bytes(self, width: int) -> float:
        """[bytes per token and layer]: two norms with residual (read and write x and the residual each; further norms
        x alone), rotary in place, the new keys and values copied to the cache, the activation of an MLP of `width` on
        one GPU. Latent attention writes and reads queries and outputs in the latent space besides."""
        model = self.model
        query = model.heads // self.tp * model.head_dim
        kv = model.kv_heads_per_gpu(self.tp) * model.head_dim
        if model.latent:
            latent = model.latent
            query = model.heads // self.tp * (latent.nope_dim + latent.rope_dim + 2 * latent.kv_rank)
            kv = latent.row
        mlp = (3 if model.gated_mlp else 2) * width
        norms = 4 + 2 * model.layer_norms
        return float(ACTIVATION_BYTES * (norms * model.hidden + 2 * (query + kv) + 4 * kv + mlp))

    def products_s(self, rows: Array, gemms: Sequence[Gemm], part: str) -> Array:
        """Products one after another of a part of the model (profiles.quantisation), in that part's format."""
        kept = self.weights.kept_share(part)
        total = np.zeros_like(rows)
        for place, gemm in enumerate(gemms):
            if kept > 0.0:
                total = total + kept * self.times.gemm.seconds(rows, gemm.n, gemm.k)
            if kept < 1.0:
                size = self.weights.bytes_per_weight
                computed = self.computed_rows(rows)
                product, factor = (self.times.four_bits, 1.0) if self.four_bits else (self.times.gemm, self.rate_factor)
                if self.in_blocks and not self.cutlass_blocks:
                    factor = factor * self.times.deep_gemm_gain
                seconds = product.seconds(computed, gemm.n, gemm.k, size, factor)
                if self.in_blocks:
                    if self.cutlass_blocks:
                        seconds = seconds * np.interp(rows, *self.times.block_rows)
                    else:
                        seconds = seconds + np.interp(rows, *self.times.deep_gemm_scales)
                total = total + (1.0 - kept) * (seconds + self.quantise_s(rows, gemm, place == 0))
        return total

    def quantise_s(self, rows: Array, gemm: Gemm, first: bool) -> Array:
        """[s] that a product's activations take to be quantised to 8 bits, read in 16. With one scale a row the norm
        before the `first` product of a part does it besides (vLLM 0.24, compilation/passes/fusion/rms_quant_fusion.py),
        and other products have a kernel of their own; with blocks each product is taken to have one, whose time is in
        kernels-h200.json."""
        if not self.eight_bit or (self.one_scale and first):
            return np.zeros_like(rows)
        moved = rows * float(gemm.k * (ACTIVATION_BYTES + FP8_BYTES))
        if self.one_scale:
            return np.maximum(0.0, moved / self.times.row_quantise_bandwidth - self.times.block_quantise_s)
        result: Array = self.times.block_quantise_s + moved / self.times.block_quantise_bandwidth
        return result

    def computed_rows(self, rows: Array) -> Array:
        """Rows that products with one scale a tensor or row compute on Hopper: beyond 128 in tiles of 128, two to a
        cluster, so that 400 take as long as 512 (vLLM 0.24, csrc/quantization/w8a8/cutlass,
        scaled_mm_sm90_fp8_dispatch, the default configuration)."""
        if not self.one_scale or self.gpu.compute_capability != HOPPER:
            return rows
        whole: Array = CLUSTER_ROWS * np.ceil(rows / CLUSTER_ROWS)
        return np.where(rows > CLUSTER_ROWS / 2, whole, rows)

    def tiles_s(self, rows: Array, gemms: Sequence[Gemm], part: str) -> Array:
        """[s] that products of 8-bit weights lose to their tile classes: as a layer of Llama-3.1-8B, by their weights
        (from 16 to 17 rows its four products grow by 21 us, those of Llama-3.1-70B by 90: kernels-h200.json)."""
        weights = (1.0 - self.weights.kept_share(part)) * sum(gemm.n * gemm.k for gemm in gemms)
        points, extra = self.times.fp8_extra
        result: Array = weights / TILED_WEIGHTS * (np.interp(rows, points, extra) - extra[0])
        return result

    def layers_s(self, rows: Array) -> Array:
        """All layers without attention's part that depends on contexts."""
        model, times = self.model, self.times
        attention = self.products_s(rows, model.attention_gemms(self.tp), "attention")
        total = attention + times.layer_fixed_s + 2.0 * self.reduce_s(rows)
        small = (max(0, model.layer_norms - USUAL_NORMS) + 1) // 2 + int(model.qk_norm)
        small += LATENT_KERNELS if model.latent else 0
        total = total + small * times.gemm.start_s
        if self.one_scale:
            total = total + times.fp8_extra[1][0] + self.tiles_s(rows, model.attention_gemms(self.tp), "attention")
        total = total * model.layers
        dense = model.layers - model.expert_layers
        if dense:
            gemms = model.mlp_gemms(model.intermediate, self.tp)
            mlp = self.products_s(rows, gemms, "mlp")
            if self.one_scale:
                mlp = mlp + self.tiles_s(rows, gemms, "mlp")
            width = model.intermediate // self.tp
            total = total + dense * (mlp + rows * self.elementwise_bytes(width) / times.elementwise_bandwidth)
        return total + model.expert_layers * self.experts_s(rows)

    def experts_s(self, rows: Array) -> Array:
        """One layer's experts: those routed to, those that every token uses, the router, the elementwise kernels."""
        experts, model, times = self.model.experts, self.model, self.times
        if experts is None or not model.expert_layers:
            return np.zeros_like(rows)
        matrices = 3 if model.gated_mlp else 2
        size, fp8 = self.weights.part_bytes("experts"), self.eight_bit and self.weights.kept_share("experts") < 0.5
        routed = times.experts.seconds(rows, experts, model.hidden, self.tp, matrices, size, fp8,
                                       self.weights.mxfp4, self.routing)
        router = times.gemm.seconds(rows, experts.routed, model.hidden)
        if self.weights.mxfp4:
            router = router + MXFP4_KERNELS * times.gemm.start_s
        shared = np.zeros_like(rows)
        if experts.shared_width:
            shared = self.products_s(rows, model.mlp_gemms(experts.shared_width, self.tp), "shared")
        width = experts.shared_width // self.tp
        return routed + router + shared + rows * self.elementwise_bytes(width) / times.elementwise_bandwidth

    def reduce_s(self, rows: Array) -> Array:
        return all_reduce_s(self.gpu, self.times, self.tp, rows * float(ACTIVATION_BYTES * self.model.hidden))

    def head_s(self, rows: Array) -> Array:
        head = self.model.head_shape(self.tp)
        return self.times.gemm.seconds(np.maximum(rows, 1.0), head.n, head.k)

    def dense_s(self, tokens: Table, kind: int, limit: int) -> Array:
        """[s] by batched tokens; layers run on the batch padded to the next graph."""
        rows = padded(tokens, limit).astype(np.float64)
        real = tokens.astype(np.float64)
        total = self.layers_s(rows) + self.reduce_s(rows) + self.times.step_fixed_s
        if kind == 1:
            return total + self.head_s(np.minimum(real, PREFILL_SAMPLES))
        others = np.maximum(real / self.queries - 1.0, 0.0)
        heads = 1 if self.model.latent else self.model.kv_heads_per_gpu(self.tp)
        uneven = self.unequal * self.times.mixed_lengths_s * unsplit(others, heads)
        result: Array = total + self.head_s(real) + self.model.layers * uneven
        return result

    def slope_s(self) -> float:
        """[s/token] of a large batch."""
        ends = self.layers_s(np.array([2.0**20, 2.0**21]))
        return float(ends[1] - ends[0]) / 2**20

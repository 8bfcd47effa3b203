"""Step times from a datasheet: the roofline model (Williams et al. 2009, doi:10.1145/1498765.1498785).

A matrix product takes  kernel + max(FLOPs / (peak x e_c), bytes / (bandwidth x e_m)).  A step is, per layer,
four products, an attention kernel, four elementwise kernels and, with tensor parallelism, two ring
all-reduces; then the vocabulary projection for the rows that are sampled. Attention is linear: decode reads
the KV cache, prefill computes query-key pairs. Expect errors up to 25 %; calibrated profiles replace it.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.cost.check import check_cost
from simulator.cost.engine_times import EngineTimes
from simulator.cost.step import FP_BITS, Cost
from simulator.errors import ConfigError
from simulator.profiles.engine import capture_sizes
from simulator.profiles.gpu import Gpu
from simulator.profiles.model import ACTIVATION_BYTES, WEIGHT_BYTES, Gemm, ModelShape, dtype_name
from simulator.units import NS_PER_S, to_ticks

Times = npt.NDArray[np.float64]
"""[s], shape (T+1,): one time per number of batched tokens."""

MAX_COLUMNS: Final = 2**18
"""Longest table; larger batches use the slope."""
ELEMENTWISE_KERNELS: Final = 4
"""Per layer: two norms with residual, rotary + cache write, MLP activation."""
LOGIT_BYTES: Final = 10
"""[bytes per logit] read in 16 bits, written and read again in 32 for sampling."""


@dataclass(frozen=True)
class Efficiency:
    """Reached share of each peak: operator measurements on one H100 SXM, assumed for every other GPU.

    [ops] calibration/measurements/operators-h100.json (H100 80GB HBM3, driver 580, CUDA 13.0).
    [aic] ai-dynamo/aiconfigurator, H100 tables (NCCL 2.27.3, vLLM 0.14.0), Apache-2.0.
    """

    compute: float = 0.715
    """bf16 products of 1,024 and 2,048 rows through cuBLAS: median 708 of 989.4 TFLOP/s [ops]."""
    memory: float = 0.906
    """Read ceiling: 3,036 of 3,350 GB/s [ops]."""
    attention_compute: float = 0.467
    """Causal paged prefill of 1,024..8,192 queries: median 462 of 989.4 TFLOP/s (387..577) [ops]."""
    attention_memory: float = 0.875
    """Paged decode at 128 x 2,048 and 128 x 8,192 tokens: 2.84 and 3.03 TB/s of 3.35 [ops]."""
    link: float = 0.71
    """Ring all-reduce of 512 MiB over 2 GPUs: 320 of 450 GB/s [aic]."""
    kernel_s: float = 5e-6
    """[s] start and drain of a product, attention or collective kernel in a graph: small all-reduces over
    2, 4, 8 GPUs extrapolate to 4.7 us at no hop; an empty product takes 2.5, an empty attention 11 [aic]."""
    elementwise_s: float = 2.5e-6
    """[s] start and drain of an elementwise kernel: as an empty product [aic]."""
    hop_s: float = 0.8e-6
    """[s] per ring hop: all-reduce of 512 bytes takes 6.2, 9.6, 15.5 us for 2, 6, 14 hops [aic]."""


DEFAULT_EFFICIENCY: Final = Efficiency()


def roofline_cost(gpu: Gpu, model: ModelShape, tp: int, weight_dtype: str, kv_dtype: str, engine: EngineTimes,
                  max_num_seqs: int, max_num_batched_tokens: int,
                  efficiency: Efficiency = DEFAULT_EFFICIENCY) -> Cost:
    """Fill a `Cost` for `model` on `tp` GPUs. Raises ConfigError: bad limit, uneven split, overflow."""
    if max_num_seqs < 1 or max_num_batched_tokens < 1:
        raise ConfigError("max_num_seqs and max_num_batched_tokens must be >= 1, "
                          f"got {max_num_seqs} and {max_num_batched_tokens}")
    device = _Device(gpu, model, tp, dtype_name(weight_dtype, WEIGHT_BYTES), efficiency)
    tokens = np.arange(min(max(max_num_batched_tokens, max_num_seqs), MAX_COLUMNS) + 1)
    limits = engine.graph_limits(max_num_seqs)
    dense = np.stack([device.dense_s(tokens, limit, tokens if kind == 0 else np.minimum(tokens, max_num_seqs))
                      for kind, limit in enumerate(limits)])
    dense[:, 0] = 0.0
    eager = np.stack([tokens > (capture_sizes(limit) or [0])[-1] for limit in limits]).astype(np.int64)
    step_cpu, eager_cpu = to_ticks(engine.cpu_step_s), to_ticks(max(engine.eager_cpu_s, engine.cpu_step_s))
    row_s = device.sequence_bytes / device.attention_bandwidth
    return check_cost(Cost(
        dense_ns=np.rint(dense * NS_PER_S).astype(np.int64),
        cpu_ns=np.where(eager == 1, eager_cpu, step_cpu).astype(np.int64),
        prep_ns=np.full(eager.shape, to_ticks(engine.prep_step_s), dtype=np.int64), eager=eager,
        head_ns=np.zeros((2, 1), dtype=np.int64),
        slope_fp=to_fp(device.slope_s()),
        decode_context_fp=to_fp(model.kv_bytes_per_token(kv_dtype, tp) / device.attention_bandwidth),
        decode_seq_fp=to_fp(row_s),
        prefill_pair_fp=to_fp(model.attention_flops_per_pair(tp) / device.attention_flops),
        prefill_token_fp=to_fp(row_s), prefill_seq_fp=np.int64(0), seen_context_fp=np.int64(0),
        seen_pair_fp=np.int64(0),
        cpu_seq_ns=np.int64(to_ticks(engine.cpu_seq_s)), prep_seq_ns=np.int64(to_ticks(engine.prep_seq_s)),
        frontend_in_ns=np.int64(to_ticks(engine.frontend_in_s)),
        frontend_each_ns=np.int64(to_ticks(engine.frontend_each_s)),
        frontend_out_ns=np.int64(to_ticks(engine.frontend_out_s))))


def to_fp(seconds: float) -> np.int64:
    """[s per unit] -> fixed point [2^-32 ns per unit]; a value past int64 is refused by `check_cost`."""
    return np.int64(min(round(seconds * NS_PER_S * 2**FP_BITS), 2**63 - 1))


def padded(tokens: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.int64]:
    """Tokens the GPU computes: the next captured size where there is one, as they are above the largest."""
    sizes = np.array(capture_sizes(limit), dtype=np.int64)
    if not sizes.size:
        return tokens
    inside = tokens <= sizes[-1]
    return np.where(inside, sizes[np.searchsorted(sizes, np.minimum(tokens, sizes[-1]))], tokens)


@dataclass(frozen=True)
class _Device:
    """One GPU of `tp`, running its share of the model; rates in units per second, times in seconds."""

    gpu: Gpu
    model: ModelShape
    tp: int
    weight_dtype: str
    efficiency: Efficiency

    @property
    def flops(self) -> float:
        return self.gpu.peak_flops(self.weight_dtype) * self.efficiency.compute

    @property
    def bandwidth(self) -> float:
        return self.gpu.bandwidth * self.efficiency.memory

    @property
    def attention_flops(self) -> float:
        """[FLOP/s] attention runs in 16 bits whatever the weights are."""
        return self.gpu.peak_flops("bf16") * self.efficiency.attention_compute

    @property
    def attention_bandwidth(self) -> float:
        return self.gpu.bandwidth * self.efficiency.attention_memory

    @property
    def sequence_bytes(self) -> int:
        """[bytes per query token] queries read and outputs written by attention, all layers."""
        return 2 * self.model.layers * self.model.heads // self.tp * self.model.head_dim * ACTIVATION_BYTES

    def gemm_s(self, rows: npt.NDArray[np.int64], gemm: Gemm, weight_bytes: float, flops: float) -> Times:
        """Time of one product with `rows` rows: compute or memory, whichever is longer."""
        compute = 2.0 * rows * gemm.n * gemm.k / flops
        traffic = weight_bytes * gemm.n * gemm.k + ACTIVATION_BYTES * rows * float(gemm.n + gemm.k)
        times: Times = self.efficiency.kernel_s + np.maximum(compute, traffic / self.bandwidth)
        return times

    def elementwise_bytes(self) -> float:
        """[bytes per token and layer] norms: x and residual read and written twice; rotary; activation."""
        model = self.model
        rotary = 2 * (model.heads // self.tp + model.kv_heads_per_gpu(self.tp)) * model.head_dim
        activation = (3 if model.gated_mlp else 2) * model.intermediate // self.tp
        return float(ACTIVATION_BYTES * (8 * model.hidden + rotary + activation))

    def all_reduce_s(self, rows: npt.NDArray[np.int64]) -> Times:
        """Ring all-reduce of (rows, hidden): 2 (tp-1) hops of 1/tp of the data (Patarasuk and Yuan 2009)."""
        if self.tp == 1:
            return np.zeros(rows.shape)
        hops = 2 * (self.tp - 1)
        data = ACTIVATION_BYTES * rows * float(self.model.hidden) / self.tp
        link = self.gpu.link_bandwidth * self.efficiency.link
        return self.efficiency.kernel_s + hops * (self.efficiency.hop_s + data / link)

    def layer_s(self, rows: npt.NDArray[np.int64]) -> Times:
        """One layer without the context-dependent part of attention."""
        size = WEIGHT_BYTES[self.weight_dtype]
        gemms = sum((self.gemm_s(rows, gemm, size, self.flops) for gemm in self.model.gemm_shapes(self.tp)),
                    np.zeros(rows.shape))
        starts = ELEMENTWISE_KERNELS * self.efficiency.elementwise_s + self.efficiency.kernel_s
        return gemms + starts + rows * self.elementwise_bytes() / self.bandwidth + 2 * self.all_reduce_s(rows)

    def head_s(self, rows: npt.NDArray[np.int64]) -> Times:
        """Vocabulary projection (16 bits) and sampling for `rows` sampled rows."""
        gemm = self.model.head_shape(self.tp)
        flops = self.gpu.peak_flops("bf16") * self.efficiency.compute
        return (self.gemm_s(rows, gemm, ACTIVATION_BYTES, flops)
                + LOGIT_BYTES * float(gemm.n) * rows / self.bandwidth)

    def dense_s(self, tokens: npt.NDArray[np.int64], limit: int, sampled: npt.NDArray[np.int64]) -> Times:
        """Step time without attention; layers and the embedding's all-reduce run on the padded batch."""
        rows = padded(tokens, limit)
        return self.model.layers * self.layer_s(rows) + self.all_reduce_s(rows) + self.head_s(sampled)

    def slope_s(self) -> float:
        """[s/token] of a large batch: products at their compute limit, all else by bytes."""
        start, end = 2**20, 2**21
        ends = self.model.layers * self.layer_s(np.array([start, end], dtype=np.int64))
        return float(ends[1] - ends[0]) / (end - start)

"""Step times from measurements: the `Cost` of a model on a GPU under an engine, both calibrated.

A step on the GPU is, per layer, four products (cost.gemm), elementwise kernels limited by memory traffic,
fixed kernel times and, with tensor parallelism, two all-reduces; then the head and sampling. Attention is
linear: decode reads the KV cache, prefill computes query-key pairs. The CPU's side is cost.launch. Parameters
come from a GPU profile (cost.gpu_times), a host profile (profiles.host) and an engine profile (profiles.engine);
how they were fitted and what they leave out is in docs/calibration.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.cost.check import check_cost
from simulator.cost.collective import all_reduce_s
from simulator.cost.draft import PREFILL_SAMPLES, Drafting, searching
from simulator.cost.gpu_times import GpuTimes, gpu_times
from simulator.cost.launch import Launch
from simulator.cost.roofline import MAX_COLUMNS, padded, to_fp
from simulator.cost.step import Cost
from simulator.errors import ConfigError
from simulator.profiles.engine import EngineProfile
from simulator.profiles.gpu import Gpu
from simulator.profiles.host import Host, host_times, load_host
from simulator.profiles.model import ACTIVATION_BYTES, KV_BYTES, WEIGHT_BYTES, ModelShape, dtype_name
from simulator.profiles.shape import Gemm
from simulator.profiles.speculation import NGRAM, Speculation
from simulator.units import NS_PER_S, to_ticks

Array = npt.NDArray[np.float64]
Table = npt.NDArray[np.int64]

IMBALANCE_SCALE: Final = 5.0
"""[sequences] over which unequal contexts come to fill the GPU unevenly."""


def calibrated_cost(
    gpu: Gpu,
    engine: EngineProfile,
    model: ModelShape,
    tp: int,
    weight_dtype: str,
    kv_dtype: str,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    host: Host | None = None,
    speculation: Speculation | None = None,
) -> Cost:
    """Fill a `Cost` for `model` on `tp` GPUs of `host` (default: the measured one), drafting by `speculation`.

    Raises ConfigError: bad limit, uneven split, overflow.
    """
    if max_num_seqs < 1 or max_num_batched_tokens < 1:
        raise ConfigError(
            "max_num_seqs and max_num_batched_tokens must be >= 1, "
            f"got {max_num_seqs} and {max_num_batched_tokens}"
        )
    rows = speculation.rows if speculation else 1
    device = _Device(gpu, gpu_times(gpu), model, tp, dtype_name(weight_dtype, WEIGHT_BYTES), rows)
    tokens = np.arange(min(max(max_num_batched_tokens, max_num_seqs), MAX_COLUMNS) + 1)
    limits = engine.graph_limits(max_num_seqs * rows)
    drafting = _drafting(device, speculation)
    dense = np.stack([device.dense_s(tokens, kind, limit) + drafting.dense_s(padded(tokens, limit), kind)
                      for kind, limit in enumerate(limits)])
    dense[:, 0] = 0.0
    host = host or load_host()
    cpu_times = host_times(host, engine)
    if speculation and speculation.method == NGRAM:
        cpu_times = searching(cpu_times, host, engine)
    old_runner = engine.older_runner(model.architectures, speculation.method if speculation else "")
    launch = Launch(
        cpu_times, model.layers + drafting.layers, tp, engine.schedule_ahead > 0, bool(engine.worker_processes),
        old_runner, model.expert_layers,
    )
    cpu, prep, dense, eager = launch.tables(dense, np.stack([tokens > limit for limit in limits]))
    times = device.times
    sequence = to_ticks(launch.sequence_s)
    return check_cost(
        Cost(
            dense_ns=_ns(dense),
            cpu_ns=_ns(cpu),
            prep_ns=_ns(prep),
            eager=eager.astype(np.int64),
            slope_fp=to_fp(device.slope_s()),
            decode_context_fp=to_fp(
                (model.kv_bytes_per_token(kv_dtype, tp) + drafting.kv_bytes(kv_dtype)) / device.kv_bandwidth(kv_dtype)
            ),
            decode_seq_fp=to_fp(
                times.decode_sequence_s * (model.layers + drafting.layers * drafting.passes)
                + times.sample_sequence_s * device.vocab_share
            ),
            prefill_pair_fp=to_fp(
                (model.attention_flops_per_pair(tp) + drafting.flops_per_pair) / times.prefill_rate
            ),
            prefill_token_fp=to_fp(times.prefill_token_s * (model.layers + drafting.layers) / tp),
            prefill_seq_fp=to_fp(times.sample_sequence_s * device.vocab_share),
            cpu_seq_ns=np.int64(sequence),
            prep_seq_ns=np.int64(sequence),
            frontend_in_ns=np.int64(to_ticks(cpu_times.frontend_in_s)),
            frontend_each_ns=np.int64(to_ticks(cpu_times.frontend_each_s)),
            frontend_out_ns=np.int64(to_ticks(cpu_times.frontend_out_s)),
        )
    )


def _ns(seconds: Array) -> Table:
    return np.rint(seconds * NS_PER_S).astype(np.int64)


def _drafting(device: "_Device", speculation: Speculation | None) -> Drafting:
    """The draft model of `speculation` on the same GPUs, in the format of its checkpoint."""
    if speculation is None or speculation.draft is None:
        return Drafting(None, 1, 0)
    weights = speculation.draft.weight_format("auto").dtype
    return Drafting(replace(device, model=speculation.draft, weight_dtype=weights), speculation.rows,
                    speculation.tokens)


@dataclass(frozen=True)
class _Device:
    """One GPU of `tp`, running its share of the model. Times in seconds."""

    gpu: Gpu
    times: GpuTimes
    model: ModelShape
    tp: int
    weight_dtype: str
    queries: int = 1  # tokens of a sequence in a pure decode step: 1 + drafts

    @property
    def vocab_share(self) -> float:
        """Sampling reads logits: measured for a vocabulary of 128,256 on one GPU."""
        return self.model.vocab / 128_256

    @property
    def rate_factor(self) -> float:
        """How much faster products run in the weights' format than in 16 bits: measured for fp8, else by the
        datasheet's peaks."""
        if self.gpu.compute_dtype(self.weight_dtype) == "fp8":
            return self.times.fp8_gain
        return self.gpu.peak_flops(self.weight_dtype) / self.gpu.peak_flops("bf16")

    def kv_bandwidth(self, kv_dtype: str) -> float:
        """[B/s] KV read by decode attention; 8-bit KV is read at fewer bytes a second (it is converted)."""
        eight = KV_BYTES[dtype_name(kv_dtype, KV_BYTES)] == 1.0
        return self.times.decode_bandwidth * (self.times.fp8_kv_rate if eight else 1.0)

    def elementwise_bytes(self, width: int) -> float:
        """[bytes per token and layer]: two norms with residual (read and write x and the residual each), rotary in
        place, the new keys and values copied to the cache, the activation of an MLP of `width` on one GPU."""
        model = self.model
        query = model.heads // self.tp * model.head_dim
        kv = model.kv_heads_per_gpu(self.tp) * model.head_dim
        mlp = (3 if model.gated_mlp else 2) * width
        return float(ACTIVATION_BYTES * (8 * model.hidden + 2 * (query + kv) + 4 * kv + mlp))

    def products_s(self, rows: Array, gemms: Sequence[Gemm]) -> Array:
        """Products one after another, in the weights' format."""
        size = WEIGHT_BYTES[self.weight_dtype]
        total = np.zeros_like(rows)
        for gemm in gemms:
            total = total + self.times.gemm.seconds(rows, gemm.n, gemm.k, size, self.rate_factor)
        return total

    def layers_s(self, rows: Array) -> Array:
        """All layers without attention's part that depends on contexts."""
        model, times = self.model, self.times
        total = self.products_s(rows, model.attention_gemms(self.tp)) + times.layer_fixed_s + 2.0 * self.reduce_s(rows)
        if self.gpu.compute_dtype(self.weight_dtype) == "fp8":
            total = total + np.interp(rows, *times.fp8_extra)
        total = total * model.layers
        dense = model.layers - model.expert_layers
        if dense:
            mlp = self.products_s(rows, model.mlp_gemms(model.intermediate, self.tp))
            width = model.intermediate // self.tp
            total = total + dense * (mlp + rows * self.elementwise_bytes(width) / times.elementwise_bandwidth)
        return total + model.expert_layers * self.experts_s(rows)

    def experts_s(self, rows: Array) -> Array:
        """One layer's experts: those routed to, those that every token uses, the router, the activations."""
        experts, model, times = self.model.experts, self.model, self.times
        if experts is None:
            return np.zeros_like(rows)
        size, matrices = WEIGHT_BYTES[self.weight_dtype], 3 if model.gated_mlp else 2
        routed = times.experts.seconds(rows, experts, model.hidden, self.tp, matrices, size, self.rate_factor)
        router = times.gemm.seconds(rows, experts.routed, model.hidden)
        shared = np.zeros_like(rows)
        if experts.shared_width:
            shared = self.products_s(rows, model.mlp_gemms(experts.shared_width, self.tp))
        width = (experts.active * experts.width + experts.shared_width) // self.tp
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
        uneven = self.times.mixed_lengths_s * (1.0 - np.exp(-others / IMBALANCE_SCALE))
        result: Array = total + self.head_s(real) + self.model.layers * uneven
        return result

    def slope_s(self) -> float:
        """[s/token] of a large batch."""
        ends = self.layers_s(np.array([2.0**20, 2.0**21]))
        return float(ends[1] - ends[0]) / 2**20

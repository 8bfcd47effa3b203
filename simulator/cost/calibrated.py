"""Step times from measurements: the `Cost` of a model on a GPU under an engine, both calibrated.

A step on the GPU is, per layer, four products (cost.gemm) or experts (cost.moe), elementwise kernels limited by memory
traffic, fixed kernel times and, with tensor parallelism, two all-reduces; then the head and sampling (cost.device).
Attention is linear: decode reads the KV cache, prefill computes query-key pairs (cost.attention). The CPU's side is
cost.launch. Parameters come from a GPU profile (cost.gpu_times), a host profile (profiles.host) and an engine profile
(profiles.engine); how they were fitted and what they leave out is in docs/calibration.md.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simulator.cost.attention import AttentionTime
from simulator.cost.check import check_cost
from simulator.cost.device import PREFILL_SAMPLES, Device
from simulator.cost.draft import Drafting, searching
from simulator.cost.extras import GREEDY, lora_s, sampling_s
from simulator.cost.gpu_times import gpu_times
from simulator.cost.launch import Launch
from simulator.cost.moe import NO_PREFERENCE, Routing
from simulator.cost.roofline import MAX_COLUMNS, padded, to_fp
from simulator.cost.stages import CROWDED, Hop, head_s, hop, plan_s
from simulator.cost.step import Cost
from simulator.errors import ConfigError
from simulator.profiles.adapters import Lora
from simulator.profiles.engine import EngineProfile
from simulator.profiles.gpu import Gpu
from simulator.profiles.host import Host, host_times, load_host
from simulator.profiles.model import ModelShape
from simulator.profiles.speculation import NGRAM, Speculation
from simulator.units import NS_PER_S, to_ticks

Array = npt.NDArray[np.float64]
Table = npt.NDArray[np.int64]


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
    routing: Routing = NO_PREFERENCE,
    windowed: bool = False,
    speculation: Speculation | None = None,
    sampling: str = GREEDY,
    lora: Lora | None = None,
    stages: int = 1,
    unequal: float = 1.0,
    deep_gemm: bool = True,
) -> Cost:
    """Fill a `Cost` for `model` on `tp` GPUs of `host` (default: the measured one), drafting by `speculation`; or on
    `stages` times as many, in a pipeline.

    `windowed`: requests are longer than the model's attention windows, so that windowed layers are priced by what they
    see.
    `unequal`: how much the contexts of a step differ, from 0 to 1 (workload.unequal).
    `deep_gemm`: products of fp8 weights in blocks by DeepGEMM where the GPU has it (vLLM's default), else by CUTLASS.
    Raises ConfigError: bad limit, uneven split, overflow.
    """
    if max_num_seqs < 1 or max_num_batched_tokens < 1:
        raise ConfigError(
            "max_num_seqs and max_num_batched_tokens must be >= 1, "
            f"got {max_num_seqs} and {max_num_batched_tokens}"
        )
    times = gpu_times(gpu)
    rows = speculation.rows if speculation else 1
    device = Device(gpu, times, model, tp, model.weight_format(weight_dtype), routing, rows, unequal, deep_gemm)
    attention = AttentionTime(gpu, times, model, tp, kv_dtype)
    drafting, draft = _drafting(device, speculation), speculation.draft if speculation else None
    reading = AttentionTime(gpu, times, draft, tp, kv_dtype) if draft else attention
    tokens = np.arange(min(max(max_num_batched_tokens, max_num_seqs), MAX_COLUMNS) + 1)
    limits = engine.graph_limits(max_num_seqs * rows, model.architectures)
    dense = np.stack([device.dense_s(tokens, kind, limit) + drafting.dense_s(padded(tokens, limit), kind)
                      for kind, limit in enumerate(limits)])
    beyond = _beyond(device, tokens, sampling, lora)
    dense = dense + beyond
    dense[:, 0] = 0.0
    host = host or load_host()
    cpu_times = host_times(host, engine)
    if speculation and speculation.method == NGRAM:
        cpu_times = searching(cpu_times, host, engine)
    old_runner = engine.older_runner(model.architectures, speculation.method if speculation else "")
    launch = Launch(
        cpu_times, -(-(model.layers + drafting.layers) // stages), tp, engine.schedule_ahead > 0,
        bool(engine.worker_processes), old_runner, -(-model.expert_layers // stages), bool(lora and lora.adapters),
        device.one_scale or device.four_bits, bool(model.latent),
        device.weights.mxfp4, stages,
    )
    cpu, prep, dense, eager = launch.tables(dense, np.stack([tokens > limit for limit in limits]))
    sequence = to_ticks(launch.sequence_s)
    planned, sent = plan_s(cpu_times, stages), hop(gpu, model, tp) if stages > 1 else Hop(0.0, 0.0)
    full = model.windows.count(0) if windowed else model.layers
    return check_cost(
        Cost(
            dense_ns=_ns(dense),
            cpu_ns=_ns(cpu),
            prep_ns=_ns(prep),
            eager=eager.astype(np.int64),
            head_ns=_ns(head_s(device, tokens, beyond)) if stages > 1 else np.zeros((2, 1), dtype=np.int64),
            slope_fp=to_fp(device.slope_s()),
            decode_context_fp=to_fp(attention.context_s(full) + reading.context_s(drafting.layers * drafting.passes)),
            decode_seq_fp=to_fp(
                times.decode_sequence_s * (model.layers + drafting.layers * drafting.passes)
                + times.sample_sequence_s * device.vocab_share
            ),
            prefill_pair_fp=to_fp(attention.pair_s(full) + reading.pair_s(drafting.layers)),
            prefill_token_fp=to_fp(times.prefill_token_s * (model.layers + drafting.layers) / tp),
            prefill_seq_fp=to_fp(times.sample_sequence_s * device.vocab_share),
            seen_context_fp=to_fp(attention.context_s(model.layers - full)),
            seen_pair_fp=to_fp(attention.pair_s(model.layers - full)),
            cpu_seq_ns=np.int64(sequence),
            prep_seq_ns=np.int64(sequence),
            frontend_in_ns=np.int64(to_ticks(cpu_times.frontend_in_s)),
            frontend_each_ns=np.int64(to_ticks(cpu_times.frontend_each_s)),
            frontend_out_ns=np.int64(to_ticks(cpu_times.frontend_out_s)),
            layers=np.int64(model.layers),
            plan_ns=np.int64(to_ticks(planned[0])), plan_seq_ns=np.int64(to_ticks(planned[1])),
            pause_ns=np.int64(to_ticks(planned[2])),
            crowded=np.int64(round(1000 * CROWDED) if stages > 1 else 1000),
            hop_ns=np.int64(to_ticks(sent.fixed_s)), hop_fp=to_fp(sent.token_s),
            beside_context_fp=to_fp(attention.beside_s(full) + reading.beside_s(drafting.layers * drafting.passes)),
        )
    )


def _beyond(device: Device, tokens: Table, sampling: str, lora: Lora | None) -> Array:
    """[s] (2, T+1) that sampling and adapters add; of a step with prefill a few of its sequences stand for all."""
    real = tokens.astype(np.float64)
    rows = np.stack([real / device.queries, np.minimum(real, PREFILL_SAMPLES)])
    result = sampling_s(device.times, device.model, sampling, rows)
    return result + lora_s(device.times, device.model, lora, np.stack([real, real]), rows) if lora else result


def _drafting(device: Device, speculation: Speculation | None) -> Drafting:
    """The draft model of `speculation` on the same GPUs, in the format of its checkpoint."""
    if speculation is None or speculation.draft is None:
        return Drafting(None, 1, 0)
    weights = speculation.draft.weight_format("auto")
    draft = replace(device, model=speculation.draft, weights=weights, routing=NO_PREFERENCE)
    return Drafting(draft, speculation.rows, speculation.tokens)


def _ns(seconds: Array) -> Table:
    return np.rint(seconds * NS_PER_S).astype(np.int64)

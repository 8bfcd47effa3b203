"""How far to trust one result: 90 % intervals of its metrics, and what lies outside measurements.

Widths come from hwprofiles/uncertainty.yaml (fit residuals and repeat spread of the real engine), widened by the
weaker mark of GPU and engine profile. They are about the model's error, not about the luck of one trace: for that,
replicate (simulator.metrics.stability).
"""

from typing import Any, Final

from simulator.cost.extras import GREEDY
from simulator.cost.gpu_times import EXTRAS, gpu_times
from simulator.cost.ranges import extrapolations
from simulator.profiles.engine import EngineProfile, load_engine
from simulator.profiles.gpu import Gpu, load_gpu
from simulator.profiles.host import Host
from simulator.profiles.model import load_model
from simulator.profiles.quantisation import ACTIVATION_BYTES, KV_BYTES, dtype_name
from simulator.profiles.shape import ModelShape
from simulator.profiles.uncertainty import load_uncertainty, share_alone
from simulator.result import Result
from simulator.scenario.setup import Setup
from simulator.text import joined
from simulator.workload.trace import Trace

_PLACES: Final = {
    "output_tokens_per_s": ("throughput", "output_tokens_per_s"),
    "ttft_mean_s": ("ttft_s", "mean"), "ttft_p50_s": ("ttft_s", "p50"), "ttft_p99_s": ("ttft_s", "p99"),
    "tpot_mean_s": ("tpot_s", "mean"), "tpot_p99_s": ("tpot_s", "p99"),
    "e2e_mean_s": ("e2e_s", "mean"), "e2e_p99_s": ("e2e_s", "p99"),
}
"""Metric of the uncertainty file -> (section, key) of a summary."""
EXPERTS, BITS, KV_BITS, OTHERS, ADAPTERS = "experts", "8-bit products", "8-bit KV", "waiting for other GPUs", "LoRA"
KINDS: Final = {
    "matrix products": ("gemm_",), "decode attention": ("decode_", "mixed_"), "prefill attention": ("prefill_",),
    "small kernels": ("layer_", "step_", "elementwise_"), "sampling": ("sample_",), BITS: ("fp8_gain",),
    KV_BITS: ("fp8_kv_",), EXPERTS: ("expert_",), OTHERS: ("all_reduce_",), ADAPTERS: ("lora_",),
}  # fmt: skip
"""What operator times are of, in words: beginnings of their names in a GPU's profile (cost.gpu_times.UNITS)."""
_WEAKER: Final = ("measured", "extrapolated", "fitted", "scaled", "datasheet")


def never_run(setup: Setup) -> str:
    """Why a measured GPU's profile is extrapolated here (see `unlisted`); empty where it is not."""
    if setup.speculation and setup.gpu.mark == "measured":
        return (f"{setup.speculation.method} drafts: their step times were fitted on one series of "
                "llama-3.1-8b on one h200-sxm (vllm-0.24), other models and GPUs follow their shapes")
    engine, known = setup.scenario.engine, (setup.gpu.name, _sizes(setup.model))
    base = known == (load_gpu(EXTRAS).name, _sizes(load_model("llama-3.1-8b")))
    if (engine.sampling != GREEDY or engine.lora) and setup.gpu.mark == "measured" and not base:
        return ("sampling and adapters: what they add to a step was fitted on llama-3.1-8b on one h200-sxm "
                "(vllm-0.24) and stands for other models and GPUs")
    hardware = setup.scenario.hardware
    return unlisted(setup.gpu, setup.engine, setup.model, hardware.tensor_parallel, hardware.pipeline_parallel,
                    hardware.weight_dtype, hardware.kv_dtype)


def unlisted(gpu: Gpu, engine: EngineProfile, model: ModelShape, tp: int, stages: int = 1, weights: str = "auto",
             kv: str = "bf16") -> str:
    """Why a measured GPU's profile is extrapolated: no engine was run with this model, parallelism, engine version and
    number formats on it. Empty where one was (of the same sizes, whatever the checkpoint's name), and for profiles
    that are not marked measured."""
    if gpu.mark != "measured":
        return ""
    asked = (_sizes(model), tp, stages, _version(engine))
    runs = [run for run in gpu.engine_runs if asked == (_sizes(load_model(run.model)), run.tensor_parallel,
                                                        run.pipeline_parallel, _version(load_engine(run.engine)))]
    if runs:
        wanted = _formats(model, weights, kv)
        known = {each for run in runs for each in (*run.formats, _formats(load_model(run.model)))}
        others = joined(sorted(known))
        return "" if wanted in known else f"{model.name} in {wanted}: not run on {gpu.name}, {others} were"
    listed = ", ".join(f"{run.model} {_parallel(run.tensor_parallel, run.pipeline_parallel)} ({run.engine})"
                       for run in gpu.engine_runs) or "none"
    return (f"{model.name} {_parallel(tp, stages)} on {engine.name} {engine.version}: no such run on "
            f"{gpu.name}; runs behind its profile: {listed}")


def _formats(model: ModelShape, weights: str = "auto", kv: str = "bf16") -> str:
    """`16 bits`, `fp8 weights in blocks and fp8 KV`."""
    found = model.weight_format(weights)
    parts = [f"{found.dtype} weights" + (" in blocks" if found.in_blocks else "")] if found.quantised else []
    if KV_BYTES[dtype_name(kv, KV_BYTES)] < ACTIVATION_BYTES:
        parts.append(f"{dtype_name(kv, KV_BYTES)} KV")
    return joined(parts) if parts else "16 bits"


def _parallel(tp: int, stages: int) -> str:
    return f"TP{tp}" if stages == 1 else f"TP{tp} PP{stages}"


def _sizes(model: ModelShape) -> tuple[object, ...]:
    return (model.layers, model.hidden, model.intermediate, model.heads, model.kv_heads, model.head_dim, model.vocab,
            model.latent, model.experts)


def _version(engine: EngineProfile) -> tuple[str, str]:
    return engine.name, engine.version


def gpu_mark(setup: Setup) -> str:
    """The mark of the GPU profile, extrapolated where `never_run` has a reason."""
    return "extrapolated" if never_run(setup) else setup.gpu.mark


def mark_of(setup: Setup) -> str:
    """The weakest of the marks behind a scenario; textbook steps have no error, the roofline is a datasheet's."""
    if setup.pools:
        return max((mark_of(pool) for pool in setup.pools.values()), key=("textbook", *_WEAKER).index)
    if setup.gpu.mark == "textbook":
        return "textbook"
    if setup.scenario.cost_model == "roofline":
        return "datasheet"
    hardware = setup.scenario.hardware
    return weakest_mark(setup.gpu, setup.engine, setup.model, hardware.tensor_parallel, setup.host,
                        setup.scenario.host.cpu_scale, hardware.pipeline_parallel, hardware.weight_dtype,
                        hardware.kv_dtype)


def weakest_mark(gpu: Gpu, engine: EngineProfile, model: ModelShape, tp: int, host: Host, scale: float = 1.0,
                 stages: int = 1, weights: str = "auto", kv: str = "bf16") -> str:
    """The weakest of the marks of GPU (extrapolated where `unlisted`), engine and host. An engine not measured counts
    as scaled; so does a host, unless measured or fitted to runs on it, and one whose times are `scale`d once more."""
    marks = ["extrapolated" if unlisted(gpu, engine, model, tp, stages, weights, kv) else gpu.mark]
    marks.append(engine.mark if engine.mark in ("measured", "fitted") else "scaled")
    if host.mark == "measured" and host.cpu_scale == 1.0:
        marks.append("measured")
    else:
        marks.append("fitted" if host.mark == "fitted" and scale == 1.0 else "scaled")
    return max(marks, key=_WEAKER.index)


def scaled_line(setup: Setup) -> str:
    """Whose times were scaled from another GPU, where not all were: those that this setup uses, and the others."""
    marks, hardware = gpu_times(setup.gpu).marks, setup.scenario.hardware
    scaled = [key for key, mark in marks.items() if mark.startswith("scaled")]
    if not scaled or len(scaled) == len(marks):
        return ""
    kinds = dict.fromkeys(name for name, keys in KINDS.items() if any(key.startswith(keys) for key in scaled))
    idle = {EXPERTS: not setup.model.experts, BITS: setup.model.weight_format(hardware.weight_dtype).dtype != "fp8",
            KV_BITS: hardware.kv_dtype != "fp8", OTHERS: hardware.tensor_parallel == 1,
            ADAPTERS: setup.scenario.engine.lora is None}  # fmt: skip
    used, unused = ([name for name in kinds if idle.get(name, False) is is_idle] for is_idle in (False, True))
    return (f"of those this run uses times of {joined(used)}" if used else "this run uses none of those") + (
        f"; the others are of {joined(unused)}" if unused else "")


def longest_of(trace: Trace) -> int:
    """[tokens] prompt and output of the longest request."""
    return int((trace.prompt + trace.output).max())


def not_measured(setup: Setup, longest: int) -> list[str]:
    """What lies outside the measurements behind a replica's step times, a sentence each; `longest`: prompt + output of
    the longest request [tokens]."""
    reason, named = never_run(setup), scaled_line(setup)
    found = extrapolations(setup.gpu, setup.scenario.hardware.tensor_parallel, setup.limits.max_num_seqs,
                           setup.limits.max_num_batched_tokens, longest)
    if named:
        found = [f"{found[0]}; {named}", *found[1:]]
    return [reason, *found] if reason else found


def _mostly_alone(result: Result, summary: dict[str, Any]) -> bool:
    """Whether no more than one request was in each replica on average: rate times stay (Little's law)."""
    stay, rate = summary["e2e_s"]["mean"], summary["throughput"]["requests_per_s"]
    return stay is not None and rate is not None and stay * rate <= result.scenario.cluster.size


def trust(result: Result, summary: dict[str, Any]) -> dict[str, Any]:
    """{"mark", "interval_90": {"ttft_s.mean": [low, high], ...}, "extrapolated": [sentences]} for a summary."""
    mark, setup, trace = mark_of(result.setup), result.setup, result.trace
    known, alone = load_uncertainty(), _mostly_alone(result, summary)
    ttft, stay, output = summary["ttft_s"]["mean"], summary["e2e_s"]["mean"], float(trace.output.mean())
    intervals = {}
    for metric, (section, key) in _PLACES.items():
        value = summary[section][key]
        if value is not None and mark != "textbook":
            share = share_alone(metric, ttft, stay, output) if alone else 0.0
            intervals[f"{section}.{key}"] = list(known.interval(metric, value, mark, setup.host.known, share))
    beyond: list[str] = []
    if mark != "textbook":
        beyond = not_measured(setup, longest_of(trace))
    return {"mark": mark, "interval_90": intervals, "extrapolated": beyond}

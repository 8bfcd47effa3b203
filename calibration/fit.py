"""From committed measurements to the numbers of a profile: reproducible, each with error, range and source.

Order: matrix products and attention from the operator JSON; then start-ups, sustained rates and sampling
from the engine's step logs with the operators as priors; then the CPU side and memory. Only the runs of
FIT_RUNS, LAUNCH_RUNS and kv_blocks.csv are read; every other run is left for testing (calibration.validate).
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from calibration.fit_host import HostFit, WorkerFit, fit_host
from calibration.fit_memory import MemoryFit, fit_memory
from calibration.fit_operators import DecodeFit, GemmFit, fit_decode, fit_gemm, fit_prefill
from calibration.fit_stages import StageFit
from calibration.fit_steps import FREE, StepFit, fit_steps, with_values
from calibration.harness import write_atomically
from calibration.launches import base_launches, layer_launch, quiet_launch
from calibration.measured import MeasuredRun, find_runs, load_run
from calibration.operators import Operators, elementwise_bandwidth, layer_start_us, load_operators
from simulator.cost.gpu_times import ALL_UNITS, UNITS, gpu_times
from simulator.errors import CalibrationError
from simulator.profiles.gpu import Gpu, load_gpu

MEASUREMENTS: Final = Path(__file__).resolve().parent / "measurements"
FIT_RUNS: Final = (
    "llama8b-h100-sync/*",
    "llama8b-h100/batch_*",
    "llama8b-h100/ctx_*",
    "llama8b-h100/prefill_*",
    *(
        f"{series}/{kind}_*"
        for series in (
            "llama8b-h200-tp2-b",
            "llama8b-h200-tp2-sync",
            "llama8b-h200-fp8",
            "llama8b-h200-fp8kv",
            "qwen14b-h200-tp2-b",
            "qwen3-30b-a3b-h200",
            "llama8b-h200-eagle",
            "llama8b-h200-ngram",
        )
        for kind in ("batch", "ctx", "pre", "prefill")
    ),
    "llama8b-h200-f/batch_*",
    "llama8b-h200-f/ctx_*",
    "llama8b-h200-f/uneven_*",
    *(f"llama8b-h200-{series}/batch_*" for series in ("c", "d", "e")),
    "qwen3-30b-a3b-h200-tp2ep/prefill_*",
)
DEEP_LAUNCHES: Final = (*(f"{series}/{run}" for series in ("gemma3-27b-h200", "llama70b-fp8-h200")
                          for run in ("batch_b1", "pre_p512", "pre_p1024")), "gemma3-27b-h200-b/batch_b1")
"""Lone prompts of models of 62 and 80 layers: how long one more layer takes to launch above the largest graph."""
FEATURE_RUNS: Final = ("llama8b-h200-sampling/batch_*", "llama8b-h200-lora/batch_*", "llama8b-h200-lora/pre*",
                       "llama8b-h200-pp2/batch_*", "llama8b-h200-pp2/pre*", "qwen3-30b-a3b-h200-b/batch_*",
                       "qwen3-30b-a3b-h200-b/pre_*", "deepseek-v2-lite-h200/batch_*", "deepseek-v2-lite-h200/ctx_*",
                       "deepseek-v2-lite-h200/pre*", "gpt-oss-20b-h200/*", "qwen3-30b-a3b-fp8-h200/batch_*",
                       "qwen3-30b-a3b-fp8-h200/pre*", "qwen3-8b-fp8-h200/batch_*", "qwen3-14b-fp8-h200/batch_*",
                       "gpt-oss-120b-h200/batch_*", *DEEP_LAUNCHES)
"""Behind what sampling, adapters, pipeline stages, latent attention, mxfp4, DeepGEMM, the launch of experts and of more
layers add to a step; the intervals are those of the plain engine."""
SIXTEEN_BIT_LAUNCHES: Final = tuple(f"llama8b-h200-{runs}_*" for runs in ("c/conv", "c/code", "d/conv", "e/conv",
                                                                         "prefix-c/conv"))
EIGHT_BIT_LAUNCHES: Final = ("llama8b-h200-fp8-c/conv_*",)
LAUNCH_RUNS: Final = SIXTEEN_BIT_LAUNCHES + EIGHT_BIT_LAUNCHES
"""Traffic on three H200 of two hosts: how long launches above the largest graph take, of which batches and lone prompts
show few, and how much shorter they are with 8-bit weights. Nothing else of these runs is fitted on."""
H100_RUNS: Final = FIT_RUNS[:4]
COLD_RUNS: Final = ("llama8b-h100-sync/pre_*",)
"""First runs of a prompt size: one-off kernel selection in them."""
HARNESS: Final = "ops-h100.json"
LIBRARY: Final = "operators-h100.json"
"""Our harness's measurements (products, elementwise kernels) and those of FA3 (attention)."""
TRAFFIC: Final = 2.0 * (8 * 4096 + 2 * (4096 + 1024) + 4 * 1024 + 3 * 14336)
"""[bytes] one token moves through a layer's elementwise kernels (cost.calibrated), Llama-3.1-8B."""
KV_BYTES: Final = 4096
PAIR_FLOPS: Final = 4 * 32 * 128
"""One layer of Llama-3.1-8B: KV bytes per token (8 heads of 128, keys and values, 16 bits), FLOP per pair."""
BESIDE_PREFILL: Final = (1.35, 0.35)
"""Prior mean and width of decode attention in a step with prefill, relative to one without: between no difference and
the 1.6 and 2.0 times, in the median, of public tables (RTX PRO 6000, RTX 4090; casys-kaist/LLMServingSim 5daddb2)."""
UNEVEN_US: Final = 8.0
"""[us] per layer. Steps of 4 and 16 unequal sequences lasted 0.24-0.29 ms (8 us a layer) longer than steps of
equal ones without asynchronous scheduling; on the H200, with the same kernels, 8.9 us are fitted."""


@dataclass(frozen=True)
class Calibration:
    """Everything fitted for the reference GPU and engine."""

    gemm: GemmFit
    decode: DecodeFit
    prefill: tuple[float, float, float]
    steps: StepFit
    host: HostFit
    memory: MemoryFit
    gpu: Gpu
    eager_quantised: float  # launch above the largest graph with 8-bit weights, relative to 16 bits
    eager_layer_s: float  # [s] of it, in 16 bits, per layer beyond 32

    @property
    def eager_stall_s(self) -> float:
        """[s] by which full prefill steps last longer than the robust fit, on average: launches that wait for the
        GPU leave it idle during the next preparation. The fit's loss damps them; throughput feels them."""
        late = self.steps.gaps[self.steps.gaps.kind == 1]
        return max(0.0, float((-late.error * late.gap_s).mean()))

    def summary(self) -> str:
        """Fitted components with errors, one per line."""
        lines = [
            f"products: mean error {self.gemm.mean_error:.1%} over {self.gemm.points} points",
            f"decode attention alone: mean error {self.decode.mean_error:.1%}",
        ]
        lines += [
            f"{key}: {value:.3f} +- {self.steps.errors[key]:.3f} {UNITS[key][0]}"
            for key, value in self.steps.values.items()
        ]
        lines += [
            f"{key}: {value * 1e3:.3f} ms" for key, value in vars(self.host).items() if key.endswith("_s")
        ]
        return "\n".join(lines)


def used_for_fit(name: str) -> bool:
    """True for `series/run` names whose times were used in the fit."""
    return _matches(name, (*FIT_RUNS, *LAUNCH_RUNS)) or of_a_feature(name)


def of_a_feature(name: str) -> bool:
    """True for `series/run` names of FEATURE_RUNS."""
    return _matches(name, FEATURE_RUNS)


def first_of_its_size(name: str) -> bool:
    """True for `series/run` names of COLD_RUNS."""
    return _matches(name, COLD_RUNS)


def calibrate(measurements: Path = MEASUREMENTS, gpu_name: str = "h100-sxm") -> Calibration:
    """Fit everything from the committed measurements. Raises CalibrationError where a needed run is missing."""
    harness = load_operators(measurements / HARNESS)
    library = load_operators(measurements / LIBRARY)
    gemm = fit_gemm(harness.gemm)
    decode = fit_decode(library.decode, KV_BYTES)
    prefill = fit_prefill(library.prefill, PAIR_FLOPS)
    fit = [run for run in runs_named(measurements, H100_RUNS) if not first_of_its_size(run.name)]
    ahead = [run for run in fit if run.engine.async_scheduling]
    sync = [run for run in fit if not run.engine.async_scheduling]
    if not sync or not ahead:
        raise CalibrationError(f"{measurements}: needs the runs {', '.join(H100_RUNS)}")
    base = with_values(load_gpu(gpu_name), operator_values(gemm, decode, harness))
    steps = fit_steps(ahead, base, priors(gemm, harness, library))
    fitted = with_values(base, {**steps.values, "mixed_lengths": UNEVEN_US})
    host = fit_host(sync, ahead, fitted)
    sixteen = runs_named(measurements, SIXTEEN_BIT_LAUNCHES)
    typical = float(np.mean([host.eager_cpu_s, *base_launches(sixteen).values()]))
    eight = quiet_launch(runs_named(measurements, EIGHT_BIT_LAUNCHES)) / quiet_launch(sixteen)
    host = replace(host, eager_cpu_s=typical)
    layer = layer_launch(runs_named(measurements, DEEP_LAUNCHES), typical, eight)
    return Calibration(gemm, decode, prefill, steps, host, fit_memory(measurements), fitted, eight, layer)


def runs_named(measurements: Path, patterns: Sequence[str]) -> list[MeasuredRun]:
    """The committed runs whose `series/run` name is like one of `patterns`."""
    return [load_run(folder) for folder in find_runs([measurements])
            if _matches(f"{folder.parent.name}/{folder.name}", patterns)]


def operator_values(gemm: GemmFit, decode: DecodeFit, harness: Operators) -> dict[str, float]:
    """Components that the operators alone decide, in profile units, and zeros for those fitted later."""
    return {
        "gemm_start": gemm.gemm.start_s * 1e6,
        "gemm_bandwidth": gemm.gemm.bandwidth / 1e12,
        "gemm_rate": gemm.gemm.rate / 1e12,
        "gemm_exponent": gemm.gemm.exponent,
        "fp8_gain": harness.fp8_gain or 1.0,
        "layer_fixed": 0.0,
        "step_fixed": 0.0,
        "elementwise_bandwidth": (elementwise_bandwidth(harness, TRAFFIC) or gemm.gemm.bandwidth) / 1e12,
        "decode_bandwidth": decode.bandwidth / 1e12,
        "decode_sequence": decode.sequence_s * 1e6,
        "mixed_lengths": 0.0,
        "prefill_rate": 500.0,
        "decode_beside_prefill": 1.0,
        "prefill_token": 0.0,
        "sample_sequence": 0.0,
        "all_reduce_sync": 0.0,
    }


def priors(gemm: GemmFit, harness: Operators, library: Operators) -> dict[str, tuple[float, float]]:
    """(value, standard error) that the step logs start from, in profile units.

    Start-ups: as measured in CUDA graphs. Rates measured in short runs drop under sustained load (the power
    limit was reached in the harness too): one tenth either way. Attention: between the best and the median
    measured.
    """
    best = max(float(row["kv_GBps"]) for row in library.decode) / 1e3
    prefill = float(np.median([row["TFLOPs"] for row in library.prefill if row["length"] >= 1024]))
    start, rate = gemm.gemm.start_s * 1e6, gemm.gemm.rate / 1e12
    fixed = layer_start_us(harness) or 4.0 * start
    return {
        "layer_fixed": (fixed, 0.3 * fixed),
        "gemm_rate": (rate, 0.1 * rate),
        "decode_bandwidth": (best, 0.1),
        "sample_sequence": (2.0, 3.0),
        "prefill_rate": (prefill, 0.15 * prefill),
        "decode_beside_prefill": BESIDE_PREFILL,
    }


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def measured_block(fit: Calibration) -> dict[str, Any]:
    """The `measured:` block of the reference GPU's profile."""
    decode = fit.steps.gaps[fit.steps.gaps.kind == 0].error.abs()
    prefill = fit.steps.gaps[fit.steps.gaps.kind == 1].error.abs()
    logs = "output gaps of vLLM 0.24.0 step logs (calibration/measurements/llama8b-h100)"
    ops = f"calibration/measurements/{LIBRARY}"
    block: dict[str, Any] = {}
    curves = {
        key: kept
        for key, kept in load_gpu(fit.gpu.path.stem).measured.items()
        if key not in UNITS or key.startswith(("all_reduce", "fp8_kv", "expert", "lora"))
    }
    for key in UNITS:
        if key in FREE:
            error = decode.median() if key not in ("gemm_rate", "prefill_rate") else prefill.median()
            block[key] = entry(
                fit.steps.values[key],
                key,
                logs,
                "fitted",
                error,
                f"1..128 sequences, 1..2048 tokens; standard error {fit.steps.errors[key]:.2g}",
            )
    block["fp8_gain"] = entry(
        gpu_times(fit.gpu).fp8_gain, "fp8_gain", f"calibration/measurements/{HARNESS}", "measured", 0.05, "m 1024..8192"
    )
    for key in ("gemm_start", "gemm_bandwidth", "gemm_exponent"):
        value = getattr(fit.gemm.gemm, "start_s" if key == "gemm_start" else key.removeprefix("gemm_")) / UNITS[key][1]
        block[key] = entry(value, key, f"calibration/measurements/{HARNESS}", "fitted", fit.gemm.mean_error,
                           f"m {fit.gemm.rows[0]}..{fit.gemm.rows[1]}")
    block["elementwise_bandwidth"] = entry(
        gpu_times(fit.gpu).elementwise_bandwidth / 1e12,
        "elementwise_bandwidth",
        f"calibration/measurements/{HARNESS}",
        "fitted",
        0.1,
        "growth of a layer's elementwise kernels up to 2048 rows",
    )
    block["decode_sequence"] = entry(
        fit.decode.sequence_s * 1e6,
        "decode_sequence",
        ops,
        "fitted",
        fit.decode.mean_error,
        "batch 1..256, context 512..32768",
    )
    block["mixed_lengths"] = entry(
        UNEVEN_US,
        "mixed_lengths",
        "steps of unequal against equal sequences, llama8b-h100-sync",
        "assumed",
        0.5,
        "",
    )
    for key in ("step_fixed", "prefill_token"):
        block[key] = entry(0.0, key, "contained in the other components", "assumed", 0.0, "")
    return block | curves


def entry(value: float, key: str, source: str, mark: str, error: float, valid: str) -> dict[str, Any]:
    """One component of a `measured:` block; `error` is relative, `value` in the profile's unit."""
    found = {
        "value": float(f"{value:.5g}"),
        "unit": ALL_UNITS[key][0],
        "mark": mark,
        "source": source,
        "error_pct": round(100 * float(error), 2),
    }
    return {**found, "range": valid} if valid else found


def write_measured(path: Path, block: Mapping[str, Any]) -> None:
    """Replace the `measured:` block at the end of a GPU profile; all before it is kept as it is."""
    try:
        head = path.read_text(encoding="utf-8").split("\nmeasured:")[0].rstrip("\n")
    except OSError as error:
        raise CalibrationError(f"{path}: not a readable GPU profile: {error}") from error
    lines = ["", "measured:"]
    for key, content in block.items():
        text = yaml.safe_dump(content, default_flow_style=True, sort_keys=False, width=10_000).strip()
        lines.append(f"  {key}: {text.removesuffix('...').strip()}")
    write_atomically(path, head + "\n".join(lines) + "\n")


def host_values(fit: Calibration, workers: WorkerFit, stages: StageFit) -> dict[str, float]:
    """Numbers of the measured host's profile, in its units (ms; `eager_quantised` a share)."""
    both = vars(fit.host) | vars(workers) | vars(stages)
    times = {key.removesuffix("_s"): value for key, value in both.items()}
    found = {key: round(value * 1e3, 4) for key, value in
             (times | {"eager_stall": fit.eager_stall_s, "eager_layer": fit.eager_layer_s}).items()}
    return found | {"eager_quantised": round(fit.eager_quantised, 3)}


def engine_values(fit: Calibration) -> dict[str, float]:
    """Numbers of the engine profile, in its units (MiB, KiB)."""
    return {
        "graph_layer_memory": round(fit.memory.graph_layer_bytes / 2**20, 3),
        "workspace": round(fit.memory.workspace_bytes / 2**30, 3),
        "collective_workspace": round(fit.memory.collective_bytes / 2**30, 3),
    }


def write_numbers(path: Path, values: Mapping[str, float]) -> None:
    """Set numbers of an engine or host profile in place; unit, mark and source of each line are kept."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CalibrationError(f"{path}: not a readable profile: {error}") from error
    for key, value in values.items():
        text, count = re.subn(rf"(?m)^({key}: {{value: )[^,]+,", rf"\g<1>{value:g},", text)
        if count != 1:
            raise CalibrationError(f"{path}: no line '{key}: {{value: ...}}' to set")
    write_atomically(path, text)


def operator_block(path: Path) -> dict[str, Any]:
    """`measured:` block from an operator JSON alone: rates as measured in short runs, no engine in it.

    What a layer costs beside its products, and rates under sustained load, come from step logs only
    (`calibrate`); without them the first is what the elementwise kernels and attention take alone, where
    measured.
    """
    operators = load_operators(path)
    gemm = fit_gemm(operators.gemm)
    decode = fit_decode(operators.decode, KV_BYTES)
    rate, token, error = fit_prefill(operators.prefill, PAIR_FLOPS)
    rows = f"m {gemm.rows[0]}..{gemm.rows[1]}"
    contexts = f"context {decode.contexts[0]}..{decode.contexts[1]}"
    moved = elementwise_bandwidth(operators, TRAFFIC) or gemm.gemm.bandwidth
    numbers = {
        "gemm_start": (gemm.gemm.start_s, gemm.mean_error, rows),
        "gemm_bandwidth": (gemm.gemm.bandwidth, gemm.mean_error, rows),
        "gemm_rate": (gemm.gemm.rate, gemm.mean_error, rows),
        "gemm_exponent": (gemm.gemm.exponent, gemm.mean_error, rows),
        "elementwise_bandwidth": (moved, gemm.mean_error, rows),
        "decode_bandwidth": (decode.bandwidth, decode.mean_error, contexts),
        "decode_sequence": (decode.sequence_s, decode.mean_error, contexts),
        "prefill_rate": (rate, error, ""),
        "prefill_token": (token, error, ""),
    }
    fixed = layer_start_us(operators)
    if fixed is not None:
        numbers["layer_fixed"] = (fixed * 1e-6, 0.1, "smallest batch")
    if operators.fp8_gain is not None:
        numbers["fp8_gain"] = (operators.fp8_gain, 0.05, "m 1024 and more")
    return {
        key: entry(value / UNITS[key][1], key, path.name, "fitted", off, valid)
        for key, (value, off, valid) in numbers.items()
    }

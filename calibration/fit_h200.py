"""The H200 from its own operators and the engine's step logs on it: batches, prompts and contexts, no traffic.

Products and elementwise kernels come from the harness on one H200 (ops-h200.json); what a layer costs beside them,
rates under sustained load and attention from output gaps of one and two H200 (8B, 14B). 8-bit weights are what is left
of the gaps of their own series.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from calibration.fit import (
    BESIDE_PREFILL,
    KV_BYTES,
    MEASUREMENTS,
    Calibration,
    entry,
    operator_values,
    runs_named,
    used_for_fit,
)
from calibration.fit_formats import format_entries, quantise_entries
from calibration.fit_host import WorkerFit, fit_workers
from calibration.fit_operators import fit_decode, fit_gemm
from calibration.fit_quantised import quantised_entries
from calibration.fit_stages import StageFit, fit_stages
from calibration.fit_steps import StepFit, fit_steps, gaps_of, gpu_seconds, step_cost, with_values
from calibration.measured import MeasuredRun, find_runs, load_run
from calibration.operators import Operators, load_operators
from calibration.predict import setup_of
from simulator.cost.device import unsplit
from simulator.cost.gpu_times import UNITS, gpu_times
from simulator.profiles.gpu import Gpu, load_gpu
from simulator.profiles.host import load_host

Array = npt.NDArray[np.float64]

HARNESS: Final = "ops-h200.json"
H100_HARNESS: Final = "ops-h100.json"
ONE: Final = tuple(f"llama8b-h200-{runs}_*" for runs in ("c/batch", "d/batch", "e/batch", "f/batch", "f/ctx"))
"""Equal sequences on one GPU in 16 bits: four engines, three cards."""
UNEVEN: Final = tuple(f"llama8b-h200-{runs}_*" for runs in ("f/uneven", "c/conv", "d/conv", "e/conv"))
"""As many of unequal contexts: batches, and the traffic that the launches are fitted on."""
PLAIN: Final = ("llama8b-h200-tp2-b", "qwen14b-h200-tp2-b")
SYNC: Final = "llama8b-h200-tp2-sync"
FP8: Final = "llama8b-h200-fp8"
FP8_KV: Final = "llama8b-h200-fp8kv"
PIPELINE: Final = "llama8b-h200-pp2"
TILES: Final = (1.0, 16.0, 17.0, 64.0, 65.0, 128.0, 129.0)
"""[rows] ends of the tile classes of vLLM's 8-bit products on Hopper (16, 64, 128 rows and more:
csrc/quantization/w8a8/cutlass, scaled_mm_sm90_fp8_dispatch): their time steps up between them."""


@dataclass(frozen=True)
class H200Fit:
    """Fitted components of the H200 and what its 8-bit formats cost."""

    gpu: Gpu
    steps: StepFit
    fp8_extra: list[list[float]]  # [rows, us per layer]
    workers: WorkerFit
    stages: StageFit
    harness: Operators
    formats: dict[str, Any]  # entries of the profile: quantised products, experts


def calibrate_h200(reference: Calibration, measurements: Path = MEASUREMENTS) -> H200Fit:
    """Fit the H200, given the H100 (`reference`) for the priors of what operators do not show."""
    harness = load_operators(measurements / HARNESS)
    gemm, decode = fit_gemm(harness.gemm), fit_decode(harness.decode, KV_BYTES)
    shipped = load_gpu("h200-sxm")
    base = with_values(shipped, operator_values(gemm, decode, harness) | {"fp8_kv_rate": 1.0})
    alone = quantised_entries(measurements) | quantise_entries(measurements)
    base.measured.update(alone)
    base.measured["fp8_extra"] = {"points": [[1, 0.0], [2, 0.0]], "source": "not fitted yet"}
    priors = _priors(reference, harness, load_operators(measurements / H100_HARNESS))
    even = [*runs_named(measurements, ONE), *_runs(measurements, (*PLAIN, FP8_KV))]
    found = fit_steps(even, base, priors)
    plain = with_values(base, found.values)
    uneven = _mixed_lengths(runs_named(measurements, UNEVEN), plain)
    extra = _fp8_extra(_runs(measurements, (FP8,)), plain)
    formats = alone | format_entries(measurements, plain)
    times = load_host().times
    workers = fit_workers(
        _runs(measurements, PLAIN[:1]), _runs(measurements, (SYNC,)), _runs(measurements, PLAIN[1:]), plain,
        times.collective_launch_s, times.eager_layer_s,
    )  # fmt: skip
    stages = fit_stages(_runs(measurements, (PIPELINE,)))
    return H200Fit(with_values(plain, {"mixed_lengths": uneven}), found, extra, workers, stages, harness, formats)


def _runs(measurements: Path, series: Sequence[str]) -> list[MeasuredRun]:
    folders = [folder for name in series for folder in find_runs([measurements / name])]
    return [load_run(folder) for folder in folders if used_for_fit(f"{folder.parent.name}/{folder.name}")]


def _priors(
    reference: Calibration, harness: Operators, other: Operators
) -> dict[str, tuple[float, float]]:
    """The H100's fit, times what the same kernels of the harness gain from one card to the other.

    Widths: what the fit of the H100 leaves open, and 3 % for the ratio.
    """
    def gain(rows: Callable[[Operators], float]) -> float:
        return rows(harness) / rows(other)

    gains = {
        "layer_fixed": 1.0,
        "gemm_rate": gain(lambda each: fit_gemm(each.gemm).gemm.rate),
        "decode_bandwidth": gain(lambda each: max(float(row["kv_GBps"]) for row in each.decode)),
        "sample_sequence": 1.0,
        "prefill_rate": gain(lambda each: max(float(row["TFLOPs"]) for row in each.prefill)),
    }
    known = reference.steps
    priors = {}
    for key in gains:
        value = known.values[key] * gains[key]
        priors[key] = (value, float(np.hypot(known.errors[key] * gains[key], 0.03 * value)))
    return priors | {"fp8_kv_rate": (0.8, 0.4), "all_reduce_sync": (1.0, 1.0),
                     "decode_beside_prefill": BESIDE_PREFILL}


def _mixed_lengths(runs: Sequence[MeasuredRun], gpu: Gpu) -> float:
    """[us] per layer that decode steps of many unequal contexts last beyond those of equal ones: what their gaps grow
    by with the share that meets it (cost.device.unsplit), beside one number for each series, whose cards differ."""
    table = gaps_of(runs)
    table = table[table.kind == 0]
    model = setup_of(runs[0]).model
    missing = (table.gap_s.to_numpy() - gpu_seconds(step_cost(runs[0], gpu), table)) / model.layers * 1e6
    share = unsplit(table.n_decode.to_numpy() - 1.0, model.kv_heads)
    series = table.run.str.split("/").str[0].to_numpy()
    design = np.column_stack([share, *(series == name for name in np.unique(series))])
    weight = table.weight.to_numpy()
    return float(np.linalg.lstsq(design * weight[:, None], missing * weight, rcond=None)[0][0])


def _fp8_extra(runs: Sequence[MeasuredRun], gpu: Gpu) -> list[list[float]]:
    """[rows, us per layer] between tile classes, by least squares on the gaps of a series with 8-bit weights."""
    table = gaps_of(runs)
    cost = step_cost(runs[0], gpu)
    layers = 32
    missing = (table.gap_s.to_numpy() - gpu_seconds(cost, table)) / layers * 1e6
    rows = table.tokens.to_numpy(dtype=np.float64)
    design = np.stack([np.interp(rows, TILES, unit) for unit in np.eye(len(TILES))], axis=1)
    weight = np.where(table.kind == 0, table.weight, 1.0 / 3.0) / table.gap_s.to_numpy()
    for _ in range(20):  # damped like soft L1
        solution = np.linalg.lstsq(design * weight[:, None], missing * weight, rcond=None)[0]
        left = np.abs(missing - design @ solution) * layers * 1e-6 / table.gap_s.to_numpy()
        weight = np.where(table.kind == 0, table.weight, 1.0 / 3.0) / table.gap_s.to_numpy() / np.sqrt(1 + left / 0.02)
    return [[int(m), round(float(max(us, 0.0)), 2)] for m, us in zip(TILES, solution, strict=True)]


def h200_block(fit: H200Fit) -> dict[str, Any]:
    """The `measured:` block of the H200's profile; all-reduce curves are kept."""
    logs = "output gaps of vLLM 0.24.0 step logs, one and two H200 (calibration/measurements/*-h200-*: batch, ctx, pre)"
    alone = f"calibration/measurements/{HARNESS}"
    gaps = fit.steps.gaps
    decode, prefill = (float(gaps[gaps.kind == kind].error.abs().median()) for kind in (0, 1))
    times, gemm = gpu_times(fit.gpu), fit_gemm(fit.harness.gemm)
    block: dict[str, Any] = {}
    for key, value in fit.steps.values.items():
        error = prefill if key in ("gemm_rate", "prefill_rate") else decode
        note = f"1..128 sequences, 1..2048 tokens; standard error {fit.steps.errors[key]:.2g}"
        block[key] = entry(value, key, logs, "fitted", error, note)
    rows = f"m {gemm.rows[0]}..{gemm.rows[1]}"
    values = {
        "gemm_start": times.gemm.start_s, "gemm_bandwidth": times.gemm.bandwidth,
        "gemm_exponent": times.gemm.exponent, "elementwise_bandwidth": times.elementwise_bandwidth,
        "decode_sequence": times.decode_sequence_s,
    }  # fmt: skip
    for key, value in values.items():
        block[key] = entry(value / UNITS[key][1], key, alone, "fitted", gemm.mean_error, rows)
    block["fp8_gain"] = entry(times.fp8_gain, "fp8_gain", alone, "measured", 0.05, "m 1024..8192")
    block["mixed_lengths"] = entry(
        times.mixed_lengths_s * 1e6, "mixed_lengths", "output gaps of calibration/measurements/llama8b-h200-f/uneven_* "
        "and -c, -d, -e/conv_*, beyond the formula for equal contexts", "fitted", decode, "2..128 sequences",
    )  # fmt: skip
    for key in ("step_fixed", "prefill_token"):
        block[key] = entry(0.0, key, "contained in the other components", "assumed", 0.0, "")
    block["fp8_extra"] = {
        "points": fit.fp8_extra, "unit": "[rows, us per layer]", "mark": "fitted",
        "source": "output gaps of calibration/measurements/llama8b-h200-fp8 beyond the formula; tile classes of 16, "
        "64, 128 rows: vLLM csrc/quantization, scaled_mm_sm90_fp8_dispatch",
    }  # fmt: skip
    curves = {key: value for key, value in load_gpu("h200-sxm").measured.items()
              if key.startswith(("all_reduce_", "sampler", "lora")) and key not in block}
    return block | fit.formats | curves

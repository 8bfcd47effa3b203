"""What number formats add on the H200: fp8 products and the kernels that quantise for them, experts in mxfp4.

Kernels alone and under sustained load: kernels-h200.json, layers-h200.json; the rest is what decode steps and full
prefill steps of an engine's batches last beyond the formula. No traffic is read.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.fit import entry, runs_named
from calibration.fit_operators import column, least_squares, scipy_part
from calibration.fit_quantised import kernel_rows
from calibration.fit_steps import gaps_of, gpu_seconds, step_cost, with_values
from calibration.measured import MeasuredRun
from calibration.predict import setup_of
from simulator.cost.device import FP8_BYTES
from simulator.errors import CalibrationError
from simulator.profiles.gpu import Gpu
from simulator.profiles.quantisation import ACTIVATION_BYTES

Array = npt.NDArray[np.float64]
Rows = Sequence[Mapping[str, Any]]

DEEP_GEMM: Final = ("qwen3-8b-fp8-h200", "qwen3-14b-fp8-h200")
MXFP4: Final = "gpt-oss-120b-h200"
EQUAL_BATCHES: Final = (1, 8, 32, 64, 128)
"""Sequences of those batches."""
LAYERS: Final = "layers-h200.json"
MOVED: Final = ACTIVATION_BYTES + FP8_BYTES
"""[bytes] read and written for a number that is quantised from 16 bits to 8."""
PAUSE_S: Final = 0.2
"""[s] gaps from here on are pauses of the host (Triton compiles a kernel), not GPU times."""
FASTEST: Final = 0.1
GAIN_RANGE: Final = (0.3, 2.0)


def quantise_entries(measurements: Path) -> dict[str, Any]:
    """Entries of the H200's `measured:` block for the kernels that quantise activations. Raises CalibrationError where
    a file is missing."""
    rows, source = kernel_rows(measurements)
    blocks = [row for row in rows["quantise"] if row["format"] == "fp8_block"]
    return _block_quantise(blocks, source) | _row_quantise(measurements)


def format_entries(measurements: Path, gpu: Gpu) -> dict[str, Any]:
    """Entries for DeepGEMM and experts in mxfp4. `gpu`: the profile with all else fitted. Raises CalibrationError where
    a run is missing."""
    runs = {series: runs_named(measurements, (f"{series}/batch_*",)) for series in (*DEEP_GEMM, MXFP4)}
    if not all(runs.values()):
        raise CalibrationError(f"{measurements}: no batches of one of {', '.join(runs)}")
    entries = _deep_gemm({series: runs[series] for series in DEEP_GEMM}, gpu)
    return entries | _mxfp4(runs[MXFP4], _with(gpu, entries))


def _with(gpu: Gpu, entries: Mapping[str, Any]) -> Gpu:
    found = with_values(gpu, {})
    found.measured.update(entries)
    return found


def _block_quantise(rows: Rows, source: str) -> dict[str, Any]:
    """Start and bandwidth of the kernel that quantises activations in groups, alone."""
    m, k, us = (column(rows, key) for key in ("m", "k", "quantise_us"))

    def off(logs: Array) -> Array:
        result: Array = np.log((np.exp(logs[0]) + m * k * MOVED / np.exp(logs[1])) / us)
        return result

    found = least_squares(off, np.log([2.0, 1.5e6]), loss="soft_l1", f_scale=0.1)
    error = float(np.mean(np.abs(np.exp(off(found.x)) - 1)))
    start, rate = np.exp(found.x)
    valid = "1..2048 rows of 4096..14336"
    return {"fp8_block_quantise": entry(start, "fp8_block_quantise", source, "fitted", error, valid),
            "fp8_block_bandwidth": entry(rate * 1e-6, "fp8_block_bandwidth", source, "fitted", error, valid)}


def _row_quantise(measurements: Path) -> dict[str, Any]:
    """Bandwidth of the kernel that quantises row by row: what a layer's products of one scale last longer with it,
    alone, as the 8B meets it; under sustained load 2.2 TB/s instead of 3.2, as the 70B does."""
    path = measurements / LAYERS
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        table = pd.DataFrame(content["layers"])
        table = table[table.format == "fp8"].set_index(["model", "m", "quantise"]).alone_us.unstack()
        more = (table[True] - table[False]) * 1e-6
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        raise CalibrationError(f"{path}: not a readable result of engine_layers.py: {failure}") from failure
    widths = {"qwen3-8b": 3 * 4096 + 12288, "qwen3-14b": 3 * 5120 + 17408, "llama-3.1-70b": 3 * 8192 + 28672}
    moved = np.array([m * widths[model] * MOVED for model, m in table.index], dtype=np.float64)
    rate = float(moved.sum() / more.sum())
    error = float(np.mean(np.abs(moved / rate / more.to_numpy() - 1)))
    source = f"vLLM {content['vllm']}'s own kernels on one H200, alone (calibration/measurements/{LAYERS})"
    return {"fp8_row_bandwidth": entry(rate * 1e-12, "fp8_row_bandwidth", source, "fitted", error, "2048 rows")}


def _deep_gemm(runs: Mapping[str, Sequence[MeasuredRun]], gpu: Gpu) -> dict[str, Any]:
    """Scales of activations that DeepGEMM has brought into the order in which it reads them, before each product
    ([rows, us], from decode steps), and its rate relative to fp8 products of one scale (from full prefill steps, the
    median of each series counting alike): alone its products are as fast (deepseek-ai/DeepGEMM 7a70b43, README), under
    an engine's sustained load they are not (layers-h200.json: 3 to 14 % slower)."""
    name = ", ".join(f"calibration/measurements/{series}/batch_*" for series in runs)
    flat = {"points": [[1, 0.0], [2, 0.0]], "source": "not fitted yet"}
    unscaled = _with(gpu, {"deep_gemm_scales": flat})
    missing = [_missing_us(each, unscaled) for each in runs.values()]
    mean = pd.concat(missing, axis=1).dropna().mean(axis=1)
    points = [[int(m), round(float(us), 2)] for m, us in zip(mean.index.to_numpy(), mean, strict=True)]
    entries: dict[str, Any] = {"deep_gemm_scales": {
        "points": points, "unit": "[rows, us per product]", "mark": "fitted",
        "source": f"decode steps of {name} beyond the formula"}}
    scaled = _with(gpu, entries)
    full = {series: _full_steps(each) for series, each in runs.items()}

    def off(gain: float) -> float:
        tried = with_values(scaled, {"deep_gemm_gain": gain})
        return float(np.mean([np.median(_logs(runs[series][0], tried, table)) for series, table in full.items()]))

    gain = float(scipy_part("optimize").brentq(off, *GAIN_RANGE, xtol=1e-4))
    final = with_values(scaled, {"deep_gemm_gain": gain})
    error = float(np.mean([abs(np.median(_logs(runs[series][0], final, table))) for series, table in full.items()]))
    return entries | {"deep_gemm_gain": entry(gain, "deep_gemm_gain", f"full prefill steps of {name}", "fitted", error,
                                              "1800..2048 tokens")}


def _missing_us(runs: Sequence[MeasuredRun], gpu: Gpu) -> "pd.Series[float]":
    """[us per product] by batch, that decode steps of equal sequences last beyond the formula."""
    table, model = _decode_steps(runs), setup_of(runs[0]).model
    missing = table.gap_s.to_numpy() - gpu_seconds(step_cost(runs[0], gpu), table)
    products = model.layers * len([*model.attention_gemms(1), *model.mlp_gemms(model.intermediate, 1)])
    return pd.Series(missing / products * 1e6, index=table.tokens)


def _mxfp4(runs: Sequence[MeasuredRun], gpu: Gpu) -> dict[str, Any]:
    """Bandwidth and rate of the kernel of experts in mxfp4 relative to those in 16 bits: from decode steps, which read
    few experts and then all, and the fastest tenth of each run's full prefill steps: most of those wait for their
    launch, which takes as long as their GPU work."""
    decode, full = _decode_steps(runs), _full_steps(runs)
    full = full[full.gap_s <= full.groupby("run").gap_s.transform("quantile", FASTEST)]
    keys = ("expert_mxfp4_read", "expert_mxfp4_gain")

    def off(logs: Array) -> Array:
        tried = with_values(gpu, dict(zip(keys, np.exp(logs).tolist(), strict=True)))
        return np.concatenate([_logs(runs[0], tried, decode) / 0.01, _logs(runs[0], tried, full) / 0.03])

    found = least_squares(off, np.log([0.7, 0.4]), loss="soft_l1", diff_step=1e-2)
    left = np.exp(off(found.x) * np.repeat([0.01, 0.03], [len(decode), len(full)])) - 1
    errors = float(np.mean(np.abs(left[: len(decode)]))), float(np.median(np.abs(left[len(decode):])))
    source = f"decode steps and full prefill steps of calibration/measurements/{MXFP4}/batch_*"
    return {key: entry(value, key, source, "fitted", error, "1..2048 tokens")
            for key, value, error in zip(keys, np.exp(found.x).tolist(), errors, strict=True)}


def _decode_steps(runs: Sequence[MeasuredRun]) -> pd.DataFrame:
    """One row a batch size of EQUAL_BATCHES: the longest row of equal decode steps."""
    table = gaps_of(runs)
    table = table[(table.kind == 0) & table.tokens.isin(EQUAL_BATCHES)].sort_values("weight", kind="stable")
    return table.groupby("tokens").last().reset_index()


def _full_steps(runs: Sequence[MeasuredRun]) -> pd.DataFrame:
    table = gaps_of(runs)
    return table[(table.kind == 1) & (table.gap_s < PAUSE_S)]


def _logs(run: MeasuredRun, gpu: Gpu, table: pd.DataFrame) -> Array:
    """ln(formula / gap)."""
    result: Array = np.log(gpu_seconds(step_cost(run, gpu), table) / table.gap_s.to_numpy())
    return result

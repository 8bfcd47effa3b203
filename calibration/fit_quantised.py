"""Products of 4-bit weights and fused experts from an engine's own kernels on one H200 (engine_kernels.py).

4-bit weights are computed in 16 bits: by Machete on Hopper, by Marlin elsewhere (vLLM 0.24,
model_executor/kernels/linear). Both start later than a 16-bit product (the difference to one timed in the same way:
what it costs in an engine's graph besides is in the profile already) and read their quarter of the bytes more
slowly; Marlin, which uses the tensor cores as Ampere has them, computes at half the rate on Hopper.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from calibration.fit import entry
from calibration.fit_experts import solved
from calibration.fit_operators import column, fit_gemm, gemm_seconds
from simulator.cost.gemm import GemmTime
from simulator.cost.gpu_times import gpu_times
from simulator.errors import CalibrationError
from simulator.profiles.gpu import load_gpu
from simulator.profiles.quantisation import WEIGHT_BYTES

Array = npt.NDArray[np.float64]
Rows = Sequence[Mapping[str, Any]]

KERNELS: Final = "kernels-h200.json"
FOUR_BITS: Final[Mapping[str, tuple[str, ...]]] = {"machete": ("int4", "int4_zeros"), "marlin": ("int4_zeros_marlin",)}
"""Kernel -> formats of its rows: groups of 128, without and with zero points."""
BETWEEN: Final = (17, 65)
"""Rows that no graph has: steps of so few tokens run padded to the next of its sizes."""


def kernel_rows(measurements: Path) -> tuple[dict[str, Rows], str]:
    """(rows by section, what to name as their source). Raises CalibrationError where the file or rows are missing."""
    path = measurements / KERNELS
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = {section: content[section] for section in ("products", "experts", "quantise")}
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise CalibrationError(f"{path}: not a readable result of engine_kernels.py: {failure}") from failure
    return rows, f"vLLM {content['vllm']}'s own kernels on one H200 (calibration/measurements/{KERNELS})"


def quantised_entries(measurements: Path) -> dict[str, Any]:
    """Entries of the H200's `measured:` block. Raises as `kernel_rows`."""
    rows, source = kernel_rows(measurements)
    products = rows["products"]
    plain = fit_gemm([row for row in products if row["format"] == "bf16"]).gemm
    entries: dict[str, Any] = {}
    for kernel, formats in FOUR_BITS.items():
        gemm, error = fit_four_bits([row for row in products if row["format"] in formats])
        values = {"start": max(0.0, gemm.start_s - plain.start_s) * 1e6, "read": gemm.bandwidth / plain.bandwidth,
                  "gain": gemm.rate / plain.rate, "exponent": gemm.exponent}
        for key, value in values.items():
            name = f"{kernel}_{key}"
            entries[name] = entry(value, name, source, "fitted", error, "m 1..4096, 8B and 70B")
        left = zip(gemm.correction_rows, gemm.correction_ratio, strict=True)
        entries[f"{kernel}_rows"] = {
            "points": [[int(m), round(float(ratio), 3)] for m, ratio in left], "unit": "[rows, 1]", "mark": "fitted",
            "source": f"{source}: measured over formula, mean over products"}
    blocks = [row for row in products if row["format"] == "fp8_block" and row["m"] not in BETWEEN]
    entries |= _block_entries(blocks, source)
    return entries | _expert_entries(rows["experts"],
                                     f"{source}, experts of Qwen3-30B-A3B and of DeepSeek-V3 split over eight")


def _block_entries(rows: Rows, source: str) -> dict[str, Any]:
    """Products of fp8 weights in blocks by CUTLASS over the formula for those with one scale a tensor, by rows."""
    times = gpu_times(load_gpu("h200-sxm"))
    m, n, k, us = (column(rows, key) for key in ("m", "n", "k", "us"))
    one_scale = replace(times.gemm, rate=times.gemm.rate * times.fp8_gain)
    plain = gemm_seconds(one_scale, m, n, k, WEIGHT_BYTES["fp8"])
    logs, levels = np.log(us * 1e-6 / plain), np.unique(m)
    ratio = np.exp([logs[m == level].mean() for level in levels])
    error = float(np.mean(np.abs(np.exp(logs) / np.interp(m, levels, ratio) - 1)))
    return {
        "fp8_block_rows": {
            "points": [[int(level), round(float(each), 3)] for level, each in zip(levels, ratio, strict=True)],
            "unit": "[rows, 1]", "mark": "fitted", "error_pct": round(100 * error, 2),
            "source": f"{source}: CUTLASS, blocks of 128 x 128, over the formula with one scale a tensor; mean over "
                      "products"}}


def _expert_entries(rows: Rows, source: str) -> dict[str, Any]:
    """Fused experts of 16 bits and of fp8 in blocks; the elementwise part is the H100's, by bandwidth."""
    old, new = load_gpu("h100-sxm"), load_gpu("h200-sxm")
    moved = gpu_times(old).experts.elementwise * new.bandwidth / old.bandwidth
    sixteen, error = fit_experts([row for row in rows if row["format"] == "bf16"], 2.0,
                                 {"start": 2e-5, "bandwidth": 4e12, "rate": 3.4e14}, {"elementwise": moved})
    eight, eight_error = fit_experts([row for row in rows if row["format"] == "fp8_block"], 1.0,
                                     {"start": 2e-5, "bandwidth": 3.5e12, "rate": 4e14}, sixteen)
    entries = {}
    for key, scale in (("start", 1e6), ("bandwidth", 1e-12), ("rate", 1e-12)):
        name = f"expert_{key}"
        entries[name] = entry(sixteen[key] * scale, name, source, "fitted", error, "1..4096 tokens")
    for key, of in (("start", "start"), ("read", "bandwidth"), ("gain", "rate")):
        name = f"expert_fp8_{key}"
        entries[name] = entry(eight[of] / sixteen[of], name, f"{source}, blocks of 128 x 128", "fitted", eight_error,
                              "1..4096 tokens")
    return entries


def fit_four_bits(rows: Rows) -> tuple[GemmTime, float]:
    """(products of 4-bit weights in groups of 128, mean relative error): the four numbers of GemmTime, then what is
    left by rows (tile classes), mean over products."""
    m, n, k, us = (column(rows, key) for key in ("m", "n", "k", "us"))
    size, levels = WEIGHT_BYTES["int4"], np.unique(m)
    found = fit_gemm(rows, size, 0.1).gemm
    left = np.log(gemm_seconds(found, m, n, k, size) / (us * 1e-6))
    ratio = np.exp([-left[m == level].mean() for level in levels])
    corrected = replace(found, correction_rows=levels, correction_ratio=ratio)
    return corrected, float(np.mean(np.abs(np.exp(left) * np.interp(m, levels, ratio) - 1)))


def fit_experts(rows: Rows, weight_bytes: float, free: Mapping[str, float],
                fixed: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """(numbers of cost.moe.ExpertTime in SI units, mean relative error); those of `free` are fitted from there on."""
    m, touched, active, hidden, width, us = (
        column(rows, key) for key in ("m", "touched", "active", "hidden", "width", "us"))
    weights, pairs = 3.0 * hidden * width, m * active
    return solved(touched * weights * weight_bytes, 2.0 * pairs * weights, 2.0 * pairs * (2 * hidden + 6 * width),
                  us * 1e-6, free, fixed)

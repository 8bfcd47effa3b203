"""A layer's fused experts kernel, fitted on a public operator table (aiconfigurator, not shipped)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.fit_operators import least_squares
from calibration.public import AIC, SUSTAINED
from calibration.public import entry_of as entry
from calibration.public import table_of as read_csv

Array = npt.NDArray[np.float64]

TUNED: Final = (1792, 2048, 3584, 4096, 7168)
"""[columns per GPU] Wide experts that vLLM has a tuned table for on the H100 with 8 experts in 16 bits."""
TUNED_FP8: Final = (*TUNED, 8192, 14336)


def expert_entries(data: Path, stem: str = "h100") -> dict[str, Any]:
    """Profile entries of the fused experts kernel from `op_moe_{stem}_aic_vllm0.14.0.csv`, tokens spread evenly (so
    that the experts touched are known): Qwen3-30B-A3B's layer on one GPU, split over two and dealt out to 2, 4 and 8;
    the rate of wide experts from both Mixtrals, under sustained load; what 8-bit weights change, all else alike.
    """
    table = read_csv(data / f"op_moe_{stem}_aic_vllm0.14.0.csv")
    table = table[(table.distribution == "balanced") & (table.moe_tp_size * table.moe_ep_size <= 8)
                  & (table.num_tokens <= 8192)]
    narrow = table[(table.inter_size == 768) & (table.moe_tp_size <= 2)]
    wide = table[(table.inter_size > 768) & (table.moe_ep_size == 1)]
    width = wide.inter_size // wide.moe_tp_size
    sixteen = wide[(wide.moe_dtype == "bfloat16") & width.isin(TUNED)]
    eight = wide[(wide.moe_dtype == "fp8") & width.isin(TUNED_FP8)]
    first = {"start": 2e-5, "bandwidth": 2.9e12, "rate": 3.4e14, "elementwise": 2.5e12, "untuned": 0.9}
    values, error = _fit_experts(narrow[narrow.moe_dtype == "bfloat16"], 2.0, first, {})
    large, large_error = _fit_experts(sixteen, 2.0, {"rate": 8e14}, values)
    first = {"start": 2e-5, "bandwidth": 2.5e12, "rate": 3.2e14}
    fp8, fp8_error = _fit_experts(narrow[narrow.moe_dtype == "fp8"], 1.0, first, values)
    read = {key: fp8[key] for key in ("start", "bandwidth")}
    both, both_error = _fit_experts(eight, 1.0, {"rate": 1.6e15}, values | read)
    names = f"{AIC}; fused experts of Qwen3-30B-A3B on one GPU, split over two, dealt out to 2, 4 and 8"
    mixtral = f"{AIC}; fused experts of Mixtral 8x7B and 8x22B split over 1 to 8 GPUs"
    return {
        **{f"expert_{key}": entry(f"expert_{key}", value, names, error) for key, value in values.items()},
        "expert_wide_rate": entry("expert_wide_rate", large["rate"] * SUSTAINED, f"{mixtral}, x {SUSTAINED} as for "
                                   "other products", large_error),
        "expert_fp8_start": entry("expert_fp8_start", fp8["start"] / values["start"], names, fp8_error),
        "expert_fp8_read": entry("expert_fp8_read", fp8["bandwidth"] / values["bandwidth"], names, fp8_error),
        "expert_fp8_gain": entry("expert_fp8_gain", fp8["rate"] / values["rate"], names, fp8_error),
        "expert_wide_fp8_gain": entry("expert_wide_fp8_gain", both["rate"] / large["rate"], mixtral, both_error),
    }


def _fit_experts(rows: pd.DataFrame, weight_bytes: float, free: dict[str, float],
                 fixed: dict[str, float]) -> tuple[dict[str, float], float]:
    """Parameters of ExpertTime in SI units, those of `free` fitted from there on, and their mean error."""
    t, routed, active, hidden, ep = (
        rows[name].to_numpy(dtype=np.float64)
        for name in ("num_tokens", "num_experts", "topk", "hidden_size", "moe_ep_size"))
    width = (rows.inter_size / rows.moe_tp_size).to_numpy(dtype=np.float64)
    seconds, weights = rows.latency_us.to_numpy() * 1e-6, 3.0 * hidden * width
    read = np.maximum(np.minimum(t * active, routed) / ep, 1.0) * weights * weight_bytes
    computed, between = 2.0 * t * active / ep * weights, 2.0 * t * active * (2 * hidden + 6 * width)

    return solved(read, computed, between, seconds, free, fixed, ep > 1)


def solved(read: Array, computed: Array, between: Array, seconds: Array, free: Mapping[str, float],
           fixed: Mapping[str, float], untuned: bool | npt.NDArray[np.bool_] = False) -> tuple[dict[str, float], float]:
    """Parameters of ExpertTime from bytes read, FLOP and elementwise bytes of measured layers, those of `free` fitted
    from there on, and their mean relative error; `untuned`: where no tuned table is used."""

    def values(logs: Array) -> dict[str, float]:
        return {**fixed, **dict(zip(free, np.exp(logs).tolist(), strict=True))}

    def residual(logs: Array) -> Array:
        v = values(logs)
        tuned = np.where(untuned, v.get("untuned", 1.0), 1.0)
        off: Array = np.log(
            (v["start"] / tuned + read / (v["bandwidth"] * tuned) + computed / v["rate"]
             + between / v["elementwise"]) / seconds)
        return off

    exact = {"jac": "3-point", "xtol": 1e-12, "ftol": 1e-14}
    found = least_squares(residual, np.log(list(free.values())), loss="soft_l1", f_scale=0.1, **exact)
    return values(found.x), float(np.mean(np.abs(np.exp(residual(found.x)) - 1)))

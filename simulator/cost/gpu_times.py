"""What a GPU was measured to do: rates and fixed times of the operators a step is made of.

A profile's `measured:` block (hwprofiles/gpu/*.yaml) holds one entry per component:
`{value, unit, source, mark, error_pct, range}`, or `points:` for a curve. A GPU without measurements, or
with some components missing, takes them from the GPU named by `scaled_from` (default h100-sxm): rates in
proportion to the datasheet peaks, fixed times unchanged. `GpuTimes.marks` says which is which.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.cost.gemm import GemmTime
from simulator.cost.moe import ExpertTime
from simulator.errors import ConfigError
from simulator.profiles.gpu import HOPPER, Gpu, load_gpu

Curve = npt.NDArray[np.float64]

REFERENCE: Final = "h100-sxm"
SAMPLERS: Final = ("top_p", "top_k", "top_k_top_p")
"""What limits the tokens that are drawn from, beside greedy; a draw from all takes as long as greedy (within 1 %)."""
EXTRAS: Final = "h200-sxm"
"""The GPU that samplers and adapters were measured on; theirs stand for all others, scaled by nothing."""
MARKS: Final = ("measured", "fitted", "assumed", "scaled")

UNITS: Final[Mapping[str, tuple[str, float]]] = {
    "gemm_start": ("us", 1e-6),
    "gemm_bandwidth": ("TB/s", 1e12),
    "gemm_rate": ("TFLOP/s", 1e12),
    "gemm_exponent": ("1", 1.0),
    "fp8_gain": ("1", 1.0),
    "fp8_kv_rate": ("1", 1.0),
    "layer_fixed": ("us", 1e-6),
    "step_fixed": ("us", 1e-6),
    "elementwise_bandwidth": ("TB/s", 1e12),
    "decode_bandwidth": ("TB/s", 1e12),
    "decode_sequence": ("us", 1e-6),
    "mixed_lengths": ("us", 1e-6),
    "decode_beside_prefill": ("1", 1.0),
    "prefill_rate": ("TFLOP/s", 1e12),
    "prefill_token": ("ns", 1e-9),
    "sample_sequence": ("us", 1e-6),
    "expert_start": ("us", 1e-6),
    "expert_bandwidth": ("TB/s", 1e12),
    "expert_rate": ("TFLOP/s", 1e12),
    "expert_wide_rate": ("TFLOP/s", 1e12),
    "expert_elementwise": ("TB/s", 1e12),
    "expert_untuned": ("1", 1.0),
    "expert_fp8_start": ("1", 1.0),
    "expert_fp8_read": ("1", 1.0),
    "expert_fp8_gain": ("1", 1.0),
    "expert_wide_fp8_gain": ("1", 1.0),
    "all_reduce_sync": ("us", 1e-6),
    "lora_adapter": ("us", 1e-6),
}
"""Component -> (unit in the profile, factor to SI)."""
FOUR_BIT_UNITS: Final[Mapping[str, tuple[str, float]]] = {
    f"{kernel}_{key}": unit for kernel in ("machete", "marlin")
    for key, unit in (("start", ("us", 1e-6)), ("read", ("1", 1.0)), ("gain", ("1", 1.0)), ("exponent", ("1", 1.0)))}
"""Components of products with 4-bit weights, of the GPU or of EXTRAS: how much later they start than 16-bit products,
and their bandwidth and rate relative to those."""
BLOCK_UNITS: Final[Mapping[str, tuple[str, float]]] = {
    "fp8_block_quantise": ("us", 1e-6), "fp8_block_bandwidth": ("TB/s", 1e12), "deep_gemm_gain": ("1", 1.0),
    "fp8_row_bandwidth": ("TB/s", 1e12)}
"""Of products of fp8 weights, of the GPU or of EXTRAS: kernels that quantise their activations, in blocks and row by
row (bandwidth: 2 bytes read and 1 written a number), and DeepGEMM's rate relative to products of one scale."""
FOUR_BIT_EXPERT_UNITS: Final[Mapping[str, tuple[str, float]]] = {
    "expert_mxfp4_read": ("1", 1.0), "expert_mxfp4_gain": ("1", 1.0)}
"""Of experts in mxfp4, of the GPU or of EXTRAS."""
ALL_UNITS: Final = {**UNITS, **FOUR_BIT_UNITS, **BLOCK_UNITS, **FOUR_BIT_EXPERT_UNITS}
MACHETE: Final = HOPPER
"""Compute capability (Hopper) that vLLM's Machete kernel runs on; other GPUs run Marlin (vLLM 0.24,
model_executor/kernels/linear/mixed_precision/machete.py)."""
_POWER: Final = {"us": 1, "ns": 1, "TB/s": -1, "TFLOP/s": -1, "1": 0}
"""Unit -> what a component goes with, as a power of the profile's time scale."""
_BY_BANDWIDTH: Final = ("gemm_bandwidth", "elementwise_bandwidth", "decode_bandwidth", "expert_bandwidth",
                        "expert_elementwise")
_BY_PEAK: Final = ("gemm_rate", "prefill_rate", "expert_rate", "expert_wide_rate")
_EXPERT: Final = ("start", "bandwidth", "rate", "wide_rate", "elementwise", "untuned", "fp8_start", "fp8_read",
                  "fp8_gain", "wide_fp8_gain")
"""Components of ExpertTime, in its order, after `expert_`."""
_BY_INVERSE_BANDWIDTH: Final = ("sample_sequence",)


@dataclass(frozen=True)
class GpuTimes:
    """Operator times of one GPU, SI units. Per-layer times are per transformer layer."""

    name: str
    gemm: GemmTime
    four_bits: GemmTime  # products of 4-bit weights, computed in 16 bits
    fp8_gain: float  # how much faster products with 8-bit operands run when limited by arithmetic
    fp8_kv_rate: float  # bytes of 8-bit KV read by decode attention per second, relative to 16-bit KV
    fp8_extra: tuple[Curve, Curve]  # (rows, [s] per layer): products of 8-bit weights beyond the formula
    block_rows: tuple[Curve, Curve]  # (rows, ratio): products of fp8 weights in blocks to those with a scale a tensor
    deep_gemm_scales: tuple[Curve, Curve]  # (rows, [s]): scales of activations brought into the order DeepGEMM reads
    block_quantise_s: float  # per such product: activations quantised by a kernel of its own
    block_quantise_bandwidth: float  # [B/s] that it reads and writes
    row_quantise_bandwidth: float  # [B/s] of activations quantised row by row, for one scale a tensor or row
    deep_gemm_gain: float  # rate of DeepGEMM relative to fp8 products of one scale
    experts: ExpertTime  # a layer's mixture of experts
    layer_fixed_s: float  # kernels of a layer besides its products: start and drain
    step_fixed_s: float  # per step, whatever is in it
    elementwise_bandwidth: float  # [B/s] norms, rotary, activation, residual
    decode_bandwidth: float  # [B/s] KV read by decode attention
    decode_sequence_s: float  # decode attention per layer and sequence
    mixed_lengths_s: float  # decode attention per layer: load imbalance of unequal contexts, many sequences
    decode_beside_prefill: float  # decode attention per context token in a step with prefill, relative to one without
    prefill_rate: float  # [FLOP/s] prefill attention, 16 bits
    prefill_token_s: float  # prefill attention per layer and query token
    sample_sequence_s: float  # sampling, per sequence
    all_reduce_sync_s: float  # waiting for the other ranks and kernel boundary, per all-reduce
    all_reduce: Mapping[int, tuple[Curve, Curve]]  # GPUs -> (message [bytes], time [s])
    sampler: Mapping[str, tuple[Curve, Curve]]  # sampler -> (sequences, [s] beyond greedy), vocabulary of 128,256
    lora_layer: tuple[Curve, Curve]  # (tokens, [s] per layer) that one adapter adds
    lora_adapter_s: float  # per layer and further adapter of a step
    marks: Mapping[str, str] = field(hash=False)

    def reduce_s(self, gpus: int, message: Curve) -> Curve | None:
        """[s] for one all-reduce of `message` bytes, linear between measured points; None where not measured.

        Beyond the largest message the bandwidth of the last two points holds.
        """
        if gpus not in self.all_reduce:
            return None
        return along(message, *self.all_reduce[gpus]) + self.all_reduce_sync_s


def along(x: Curve, points: Curve, values: Curve) -> Curve:
    """Linear between points; beyond the last by the slope of the last two, where that does not fall."""
    slope = (values[-1] - values[-2]) / (points[-1] - points[-2])
    result: Curve = np.interp(x, points, values) + np.maximum(x - points[-1], 0.0) * max(float(slope), 0.0)
    return result


def gpu_times(gpu: Gpu) -> GpuTimes:
    """Operator times of `gpu` from its profile. Raises ConfigError for a malformed `measured:` block."""
    values, marks = _values(gpu)
    values = {key: value * gpu.time_scale ** _POWER[UNITS[key][0]] for key, value in values.items()}
    blocks = gpu if "fp8_block_rows" in gpu.measured else load_gpu(EXTRAS)
    gemm = GemmTime(
        values["gemm_start"],
        values["gemm_bandwidth"],
        values["gemm_rate"],
        values["gemm_exponent"],
        *_by_rows(gpu, "gemm_correction"),
    )
    return GpuTimes(
        name=gpu.name,
        gemm=gemm,
        four_bits=_four_bits(gpu, gemm),
        fp8_gain=values["fp8_gain"],
        fp8_kv_rate=values["fp8_kv_rate"],
        fp8_extra=_curve(gpu, "fp8_extra", REFERENCE),
        block_rows=_by_rows(blocks, "fp8_block_rows"),
        deep_gemm_scales=_curve(gpu, "deep_gemm_scales"),
        block_quantise_s=_component(blocks, "fp8_block_quantise")[0] * gpu.time_scale,
        block_quantise_bandwidth=_extra(gpu, "fp8_block_bandwidth"),
        row_quantise_bandwidth=_extra(gpu, "fp8_row_bandwidth"),
        deep_gemm_gain=_extra(gpu, "deep_gemm_gain"),
        experts=ExpertTime(*(values[f"expert_{key}"] for key in _EXPERT),
                           *(_extra(gpu, key) for key in FOUR_BIT_EXPERT_UNITS)),
        layer_fixed_s=values["layer_fixed"],
        step_fixed_s=values["step_fixed"],
        elementwise_bandwidth=values["elementwise_bandwidth"],
        decode_bandwidth=values["decode_bandwidth"],
        decode_sequence_s=values["decode_sequence"],
        mixed_lengths_s=values["mixed_lengths"],
        decode_beside_prefill=values["decode_beside_prefill"],
        prefill_rate=values["prefill_rate"],
        prefill_token_s=values["prefill_token"],
        sample_sequence_s=values["sample_sequence"],
        all_reduce_sync_s=values["all_reduce_sync"],
        all_reduce=_all_reduce(gpu),
        sampler={name: _curve(gpu, f"sampler_{name}") for name in SAMPLERS},
        lora_layer=_curve(gpu, "lora_layer"),
        lora_adapter_s=values["lora_adapter"],
        marks=marks,
    )


def _four_bits(gpu: Gpu, gemm: GemmTime) -> GemmTime:
    """Products of 4-bit weights by the kernel that an engine takes on this GPU. Before Hopper Marlin computes at the
    rate of 16-bit products: both use the same tensor-core instructions there (assumed)."""
    kernel = "machete" if gpu.compute_capability == MACHETE else "marlin"
    source = gpu if f"{kernel}_start" in gpu.measured else load_gpu(EXTRAS)
    start, read, gain, exponent = (
        _component(source, f"{kernel}_{key}")[0] for key in ("start", "read", "gain", "exponent"))
    if 0 < gpu.compute_capability < MACHETE:
        gain = 1.0
    start_s = gemm.start_s + start * gpu.time_scale
    return GemmTime(start_s, gemm.bandwidth * read, gemm.rate * gain, exponent, *_by_rows(source, f"{kernel}_rows"))


def _values(gpu: Gpu) -> tuple[dict[str, float], dict[str, str]]:
    """SI values and marks of every component; what the profile lacks is scaled from another GPU."""
    values: dict[str, float] = {}
    marks: dict[str, str] = {}
    missing = [key for key in UNITS if key not in gpu.measured]
    for key in UNITS:
        if key in gpu.measured:
            values[key], marks[key] = _component(gpu, key)
    if missing:
        reference = load_gpu(str(gpu.measured.get("scaled_from", REFERENCE)))
        if reference.path == gpu.path:
            raise ConfigError(
                f"{gpu.path}: measured lacks {', '.join(missing)} and names no other GPU to scale from"
            )
        base, _ = _values(reference)
        for key in missing:
            values[key], marks[key] = base[key] * _scale(key, gpu, reference), f"scaled from {reference.name}"
    return values, marks


def _scale(key: str, gpu: Gpu, reference: Gpu) -> float:
    bandwidth = gpu.memory_gbps / reference.memory_gbps
    if key in _BY_BANDWIDTH:
        return bandwidth
    if key in _BY_INVERSE_BANDWIDTH:
        return 1.0 / bandwidth
    if key in _BY_PEAK:
        return gpu.peak_tflops["bf16"] / reference.peak_tflops["bf16"]
    return 1.0


def _component(gpu: Gpu, key: str) -> tuple[float, str]:
    entry = gpu.measured[key]
    unit, factor = ALL_UNITS[key]
    if not isinstance(entry, dict) or not {"value", "unit", "source", "mark"} <= set(entry):
        raise ConfigError(f"{gpu.path}: measured.{key} must be {{value, unit, source, mark}}, got {entry!r}")
    if entry["unit"] != unit:
        raise ConfigError(f"{gpu.path}: measured.{key}.unit must be {unit!r}, got {entry['unit']!r}")
    if entry["mark"] not in MARKS:
        raise ConfigError(
            f"{gpu.path}: measured.{key}.mark must be one of {', '.join(MARKS)}, got {entry['mark']!r}"
        )
    value = entry["value"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError(f"{gpu.path}: measured.{key}.value must be a number >= 0, got {value!r}")
    return float(value) * factor, str(entry["mark"])


def _extra(gpu: Gpu, key: str) -> float:
    """A component of the GPU, else of EXTRAS: a bandwidth by the datasheets', a ratio as it is."""
    unit = ALL_UNITS[key][0]
    source = gpu if key in gpu.measured else load_gpu(EXTRAS)
    moved = gpu.memory_gbps / source.memory_gbps if unit == "TB/s" else 1.0
    return _component(source, key)[0] * moved * gpu.time_scale ** _POWER[unit]


def _points(gpu: Gpu, key: str) -> Curve | None:
    """A curve of the profile, shape (P, 2), first column increasing; None where there is none."""
    entry = gpu.measured.get(key)
    if entry is None:
        return None
    if not isinstance(entry, dict) or "points" not in entry or "source" not in entry:
        raise ConfigError(f"{gpu.path}: measured.{key} must be {{points, unit, source, mark}}, got {entry!r}")
    points = np.asarray(entry["points"], dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < 2 or np.any(np.diff(points[:, 0]) <= 0):
        raise ConfigError(f"{gpu.path}: measured.{key}.points must be two or more [x, y] with x increasing")
    return points


def _by_rows(gpu: Gpu, key: str) -> tuple[Curve, Curve]:
    """(rows, ratio to the formula) of products; a ratio of 1 where the profile has no such curve."""
    points = _points(gpu, key)
    return (np.ones(1), np.ones(1)) if points is None else (points[:, 0], points[:, 1])


def _curve(gpu: Gpu, key: str, reference: str = EXTRAS) -> tuple[Curve, Curve]:
    """A curve in us: of the GPU, else of the one it was measured on."""
    points = _points(gpu, key)
    if points is None:
        points = _points(load_gpu(reference), key)
    if points is None:
        raise ConfigError(f"{gpu.path}: measured.{key} is missing, here and in {reference}")
    return points[:, 0], points[:, 1] * 1e-6 * gpu.time_scale


def _all_reduce(gpu: Gpu) -> dict[int, tuple[Curve, Curve]]:
    """Curves `all_reduce_2`, `_4`, `_8` ([bytes, us]); links are not scaled between GPUs."""
    curves = {}
    for gpus in (2, 4, 8):
        points = _points(gpu, f"all_reduce_{gpus}")
        if points is not None:
            curves[gpus] = (points[:, 0], points[:, 1] * 1e-6 * gpu.time_scale)
    return curves

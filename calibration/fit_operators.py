"""Fit operator measurements: matrix products and decode attention of one GPU.

Input: rows {m, n, k, us} for products in 16 bits and {batch, context, us} for decode attention, as in
calibration/measurements/operators-h100.json. Both fits weigh relative errors.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.cost.gemm import GemmTime
from simulator.errors import CalibrationError

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GemmFit:
    """Parameters, error and range of a fit of `simulator.cost.gemm`."""

    gemm: GemmTime
    mean_error: float  # mean absolute relative error
    rows: tuple[int, int]  # smallest and largest m
    points: int


@dataclass(frozen=True)
class DecodeFit:
    """Decode attention of one layer: start + sequences x per_sequence + KV bytes / bandwidth."""

    start_s: float
    sequence_s: float
    bandwidth: float  # [B/s]
    mean_error: float
    contexts: tuple[int, int]


def scipy_part(name: str) -> Any:
    """A part of scipy, e.g. `optimize`. Raises CalibrationError where scipy is not installed."""
    try:
        return importlib.import_module(f"scipy.{name}")
    except ImportError as error:
        raise CalibrationError("fitting needs scipy: pip install 'servecast[calibrate]', or pip install -e "
                               "'.[calibrate]' in a copy of the source") from error


def least_squares(*args: Any, **kwargs: Any) -> Any:
    """scipy.optimize.least_squares. Raises CalibrationError where scipy is not installed."""
    return scipy_part("optimize").least_squares(*args, **kwargs)


def column(rows: Sequence[Mapping[str, Any]], key: str) -> Array:
    """One field of all rows as float64. Raises CalibrationError where it is missing."""
    try:
        return np.array([float(row[key]) for row in rows])
    except (KeyError, TypeError, ValueError) as error:
        raise CalibrationError(f"operator measurements: field {key!r} is missing or not a number") from error


def fit_gemm(rows: Sequence[Mapping[str, Any]], weight_bytes: float = 2.0, scale: float = 0.05) -> GemmFit:
    """Fit start, bandwidth, rate and exponent to measured products; relative errors far beyond `scale` count less.
    Needs five points or more."""
    if len(rows) < 5:
        raise CalibrationError(f"fitting a matrix product needs 5 points or more, got {len(rows)}")
    m, n, k, us = (column(rows, key) for key in ("m", "n", "k", "us"))
    seconds = us * 1e-6
    bandwidth = float(np.max(2 * n * k / seconds))
    rate = float(np.max(2 * m * n * k / seconds))

    def residual(p: Array) -> Array:
        with np.errstate(over="ignore"):  # of a trial with an exponent near 0, which is not taken
            return np.log(gemm_seconds(_time(p), m, n, k, weight_bytes) / seconds)

    start = np.log(np.array([max(float(seconds.min()) / 4, 1e-7), bandwidth, rate, 3.0]))
    exact = {"jac": "3-point", "xtol": 1e-12, "ftol": 1e-14, "gtol": 1e-12}
    found = least_squares(residual, start, loss="soft_l1", f_scale=scale, **exact)
    error = float(np.mean(np.abs(np.exp(residual(found.x)) - 1)))
    return GemmFit(_time(found.x), error, (int(m.min()), int(m.max())), len(rows))


def _time(logs: Array) -> GemmTime:
    """Parameters are fitted as logarithms: all are positive."""
    start, bandwidth, rate, exponent = np.exp(logs)
    return GemmTime(float(start), float(bandwidth), float(rate), float(exponent))


def gemm_seconds(time: GemmTime, m: Array, n: Array, k: Array, weight_bytes: float = 2.0) -> Array:
    """[s] of products of any shapes, one of each; GemmTime.seconds without its correction."""
    memory = time.start_s + (weight_bytes * n * k + 2.0 * m * (n + k)) / time.bandwidth
    compute = 2.0 * m * n * k / time.rate
    larger, smaller = np.maximum(memory, compute), np.minimum(memory, compute)
    result: Array = larger * (1.0 + (smaller / larger) ** time.exponent) ** (1.0 / time.exponent)
    return result


def fit_decode(rows: Sequence[Mapping[str, Any]], kv_bytes_per_token: int) -> DecodeFit:
    """Fit decode attention of one layer, linear in sequences and in context tokens."""
    batch, context, us = (column(rows, key) for key in ("batch", "context", "us"))
    design = np.stack([np.ones_like(batch), batch, batch * context], axis=1) / us[:, None]
    solution = np.linalg.lstsq(design, np.ones_like(us), rcond=None)[0]
    error = float(np.mean(np.abs(design @ solution - 1)))
    if solution[2] <= 0:
        raise CalibrationError("decode attention does not grow with context in these measurements")
    return DecodeFit(
        float(solution[0]) * 1e-6,
        max(0.0, float(solution[1])) * 1e-6,
        kv_bytes_per_token / (float(solution[2]) * 1e-6),
        error,
        (int(context.min()), int(context.max())),
    )


def fit_prefill(rows: Sequence[Mapping[str, Any]], flops_per_pair: int) -> tuple[float, float, float]:
    """(rate [FLOP/s], per token [s], mean error) of one layer's prefill attention, weighted to long ones.

    Rows {batch, length, us}: causal prompts without earlier context.
    """
    batch, length, us = (column(rows, key) for key in ("batch", "length", "us"))
    tokens, pairs = batch * length, batch * length * (length + 1) / 2
    weight = np.sqrt(us)
    design = np.stack([tokens, pairs], axis=1) / us[:, None] * weight[:, None]
    solution = np.linalg.lstsq(design, weight, rcond=None)[0]
    if solution[0] < 0:
        solution = np.array([0.0, float(np.sum(us * pairs) / np.sum(pairs * pairs))])
    error = float(np.mean(np.abs((tokens * solution[0] + pairs * solution[1]) / us - 1)))
    return flops_per_pair / (float(solution[1]) * 1e-6), float(solution[0]) * 1e-6, error

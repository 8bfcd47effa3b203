"""Fit what operators do not show on the engine's own step log: start-ups in a graph, sustained rates, sampling.

With asynchronous scheduling and the GPU as the longer clock, the gap between two outputs is the GPU time of
the later step. Two kinds of gaps qualify: pure decode steps that follow two others (median per batch size),
and full prefill steps deep in a burst (each, with a robust loss: launches that were late move time between
neighbours). Operator measurements enter as priors; the engine's gaps decide.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.fit_operators import least_squares
from calibration.measured import MeasuredRun
from calibration.predict import Profiles, cost_of, setup_of
from simulator.cost.gpu_times import ALL_UNITS
from simulator.cost.step import FP_BITS, Cost
from simulator.errors import CalibrationError
from simulator.profiles.gpu import Gpu

Array = npt.NDArray[np.float64]

FREE: Final = ("layer_fixed", "gemm_rate", "decode_bandwidth", "sample_sequence", "prefill_rate",
               "decode_beside_prefill")
"""Components fitted here, in profile units: those that a step log can tell apart. It cannot tell a product's start
from the fixed time of its layer (four starts and one fixed time only add up), nor elementwise traffic from the
products' rate (both grow with the tokens of a step): product start and elementwise bandwidth stay as the operators
alone give them. Left free, both pairs move the gaps by less than a seventh of their error per prior width."""
LEAST: Final = {"decode_beside_prefill": 1.0}
"""Components that have a smallest value other than none."""
DECODE_ERROR: Final = 0.01
PREFILL_ERROR: Final = 0.03
"""Relative errors the gaps are weighed by: repeatability of decode steps and of single prefill steps."""
DIFFERENCE: Final = 1e-2
"""Relative step of the central differences: wide against the whole nanoseconds that step times are rounded to."""
FIRST_PREFILL: Final = 5
FULL_STEP: Final = 1800
"""[tokens] from here a prefill step is longer on the GPU than its launch."""


@dataclass(frozen=True)
class StepFit:
    """Fitted components in profile units, their standard errors, and the relative errors of the gaps."""

    values: Mapping[str, float]
    errors: Mapping[str, float]
    gaps: pd.DataFrame


def gaps_of(runs: Sequence[MeasuredRun]) -> pd.DataFrame:
    """Output gaps that are GPU times: kind (0 decode, 1 prefill), counts, gap_s, weight, run."""
    frames = [
        part for run in runs if run.steps is not None for part in (_decode_gaps(run), _prefill_gaps(run))
    ]
    table = pd.concat([frame for frame in frames if len(frame)], ignore_index=True)
    if table.empty:
        raise CalibrationError("no step log with GPU-bound gaps among the runs to fit")
    return table


def _decode_gaps(run: MeasuredRun) -> pd.DataFrame:
    steps = _with_gap(run)
    prefill = steps.n_prefill > 0
    steady = ~prefill & ~prefill.shift(1, fill_value=True) & ~prefill.shift(2, fill_value=True)
    groups = (
        steps[steady]
        .groupby("n_decode")
        .agg(
            decode_context_tokens=("decode_context_tokens", "median"),
            gap_s=("gap_s", "median"),
            count=("gap_s", "size"),
        )
    )
    groups = groups[groups["count"] >= 2].reset_index()
    return groups.assign(
        kind=0,
        tokens=groups.n_decode,
        n_prefill=0,
        prefill_attention_pairs=0,
        weight=np.sqrt(np.minimum(groups["count"], 40)) / 2,
        run=run.name,
    )


def _prefill_gaps(run: MeasuredRun) -> pd.DataFrame:
    steps = _with_gap(run)
    full = steps[(steps.tokens >= FULL_STEP) & (steps.n_prefill > 0) & (steps.index >= FIRST_PREFILL)]
    return full.assign(kind=1, weight=1.0, run=run.name)[
        [
            "kind",
            "tokens",
            "n_decode",
            "decode_context_tokens",
            "n_prefill",
            "prefill_attention_pairs",
            "gap_s",
            "weight",
            "run",
        ]
    ]


def _with_gap(run: MeasuredRun) -> pd.DataFrame:
    assert run.steps is not None
    return run.steps.assign(
        gap_s=run.steps.t_output_s.diff(), tokens=run.steps.n_decode + run.steps.prefill_tokens
    )


def gpu_seconds(cost: Cost, steps: pd.DataFrame) -> Array:
    """[s] GPU time of each step under `cost`; needs kind, tokens, n_decode, decode_context_tokens, n_prefill,
    prefill_attention_pairs. What windowed layers see is left out."""
    unit = 1e-9 / 2**FP_BITS
    tokens = steps.tokens.to_numpy(dtype=np.int64)
    place = np.minimum(tokens, cost.dense_ns.shape[1] - 1)
    dense = cost.dense_ns[steps.kind.to_numpy(dtype=np.int64), place] * 1e-9 + (tokens - place) * cost.slope_fp * unit
    decode = (
        steps.decode_context_tokens.to_numpy() * float(cost.decode_context_fp)
        + steps.n_decode.to_numpy() * float(cost.decode_seq_fp)
    ) * unit
    prefill = (
        steps.prefill_attention_pairs.to_numpy() * float(cost.prefill_pair_fp)
        + steps.decode_context_tokens.to_numpy() * float(cost.beside_context_fp) * steps.kind.to_numpy()
        + (tokens - steps.n_decode.to_numpy()) * float(cost.prefill_token_fp) * steps.kind.to_numpy()
        + steps.n_prefill.to_numpy() * float(cost.prefill_seq_fp)
    ) * unit
    result: Array = dense + decode + prefill
    return result


def with_values(gpu: Gpu, values: Mapping[str, float]) -> Gpu:
    """A copy of the profile with components set, in profile units."""
    measured = dict(gpu.measured)
    for key, value in values.items():
        measured[key] = {"value": float(value), "unit": ALL_UNITS[key][0], "source": "fit", "mark": "fitted"}
    return dataclasses.replace(gpu, measured=measured)


def fit_steps(
    runs: Sequence[MeasuredRun],
    gpu: Gpu,
    priors: Mapping[str, tuple[float, float]],
    start: Mapping[str, float] | None = None,
) -> StepFit:
    """Fit the components named by `priors` (value, standard error) on the gaps of `runs`, all on one kind of GPU.

    All other components are those of `gpu`. The search starts from the priors, or from `start`.
    """
    groups = _alike(runs)
    tables = [gaps_of(group) for group in groups]
    table = pd.concat(tables, ignore_index=True)
    free = tuple(priors)
    centre = np.array([priors[key][0] for key in free])
    width = np.array([priors[key][1] for key in free])
    scale = np.where(table.kind == 0, DECODE_ERROR / table.weight, PREFILL_ERROR)
    gaps = table.gap_s.to_numpy()

    def relative(x: Array) -> Array:
        values = with_values(gpu, dict(zip(free, x, strict=True)))
        times = [
            gpu_seconds(_cost(group[0], setup_of(group[0]), values), part)
            for group, part in zip(groups, tables, strict=True)
        ]
        off: Array = np.concatenate(times) / gaps - 1.0
        return off

    def residual(x: Array) -> Array:
        return np.concatenate([relative(x) / scale, (x - centre) / width])

    least = np.array([LEAST.get(key, 1e-6) for key in free])
    bounds = (np.maximum(centre - 6 * width, least), centre + 6 * width)
    found = least_squares(
        residual,
        centre if start is None else np.clip([start[key] for key in free], *bounds),
        bounds=bounds,
        loss="soft_l1",
        x_scale=width,
        jac="3-point",
        diff_step=DIFFERENCE,
        xtol=1e-10,
        ftol=1e-12,
        gtol=1e-10,
    )
    spread = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)))
    return StepFit(
        dict(zip(free, map(float, found.x), strict=True)),
        dict(zip(free, map(float, spread), strict=True)),
        table.assign(error=relative(found.x)),
    )


def _alike(runs: Sequence[MeasuredRun]) -> list[list[MeasuredRun]]:
    """Runs with one model and one set of settings together: they share their step times."""
    groups: dict[tuple[object, ...], list[MeasuredRun]] = {}
    for run in runs:
        e = run.engine
        key = (run.model.name, e.tensor_parallel_size, e.weight_dtype, e.kv_cache_dtype, e.max_num_seqs,
               e.max_num_batched_tokens)
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _cost(run: MeasuredRun, setup: Profiles, gpu: Gpu) -> Cost:
    """Cost of the GPU alone: a CPU that takes no time."""
    host = dataclasses.replace(setup.host, cpu_scale=0.0)
    return cost_of(run, Profiles(gpu, setup.engine, setup.model, host))


def step_cost(run: MeasuredRun, gpu: Gpu) -> Cost:
    """Step times of a run's settings on `gpu`, the CPU taking no time."""
    return _cost(run, setup_of(run), gpu)


def step_table(run: MeasuredRun, gpu: Gpu | None = None) -> pd.DataFrame:
    """The run's step log with kind, tokens, gap and GPU time as predicted for `gpu` (default: the run's)."""
    setup = setup_of(run)
    cost = _cost(run, setup, gpu or setup.gpu)
    table = _with_gap(run)
    table = table.assign(kind=(table.n_prefill > 0).astype(int))
    return table.assign(gpu_s=gpu_seconds(cost, table))

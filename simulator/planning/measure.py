"""What a plan takes from one simulation: percentiles asked for, attainment, stability, where time went.

Requests that were rejected or never finished count as +infinity in every percentile.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.metrics.stability import stability
from simulator.planning.spec import MEAN, METRICS, PlanSpec
from simulator.run import Result
from simulator.state import (
    FINISHED,
    T_BLOCKS,
    T_DECODE_ATTENTION,
    T_DENSE,
    T_GPU,
    T_OUTPUT,
    T_PEAK_BLOCKS,
    T_PEAK_RUNNING,
    T_PEAK_WAITING,
    T_PREEMPTIONS,
    T_PREFILL,
    T_PREFILL_ATTENTION,
    T_RUNNING,
    T_STEPS,
    T_WAITING,
    T_WALL,
)
from simulator.units import NS_PER_S, to_seconds

Floats = npt.NDArray[np.float64]
MEASURE_VERSION: Final = 2
"""Raise when a record changes its meaning: cached points of another version are not used."""
STANDARD: Final = tuple((m, None, p) for m in METRICS for p in (50.0, 90.0, 95.0, 99.0, 99.9, MEAN))

PILED_UP: Final = 0.02
MIN_PILE: Final = 20.0
"""Undecided by its slope, a fleet is overloaded when more than this share of the requests, and more than this
many, wait for their first step when the last one arrives."""


@dataclass(frozen=True)
class Wanted:
    """What to record: (metric, class or None, percentile or MEAN) and the limits of a good request [s]."""

    quantiles: tuple[tuple[str, str | None, float], ...]
    limits: tuple[tuple[str, float], ...]


def wanted_of(spec: PlanSpec) -> Wanted:
    """Everything the plan's service levels and tables need."""
    asked = tuple((t.metric, t.cls, t.percentile) for t in spec.slo.targets)
    return Wanted(tuple(dict.fromkeys(STANDARD + asked)), tuple(sorted(spec.slo.request_limits().items())))


def key_of(metric: str, cls: str | None, percentile: float) -> str:
    """Name of a percentile in a record."""
    return f"{metric} {cls or '*'} {'mean' if percentile == MEAN else format(percentile, 'g')}"


def request_seconds(result: Result) -> dict[str, Floats]:
    """Metric -> [s] shape (N,); +inf for requests that did not finish, NaN where TPOT has no meaning (one
    token, or a batch returned whole)."""
    req = result.requests
    failed = np.asarray(req.status) != FINISHED
    arrival = to_seconds(req.arrival)
    with np.errstate(invalid="ignore"):
        times = {
            "ttft": to_seconds(req.first) - arrival,
            "e2e": to_seconds(req.last) - arrival,
            "queue": to_seconds(req.scheduled) - to_seconds(req.queued),
        }
        done = np.asarray(req.done, dtype=np.float64)
        tpot = (to_seconds(req.last) - to_seconds(req.first)) / np.where(done > 1, done - 1, 1.0)
    for column in times.values():
        column[failed] = np.inf
    tpot[failed] = np.inf
    tpot[(np.asarray(req.output) < 2) | (result.setup.limits.stream == 0)] = np.nan
    return {**times, "tpot": tpot}


def quantile(ordered: Floats, percentile: float) -> float:
    """Percentile of sorted values, linear between neighbours, +inf as soon as one of the two is."""
    if ordered.size == 0:
        return float("nan")
    if percentile == MEAN:
        return float(ordered.mean())
    place = percentile / 100 * (ordered.size - 1)
    low = int(place)
    a, b = float(ordered[low]), float(ordered[min(low + 1, ordered.size - 1)])
    return a if place == low else b if np.isinf(b) else a + (b - a) * (place - low)


def measure(result: Result, wanted: Wanted) -> dict[str, Any]:
    """One simulation as plain numbers (JSON, infinities allowed)."""
    skip = int(result.scenario.warmup_fraction * len(result.trace))
    times = {m: column[skip:] for m, column in request_seconds(result).items()}
    cls = result.trace.cls[skip:]
    values = {}
    for metric, name in dict.fromkeys((m, c) for m, c, _ in wanted.quantiles):
        column = times[metric]
        if name is not None:
            names = result.trace.class_names
            column = column[cls == names.index(name)] if name in names else column[:0]
        ordered = np.sort(column[~np.isnan(column)])
        for m, c, p in wanted.quantiles:
            if (m, c) == (metric, name):
                values[key_of(m, c, p)] = quantile(ordered, p)
    return {
        "values": values,
        **_goodness(times, wanted),
        **_counts(result),
        **_totals(result),
        **_stability(result),
    }


def _goodness(times: dict[str, Floats], wanted: Wanted) -> dict[str, Any]:
    good = np.isfinite(times["e2e"])
    for metric, limit in wanted.limits:
        good &= ~(times[metric] > limit)
    return {"attained": float(good.mean()) if good.size else float("nan")}


def _counts(result: Result) -> dict[str, Any]:
    req, trace = result.requests, result.trace
    status = np.asarray(req.status)
    span = trace.span_ns / NS_PER_S
    return {
        "arrived": len(trace),
        "completed": int((status == FINISHED).sum()),
        "rejected": int((status > FINISHED).sum()),
        "span_s": span,
        "rate": (len(trace) - 1) / span if span > 0 else 0.0,
        "prompt_tokens": int(trace.prompt.sum()),
        "output_tokens": int(result.totals[:, T_OUTPUT].sum()),
    }


def _totals(result: Result) -> dict[str, Any]:
    total = result.totals.sum(axis=0).astype(float)
    limits, wall = result.setup.limits, max(1.0, float(total[T_WALL]))
    floor = float(result.setup.cost.dense_ns[0, min(1, result.setup.cost.dense_ns.shape[1] - 1)]) * total[T_STEPS]
    weights = min(float(total[T_DENSE]), floor)
    return {
        "steps": int(total[T_STEPS]),
        "preemptions": int(total[T_PREEMPTIONS]),
        "wall_s": wall / NS_PER_S,
        "gpu_s": float(total[T_GPU]) / NS_PER_S,
        "prefill_tokens": int(total[T_PREFILL]),
        "bandwidth_share": (weights + float(total[T_DECODE_ATTENTION])) / wall,
        "compute_share": (float(total[T_DENSE]) - weights + float(total[T_PREFILL_ATTENTION])) / wall,
        "cpu_share": max(0.0, 1.0 - float(total[T_GPU]) / wall),
        "kv_mean": float(total[T_BLOCKS]) * 1024 / wall / limits.num_blocks,
        "kv_peak": float(result.totals[:, T_PEAK_BLOCKS].max()) / limits.num_blocks,
        "slots_mean": float(total[T_RUNNING]) / wall / limits.max_num_seqs,
        "slots_peak": float(result.totals[:, T_PEAK_RUNNING].max()) / limits.max_num_seqs,
        "waiting_mean": float(total[T_WAITING]) * 1024 / wall,
        "waiting_peak": int(result.totals[:, T_PEAK_WAITING].max()),
    }


def _stability(result: Result) -> dict[str, Any]:
    """Verdict on the backlog while requests arrive (simulator.metrics.stability): does not depend on what comes after.

    Where the slope leaves it open, what still waits at the last arrival decides.
    """
    found = stability(result)
    over = found.verdict == "overloaded"
    if found.verdict == "undecided":
        scheduled = np.asarray(result.requests.scheduled)[np.asarray(result.requests.status) == FINISHED]
        waiting = int((scheduled > result.trace.arrival_ns[-1]).sum())
        over = waiting > max(PILED_UP * len(result.trace), MIN_PILE)
    return {"overloaded": over, "backlog_slope": found.slope_per_s}

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
from simulator.state import FINISHED, Totals
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
        "output_tokens": int(result.totals["output"].sum()),
    }


def _totals(result: Result) -> dict[str, Any]:
    total = Totals(*(int(result.totals[name].sum()) for name in result.totals.dtype.names or ()))
    limits, wall = result.setup.limits, max(1.0, float(total.wall))
    floor = float(result.setup.cost.dense_ns[0, min(1, result.setup.cost.dense_ns.shape[1] - 1)]) * total.steps
    weights = min(float(total.dense), floor)
    return {
        "steps": int(total.steps),
        "preemptions": int(total.preemptions),
        "wall_s": wall / NS_PER_S,
        "gpu_s": float(total.gpu) / NS_PER_S,
        "prefill_tokens": int(total.prefill),
        "bandwidth_share": (weights + float(total.decode_attention)) / wall,
        "compute_share": (float(total.dense) - weights + float(total.prefill_attention)) / wall,
        "cpu_share": max(0.0, 1.0 - float(total.gpu) / wall),
        "kv_mean": float(total.blocks) * 1024 / wall / limits.num_blocks,
        "kv_peak": float(result.totals["peak_blocks"].max()) / limits.num_blocks,
        "slots_mean": float(total.running) / wall / limits.max_num_seqs,
        "slots_peak": float(result.totals["peak_running"].max()) / limits.max_num_seqs,
        "waiting_mean": float(total.waiting) * 1024 / wall,
        "waiting_peak": int(result.totals["peak_waiting"].max()),
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

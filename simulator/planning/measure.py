"""What a plan takes from one simulation: percentiles asked for, attainment, stability, where time went.

Times, warm-up and percentiles are those of every run (simulator.metrics.latency); a mean is infinite as soon as one
request that it covers was not answered.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.metrics.fleet import HOUR_NS, paid_ns
from simulator.metrics.latency import Bools, Fates, Floats, fates, gap_mean_ns, histogram_quantiles, seconds
from simulator.metrics.samples import Worst, mean, needed, percentile, within_run, worst_window
from simulator.metrics.stability import stability
from simulator.metrics.summary import begin_ns, makespan_ns, refused
from simulator.planning.asking import Asking
from simulator.planning.slo import MEAN, METRICS
from simulator.planning.unlike import BESIDE
from simulator.records import Totals
from simulator.run import Result
from simulator.scenario.setup import Setup
from simulator.scenario.spec import Scenario
from simulator.state import FINISHED
from simulator.units import NS_PER_S, to_seconds

Asked = tuple[str, str | None, float]
WINDOWS: Final = (300.0, 3600.0)
"""[s] windows whose worst is always shown."""
MEASURE_VERSION: Final = 7
"""Raise when a record changes its meaning: cached points of another version are not used."""
PER_REQUEST: Final = ("ttft", "tpot", "e2e", "queue")
"""Metrics that a request has a time of; gaps between tokens are known as a histogram of all."""
STANDARD: Final = tuple((m, None, p) for m in METRICS for p in (50.0, 90.0, 95.0, 99.0, 99.9, MEAN))

PILED_UP: Final = 0.02
MIN_PILE: Final = 20.0
"""Undecided by its slope, a fleet is overloaded when more than this share of the requests, and more than this
many, wait for their first step when the last one arrives."""


@dataclass(frozen=True)
class Wanted:
    """What to record: (metric, class or None, percentile or MEAN), the levels that are decided on, their windows [s],
    the limits of a good request [s], and the confidence of intervals from within a run."""

    quantiles: tuple[Asked, ...]
    limits: tuple[tuple[str, float], ...]
    decided: tuple[Asked, ...] = ()
    windows: tuple[float, ...] = ()
    level: float = 0.9
    class_limits: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = ()
    own_limits: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = ()  # by class, of the goodput curve


def wanted_of(spec: Asking) -> Wanted:
    """Everything the plan's service levels and tables need."""
    asked = tuple(dict.fromkeys((t.metric, t.cls, t.percentile) for t in spec.slo.targets))
    windows = dict.fromkeys((*WINDOWS, *(t.window_s for t in spec.slo.targets if t.window_s)))
    return Wanted(
        tuple(dict.fromkeys(STANDARD + asked)),
        tuple(sorted(spec.slo.request_limits().items())),
        asked,
        tuple(windows),
        spec.search.confidence,
        tuple((name, tuple(sorted(asked.limits.items()))) for name, asked in spec.slo.class_attainment.items()),
        tuple((name, tuple(sorted(limits.items()))) for name, limits in spec.slo.limits_of_classes().items()),
    )


def key_of(metric: str, cls: str | None, percentile: float) -> str:
    """Name of a percentile in a record."""
    return f"{metric} {cls or '*'} {'mean' if percentile == MEAN else format(percentile, 'g')}"


@dataclass(frozen=True)
class Beside:
    """What a part of a run leaves out: so many requests, and the time from their first to that of the part [s].

    They are taken to be answered at once: no level of the whole run is lower than what is measured so.
    """

    requests: int
    after_s: float


def measure(result: Result, wanted: Wanted, beside: Beside | None = None) -> dict[str, Any]:
    """One simulation as plain numbers (JSON, infinities allowed); NaN where no request has the time asked for."""
    fate = fates(result)
    times = {m: seconds(result, f"{m}_s", fate) for m in PER_REQUEST}
    arrival = to_seconds(result.requests.arrival)
    values: dict[str, float] = {}
    within: dict[str, list[float]] = {}
    worst: dict[str, dict[str, list[float] | None]] = {}
    for asked in (q for q in wanted.quantiles if q[0] == "itl"):
        values[key_of(*asked)] = _gap(result, None if asked[2] == MEAN else asked[2] / 100)
        if asked in wanted.decided:
            within[key_of(*asked)] = [-math.inf, math.inf, int(result.itl.sum())]
            worst[key_of(*asked)] = {f"{w:g}": None for w in wanted.windows}
    for metric, name in dict.fromkeys((m, c) for m, c, _ in wanted.quantiles if m != "itl"):
        rows = _rows(result, fate.measured & ~np.isnan(times[metric]), name)
        column, at = times[metric][rows], arrival[rows]
        whole = column if beside is None else np.concatenate([column, np.zeros(beside.requests)])
        for asked in (q for q in wanted.quantiles if q[:2] == (metric, name)):
            key, share = key_of(*asked), None if asked[2] == MEAN else asked[2] / 100
            values[key] = mean(whole) if share is None else percentile(whole, share)
            if asked in wanted.decided:
                found = within_run(column[np.argsort(at, kind="stable")], share, wanted.level)
                within[key] = [found.low, found.high, int(column.size)]
                least = 2 if share is None else needed(share, wanted.level)
                after = None if beside is None else beside.after_s
                worst[key] = {f"{w:g}": _plain(worst_window(at, column, w, share, least, after))
                              for w in wanted.windows}  # fmt: skip
    return {
        "values": values,
        "within": within,
        "worst": worst,
        **_goodness(result, times, fate.measured, wanted),
        **_counts(result, fate),
        **_totals(result),
        **_stability(result),
        **_fleet(result, fate),
    }


def _fleet(result: Result, fate: Fates) -> dict[str, float]:
    """Replicas paid for, on average and in hours, and the hours of the run, of a fleet that changes."""
    span = makespan_ns(result, fate)
    if result.fleet is None or not span:
        return {}
    begin = begin_ns(result, fate)
    paid = paid_ns(result, begin, begin + span)
    return {"mean_replicas": paid / span, "replica_hours": paid / HOUR_NS, "fleet_hours": span / HOUR_NS}


def scaled_fleet(scenario: Scenario) -> dict[str, int]:
    """What an answer says beside `gpus`, the most there can be, of a fleet that is autoscaled: the fewest."""
    cluster = scenario.cluster
    return {"least_gpus": cluster.least * scenario.hardware.gpus} if cluster.autoscales else {}


def _rows(result: Result, rows: Bools, cls: str | None) -> Bools:
    """Those of a class; none of a class that the trace does not know."""
    if cls is None:
        return rows
    names = result.trace.class_names
    kept: Bools = rows & (result.trace.cls == names.index(cls)) if cls in names else np.zeros_like(rows)
    return kept


def _plain(found: Worst | None) -> list[float] | None:
    return None if found is None else [found.value, found.start_s, found.requests]


def _gap(result: Result, share: float | None) -> float:
    """[s] a quantile (None: the mean) of the gaps between tokens of one request, from the histogram; NaN of none."""
    mean = gap_mean_ns(result)
    if share is None or math.isnan(mean):
        return mean / NS_PER_S
    largest = float(np.asarray(result.requests.itl_max).max())
    return histogram_quantiles(result.itl, [share], mean, largest)[0] / NS_PER_S


def _goodness(result: Result, times: dict[str, Floats], measured: Bools, wanted: Wanted) -> dict[str, Any]:
    """Shares of the requests within their limits, and how many such there are a second of arrivals."""

    def met(limits: tuple[tuple[str, float], ...]) -> Bools:
        found = np.isfinite(times["e2e"])
        for metric, limit in limits:
            found = found & ~(times[metric] > limit)
        return found

    def good(rows: Bools, limits: tuple[tuple[str, float], ...]) -> float:
        return float(met(limits)[rows].mean()) if rows.any() else math.nan

    every = met(wanted.limits)
    for name, limits in wanted.own_limits:
        every = every & (met(limits) | ~_rows(result, measured, name))
    return {
        "attained": good(measured, wanted.limits),
        "attained_every": float(every[measured].mean()) if measured.any() else math.nan,
        "attained_of": {name: good(_rows(result, measured, name), limits) for name, limits in wanted.class_limits},
    }


def _counts(result: Result, fate: Fates) -> dict[str, Any]:
    trace = result.trace
    span = trace.span_ns / NS_PER_S
    return {
        "arrived": int(fate.arrived.sum()),
        "completed": int(fate.completed.sum()),
        "rejected": int(fate.rejected.sum()),
        "rejected_by_reason": refused(result),
        "span_s": span,
        "rate": (len(trace) - 1) / span if span > 0 else 0.0,
        "prompt_tokens": int(trace.prompt.sum()),
        "output_tokens": int(result.totals["output"].sum()),
    }


def _totals(result: Result) -> dict[str, Any]:
    if BESIDE in result.setup.pools:
        return _totals_of_both(result)
    return _totals_of(result.totals, result.setup)


def _totals_of_both(result: Result) -> dict[str, Any]:
    """Those of unlike pools together: sums, shares of the time of all replicas, and the highest peaks."""
    own = [_totals_of(result.totals[list(rows)], result.setup.pools[name])
           for name, rows in result.scenario.cluster.ranges.items()]  # fmt: skip
    wall = sum(part["wall_s"] for part in own)
    found: dict[str, Any] = {}
    for key in own[0]:
        values = [part[key] for part in own]
        if key.endswith("_peak"):
            found[key] = max(values)
        elif key.endswith(("_share", "_mean")):
            found[key] = sum(value * part["wall_s"] for value, part in zip(values, own, strict=True)) / wall
        else:
            found[key] = sum(values)
    return found


def _totals_of(totals: npt.NDArray[Any], setup: Setup) -> dict[str, Any]:
    """Those of replicas that are alike."""
    total = Totals(*(int(totals[name].sum()) for name in totals.dtype.names or ()))
    limits, wall = setup.limits, max(1.0, float(total.wall))
    on_gpus = wall * max(1, limits.stages)  # the stages of a pipeline take turns: shares are the mean of theirs
    floor = float(setup.cost.dense_ns[0, min(1, setup.cost.dense_ns.shape[1] - 1)]) * total.steps
    weights = min(float(total.dense), floor)
    return {
        "steps": int(total.steps),
        "preemptions": int(total.preemptions),
        "wall_s": wall / NS_PER_S,
        "gpu_s": float(total.gpu) / NS_PER_S,
        "prefill_tokens": int(total.prefill),
        "bandwidth_share": (weights + float(total.decode_attention)) / on_gpus,
        "compute_share": (float(total.dense) - weights + float(total.prefill_attention)) / on_gpus,
        "cpu_share": max(0.0, 1.0 - float(total.gpu) / on_gpus),
        "kv_mean": float(total.blocks) * 1024 / wall / limits.num_blocks,
        "kv_peak": float(totals["peak_blocks"].max()) / limits.num_blocks,
        "slots_mean": float(total.running) / wall / limits.max_num_seqs,
        "slots_peak": float(totals["peak_running"].max()) / limits.max_num_seqs,
        "waiting_mean": float(total.waiting) * 1024 / wall,
        "waiting_peak": int(totals["peak_waiting"].max()),
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

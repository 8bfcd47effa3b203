"""The loss itself: some replicas vanish under load, their requests start again on the ones that are left.

Behind a router that looks at no replica, a survivor's requests are known beforehand: its share of the whole fleet's
until the loss, its share of the smaller fleet's from then on, and its part of what was lost. So each replica is
simulated alone, exactly. Clients try again at once; what a lost replica had already sent is sent again.

An autoscaled fleet is simulated whole: its oldest replicas crash, and others take their places as soon as they have
started (a ReplicaSet replaces pods that are gone; the autoscaler decides meanwhile).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from policies.routers import ROUND_ROBIN, ROUTERS
from simulator.metrics.latency import Floats, fates, seconds
from simulator.metrics.samples import mean, percentile
from simulator.planning.fleets import stretched
from simulator.planning.measure import PER_REQUEST
from simulator.planning.price import Fleet
from simulator.planning.search import Search
from simulator.planning.slo import Target
from simulator.planning.statistics import finite
from simulator.planning.traffic import at_rate
from simulator.planning.ways import AUTOSCALED, fleet_setup
from simulator.run import Result, simulate
from simulator.scenario.setup import Setup
from simulator.units import NS_PER_S, to_seconds
from simulator.workload.streams import stream
from simulator.workload.trace import Trace, freeze

Rows = npt.NDArray[np.int64]
AFTER_S: Final = 300.0
"""[s] after the loss over which the service levels are looked at."""
BIN_S: Final = 10.0
"""[s] recovered is the first such stretch in which every level is met again."""
PARTS: Final = 20
SHORTEST_S: Final = 1e-3
"""[s] after which the gateway submits again what an autoscaled fleet has lost, the least that there is."""


@dataclass(frozen=True)
class Seen:
    """Requests as their clients saw them, across the loss. Times in s, +inf = never; columns of shape (N,)."""

    arrival: Floats
    times: dict[str, Floats]
    cls: npt.NDArray[np.int32]
    restarted: npt.NDArray[np.bool_]


def lost(search: Search, fleet: Fleet, rate: float) -> dict[str, Any]:
    """Lose `fleet.spare` replicas in the busiest twentieth of the trace; nominal step times, first replication."""
    bench, spec = search.runner.bench, search.spec
    if not search.runner.symmetric(fleet.candidate):
        return {"modelled": False, "why": f"not simulated behind router {fleet.candidate.router}"}
    trace = at_rate(bench.traffic.trace(0), rate)
    at = busiest(trace)
    seen = across(bench.setup(fleet.candidate), trace, at, fleet.serving, fleet.spare, spec.seed)
    after = seen.arrival - at / NS_PER_S
    rows = ((after >= 0) & (after < AFTER_S)) | seen.restarted
    names = trace.class_names
    targets = strictest(spec.slo.targets)
    levels = [(t, _value(seen, rows, t, names)) for t in targets]
    return {
        "modelled": True,
        "at_s": (at - int(trace.arrival_ns[0])) / NS_PER_S,
        "replicas": fleet.spare,
        "restarted": int(seen.restarted.sum()),
        "after_s": AFTER_S,
        "levels": [{"name": t.name, "limit": t.max_s, "value": v, "holds": bool(v <= t.max_s)} for t, v in levels],
        "recovered_s": recovered(seen, after, targets, names),
    }


def lost_of_scaled(
    search: Search, fleet: Fleet, rate: float, most: int, target: float, factor: float
) -> dict[str, Any]:
    """Lose `survive` replicas of the autoscaled fleet in the busiest twentieth of the trace; step times `factor` as
    long, first replication. `holds`: every level was met in the AFTER_S after it, by those who arrived then."""
    bench, spec = search.runner.bench, search.spec
    trace = at_rate(bench.traffic.trace(0), rate)
    at = busiest(trace)
    setup = stretched(fleet_setup(spec, fleet.candidate, most, (AUTOSCALED, target)), factor)
    assert spec.autoscale is not None
    gone = max(spec.autoscale.start.total_s, SHORTEST_S)
    events = [{"at_s": at / NS_PER_S, "kind": "crash", "replica": r, "for_s": gone} for r in range(spec.survive)]
    scenario = setup.scenario.updated({"cluster.events": events, "cluster.retry_s": SHORTEST_S})
    result = simulate(scenario, trace=trace, setup=replace(setup, scenario=scenario))
    seen = _seen(result, trace, np.arange(len(trace)), None, np.ones(len(trace), dtype=bool))
    after = seen.arrival - at / NS_PER_S
    targets = strictest(spec.slo.targets)
    rows = (after >= 0) & (after < AFTER_S)
    levels = [(t, _value(seen, rows, t, trace.class_names)) for t in targets]
    return {
        "at_s": (at - int(trace.arrival_ns[0])) / NS_PER_S, "replicas": spec.survive, "target": target,
        "restarted": result.summary["changes"]["requests_failed"], "after_s": AFTER_S,
        "levels": [{"name": t.name, "limit": t.max_s, "value": finite(v), "holds": bool(v <= t.max_s)}
                   for t, v in levels],
        "holds": all(v <= t.max_s for t, v in levels),
        "recovered_s": recovered(seen, after, targets, trace.class_names),
    }  # fmt: skip


def strictest(targets: Iterable[Target]) -> tuple[Target, ...]:
    """What the time after a loss is held to: of every percentile the lowest limit, be it that of all requests or of a
    worst window. Gaps between tokens are not known by request."""
    found: dict[tuple[str, str | None, float], float] = {}
    for t in (t for t in targets if t.metric in PER_REQUEST):
        key = t.metric, t.cls, t.percentile
        found[key] = min(t.max_s, found.get(key, t.max_s))
    return tuple(Target(metric, percentile, limit, cls) for (metric, cls, percentile), limit in found.items())


def busiest(trace: Trace) -> int:
    """[tick] middle of the twentieth of the trace, away from both ends, in which most requests arrive."""
    edges = np.linspace(trace.arrival_ns[0], trace.arrival_ns[-1], PARTS + 1)
    counts = np.diff(np.searchsorted(trace.arrival_ns, edges))
    part = PARTS // 5 + int(np.argmax(counts[PARTS // 5 : -PARTS // 5]))
    return int((edges[part] + edges[part + 1]) / 2)


def across(setup: Setup, trace: Trace, at: int, left: int, gone: int, seed: int) -> Seen:
    """What the clients of `left` + `gone` replicas see when the last `gone` vanish at tick `at`."""
    turn = np.arange(len(trace), dtype=np.int64)
    if ROUTERS[setup.scenario.cluster.router] != ROUND_ROBIN:
        turn = stream(seed, "router", 0).integers(0, 2**62, size=len(trace))
    before = trace.arrival_ns < at
    owner = np.where(before, turn % (left + gone), turn % left)
    parts, again = [], [np.zeros(0, dtype=np.int64)]
    for k in range(left, left + gone):
        rows = np.flatnonzero(before & (owner == k))
        result = _alone(setup, trace, rows, None)
        if result is None:
            continue
        done = (np.asarray(result.requests.last) <= at) & fates(result).completed
        parts.append(_seen(result, trace, rows, None, done))
        again.append(rows[~done])
    retries = np.sort(np.concatenate(again))
    for j in range(left):
        again_here = retries[j::left]
        rows = np.concatenate([np.flatnonzero(owner == j), again_here])
        moved = np.arange(rows.size) >= rows.size - again_here.size
        order = np.argsort(np.where(moved, at, trace.arrival_ns[rows]), kind="stable")
        rows, moved = rows[order], moved[order]
        result = _alone(setup, trace, rows, np.where(moved, at, trace.arrival_ns[rows]))
        if result is not None:
            parts.append(_seen(result, trace, rows, moved, np.ones(rows.size, dtype=bool)))
    times = {m: np.concatenate([p.times[m] for p in parts]) for m in PER_REQUEST}
    columns = (np.concatenate([getattr(p, name) for p in parts]) for name in ("arrival", "cls", "restarted"))
    arrival, cls, restarted = columns
    return Seen(arrival, times, cls, restarted)


def _alone(setup: Setup, trace: Trace, rows: Rows, arrival: Rows | None) -> Result | None:
    """One replica on these requests, None when there are none."""
    if rows.size == 0:
        return None
    own = trace.take(rows)
    if arrival is not None:
        own = replace(own, arrival_ns=freeze(arrival.astype(np.int64)))
    return simulate(setup.scenario, trace=own, setup=setup)


def _seen(result: Result, trace: Trace, rows: Rows, moved: npt.NDArray[np.bool_] | None, kept: Any) -> Seen:
    """Times counted from the first submission, which a restarted request had on a replica that is gone."""
    arrival = to_seconds(trace.arrival_ns[rows])
    late = to_seconds(result.requests.arrival) - arrival
    times = {m: seconds(result, f"{m}_s") + (0.0 if m == "tpot" else late) for m in PER_REQUEST}
    restarted = np.zeros(rows.size, dtype=bool) if moved is None else moved
    return Seen(arrival[kept], {m: v[kept] for m, v in times.items()}, trace.cls[rows][kept], restarted[kept])


def _value(seen: Seen, rows: npt.NDArray[np.bool_], target: Target, names: tuple[str, ...]) -> float:
    column = seen.times[target.metric]
    rows = rows & ~np.isnan(column)
    if target.cls is not None:
        rows = rows & (seen.cls == names.index(target.cls))
    return mean(column[rows]) if target.share is None else percentile(column[rows], target.share)


def recovered(seen: Seen, after: Floats, targets: tuple[Target, ...], names: tuple[str, ...]) -> float | None:
    """[s] from the loss to the first stretch of BIN_S in which every level is met; None = not within the trace."""
    for k in range(int(max(0.0, after.max()) // BIN_S) + 1):
        rows = (after >= k * BIN_S) & (after < (k + 1) * BIN_S)
        if rows.any() and not any(_value(seen, rows, t, names) > t.max_s for t in targets):
            return k * BIN_S
    return None

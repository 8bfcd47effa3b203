"""A plan answered the long way: every number of replicas, all of them simulated, numpy's percentiles.

Shares with the planner only the engine and the price of a GPU; replications that the planner never saw settle it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.planning.bounds import scaled_cost
from simulator.planning.candidate import Candidate, candidates_of
from simulator.planning.points import Bench
from simulator.planning.slo import MEAN, Target
from simulator.planning.spec import PlanSpec
from simulator.run import Result, simulate
from simulator.scenario.setup import prepare
from simulator.workload.build import build_trace
from simulator.workload.transform import scale_rate

FIRST = 100
"""Replication from which the checker draws: the planner has seen lower ones only."""


@dataclass(frozen=True)
class Truth:
    """Fewest replicas whose mean over replications is within every limit; None = none of those allowed."""

    candidate: Candidate
    replicas: int | None


def times(result: Result) -> dict[str, Any]:
    """[s] by request from the engine's columns; infinite for requests that did not end, NaN where there is no TPOT."""
    req = result.requests
    failed = np.asarray(req.status) != 3
    arrival = np.asarray(req.arrival, dtype=float)
    first, last = (np.where(failed, np.inf, np.asarray(c, dtype=float)) for c in (req.first, req.last))
    more = np.asarray(req.output) > 1
    tpot = np.where(more, (last - np.where(failed, 0.0, first)) / np.maximum(1, np.asarray(req.output) - 1), np.nan)
    wait = np.where(failed, np.inf, np.asarray(req.scheduled, dtype=float) - np.asarray(req.queued, dtype=float))
    found = {"ttft": first - arrival, "e2e": last - arrival, "tpot": tpot, "queue": wait}
    return {name: column / 1e9 for name, column in found.items()}


def level(result: Result, target: Target) -> float:
    """One service level of one run."""
    column = times(result)[target.metric]
    if target.cls is not None:
        column = column[result.trace.cls == result.trace.class_names.index(target.cls)]
    column = column[~np.isnan(column)]
    if target.percentile == MEAN:
        return float(column.mean())
    with np.errstate(invalid="ignore"):
        found = float(np.percentile(column, target.percentile))
    return np.inf if np.isnan(found) else found


def holds(spec: PlanSpec, candidate: Candidate, replicas: int, error: float, replications: int) -> bool:
    """Every level's mean over replications within its limit, steps slower by `error`, no more work than is done."""
    bench = Bench(spec)
    scenario = bench.setup(candidate).scenario.updated({"cluster.replicas": replicas})
    setup = prepare(scenario)
    cost = scaled_cost(setup.cost, 1 + error)
    runs = []
    numbers = range(FIRST, FIRST + replications) if bench.traffic.replicable else [0]
    for k in numbers:
        trace = build_trace(spec.workload, spec.seed, k, spec.base)
        runs.append(
            simulate(scenario, trace=scale_rate(trace, spec.growth), replication=k, setup=setup, cost=cost)
        )
    attained = spec.slo.attainment
    if attained:
        shares = []
        for run in runs:
            own = times(run)
            bad = ~np.isfinite(own["e2e"])
            for metric, limit in attained.limits.items():
                bad |= own[metric] > limit
            shares.append(1 - bad.mean())
        if np.mean(shares) < attained.share:
            return False
    return all(np.mean([level(run, t) for run in runs]) <= t.max_s for t in spec.slo.targets)


def truth(spec: PlanSpec, candidate: Candidate, error: float, replications: int = 24, around: int = 1) -> Truth:
    """Walk down from the first fleet that holds; `around` is where to start looking."""
    allowed = spec.candidates.allowed(candidate.tensor_parallel)
    at = min(range(len(allowed)), key=lambda i: abs(allowed[i] - around))
    while at < len(allowed) and not holds(spec, candidate, allowed[at], error, replications):
        at += 1
    if at == len(allowed):
        return Truth(candidate, None)
    while at > 0 and holds(spec, candidate, allowed[at - 1], error, replications):
        at -= 1
    return Truth(candidate, allowed[at])


def every(spec: PlanSpec) -> tuple[Candidate, ...]:
    """All candidates of the plan."""
    return candidates_of(spec)

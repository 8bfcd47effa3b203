"""Up to which rate a fleet and larger ones do, each seen over as much time as the first.

A trace of so many requests is over n times as soon at n times the rate, and a short one flatters: what is asked of a
larger fleet for a minute it may not do for an hour. So larger fleets get more requests where there are more to be had.
"""

import math
from typing import Any, Final

from simulator.planning.candidate import Candidate
from simulator.planning.capacity import GROWTHS, STEPS, months_to
from simulator.planning.points import Runner
from simulator.planning.price import pools_of
from simulator.planning.search import Search
from simulator.planning.spec import PlanSpec
from simulator.planning.traffic import mean_rate
from simulator.planning.walls import NEARBY
from simulator.units import NS_PER_S
from simulator.workload.build import turns_copies
from simulator.workload.spec import parse_workload

STEADY: Final = ("poisson", "gamma", "constant")
"""Arrivals of which more are the same for longer; a day's curve is one day."""
MOST: Final = 100_000
"""Requests up to which a trace is made longer: what is larger spans enough as it is."""


def steps_of(search: Search, candidate: Candidate, best: dict[str, Any], traffic: float) -> list[dict[str, Any]]:
    """A row a fleet, from `best` up: the rate it does [requests/s], seen over how many seconds of arrivals, and in how
    many months growing traffic is there."""
    spec, now, carries = search.spec, traffic * search.spec.growth, best["carries"]
    rows = []
    for n in range(best["serving"], best["serving"] + STEPS):
        if n > best["serving"]:
            wider = _wider(search, n / best["serving"])
            own = mean_rate(wider.runner.bench.traffic.trace(0))
            carries = wider.wall(candidate, n, carries / own * n / (n - 1), first=NEARBY) * own
            span_s = _span_s(wider, carries / own)
            if wider is not search:
                search.runner.simulated += wider.runner.simulated
                search.runner.requests += wider.runner.requests
        else:
            span_s = _span_s(search, carries / traffic)
        if not math.isfinite(carries) or carries <= 0:
            break
        months = months_to(now, carries, spec.growth_pct_per_month or GROWTHS)
        rows.append({"replicas": n + spec.survive, "rate": carries, "span_s": span_s, "months": months,
                     **pools_of(spec, candidate, n + spec.survive)})  # fmt: skip
    return rows


def _span_s(search: Search, rate: float) -> float | None:
    """[s] of arrivals at a multiple of the traffic."""
    if not math.isfinite(rate) or rate <= 0:
        return None
    return search.runner.bench.traffic.trace(0).span_ns / NS_PER_S / rate


def _wider(search: Search, factor: float) -> Search:
    """The search over `factor` times as many requests; the same one where more cannot be had or are not needed."""
    runner = search.runner
    spec = more_requests(search.spec, min(factor, MOST / len(runner.bench.traffic.trace(0))))
    return search if spec is search.spec else Search(spec, Runner(spec, runner.jobs, runner.cache, runner.teller))


def more_requests(spec: PlanSpec, factor: float) -> PlanSpec:
    """A plan with `factor` times as many requests: drawn ones for longer, copies of a trace more at once. The plan
    itself where its requests are written down, follow a day's curve, or `factor` is no more than 1."""
    workload = parse_workload(spec.workload, spec.base)
    if factor <= 1:
        return spec
    if turns_copies(workload):
        given = spec.workload["trace"]
        return _with(spec, {"trace": given | {"copies": round(given["copies"] * factor)}})
    arrivals = spec.workload.get("arrivals", {})
    if arrivals.get("kind") not in STEADY:
        return spec
    longer = {key: round(value * factor) if key == "requests" else value * factor
              for key in ("requests", "duration_s") if (value := arrivals.get(key)) is not None}
    return _with(spec, spec.workload | {"arrivals": arrivals | longer})


def _with(spec: PlanSpec, workload: dict[str, Any]) -> PlanSpec:
    return spec.model_copy(update={"workload": workload})

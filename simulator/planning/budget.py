"""What a budget buys: of every candidate the fleet that N dollars an hour, N GPUs or the replicas there are pay for,
and how much traffic it carries within the service levels, or how good they can be at the plan's traffic.

    budget: {usd_per_hour: 40}     objective: max_traffic | best_slo
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from simulator.engine_choice import to_compile
from simulator.metrics.trust import longest_of
from simulator.planning.batch_limits import LEADERS, NEAR, Tried, climb, open_limits
from simulator.planning.bounds import Ready, gains
from simulator.planning.cache import PointCache
from simulator.planning.candidate import Candidate, candidates_of
from simulator.planning.capacity import GROWTHS
from simulator.planning.edge import RATE_STEP
from simulator.planning.growing import steps_of
from simulator.planning.hosts import carried_on_hosts
from simulator.planning.news import INTERRUPTED, Tell, Teller, first_times
from simulator.planning.plan import token_rates
from simulator.planning.points import Runner
from simulator.planning.price import Fleet, fleet_of, pools_of, price_beside, price_of, usd_of
from simulator.planning.search import Outcome, Search
from simulator.planning.spec import MAX_REPLICAS, PlanSpec
from simulator.planning.statistics import (
    Judgement,
    check_levels,
    check_prefixes,
    finite,
    first_broken,
    level_rows,
    reason,
)
from simulator.planning.ties import carried_ties, worst_ties
from simulator.planning.traffic import asked_rate, at_rate, mean_rate
from simulator.planning.trusted import trusted
from simulator.planning.walls import LOWEST_RATE
from simulator.scenario.setup import Setup
from simulator.text import replicas_text, several
from simulator.units import NS_PER_S
from simulator.version import schema_of

GAIN: Final = 1.02
"""Other batch limits are taken where they carry more, or bring the worst level lower, by this factor at least."""
NOT_FINISHED: Final = "not finished: the search was interrupted"


def spend(
    spec: PlanSpec,
    *,
    jobs: int | None = None,
    cache: PointCache | Path | None = None,
    explain: bool = True,
    progress: Tell | None = None,
    export: Callable[[PlanSpec, Setup, Fleet], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """The answer as plain data, best candidate first; rates in requests/s, null = none or no bound.

    `export` words how the best fleet is started.
    Ctrl-C leaves the candidates and parts that were done by then; `stopped` says so.
    Raises ConfigError, TraceError as plan() does.
    """
    store = PointCache(cache) if isinstance(cache, Path) else cache
    candidates = candidates_of(spec)
    teller = Teller(progress, len(candidates) + (3 if explain else 1))
    runner = Runner(spec, jobs, store, teller)
    trace = runner.bench.traffic.trace(0)
    check_levels(spec, at_rate(trace, spec.growth))
    check_prefixes(spec.candidates.prefix_caching, trace)
    search, traffic = Search(spec, runner), mean_rate(trace)
    rows, stopped = _rows(search, candidates, traffic)
    rows.sort(key=lambda row: _key(spec, row))
    known, tried = {c.label: c for c in candidates}, list[Tried]()
    if not stopped:
        stopped = _tune(search, rows, known, traffic, tried)
    best = rows[0] if rows and rows[0]["carries"] is not None else None
    data: dict[str, Any] = {
        "schema": schema_of("budget"),
        "name": spec.name,
        "description": spec.description,
        "objective": spec.objective,
        "budget": spec.budget.model_dump(exclude_none=True) if spec.budget else {},
        "traffic": traffic * spec.growth,
        "trace": trace.meta.facts,
        "asked_per_s": (asked_rate(spec) or 0.0) * spec.growth or None,
        "model": spec.model,
        "asked": list(spec.slo.words()),
        "confidence": spec.search.confidence,
        "survive": spec.survive,
        "rows": rows,
        "best": best,
        "cannot_be_told_apart": list(_ties(spec, rows, known)),
        "batch_limits": [note.plain() for note in tried],
        **_behind(search, best, known, export),
        "relief": [],
        "hosts": [],
        "steps": [],
        "growth": list(spec.growth_pct_per_month or GROWTHS),
    }
    if best is not None and explain and best["wall"] and not stopped:
        chosen = known[best["label"]]
        try:
            teller.begin(f"{best['label']}, the bottleneck")
            data["relief"] = relief_rows(search, chosen, best["serving"], best["carries"] / traffic)
            data["hosts"] = _on_hosts(search, chosen, best["serving"], best["carries"] / traffic)
            teller.begin(f"{best['label']}, larger fleets")
            if spec.growth_pct_per_month or "replicas" in data["budget"]:
                data["steps"] = steps_of(search, chosen, best, traffic)
        except KeyboardInterrupt:
            stopped = INTERRUPTED
    return {**data, "stopped": stopped, "simulated": runner.simulated, "requests": runner.requests}


def _behind(
    search: Search, best: dict[str, Any] | None, known: dict[str, Candidate],
    export: Callable[[PlanSpec, Setup, Fleet], dict[str, Any]] | None,
) -> dict[str, Any]:
    """What the best fleet's step times stand on, and how it is started; nothing without one."""
    if best is None:
        return {"trust": None, "export": {}}
    spec, bench = search.spec, search.runner.bench
    found, trace = bench.ready(known[best["label"]]), bench.traffic.trace(0)
    serving = best["serving"]
    outcome = Outcome(found.candidate, "feasible", replicas=serving, range=(serving, serving))
    fleet = fleet_of(spec, outcome, token_rates(trace, spec.growth))
    started = export(spec, found.setup, fleet) if export and found.setup else {}
    return {"trust": trusted(found, longest_of(trace)), "export": started}


def _rows(search: Search, candidates: Sequence[Candidate], traffic: float) -> tuple[list[dict[str, Any]], str]:
    """A row a candidate, and what stopped the search; candidates not reached by then carry nothing."""
    rows: list[dict[str, Any]] = []
    stopped, most, teller = "", 0.0, search.runner.teller
    bench = search.runner.bench
    ready = [bench.ready(candidate) for candidate in candidates]
    engines = first_times(to_compile(f.setup) if f.setup else "" for f in ready)
    for k, (candidate, found) in enumerate(zip(candidates, ready, strict=True), 1):
        total = affordable(search.spec, candidate)
        row = blank_row(search.spec, found, total) | {"reason": NOT_FINISHED}
        try:
            if not stopped:
                teller.begin(f"{candidate.label} ({k} of {several(len(candidates), 'candidate')})", engines[k - 1 :])
                row = fleet_row(search, found, traffic, total)
        except KeyboardInterrupt:
            stopped = INTERRUPTED
        rows.append(row)
        if (row["carries"] or 0.0) > most:
            most = row["carries"]
            teller.known = f"{candidate.label} carries {most:.3g} requests/s"
    return rows, stopped


def _tune(
    search: Search, rows: list[dict[str, Any]], known: dict[str, Candidate], traffic: float, tried: list[Tried]
) -> str:
    """Other batch limits for the rows that lead (best first): theirs is added where it is better; what stopped that."""
    spec = search.spec
    search.runner.teller.begin("batch limits")
    try:
        leading: list[dict[str, Any] | None] = [*rows[:LEADERS]]
        for row in leading:
            while row is not None and (note := _open(search, row, rows[0], known)):
                tried.append(note)
                row = _better(search, row, rows[0], known, traffic, note)
                if row is not None:
                    rows.append(row)
                    rows.sort(key=lambda each: _key(spec, each))
    except KeyboardInterrupt:
        return INTERRUPTED
    return ""


def _open(search: Search, row: dict[str, Any], best: dict[str, Any], known: dict[str, Candidate]) -> Tried | None:
    """What to try for a row; None where nothing is open, it is far from the best, or there is no wall to move."""
    spec = search.spec
    default = open_limits(spec, search.runner.bench.ready(known[row["label"]]))
    if not default or not row["wall"] or row["carries"] < NEAR * best["carries"]:
        return None
    if spec.objective == "best_slo":
        return None if row["worst"] is None else Tried(row["label"], "by a wider margin", default)
    return Tried(row["label"], f"at {GAIN * best['carries']:.3g} requests/s", default)


def _better(
    search: Search, row: dict[str, Any], best: dict[str, Any], known: dict[str, Candidate], traffic: float, note: Tried
) -> dict[str, Any] | None:
    """The row of the first setting that is better than the best by one look, if it is better when looked at whole."""
    spec, bench = search.spec, search.runner.bench
    slo = spec.objective == "best_slo"
    rate = spec.growth if slo else GAIN * best["carries"] / traffic

    def look(changed: Candidate) -> Judgement | None:
        found = bench.ready(changed)
        return None if found.setup is None else search.judged(changed, row["serving"], rate, count=2)

    def does(judged: Judgement) -> bool:
        return judged.holds and (not slo or judged.binding.ratio * GAIN <= best["worst"])

    changed = climb(known[row["label"]], note.default, look, note, does)
    if changed is None:
        return None
    known[changed.label] = changed
    found = fleet_row(search, bench.ready(changed), traffic, affordable(spec, changed))
    gain = best["worst"] / found["worst"] if slo and found["worst"] else (found["carries"] or 0.0) / best["carries"]
    if gain >= GAIN:
        return found
    note.found = ""
    return None


def affordable(spec: PlanSpec, candidate: Candidate) -> int:
    """Replicas that the budget pays for, spares included; below 0 of its own where it does not pay for those beside."""
    budget, each, other = spec.budget, candidate.gpus, candidate.beside
    assert budget is not None
    if budget.replicas is not None:
        return budget.replicas
    beside = other.replicas if other else 0
    if budget.gpus is not None:
        return min(MAX_REPLICAS, beside + (budget.gpus - (other.gpus if other else 0)) // each)
    cost, paid = price_of(spec, candidate.gpu).usd_per_hour * each, price_beside(spec, candidate)
    left = (budget.usd_per_hour or 0.0) - (paid.usd_per_hour * other.gpus if paid and other else 0.0)
    return min(MAX_REPLICAS, beside + math.floor(left / cost + 1e-9))


def blank_row(spec: PlanSpec, found: Ready, total: int) -> dict[str, Any]:
    """One candidate's fleet of `total` replicas, before anything is known of it; no fleet where that does not do for
    those beside its own."""
    candidate = found.candidate
    own = candidate.own(total)
    fleet: dict[str, Any] = {
        "replicas": total, "serving": total - spec.survive, "gpus": candidate.gpus_of(total),
        "usd_per_hour": usd_of(spec, candidate, total),
        "price_assumed": price_of(spec, candidate.gpu).assumed and own > 0, **pools_of(spec, candidate, total),
    }  # fmt: skip
    if own < 0:
        fleet = {"replicas": 0, "serving": 0, "gpus": 0, "usd_per_hour": 0.0, "price_assumed": False}
    return {
        "label": candidate.label, **fleet,
        "carries": None, "low": None, "high": None, "wall": False, "breaks": None, "levels": [], "worst": None,
        "meets": None, "reason": found.reason,
    }  # fmt: skip


def fleet_row(search: Search, found: Ready, traffic: float, total: int) -> dict[str, Any]:
    """One candidate's fleet of `total` replicas: what it carries, and its levels at the plan's traffic."""
    spec, candidate, row = search.spec, found.candidate, blank_row(search.spec, found, total)
    serving = row["serving"]
    if found.setup is None:
        return row
    if candidate.own(total) < 0:
        return row | {"reason": f"the budget does not pay for the {replicas_text(-candidate.own(0))} beside"}
    if serving < 1:
        return row | {"reason": "the budget does not pay for one serving replica" +
                      (f" beside {spec.survive} spare" if spec.survive else "")}  # fmt: skip
    if serving <= candidate.prefill_replicas:
        first = candidate.prefill_replicas
        return row | {"reason": f"the budget leaves no replica to decode beside {first} for prefill"}
    count = None if spec.objective == "best_slo" else 2
    now = search.judged(candidate, serving, spec.growth, count=count, whole=True)
    row |= {"levels": level_rows(now), "meets": now.holds}
    row["worst"] = None if now.overloaded else finite(now.binding.ratio)
    edge = search.wall_edge(candidate, serving, spec.growth)
    wall = edge.passes
    if wall == 0:
        idle = search.judged(candidate, serving, spec.growth * LOWEST_RATE, count=2)
        return row | {"reason": f"no rate meets it, even nearly idle: {reason(idle)}"}
    if math.isinf(edge.fails):
        return row | {"carries": spec.growth * spec.search.max_rate_scale * traffic}
    above = search.judged(candidate, serving, edge.fails, count=2)
    low, high = search.walls_within(candidate, serving, wall, found.error.relative)
    return row | {
        "carries": wall * traffic,
        "wall": True,
        "span_s": search.runner.bench.traffic.trace(0).span_ns / NS_PER_S / wall,
        "breaks": {"level": first_broken(above), "words": reason(above)},
        "low": min(low, wall) * traffic,
        "high": finite(max(high, wall) * traffic),
    }


def _ties(spec: PlanSpec, rows: Sequence[dict[str, Any]], known: dict[str, Candidate]) -> tuple[str, ...]:
    """Whether the order of the rows, best first, is shown."""
    if spec.objective == "best_slo":
        return worst_ties([row for row in rows if row["carries"]])
    return carried_ties(rows, known)


def _key(spec: PlanSpec, row: dict[str, Any]) -> tuple[float, ...]:
    """Smaller is better; what does not run comes last, and ties go to the cheaper."""
    carries = row["carries"] or 0.0
    if spec.objective == "best_slo":
        worst = math.inf if row["worst"] is None else row["worst"]
        return (carries == 0.0, worst, row["usd_per_hour"])
    return (carries == 0.0, -carries, row["usd_per_hour"])


def relief_rows(search: Search, candidate: Candidate, serving: int, wall: float) -> list[dict[str, Any]]:
    """How far the wall moves with 25 % more of each resource that can bind, most first; null = no wall any more."""
    above = search.judged(candidate, serving, wall * (1 + RATE_STEP), count=2).records
    setup = search.runner.bench.setup(candidate)
    found = gains(above, setup, wall, lambda resource: search.relieved_wall(candidate, serving, wall, resource))
    return [{"resource": resource, "gain_pct": finite(gain)} for resource, gain in found.items()]


def _on_hosts(search: Search, candidate: Candidate, serving: int, wall: float) -> list[dict[str, Any]]:
    """What the fleet carries on other hosts."""
    setup = search.runner.bench.setup(candidate)
    return carried_on_hosts(setup, lambda way: search.moved(candidate, serving, wall, way=way))

"""plan(spec) -> Plan: the cheapest fleet that meets the service levels, and how sure that is.

Order: look up and fit memory (bounds), prune by a proved bound, search by simulation and decide on whole fleets
(search), explain the best (answer). docs/planning.md walks through one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simulator.engine_choice import to_compile
from simulator.errors import ConfigError
from simulator.planning.answer import DAY_HOURS, PARTS, Answer, Explain
from simulator.planning.batch_limits import LEADERS, Tried, fewer_replicas
from simulator.planning.bounds import Ready, fewest_replicas
from simulator.planning.cache import PointCache
from simulator.planning.candidate import candidates_of
from simulator.planning.looks import OutOfBudget
from simulator.planning.news import INTERRUPTED, Tell, Teller, first_times
from simulator.planning.points import Runner
from simulator.planning.price import Fleet, bound_key, fleet_of, pools_of, rank_key, usd_of
from simulator.planning.search import Outcome, Search
from simulator.planning.spec import PlanSpec
from simulator.planning.statistics import check_levels, check_prefixes
from simulator.planning.ties import cost_ties, equal_costs
from simulator.planning.traffic import HOUR_NS, at_rate, mean_rate
from simulator.text import replicas_text, several
from simulator.workload.trace import Trace

BUDGET: Final = "search.max_simulations"
NEAR: Final = 2
"""Fleets of 1, 2, ... this many replicas more than needed join the cost-latency front."""


@dataclass(frozen=True)
class Choice:
    """A feasible candidate with its fleet."""

    outcome: Outcome
    fleet: Fleet
    goodput_per_gpu: float = 0.0  # [requests/s per GPU] at the wall; only searched for that objective


@dataclass(frozen=True)
class Plan:
    """The answer to a PlanSpec. `choices` are feasible, best first; `outcomes` all, in the order given."""

    spec: PlanSpec
    choices: tuple[Choice, ...]
    outcomes: tuple[Outcome, ...]
    answer: Answer | None
    front: tuple[dict[str, Any], ...]
    ties: tuple[str, ...]
    complete: bool  # False: the search was `stopped` before its end
    trace: Trace
    ready: dict[str, Ready] = field(repr=False)
    simulated: int = 0
    reused: int = 0
    requests: int = 0
    stopped: str = ""  # by what: search.max_simulations or an interruption
    limits: tuple[Tried, ...] = ()  # batch limits that were tried

    @property
    def best(self) -> Choice | None:
        """The recommendation, None when nothing is feasible."""
        return self.choices[0] if self.choices else None

    @property
    def nearest(self) -> Outcome | None:
        """When nothing is feasible: the candidate that carries most of the traffic, then the least broken."""
        return nearest_of(self.outcomes)


def plan(
    spec: PlanSpec,
    *,
    jobs: int | None = None,
    cache: PointCache | Path | None = None,
    explain: bool = True,
    progress: Tell | None = None,
) -> Plan:
    """Search and explain. `jobs` worker processes (default: one per core); `cache` keeps simulated points
    between plans (a folder or a PointCache; None: keep nothing); `progress` gets the News of the search.

    Raises ConfigError, TraceError for a workload or candidate values that are not accepted.
    """
    store = PointCache(cache) if isinstance(cache, Path) else cache
    candidates = candidates_of(spec)
    teller = Teller(progress, len(candidates) + (len(PARTS) + 2 if explain else 2))
    runner = Runner(spec, jobs, store, teller)
    trace = runner.bench.traffic.trace(0)
    check_levels(spec, at_rate(trace, spec.growth))
    check_prefixes(spec.candidates.prefix_caching, trace)
    if spec.reserved_prices:
        _check_mix(spec, trace)
    search = Search(spec, runner)
    found = [runner.bench.ready(candidate) for candidate in candidates]
    outcomes, stopped = _search_all(search, found, trace)
    choices = _rank(search, outcomes, trace)
    tried: list[Tried] = []
    if not stopped:
        stopped = _tune(search, found, outcomes, choices, tried)
    if not stopped:
        stopped = _confirm(search, found, outcomes, choices)
    answer = None
    if choices and stopped != INTERRUPTED:
        try:
            answer = Explain(search, choices[0].fleet, choices[0].outcome, spec.growth).answer(explain)
        except OutOfBudget:
            stopped = BUDGET
        except KeyboardInterrupt:
            stopped = INTERRUPTED
    fleets = [choice.fleet for choice in choices]
    front: tuple[dict[str, Any], ...] = ()
    if explain and stopped != INTERRUPTED:
        try:
            teller.begin("fleets near the answer")
            front = _front(search, choices)
        except KeyboardInterrupt:
            stopped = INTERRUPTED
    return Plan(
        spec,
        tuple(choices),
        tuple(outcomes),
        answer,
        front,
        cost_ties(fleets) + (equal_costs(fleets) if spec.objective == "min_cost" else ()),
        not stopped,
        trace,
        {f.candidate.label: f for f in found},
        runner.simulated,
        runner.reused,
        runner.requests,
        stopped,
        tuple(tried),
    )


def _check_mix(spec: PlanSpec, trace: Trace) -> None:
    """Raise ConfigError where no fleet can be resized by the hour, so that there is nothing to mix."""
    hours = trace.span_ns / HOUR_NS
    if hours < DAY_HOURS:
        raise ConfigError(f"reserved_prices has no effect: the requests span {hours:.1f} h; accepted: {DAY_HOURS} h of "
                          "them and more")
    if any(target.window_s for target in spec.slo.targets):
        raise ConfigError("reserved_prices has no effect: fleets are not resized by the hour where slo has limits on "
                          "the worst window")


def _search_all(search: Search, found: Sequence[Ready], trace: Trace) -> tuple[list[Outcome], str]:
    """Candidates by rising lower bound of the objective; one whose bound is beyond the best is pruned, except
    the first of each GPU model, and of each pair of them, so that every one gets an answer. Also what stopped the
    search, if anything did; what was found by then stays."""
    spec, arriving = search.spec, mean_rate(trace) * search.spec.growth
    bounds = {id(f): fewest_replicas(f.setup, trace, arriving) if f.setup else 0 for f in found}
    best: float | None = None
    solved: dict[int, Outcome] = {}
    answered: set[frozenset[str]] = set()
    stopped, teller = "", search.runner.teller
    in_turn = sorted(found, key=lambda f: bound_key(spec, f.candidate, bounds[id(f)]) or 0.0)
    engines = first_times(to_compile(f.setup) if f.setup else "" for f in in_turn)
    for k, f in enumerate(in_turn, 1):
        lower = bound_key(spec, f.candidate, bounds[id(f)])
        if best is not None and lower is not None and lower > best and f.candidate.kinds in answered:
            teller.parts -= 1
            solved[id(f)] = Outcome(
                f.candidate,
                "pruned",
                _pruned(spec, bounds[id(f)]),
                bound=bounds[id(f)],
            )
            continue
        try:
            if stopped:
                outcome = Outcome(f.candidate, "not finished")
            else:
                teller.begin(f"{f.candidate.label} ({k} of {several(len(found), 'candidate')})",
                             engines[k - 1 :])
                outcome = search.solve(f, spec.growth)
        except OutOfBudget as stop:
            outcome, stopped = Outcome(f.candidate, "not finished", str(stop)), BUDGET
        except KeyboardInterrupt:
            outcome, stopped = Outcome(f.candidate, "not finished", INTERRUPTED), INTERRUPTED
        solved[id(f)] = outcome
        if outcome.status == "feasible":
            answered.add(f.candidate.kinds)
            value = bound_key(spec, f.candidate, outcome.replicas)
            if best is None or (value is not None and value < best):
                best = value
                teller.known = f.candidate.said(outcome.replicas + spec.survive, f" replicas of {f.candidate.label}")
    return [solved[id(f)] for f in found], stopped


def _pruned(spec: PlanSpec, bound: int) -> str:
    """Why a candidate that takes `bound` replicas at least is not simulated."""
    is_worse = "costs more than the best" if spec.objective == "min_cost" else "is already worse than the best"
    if bound == 1:
        return f"one replica {'and what is spare' if spec.survive else 'alone'} {is_worse}"
    return f"at least {replicas_text(bound)} are needed to keep up, which {is_worse}"


def _tune(
    search: Search, found: list[Ready], outcomes: list[Outcome], choices: list[Choice], tried: list[Tried]
) -> str:
    """Other batch limits for those that lead, or, where nothing is feasible, are nearest; what stopped that."""
    of = {f.candidate: f for f in found}
    leading = [(of[c.outcome.candidate], c.outcome) for c in choices[:LEADERS]]
    if not choices:
        near = nearest_of(outcomes)
        leading = [(of[near.candidate], near)] if near else []
    search.runner.teller.begin("batch limits")
    try:
        for better, outcome in fewer_replicas(search, leading, tried):
            found.append(better)
            outcomes.append(outcome)
            choices[:] = _rank(search, outcomes, search.runner.bench.traffic.trace(0))
    except OutOfBudget:
        return BUDGET
    except KeyboardInterrupt:
        return INTERRUPTED
    return ""


def nearest_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Where nothing is feasible: the candidate that carries most of the traffic, then the least broken."""
    tried = [o for o in outcomes if o.best_try is not None]
    return max(tried, key=lambda o: (o.rate_met, -o.best_try.binding.ratio if o.best_try else 0.0), default=None)


def _confirm(search: Search, found: Sequence[Ready], outcomes: list[Outcome], choices: list[Choice]) -> str:
    """Search the best again on search.replications of every fleet, until the best has been; what stopped that."""
    trace = search.runner.bench.traffic.trace(0)
    try:
        while choices and choices[0].outcome.candidate not in search.careful:
            best = choices[0].outcome.candidate
            search.careful.add(best)
            k = next(k for k, f in enumerate(found) if f.candidate == best)
            outcomes[k] = search.solve(found[k], search.spec.growth)
            choices[:] = _rank(search, outcomes, trace)
    except OutOfBudget:
        return BUDGET
    except KeyboardInterrupt:
        return INTERRUPTED
    return ""


def token_rates(trace: Trace, rate: float) -> tuple[float, float]:
    """(output, all) tokens per second of the traffic."""
    per_s = mean_rate(trace) * rate / len(trace)
    return float(trace.output.sum()) * per_s, float(trace.output.sum() + trace.prompt.sum()) * per_s


def _rank(search: Search, outcomes: Sequence[Outcome], trace: Trace) -> list[Choice]:
    spec = search.spec
    rates = token_rates(trace, spec.growth)
    choices = []
    for outcome in outcomes:
        if outcome.status == "feasible":
            fleet = fleet_of(spec, outcome, rates)
            per_gpu = 0.0
            if spec.objective == "max_goodput_per_gpu":
                wall = search.wall(outcome.candidate, outcome.replicas, spec.growth)
                per_gpu = wall * mean_rate(trace) / outcome.candidate.gpus_of(outcome.replicas)
            choices.append(Choice(outcome, fleet, per_gpu))
    return sorted(choices, key=lambda c: rank_key(spec, c.fleet, c.goodput_per_gpu))


def _front(search: Search, choices: Sequence[Choice]) -> tuple[dict[str, Any], ...]:
    """Cost against the latencies of fleets at and above the answer; `best` marks the Pareto front."""
    rows = []
    for choice in choices:
        candidate = choice.outcome.candidate
        allowed = candidate.counts(search.spec)
        for n in [n for n in allowed if n >= choice.outcome.replicas][: NEAR + 1]:
            try:
                got = choice.outcome.judgement if n == choice.outcome.replicas else None
                got = got or search.judged(candidate, n, search.spec.growth, count=2, whole=True)
            except OutOfBudget:
                break
            values = {level.name: level.interval.mean for level in got.levels}
            rows.append(
                {
                    "label": choice.outcome.candidate.label,
                    "replicas": n + search.spec.survive,
                    **pools_of(search.spec, candidate, n + search.spec.survive),
                    "usd_per_hour": usd_of(search.spec, candidate, n + search.spec.survive),
                    "latency_s": values,
                }
            )
    for row in rows:
        row["best"] = not any(_dominates(other, row) for other in rows)
    return tuple(rows)


def _dominates(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """a is not worse in cost and every level, and better in one."""
    pairs = [(a["usd_per_hour"], b["usd_per_hour"])] + [(a["latency_s"][k], b["latency_s"][k]) for k in b["latency_s"]]
    return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)

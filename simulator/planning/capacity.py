"""How much a scenario carries: the highest rate that meets service levels, what breaks first above it, and when
growing traffic gets there.

    servecast capacity chat --slo "p99 ttft < 500 ms" --slo "p99 tpot < 50 ms"

The rate is that of the mean prediction over replications; its interval runs from where every level surely holds with
steps slower by the profile's error to where one possibly holds with faster ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from simulator.errors import ConfigError
from simulator.planning.bounds import StepError, gains, scaled_cost, step_error
from simulator.planning.edge import END_STEP, FIRST, RATE_STEP, Edge, find_edge
from simulator.planning.fleets import relieved
from simulator.planning.hosts import carried_on_hosts
from simulator.planning.measure import Wanted, measure, scaled_fleet, wanted_of
from simulator.planning.news import INTERRUPTED, Tell, Teller
from simulator.planning.offered import Offered
from simulator.planning.passing import Passes, by_mean, clear, excess, possibly, surely
from simulator.planning.slo import SloSpec
from simulator.planning.spec import SearchSpec
from simulator.planning.statistics import Judgement, check_levels, finite, judge, level_rows, reason
from simulator.planning.walls import NEARBY
from simulator.planning.ways import Way, changed_setup
from simulator.run import simulate
from simulator.scenario.setup import Setup, prepare
from simulator.scenario.spec import Scenario
from simulator.text import seconds, share
from simulator.units import NS_PER_S
from simulator.version import schema_of

GROWTHS: Final = (2.0, 5.0, 10.0, 20.0)
"""[% a month] growth the step table is given for where none is named."""
STEPS: Final = 5
"""Rows of the step table: the fleet as it is and this many less one replicas more."""
LOWEST: Final = 1 / 1024


@dataclass(frozen=True)
class Levels:
    """What is asked of a scenario, in the words of a plan."""

    name: str
    slo: SloSpec
    search: SearchSpec
    warmup_fraction: float = 0.0


def levels_of(scenario: Scenario, slo: SloSpec | None, search: SearchSpec | None = None) -> Levels:
    """The levels given, else 99 % of the requests within the scenario's own targets. Raises ConfigError for neither."""
    if slo is None:
        own = {f"{metric}_s": limit for metric, limit in scenario.slo.limits.items()}
        if not own:
            raise ConfigError(
                f'{scenario.name}: no service level to meet; accepted: --slo "p99 ttft < 500 ms", or slo: in the file'
            )
        slo = SloSpec.model_validate({"attainment": {"share": 0.99, **own}})
    return Levels(scenario.name, slo, search or SearchSpec(), scenario.warmup_fraction)


class Tried:
    """Judgements of a scenario at rates, numbers of replicas, stretched steps and relieved resources; each run once."""

    def __init__(self, scenario: Scenario, levels: Levels, teller: Teller | None = None) -> None:
        if scenario.cluster.pools:
            raise ConfigError(f"{scenario.name}: the capacity of unlike pools is not searched; try: servecast load")
        self.levels, self.offered = levels, Offered(scenario)
        self.scenario = self.offered.scenario
        self.wanted: Wanted = wanted_of(levels)
        self.setup = prepare(self.scenario)
        self.error: StepError = step_error(self.setup, levels.search.calibration_error)
        self.simulated = 0
        self.teller = teller or Teller(None, 1)
        self._relieved: dict[str | Way, Setup] = {}
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}

    @property
    def count(self) -> int:
        """Replications of a point."""
        return self.levels.search.replications if self.offered.replicable else 1

    def judged(self, rate: float, replicas: int, factor: float = 1.0, relief: str | Way | None = None,
               count: int | None = None) -> Judgement:
        """All levels at `rate` [requests/s] over the whole fleet."""
        count = min(count or self.count, self.count)
        records = [self._record(rate, replicas, factor, relief, k) for k in range(count)]
        return judge(self.levels, records, exact=not self.offered.replicable)

    def mean_replicas(self, rate: float, replicas: int) -> float:
        """Replicas paid for on average, of a fleet that changes, at `rate` [requests/s]."""
        records = [self._record(rate, replicas, 1.0, None, k) for k in range(self.count)]
        return float(sum(record["mean_replicas"] for record in records) / len(records))

    def _record(self, rate: float, replicas: int, factor: float, relief: str | Way | None, k: int) -> dict[str, Any]:
        key = (rate, replicas, factor, relief, k)
        if key not in self._known:
            setup = self._at(relief)
            scenario = setup.scenario.updated({"cluster.replicas": replicas})
            setup = replace(setup, scenario=scenario, cost=scaled_cost(setup.cost, factor))
            trace = self.offered.at(rate, k, replicas / self.scenario.cluster.size)
            result = simulate(scenario, "auto", trace=trace, setup=setup, replication=k)
            self._known[key] = {"idle": False, **measure(result, self.wanted)}
            self.simulated += 1
            self.teller.count()
        return self._known[key]

    def _at(self, relief: str | Way | None) -> Setup:
        if relief is None:
            return self.setup
        if relief not in self._relieved:
            self._relieved[relief] = (changed_setup(self.setup, relief) if isinstance(relief, tuple)
                                      else relieved(self.setup, relief))  # fmt: skip
        return self._relieved[relief]

    def edge(
        self,
        start: float,
        replicas: int,
        passes: Passes,
        factor: float = 1.0,
        relief: str | Way | None = None,
        first: float = FIRST,
        known: float = 0.0,
        step: float = RATE_STEP,
    ) -> Edge:
        """Highest rate that passes; infinite beyond search.max_rate_scale times `start`. Steps as in find_edge."""

        def at(rate: float) -> float:
            far = clear(self.judged(rate, replicas, factor, relief, 1), self.count)
            return excess(self.judged(rate, replicas, factor, relief), passes) if far is None else far

        most = start * self.levels.search.max_rate_scale
        return find_edge(at, start, lowest=start * LOWEST, highest=most, step=step, first=first, known=known)


def capacity(
    scenario: Scenario,
    levels: Levels,
    *,
    growth: Sequence[float] = (),
    explain: bool = True,
    progress: Tell | None = None,
) -> dict[str, Any]:
    """The answer as plain data, rates in requests/s; null = no such rate (none carries it, or there is no wall).

    `growth` [% a month] for the step table; `explain` False leaves out what holds it back and the table. Ctrl-C once
    the rate is known leaves it with what else was found by then; `stopped` says so.
    """
    teller = Teller(progress, 3 if explain else 2)
    tried = Tried(scenario, levels, teller)
    check_levels(levels, tried.offered.at(tried.offered.rate, 0))
    replicas, rate = scenario.cluster.size, tried.offered.rate
    teller.begin("the highest rate that meets every level")
    own = tried.edge(rate, replicas, by_mean)
    teller.known = f"{own.passes:.3g} requests/s"
    data: dict[str, Any] = {
        "schema": schema_of("capacity"),
        "name": scenario.name,
        "traffic": rate,
        "trace": tried.offered.traffic.trace(0).meta.facts,
        "replicas": replicas,
        "gpus": replicas * scenario.hardware.gpus,
        **scaled_fleet(scenario),
        "gpu": tried.setup.gpu.name,
        "asked": asked_words(levels.slo),
        "slo": [{"name": level.name, "limit": level.limit} for level in tried.judged(rate, replicas).levels],
        "rate": own.passes or None,
        "wall": math.isfinite(own.fails),
        "confidence": levels.search.confidence,
        "replications": levels.search.replications if tried.offered.replicable else 1,
        "step_error": tried.error.relative,
        "error_source": tried.error.source,
    }
    data |= {"low": None, "high": None, "relief": [], "hosts": [], "steps": [], "stopped": ""}
    data["levels"] = level_rows(tried.judged(own.passes, replicas)) if own.passes else []
    data["breaks"] = _breaks(tried, own, replicas)
    data["span_s"] = tried.offered.at(own.passes or rate, 0).span_ns / NS_PER_S
    if scenario.cluster.autoscales and own.passes:
        data["mean_replicas"] = tried.mean_replicas(own.passes, replicas)
    try:
        teller.begin("its range over the profile's error")
        data["low"], data["high"] = _range(tried, own, replicas)
        if explain and own.passes and data["wall"]:
            teller.begin("what moves the wall, larger fleets")
            data["relief"] = _relief(tried, own, replicas)
            data["hosts"] = _on_hosts(tried, own, replicas)
            data["steps"] = _steps(tried, own.passes, replicas, growth or GROWTHS)
    except KeyboardInterrupt:
        data["stopped"] = INTERRUPTED
    return {**data, "growth": list(growth or GROWTHS), "simulated": tried.simulated}


def asked_words(slo: SloSpec) -> list[str]:
    """The levels in words: `p99 TTFT within 500 ms`, `99 % of the requests within TTFT 500 ms and TPOT 50 ms`."""
    words = [f"{target.name} within {seconds(target.max_s)}" for target in slo.targets]
    if slo.attainment:
        limits = " and ".join(f"{metric.upper()} {seconds(limit)}" for metric, limit in slo.attainment.limits.items())
        words.append(f"{share(slo.attainment.share)} of the requests within {limits}")
    return words


def _range(tried: Tried, own: Edge, replicas: int) -> tuple[float | None, float | None]:
    """Where the levels surely hold with slower steps, and where one possibly holds with faster ones."""
    if not own.passes or math.isinf(own.fails):
        return None, None
    error = tried.error.relative
    slow, fast = 1 + error, 1 - error
    low = tried.edge(own.passes / slow, replicas, surely, slow, first=NEARBY, step=END_STEP)
    high = tried.edge(own.passes / fast, replicas, possibly, fast, first=NEARBY, step=END_STEP)
    return min(low.passes, own.passes), max(high.passes, own.passes) if math.isfinite(high.fails) else None


def _breaks(tried: Tried, own: Edge, replicas: int) -> dict[str, Any] | None:
    """The level that is broken just above, and its value there."""
    if math.isinf(own.fails):
        return None
    found = tried.judged(own.fails, replicas)
    level = found.binding
    return {"rate": own.fails, "level": level.name, "value": finite(level.interval.mean), "limit": level.limit,
            "overloaded": found.overloaded, "words": reason(found)}  # fmt: skip


def _on_hosts(tried: Tried, own: Edge, replicas: int) -> list[dict[str, Any]]:
    """What the same fleet carries on other hosts."""

    def moved(way: Way) -> float:
        edge = tried.edge(own.passes, replicas, by_mean, relief=way)
        return edge.passes / own.passes if math.isfinite(edge.fails) else math.inf

    return carried_on_hosts(tried.setup, moved)


def _relief(tried: Tried, own: Edge, replicas: int) -> list[dict[str, Any]]:
    """How far the wall moves with RELIEF times as much of each resource that can bind; most first, null = no wall any
    more."""
    above = tried.judged(own.fails, replicas)

    def moved(resource: str) -> float:
        start = own.passes * (1 + RATE_STEP)
        edge = tried.edge(start, replicas, by_mean, relief=resource, known=own.passes)
        return edge.passes if math.isfinite(edge.fails) else math.inf

    found = gains(above.records, tried.setup, own.passes, moved)
    return [{"resource": resource, "gain_pct": finite(gain)} for resource, gain in found.items()]


def _steps(tried: Tried, rate: float, replicas: int, growth: Sequence[float]) -> list[dict[str, Any]]:
    """One row a fleet: up to which rate it does, and in how many months growing traffic is there."""
    rows = []
    carried, per, now = rate, rate / replicas, tried.offered.rate
    for n in range(replicas, replicas + STEPS):
        if n > replicas:
            if not tried.offered.grows and not _enough(tried, n):
                break
            found = tried.edge(carried + per, n, by_mean, first=NEARBY)
            if math.isinf(found.fails) or not found.passes:
                break
            carried, per = found.passes, found.passes / n
        span_s = tried.offered.at(carried, 0, n / replicas).span_ns / NS_PER_S
        rows.append({"replicas": n, "rate": carried, "span_s": span_s, "months": months_to(now, carried, growth)})
    return rows


def months_to(now: float, then: float, growth: Sequence[float]) -> dict[str, float]:
    """Months from a rate of `now` to one of `then` by growth [% a month]; 0 where it is there already."""
    return {f"{g:g}": max(0.0, math.log(then / now) / math.log1p(g / 100)) for g in growth}


def _enough(tried: Tried, replicas: int) -> bool:
    """Whether a recorded trace has the requests to tell a percentile for each of `replicas`."""
    size = len(tried.offered.traffic.trace(0))
    confidence = tried.levels.search.confidence
    return all(size / replicas >= target.needed(confidence) for target in tried.levels.slo.targets)

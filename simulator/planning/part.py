"""One deployment of a budget that is shared out: its candidates, what their fleets cost and carry, or may."""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulator.planning.bounds import Ready, fewest_replicas, likely_replicas
from simulator.planning.candidate import Candidate, candidates_of
from simulator.planning.points import Runner
from simulator.planning.price import usd_of
from simulator.planning.search import Search
from simulator.planning.spec import MAX_REPLICAS, PlanSpec
from simulator.planning.traffic import mean_rate


@dataclass
class Option:
    """One candidate of a deployment, and what its fleets were seen to carry, as a multiple of the traffic."""

    found: Ready
    spends: Callable[[int], float]  # what a fleet of so many replicas takes of the budget
    spare: int
    counts: Sequence[int]  # serving replicas, rising
    seen: dict[int, float] = field(default_factory=dict)
    sure: bool = False  # what was not seen counts for no more than the next smaller fleet that was

    def cost(self, serving: int) -> float:
        """What a fleet takes of the budget, spares included."""
        return self.spends(serving + self.spare)

    def carries(self, serving: int) -> float:
        """What was seen, else between two fleets that were, or as much a replica as the largest or smallest of them."""
        if serving in self.seen:
            return self.seen[serving]
        low = max((n for n in self.seen if n < serving), default=0)
        high = min((n for n in self.seen if n > serving), default=0)
        least, most = self.seen.get(low, 0.0), self.seen.get(high, math.inf)
        if self.sure or not self.seen:
            return least
        if not high or math.isinf(most):
            return least * serving / low if low else most
        return least + (most - least) * (serving - low) / (high - low)

    def fewest(self, target: float) -> int | None:
        """Serving replicas of the smallest fleet that carries `target`."""
        at = bisect.bisect_left(self.counts, target, key=self.carries)
        return self.counts[at] if at < len(self.counts) else None


Fleet = tuple[Option, int]
"""A candidate with its serving replicas."""


class Part:
    """One deployment: its candidates, and the simulations that say what their fleets carry."""

    def __init__(self, name: str, spec: PlanSpec, runner: Runner) -> None:
        self.name, self.spec, self.search = name, spec, Search(spec, runner)
        self.trace = runner.bench.traffic.trace(0)
        self.per_unit = mean_rate(self.trace)
        found = [runner.bench.ready(candidate) for candidate in candidates_of(spec)]
        self.options = [Option(f, _spends(spec, f.candidate), spec.survive, _counts(spec, f.candidate))
                        for f in found if f.setup is not None]  # fmt: skip
        self.options = [option for option in self.options if option.counts]
        self.reason = next((f.reason for f in found if f.setup is None), "candidates.replicas leaves no number of them")

    @property
    def traffic(self) -> float:
        """[requests/s] planned."""
        return self.per_unit * self.spec.growth

    @property
    def least(self) -> float:
        """What the cheapest fleet takes of the budget."""
        return min((option.cost(option.counts[0]) for option in self.options), default=math.inf)

    def look(self, option: Option, serving: int) -> None:
        """Simulate what a fleet carries, as a budget for this deployment alone does."""
        edge = self.search.wall_edge(option.found.candidate, serving, self.spec.growth)
        option.seen[serving] = math.inf if math.isinf(edge.fails) else edge.passes / self.spec.growth

    def first(self, option: Option, most: float) -> int:
        """The fleet that is looked at first: the likely one, where it takes at most so much of the budget."""
        setup = option.found.setup
        assert setup is not None
        tpot = min((t.max_s for t in self.spec.slo.targets if t.metric == "tpot"), default=None)
        paid = bisect.bisect_right(option.counts, most + 1e-9, key=option.cost)
        at = bisect.bisect_left(option.counts, likely_replicas(setup, self.trace, self.traffic, tpot))
        return option.counts[max(0, min(at, paid - 1))]

    def cheapest(self, target: float) -> Fleet | None:
        """The cheapest fleet that carries `target` times the traffic; of two the one that carries more."""
        fleets = [(option, n) for option in self.options if (n := option.fewest(target)) is not None]
        return min(fleets, key=lambda fleet: (fleet[0].cost(fleet[1]), -fleet[0].carries(fleet[1])), default=None)

    def rivals(self, target: float, most: float) -> list[Fleet]:
        """Fleets not yet looked at that might carry `target` for less: of each candidate the largest below it."""
        found = self.cheapest(target)
        limit = min(most, math.inf if found is None else found[0].cost(found[1]))
        rivals = []
        for option in self.options:
            at = bisect.bisect_left(option.counts, target, key=option.carries)
            at = min(at, bisect.bisect_left(option.counts, limit - 1e-9, key=option.cost)) - 1
            n = option.counts[at] if at >= 0 else 0
            if n and n not in option.seen and not self._beneath(option, n, target):
                rivals.append((option, n))
        return rivals

    def _beneath(self, option: Option, serving: int, target: float) -> bool:
        """Whether it is proved that a fleet does not carry `target`."""
        setup = option.found.setup
        return setup is not None and math.isfinite(target) and (
            fewest_replicas(setup, self.trace, target * self.traffic) > serving)  # fmt: skip


def _spends(spec: PlanSpec, candidate: Candidate) -> Callable[[int], float]:
    """Replicas -> what they take of the budget: GPUs, or USD an hour."""
    assert spec.budget is not None
    in_gpus = spec.budget.gpus is not None
    return lambda replicas: float(candidate.gpus_of(replicas)) if in_gpus else usd_of(spec, candidate, replicas)


def _counts(spec: PlanSpec, candidate: Candidate) -> Sequence[int]:
    """Serving replicas to choose from; where the plan names none, any."""
    asked = spec.candidates
    if asked.total_gpus is not None or "replicas" in asked.model_fields_set:
        return candidate.counts(spec)
    least = candidate.beside.replicas if candidate.beside else candidate.prefill_replicas + 1
    return range(least, MAX_REPLICAS - spec.survive + 1)

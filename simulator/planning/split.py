"""A budget over several deployments: the largest common growth of their traffic that all carry, and who gets what.

Of every deployment the fewest GPUs are a step function of the traffic; its steps are the walls of its fleets, as a plan
with a budget finds them (planning.budget: by the mean, to 1 %). Walls are simulated where they decide and estimated
elsewhere, in proportion to the replicas: of the split that is the answer every one is simulated, and so is, of every
candidate, the largest fleet that would have been cheaper than what carrying more takes. With the walls rising with the
replicas no other split of the budget carries more.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.planning.budget import blank_row, fleet_row, relief_rows
from simulator.planning.cache import PointCache
from simulator.planning.candidate import candidates_of
from simulator.planning.deployments import Deployments, check_traffic
from simulator.planning.looks import OutOfBudget
from simulator.planning.news import INTERRUPTED, Tell, Teller
from simulator.planning.part import Fleet, Option, Part
from simulator.planning.plan import BUDGET
from simulator.planning.points import Runner
from simulator.planning.spec import BudgetSpec

STEPS: Final = 3
"""Larger budgets that are answered too: each the least that carries more than the one before."""


@dataclass(frozen=True)
class Split:
    """A settled answer: the common growth, and a fleet of every deployment in their order."""

    growth: float
    fleets: tuple[Fleet, ...]

    @property
    def cost(self) -> float:
        """Of the budget."""
        return sum(option.cost(n) for option, n in self.fleets)


class Splitting:
    """Looks for splits of a budget among deployments with as few walls as decide them."""

    def __init__(self, parts: Sequence[Part], tell: Callable[[str], None] = lambda doing: None) -> None:
        self.parts, self.tell = parts, tell

    def begin(self, budget: float) -> Part | None:
        """One look at every candidate; the deployment that no fleet serves within the budget, if there is one."""
        for part in self.parts:
            others = sum(other.least for other in self.parts if other is not part)
            for option in list(part.options):
                n = part.first(option, budget - others)
                self.tell(f"{part.name}, {option.found.candidate.label}")
                part.look(option, n)
                if option.seen[n] == 0:
                    part.options.remove(option)
                    part.reason = f"{option.found.candidate.label} meets the limits at no rate"
            if not part.options:
                return part
        return None

    def common(self, budget: float) -> Split | None:
        """The largest common growth by what is known and estimated; None where the budget pays for no split."""
        values = sorted({option.carries(n) for part in self.parts for option in part.options for n in option.counts
                         if option.cost(n) <= budget + 1e-9} - {0.0})  # fmt: skip
        at = bisect.bisect_right(values, budget + 1e-9, key=lambda value: self._cost(value))
        found = self._least(values[at - 1]) if at else None
        return found and Split(min(option.carries(n) for option, n in found.fleets), found.fleets)

    def settled(self, budget: float) -> Split | None:
        """The same with every wall simulated that decides it."""
        while True:
            found = self.common(budget)
            if found is None:
                return None
            beyond = math.nextafter(found.growth, math.inf)
            if not self._looked(found) and (math.isinf(found.growth) or not self._rivalled(beyond, budget)):
                return found

    def least(self, target: float) -> Split | None:
        """The cheapest fleets that carry `target`, settled likewise; None where fewer replicas are allowed."""
        while True:
            found = self._least(target)
            if found is None:
                return None
            if not self._looked(found) and not self._rivalled(target, math.inf):
                return found

    def _least(self, target: float) -> Split | None:
        fleets = [part.cheapest(target) for part in self.parts]
        return Split(target, tuple(fleet for fleet in fleets if fleet)) if all(fleets) else None

    def _cost(self, target: float) -> float:
        found = self._least(target)
        return math.inf if found is None else found.cost

    def _looked(self, split: Split) -> bool:
        """Whether fleets of a split had to be looked at."""
        unknown = [(part, *fleet) for part, fleet in zip(self.parts, split.fleets, strict=True)
                   if fleet[1] not in fleet[0].seen]  # fmt: skip
        return self._look(unknown)

    def _rivalled(self, target: float, budget: float) -> bool:
        """Whether fleets that might carry `target` for less had to be looked at."""
        unknown = []
        for part in self.parts:
            others = sum(other.least for other in self.parts if other is not part)
            unknown += [(part, *fleet) for fleet in part.rivals(target, budget - others + 2e-9)]
        return self._look(unknown)

    def _look(self, unknown: Sequence[tuple[Part, Option, int]]) -> bool:
        for part, option, n in unknown:
            self.tell(f"{part.name}, {n} x {option.found.candidate.label}")
            part.look(option, n)
        return bool(unknown)


@dataclass(frozen=True)
class Shared:
    """A budget shared out. `found` is None where it does not pay for a fleet of every deployment."""

    asked: Deployments
    parts: tuple[Part, ...]
    found: Split | None
    rows: tuple[dict[str, Any], ...] = ()  # of the fleets, as planning.budget has them
    needs: Split | None = None  # the cheapest fleets that carry the traffic as it is
    more: tuple[Split, ...] = ()  # larger budgets
    relief: tuple[dict[str, Any], ...] = ()  # of the deployment that is at its wall first
    reason: str = ""
    failed: str = ""  # the deployment that nothing serves
    stopped: str = ""

    @property
    def amount(self) -> float:
        """The budget."""
        return _amount(self.asked.budget)

    @property
    def capped(self) -> bool:
        """Whether it is the number of replicas allowed that ends the growth, not the budget."""
        if self.found is None or self.stopped or math.isinf(self.found.growth):
            return False
        beyond = math.nextafter(self.found.growth, math.inf)
        return any(part.cheapest(beyond) is None for part in self.parts)


def share_out(
    asked: Deployments,
    *,
    jobs: int | None = None,
    cache: PointCache | Path | None = None,
    explain: bool = True,
    progress: Tell | None = None,
) -> Shared:
    """Split the budget so that all deployments carry the largest common multiple of their traffic.

    Ctrl-C leaves the best split among the fleets seen by then. Raises ConfigError, TraceError.
    """
    budget, amount = asked.budget, _amount(asked.budget)
    assert budget is not None
    check_traffic(asked)
    store = PointCache(cache) if isinstance(cache, Path) else cache
    teller = Teller(progress, sum(len(candidates_of(spec)) for spec in asked.specs.values()) + 4)
    parts = tuple(Part(name, spec, Runner(spec, jobs, store, teller)) for name, spec in asked.specs.items())
    nothing = next((part for part in parts if not part.options), None)
    if nothing is not None:
        return Shared(asked, parts, None, failed=nothing.name, reason=nothing.reason)
    if sum(part.least for part in parts) > amount + 1e-9:
        return Shared(asked, parts, None, reason=_too_little(parts, budget.gpus is not None))
    stopped, first = "", teller.parts - 4  # looks at every candidate, then as many as it takes

    def tell(doing: str) -> None:
        nonlocal first
        first -= 1
        teller.parts += first < 0
        teller.begin(doing)

    splitting = Splitting(parts, tell)
    found: Split | None = None
    needs: Split | None = None
    more: list[Split] = []
    rows: list[dict[str, Any]] = []
    relief: list[dict[str, Any]] = []
    try:
        failed = splitting.begin(amount)
        if failed is not None:
            return Shared(asked, parts, None, failed=failed.name, reason=failed.reason)
        teller.begin("the split of the budget")
        found = splitting.settled(amount)
        teller.begin("levels and ranges of the split")
        for part, (option, n) in zip(parts, found.fleets if found else (), strict=False):
            rows.append(fleet_row(part.search, option.found, part.per_unit, n + option.spare))
        if found and explain:
            teller.begin("other budgets")
            needs = splitting.least(1.0)
            _larger(splitting, found, more)
            teller.begin("the bottleneck")
            relief = _relief(parts, found)
    except OutOfBudget:
        stopped = BUDGET
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    if stopped and found is None:
        for option in (option for part in parts for option in part.options):
            option.sure = True
        found = splitting.common(amount)
    if found is not None:
        rows = [rows[k] if k < len(rows) else _bare(part, *fleet)
                for k, (part, fleet) in enumerate(zip(parts, found.fleets, strict=True))]  # fmt: skip
    reason = "" if found or stopped else _too_little(parts, budget.gpus is not None)
    return Shared(asked, parts, found, tuple(rows), needs, tuple(more), tuple(relief), reason, "", stopped)


def _amount(budget: BudgetSpec | None) -> float:
    """GPUs or USD an hour."""
    return float(budget.gpus or budget.usd_per_hour or 0.0) if budget else 0.0


def _larger(splitting: Splitting, found: Split, more: list[Split]) -> None:
    """Adds the least budgets that carry more, each than the one before."""
    at = found
    while len(more) < STEPS and math.isfinite(at.growth):
        wanted = splitting.least(math.nextafter(at.growth, math.inf))
        larger = wanted and splitting.settled(wanted.cost)
        if larger is None or not larger.growth > at.growth:
            return
        more.append(larger)
        at = larger


def _relief(parts: Sequence[Part], found: Split) -> list[dict[str, Any]]:
    """What would move the first wall, most first."""
    k = min(range(len(parts)), key=lambda k: found.fleets[k][0].carries(found.fleets[k][1]))
    option, n = found.fleets[k]
    if math.isinf(option.seen[n]):
        return []
    return relief_rows(parts[k].search, option.found.candidate, n, option.seen[n] * parts[k].spec.growth)


def _bare(part: Part, option: Option, serving: int) -> dict[str, Any]:
    """A row of a fleet of which only the wall is known."""
    carries = option.carries(serving)
    row = blank_row(part.spec, option.found, serving + option.spare)
    rate = min(carries, part.spec.search.max_rate_scale) * part.traffic
    return row | {"carries": rate, "wall": math.isfinite(carries)}


def _too_little(parts: Sequence[Part], gpus: bool) -> str:
    """What the smallest fleets take together."""
    unit = "GPUs" if gpus else "USD/h"
    each = ", ".join(f"{part.name} {part.least:g}" for part in parts)
    spare = " with its spares" if any(part.spec.survive for part in parts) else ""
    return f"the smallest fleet of each{spare} takes {sum(part.least for part in parts):g} {unit} together ({each})"

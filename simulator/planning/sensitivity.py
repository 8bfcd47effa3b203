"""What the answer hangs on: the cost of carrying the traffic when one input at a time is lower or higher than planned.

Each end of an input's range moves the rate at which the recommended fleet meets its first limit (Walls.moved, on one
replication); cost a unit of traffic is the fleet's cost over that rate. Replicas are about those that would be bought:
the rate up to which the fleet surely holds with slower steps moves as the wall does. A tornado diagram has the
widest range on top (Eschenbach, Interfaces 22(6), 1992).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from simulator.planning.edge import RATE_STEP
from simulator.planning.price import Fleet
from simulator.planning.search import Search
from simulator.planning.statistics import finite
from simulator.planning.ways import Way, can_share_more
from simulator.workload.inspect import variation

RANGES: Final = {
    "price": 0.2, "prompt length": 0.2, "output length": 0.2, "burstiness": 0.25, "acceptance": 0.1, "hit rate": 0.2,
    "host time": 0.25,
}
"""Input -> by how much it is taken down and up, relatively; step times by the profile's own error."""
WORDS: Final = {
    "price": "USD per GPU and hour", "prompt length": "prompt tokens of every request",
    "output length": "answer tokens of every request",
    "burstiness": "coefficient of variation of the gaps between arrivals", "acceptance": "chance that drafts are right",
    "hit rate": "requests whose prefixes the cache can know; upwards how much of a prompt it can know",
    "host time": "CPU and front-end time of a step",
    "step time": "GPU and CPU time of a step, by the profile's error",
}
EVEN: Final = 0.05
"""Gaps between arrivals with a smaller coefficient of variation are even: there is no burst to make larger."""


@dataclass(frozen=True)
class Sensitivity:
    """Inputs of the recommended fleet, one changed at a time."""

    search: Search
    fleet: Fleet
    rate: float
    wall: float
    error: float
    sure: float  # rate up to which every limit surely holds with steps slower by `error`; rate <= sure <= wall
    needed: tuple[int, int]  # replicas that serve with steps faster and slower by `error`, as they were searched

    def rows(self) -> list[dict[str, Any]]:
        """A row an input, widest range of cost first: change down and up, cost and replicas as factors and numbers."""
        rows = [self._row(name, size) for name, size in self._inputs()]
        return sorted(rows, key=lambda row: -row["spread"])

    def _inputs(self) -> Iterator[tuple[str, float]]:
        bench = self.search.runner.bench
        trace, setup = bench.traffic.trace(0), bench.setup(self.fleet.candidate)
        bursts = variation(np.diff(trace.arrival_ns).astype(np.float64))
        cached = bool(setup.limits.prefix and trace.extras) or bool(trace.cached.any())
        known = {"burstiness": bursts > EVEN, "acceptance": setup.speculation is not None, "hit rate": cached}
        for name, size in RANGES.items():
            if known.get(name, True) and not (setup.gpu.name == "unit" and name == "host time"):
                yield name, size
        if self.error > 0:
            yield "step time", self.error

    def _row(self, name: str, size: float) -> dict[str, Any]:
        ends = [self._end(name, 1 - size), self._end(name, 1 + size) if self._goes_up(name) else None]
        costs = [end["cost"] for end in ends if end and end["cost"]]  # not where there is no rate, or no wall
        spread = max((abs(math.log(cost)) for cost in costs), default=0.0)
        return {"input": name, "what": WORDS[name], "size_pct": 100 * size, "down": ends[0], "up": ends[1],
                "spread": max(spread, math.log(max(costs, default=1.0) / min(costs, default=1.0)))}  # fmt: skip

    def _goes_up(self, name: str) -> bool:
        """Whether there can be more of an input."""
        return name != "hit rate" or can_share_more(self.search.runner.bench.traffic.trace(0))

    def _end(self, name: str, factor: float) -> dict[str, Any]:
        """Cost a unit of traffic as a factor (null: no rate meets the limits), and about how many replicas to buy."""
        if name == "price":
            return {"factor": factor, "cost": factor, "wall_factor": 1.0, "does": True,
                    "replicas": None if self.fleet.candidate.beside else self.fleet.replicas}  # fmt: skip
        way: Way | None = None if name == "step time" else (name, factor)
        step = factor if name == "step time" else 1.0
        moved = self.search.moved(self.fleet.candidate, self.fleet.serving, self.wall, way=way, factor=step)
        sure = self.sure * moved
        if abs(moved - 1) <= RATE_STEP:  # as far as a wall is searched: no change, and the fleet that is bought does
            sure = self.rate
        elif name == "step time" and moved > 0:  # what the margin is for: fleets were searched with it
            sure = self.fleet.serving * self.rate / self.needed[factor > 1]
        cost = None if moved == 0 else 0.0 if math.isinf(moved) else 1 / moved
        return {"factor": factor, "cost": cost, "wall_factor": finite(moved),
                "replicas": self._replicas(sure), "does": sure >= self.rate * (1 - 1e-9)}  # fmt: skip

    def _replicas(self, sure: float) -> int | None:
        """About how many it takes where so many surely carry `sure`; None where no rate does, and of unlike replicas,
        of which it is open which kind there would be more of."""
        if self.fleet.candidate.beside is not None or sure <= 0:
            return None
        serving = 1 if math.isinf(sure) else math.ceil(self.fleet.serving * self.rate / sure - 1e-6)
        return serving + self.fleet.spare

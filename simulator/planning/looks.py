"""Looks at one fleet: simulated, whole or by a replica's share, and held against the service levels."""

import functools
import math

import numpy as np

from simulator.errors import ServecastError
from simulator.planning.candidate import Candidate
from simulator.planning.points import Point, Runner
from simulator.planning.spec import PlanSpec
from simulator.planning.statistics import Judgement, judge
from simulator.planning.ways import Way, of_fleet
from simulator.workload.trace import Trace

FEWEST = 2
"""Replications that decide a fleet, where they are clear, of a candidate that is not the best one."""
FAR_OFF = 1.25
"""A mean beyond a limit by this factor is not looked at again, of a candidate that is not the best one."""
SHARE = 5
"""A replica's share stands for the fleet where it has this many times the requests that a percentile needs."""

QUARTER = 4
"""The busiest 1 / QUARTER of the requests."""
LONG = 20_000
"""Requests of a trace from which its busiest part is looked at first."""
DENSER = 1.3
"""Rate of that part against the mean rate, at least."""


class OutOfBudget(ServecastError):
    """search.max_simulations is used up."""


class Looks:
    """Judges fleets of one plan; counts its simulations against the budget."""

    def __init__(self, spec: PlanSpec, runner: Runner) -> None:
        self.spec = spec
        self.runner = runner
        self.careful: set[Candidate] = set()
        """Candidates that are decided on search.replications at least, others on two where those are clear."""
        trace = runner.bench.traffic.trace(0)
        self._least = fewest_requests(spec, trace)

    def judged(
        self,
        candidate: Candidate,
        replicas: int,
        rate: float,
        factor: float = 1.0,
        *,
        count: int | None = None,
        relief: str | None = None,
        rows: tuple[int, int] | None = None,
        whole: bool = False,
        part: bool = False,
        way: Way | None = None,
    ) -> Judgement:
        """Judge a fleet on `count` replications (default: search.replications).

        Not `whole`: one replica on its share stands for the fleet, where that share is enough to tell. `part`: `rows`
        stand for the whole trace; every level of that is at least as high.
        """
        traffic = self.runner.bench.traffic
        whole = whole or of_fleet(way)
        alone = not whole and self.shares(candidate, replicas, None if part else rows)
        wanted = self.spec.search.replications if count is None else count
        samples = traffic.samples(replicas, alone, wanted)
        points = [Point(candidate, replicas, rate, k, factor, not alone, relief, rows, way=way, part=part)
                  for k in range(samples)]  # fmt: skip
        if self.runner.simulated + len(points) > self.spec.search.max_simulations:
            raise OutOfBudget(f"search.max_simulations ({self.spec.search.max_simulations}) is used up")
        return judge(self.spec, self.runner.run(points), exact=not traffic.replicable and not alone, part=part)

    @functools.cached_property
    def busiest(self) -> tuple[int, int] | None:
        """Rows of the busiest quarter of a long trace whose rate rises and falls; None where that would say little.

        A level that this quarter alone breaks, everyone else being answered at once, is broken by the whole.
        """
        slo = self.spec.slo
        at = self.runner.bench.traffic.trace(0).arrival_ns
        size = len(at) // QUARTER
        if len(at) < LONG or slo.counts or any(t.metric == "itl" for t in slo.targets):
            return None
        spans = at[size:] - at[:-size]
        first = int(np.argmin(spans))
        denser = (at[-1] - at[0]) / len(at) * size / max(1, int(spans[first]))
        return (first, first + size) if denser >= DENSER else None

    def shares(self, candidate: Candidate, replicas: int, rows: tuple[int, int] | None = None) -> bool:
        """Whether one replica's share of the requests has enough of them for every level.

        Small samples understate high percentiles; the worst window and all good requests are those of a whole fleet.
        """
        slo = self.spec.slo
        if not self.runner.symmetric(candidate) or slo.goodput_per_s or any(t.window_s for t in slo.targets):
            return False
        size = len(self.runner.bench.traffic.trace(0)) if rows is None else rows[1] - rows[0]
        return replicas > 1 and size / replicas >= SHARE * self._least

    def verdict(
        self, candidate: Candidate, replicas: int, rate: float, factor: float, rows: tuple[int, int] | None = None,
        way: Way | None = None,
    ) -> Judgement:
        """Decide on the whole fleet, replications added until every level is clear; still open = not shown.

        What two looks show to be far off is not simulated whole.
        """
        first = self.judged(candidate, replicas, rate, factor, count=2, rows=rows, way=way)
        if first.verdict == "misses" and (first.overloaded or first.binding.ratio > 1.5):
            return first
        count, most = self.fewest(candidate), self.spec.search.most_replications
        while True:
            found = self.judged(candidate, replicas, rate, factor, count=count, rows=rows, whole=True, way=way)
            most = most if self.runner.bench.traffic.replicable else count
            hopeless = any(not math.isfinite(level.interval.mean) for level in found.levels)
            beyond = candidate not in self.careful and found.binding.interval.mean > FAR_OFF * found.binding.limit
            if found.verdict != "open" or count >= most or hopeless or beyond:
                return found
            count = min(max(2 * count, self.spec.search.replications), most)

    def fewest(self, candidate: Candidate) -> int:
        """Replications of whole fleets to begin with."""
        least = self.spec.search.replications if candidate in self.careful else FEWEST
        return min(least, self.spec.search.replications, self.spec.search.most_replications)


def fewest_requests(spec: PlanSpec, trace: Trace) -> float:
    """Requests of the trace that hold, on average, what the most demanding level needs."""
    most = 2.0
    for target in spec.slo.targets:
        share = 1.0
        if target.cls is not None:
            share = float(np.mean(trace.cls == trace.class_names.index(target.cls)))
        most = max(most, target.needed(spec.search.confidence) / max(share, 1 / len(trace)))
    return most

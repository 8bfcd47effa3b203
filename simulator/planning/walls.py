"""How much traffic a fleet carries: the edge between rates at which it meets the service levels and rates at which it
does not."""

import math

from simulator.planning.candidate import Candidate
from simulator.planning.edge import END_STEP, FIRST, RATE_STEP, Edge, find_edge
from simulator.planning.looks import Looks
from simulator.planning.passing import Passes, by_mean, clear, early, excess, possibly, surely
from simulator.planning.ways import Way

LOWEST_RATE = 1 / 64
NEARBY = 1.03
"""First step from where an edge is expected."""


class Walls(Looks):
    """Finds walls by judging fleets at different rates."""

    def highest_rate(
        self,
        candidate: Candidate,
        replicas: int,
        high: float,
        *,
        relief: str | None = None,
        factor: float = 1.0,
        passes: Passes = by_mean,
        whole: bool = False,
    ) -> float:
        """Largest multiple of the workload's traffic, up to `high`, that `passes`; 0 below LOWEST_RATE of `high`."""
        edge = self._edge(candidate, replicas, high, high, relief, factor, passes, whole)
        return edge.passes

    def wall(
        self,
        candidate: Candidate,
        replicas: int,
        rate: float,
        *,
        relief: str | None = None,
        factor: float = 1.0,
        passes: Passes = by_mean,
        first: float = FIRST,
        step: float = RATE_STEP,
    ) -> float:
        """Largest multiple of the workload's traffic this fleet carries; bracketed from `rate` by steps of `first`.

        Infinite when no limit breaks up to search.max_rate_scale times `rate`: there is no wall then.
        """
        most = rate * self.spec.search.max_rate_scale
        edge = self._edge(candidate, replicas, rate, most, relief, factor, passes, False, first, step=step)
        return math.inf if math.isinf(edge.fails) else edge.passes

    def wall_edge(self, candidate: Candidate, replicas: int, rate: float) -> Edge:
        """wall() with the rate just above, which was seen to fail."""
        return self._edge(candidate, replicas, rate, rate * self.spec.search.max_rate_scale, None, 1.0, by_mean, False)

    def relieved_wall(self, candidate: Candidate, replicas: int, wall: float, resource: str) -> float:
        """The wall with more of a resource, which cannot be below `wall`; infinite = none any more."""
        most = wall * self.spec.search.max_rate_scale
        edge = self._edge(candidate, replicas, wall * (1 + RATE_STEP), most, resource, 1.0, by_mean, False, known=wall)
        return math.inf if math.isinf(edge.fails) else edge.passes

    def moved(
        self, candidate: Candidate, replicas: int, wall: float, changed: Candidate | None = None,
        relief: str | None = None, way: Way | None = None, factor: float = 1.0,
    ) -> float:
        """The wall with one thing changed over `wall`, the one without; infinite = none any more.

        Of a long trace both are those of its busiest part in one replication: only their ratio is asked for.
        """
        rows = self.busiest
        if rows is None and way is None and factor == 1.0:
            if relief is not None:
                return self.relieved_wall(candidate, replicas, wall, relief) / wall
            return self.wall(changed or candidate, replicas, wall, first=NEARBY) / wall
        base = self._part_edge(candidate, replicas, wall)
        if base.passes == 0 or math.isinf(base.fails):
            return 1.0
        if relief is not None:
            edge = self._part_edge(candidate, replicas, base.fails, relief=relief, known=base.passes)
        else:
            edge = self._part_edge(changed or candidate, replicas, base.passes, way=way, factor=factor)
        if math.isinf(edge.fails):
            return math.inf
        return math.sqrt(edge.passes * edge.fails / (base.passes * base.fails))

    def _part_edge(
        self, candidate: Candidate, replicas: int, start: float, relief: str | None = None, known: float = 0.0,
        way: Way | None = None, factor: float = 1.0,
    ) -> Edge:
        """The edge by the mean of one look at the busiest part of the trace, from `start`, which is a good guess."""
        rows = self.busiest

        def at(rate: float) -> float:
            part = rows is not None
            look = self.judged(candidate, replicas, rate, factor, count=1, relief=relief, rows=rows, part=part, way=way)
            return excess(look, by_mean)

        most = start * self.spec.search.max_rate_scale
        return find_edge(at, start, lowest=start * LOWEST_RATE, highest=most, first=NEARBY, known=known)

    def walls_within(self, candidate: Candidate, replicas: int, wall: float, error: float) -> tuple[float, float]:
        """Where the levels surely hold with steps slower by `error`, and where one possibly holds with faster ones."""

        def at(sign: int, passes: Passes) -> float:
            factor, start = 1 + sign * error, wall / (1 + sign * error)
            return self.wall(candidate, replicas, start, factor=factor, passes=passes, first=NEARBY, step=END_STEP)

        return at(1, surely), at(-1, possibly)

    def _edge(
        self, candidate: Candidate, replicas: int, start: float, most: float, relief: str | None, factor: float,
        passes: Passes, whole: bool, first: float = FIRST, known: float = 0.0,
        step: float = RATE_STEP,
    ) -> Edge:
        """The edge of `passes` from `start`, not beyond `most`, to `step`; what one look makes clear takes one."""
        count = 2 if passes is by_mean else self.spec.search.replications

        def at(rate: float) -> float:
            look = self.judged(candidate, replicas, rate, factor, count=1, relief=relief, whole=whole)
            far = clear(look, count)
            if far is None and passes is not by_mean and count > 2:
                two = self.judged(candidate, replicas, rate, factor, count=2, relief=relief, whole=whole)
                far = early(two, passes)
            if far is not None:
                return far
            judged = self.judged(candidate, replicas, rate, factor, count=count, relief=relief, whole=whole)
            return excess(judged, passes)

        return find_edge(at, start, lowest=start * LOWEST_RATE, highest=most, step=step, first=first, known=known)

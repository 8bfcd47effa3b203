"""The smallest fleet that meets the service levels: bounds first, then bisection on simulated points.

A fleet counts only when, simulated whole, the confidence interval of every level clears its limit with step times
slower by the profile's error. The cap on replicas is never an answer: beyond it the outcome says `capped`.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simulator.errors import ServecastError
from simulator.planning.bounds import Ready, fewest_replicas, likely_replicas
from simulator.planning.candidate import Candidate
from simulator.planning.edge import END_STEP, FIRST, RATE_STEP, Edge, find_edge
from simulator.planning.passing import Passes, by_mean, clear, early, excess, possibly, surely
from simulator.planning.points import Point, Runner
from simulator.planning.spec import PlanSpec
from simulator.planning.statistics import Judgement, judge, reason
from simulator.planning.traffic import mean_rate
from simulator.workload.trace import Trace

Status = Literal["feasible", "infeasible", "capped", "does not fit", "pruned", "not finished"]
LOWEST_RATE = 1 / 64
FEWEST = 2
"""Replications that decide a fleet, where they are clear, of a candidate that is not the best one."""
FAR_OFF = 1.25
"""A mean beyond a limit by this factor is not looked at again, of a candidate that is not the best one."""
NEARBY = 1.03
"""First step from where an edge is expected."""
SHARE = 5
"""A replica's share stands for the fleet where it has this many times the requests that a percentile needs."""


class OutOfBudget(ServecastError):
    """search.max_simulations is used up."""


@dataclass(frozen=True)
class Outcome:
    """What the search found for one candidate.

    `replicas` serve the load (spares not counted); `range` is the interval of that number over the profile's
    error: the fewest that hold with step times faster by it, the fewest that clear with slower ones. All judgements
    are of whole fleets.
    """

    candidate: Candidate
    status: Status
    reason: str = ""
    replicas: int = 0
    range: tuple[int, int] = (0, 0)
    bound: int = 0  # proved lower bound
    judgement: Judgement | None = None  # at `replicas`, nominal step times
    slow: Judgement | None = None  # the same with slower steps: what was decided on
    fast: Judgement | None = None
    fewer: str = ""  # why one replica less is not enough
    best_try: Judgement | None = None  # not feasible: at the largest fleet
    rate_met: float = 0.0  # not feasible: multiple of the traffic that the largest fleet carries


class Search:
    """Searches of one plan; counts its simulations against the budget."""

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
    ) -> Judgement:
        """Judge a fleet on `count` replications (default: search.replications).

        Not `whole`: one replica on its share stands for the fleet, where that share is enough to tell.
        """
        traffic = self.runner.bench.traffic
        alone = not whole and self.shares(candidate, replicas, rows)
        wanted = self.spec.search.replications if count is None else count
        samples = traffic.samples(replicas, alone, wanted)
        points = [Point(candidate, replicas, rate, k, factor, not alone, relief, rows) for k in range(samples)]
        if self.runner.simulated + len(points) > self.spec.search.max_simulations:
            raise OutOfBudget(f"search.max_simulations ({self.spec.search.max_simulations}) is used up")
        return judge(self.spec, self.runner.run(points), exact=not traffic.replicable and not alone)

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
        self, candidate: Candidate, replicas: int, rate: float, factor: float, rows: tuple[int, int] | None = None
    ) -> Judgement:
        """Decide on the whole fleet, replications added until every level is clear; still open = not shown.

        What two looks show to be far off is not simulated whole.
        """
        first = self.judged(candidate, replicas, rate, factor, count=2, rows=rows)
        if first.verdict == "misses" and (first.overloaded or first.binding.ratio > 1.5):
            return first
        count, most = self._fewest(candidate), self.spec.search.most_replications
        while True:
            found = self.judged(candidate, replicas, rate, factor, count=count, rows=rows, whole=True)
            most = most if self.runner.bench.traffic.replicable else count
            hopeless = any(not math.isfinite(level.interval.mean) for level in found.levels)
            beyond = candidate not in self.careful and found.binding.interval.mean > FAR_OFF * found.binding.limit
            if found.verdict != "open" or count >= most or hopeless or beyond:
                return found
            count = min(max(2 * count, self.spec.search.replications), most)

    def _fewest(self, candidate: Candidate) -> int:
        """Replications of whole fleets to begin with."""
        least = self.spec.search.replications if candidate in self.careful else FEWEST
        return min(least, self.spec.search.replications, self.spec.search.most_replications)

    def smallest(
        self,
        candidate: Candidate,
        counts: Sequence[int],
        rate: float,
        factor: float,
        start: int,
        clear: bool = True,
        rows: tuple[int, int] | None = None,
    ) -> int | None:
        """Fewest replicas among `counts` (rising) that pass; None when the last does not.

        `clear`: the interval must clear every limit; else the mean is enough. Bracket by doubling the step from
        `start`, bisect on single looks, then walk on whole fleets to the first that passes.
        """

        def quick(i: int) -> bool:
            return self.judged(candidate, counts[i], rate, factor, count=1, rows=rows).holds

        def sure(i: int) -> bool:
            if not clear:
                count = self._fewest(candidate)
                return self.judged(candidate, counts[i], rate, factor, count=count, rows=rows).holds
            return surely(self.verdict(candidate, counts[i], rate, factor, rows))

        i = _boundary(quick, counts.index(_near(counts, start)), len(counts))
        i = min(i, len(counts) - 1)
        if sure(i):
            while i > 0 and sure(i - 1):
                i -= 1
            return counts[i]
        while i + 1 < len(counts):
            i += 1
            if sure(i):
                return counts[i]
        return None

    def needed(self, found: Ready, rate: float, start: int) -> int | None:
        """Replicas at `rate` times the traffic, looked for around `start`; None = not among those allowed."""
        candidate, trace = found.candidate, self.runner.bench.traffic.trace(0)
        assert found.setup is not None
        bound = fewest_replicas(found.setup, trace, mean_rate(trace) * rate)
        allowed = self.spec.candidates.allowed(candidate.tensor_parallel, candidate.prefill_replicas)
        counts = [n for n in allowed if n >= bound]
        return self.smallest(candidate, counts, rate, 1 + found.error.relative, start) if counts else None

    def solve(self, found: Ready, rate: float) -> Outcome:
        """The whole search for one candidate at `rate` times the workload's traffic."""
        candidate, spec = found.candidate, self.spec
        if found.setup is None:
            return Outcome(candidate, "does not fit", found.reason)
        if found.setup.limits.stream == 0 and any(metric == "tpot" for _, metric, _ in spec.slo.written()):
            return Outcome(candidate, "infeasible", "answers are returned whole: there is no TPOT to be within a limit")
        trace = self.runner.bench.traffic.trace(0)
        arriving = mean_rate(trace) * rate
        bound = fewest_replicas(found.setup, trace, arriving)
        allowed = spec.candidates.allowed(candidate.tensor_parallel, candidate.prefill_replicas)
        counts = [n for n in allowed if n >= bound]
        error = found.error.relative
        if not allowed:
            why = "no layout of exactly the number of GPUs asked for" if spec.candidates.total_gpus else (
                f"fewer replicas are allowed than it takes beside the {candidate.prefill_replicas} for prompts")
            return Outcome(candidate, "infeasible", why, bound=bound)
        if not counts:
            needs = f"needs at least {bound} replicas to keep up, {allowed[-1]} are allowed"
            return self._failed(candidate, allowed[-1], rate, bound, error, needs)
        tpot = min((t.max_s for t in spec.slo.targets if t.metric == "tpot"), default=None)
        start = likely_replicas(found.setup, trace, arriving, tpot)
        if not self.judged(candidate, _near(counts, start), rate, 1 + error, count=1).holds:
            never = self._never(candidate, counts[-1], rate, bound, error)
            if never is not None:
                return never
        need = self.smallest(candidate, counts, rate, 1 + error, start)
        if need is None:
            return self._failed(candidate, counts[-1], rate, bound, error, "")
        least = need
        if error > 0:
            lower = [n for n in counts if n <= need]
            start = max(lower[0], int(need * (1 - 2 * error)))
            least = self.smallest(candidate, lower, rate, 1 - error, start, clear=False) or need
        slow = self.verdict(candidate, need, rate, 1 + error)
        count = self._fewest(candidate)
        nominal, fast = (self.judged(candidate, need, rate, f, count=count, whole=True) for f in (1.0, 1 - error))
        fewer = [n for n in allowed if n < need]
        return Outcome(candidate, "feasible", "", need, (least, need), bound, nominal, slow, fast,
                       self._fewer(candidate, fewer[-1] if fewer else 0, bound, rate, error))  # fmt: skip

    def _fewer(self, candidate: Candidate, replicas: int, bound: int, rate: float, error: float) -> str:
        """Why `replicas` are not enough; empty when there is no smaller fleet."""
        if replicas == 0:
            return ""
        if replicas < bound:
            return f"{replicas} cannot keep up: {bound} is the proved least"
        return f"{replicas}: {reason(self.verdict(candidate, replicas, rate, 1 + error), error)}"

    def _failed(
        self, candidate: Candidate, most: int, rate: float, bound: int, error: float, needs: str
    ) -> Outcome:
        """Tell a cap on replicas from a level no fleet meets, and find what the largest fleet carries."""
        at_most = self.verdict(candidate, most, rate, 1 + error)
        carried = self.highest_rate(candidate, most, rate, factor=1 + error, passes=surely, whole=True)
        if carried > 0:
            text = needs or f"{most} replicas are the most allowed: {reason(at_most, error)}"
            carries = f"; they carry {carried / rate:.2f} of the traffic" if carried < rate else ""
            return Outcome(candidate, "capped", text + carries, bound=bound, best_try=at_most, rate_met=carried)
        never = self._never(candidate, most, rate, bound, error)
        if never is None:
            text = f"{most} replicas are the most allowed: {reason(at_most, error)}"
            return Outcome(candidate, "capped", text, bound=bound, best_try=at_most, rate_met=0.0)
        return never

    def _never(self, candidate: Candidate, most: int, rate: float, bound: int, error: float) -> Outcome | None:
        """What is said of a candidate that even nearly idle does not meet the levels; None where it does."""
        if self.judged(candidate, most, rate * LOWEST_RATE, 1 + error, count=1).holds:
            return None
        idle = self.verdict(candidate, most, rate * LOWEST_RATE, 1 + error)
        if surely(idle):
            return None
        text = f"no fleet meets it, even nearly idle: {reason(idle, error)}"
        return Outcome(candidate, "infeasible", text, bound=bound, best_try=idle, rate_met=0.0)

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


def fewest_requests(spec: PlanSpec, trace: Trace) -> float:
    """Requests of the trace that hold, on average, what the most demanding level needs."""
    most = 2.0
    for target in spec.slo.targets:
        share = 1.0
        if target.cls is not None:
            share = float(np.mean(trace.cls == trace.class_names.index(target.cls)))
        most = max(most, target.needed(spec.search.confidence) / max(share, 1 / len(trace)))
    return most


def _near(counts: Sequence[int], start: int) -> int:
    """The first of `counts` (rising) at or above `start`, else the last."""
    return counts[min(bisect.bisect_left(counts, start), len(counts) - 1)]


def _boundary(passes: Callable[[int], bool], start: int, size: int) -> int:
    """First index of a rising predicate, found by doubling steps from `start`; `size` when none passes."""
    low, high, step = -1, size, 1
    i = start
    while True:
        if passes(i):
            high = i
            if i == 0 or low >= 0:
                break
            i = max(0, i - step)
        else:
            low = i
            if i == size - 1 or high < size:
                break
            i = min(size - 1, i + step)
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high

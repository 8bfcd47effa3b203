"""The smallest fleet that meets the service levels: bounds first, then bisection on simulated points.

A fleet counts only when the confidence interval of every level clears its limit with step times slower by the
profile's error. The cap on replicas is never an answer: beyond it the outcome says `capped`.
"""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.errors import ServecastError
from simulator.planning.bounds import Ready, fewest_replicas, likely_replicas
from simulator.planning.points import Point, Runner
from simulator.planning.spec import Candidate, PlanSpec
from simulator.planning.statistics import Judgement, Verdict, judge
from simulator.planning.traffic import mean_rate

Status = Literal["feasible", "infeasible", "capped", "does not fit", "pruned", "not finished"]
RATE_STEP = 0.01
"""Rates are searched to this relative accuracy."""
LOWEST_RATE = 1 / 64


class OutOfBudget(ServecastError):
    """search.max_simulations is used up."""


@dataclass(frozen=True)
class Outcome:
    """What the search found for one candidate.

    `replicas` serve the load (spares not counted); `range` is the interval of that number over the profile's
    error: the fewest that hold with step times faster by it, the fewest that clear with slower ones.
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
    best_try: Judgement | None = None  # not feasible: at the largest fleet
    rate_met: float = 0.0  # not feasible: multiple of the traffic that the largest fleet carries


class Search:
    """Searches of one plan; counts its simulations against the budget."""

    def __init__(self, spec: PlanSpec, runner: Runner) -> None:
        self.spec = spec
        self.runner = runner

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
        full: bool = False,
    ) -> Judgement:
        """Judge a fleet on `count` replications (default: all)."""
        symmetric = self.runner.symmetric(candidate) and not full
        wanted = self.spec.search.replications if count is None else count
        samples = self.runner.bench.traffic.samples(replicas, symmetric, wanted)
        points = [Point(candidate, replicas, rate, k, factor, not symmetric, relief, rows) for k in range(samples)]
        if self.runner.simulated + len(points) > self.spec.search.max_simulations:
            raise OutOfBudget(f"search.max_simulations ({self.spec.search.max_simulations}) is used up")
        return judge(self.spec, self.runner.run(points))

    def verdict(
        self,
        candidate: Candidate,
        replicas: int,
        rate: float,
        factor: float,
        rows: tuple[int, int] | None = None,
    ) -> Verdict:
        """Look at two replications, then at all unless the two are clear; still open = not shown."""
        first = self.judged(candidate, replicas, rate, factor, count=2, rows=rows)
        if first.verdict == "misses" and (first.overloaded or first.binding.ratio > 1.5):
            return "misses"
        return self.judged(candidate, replicas, rate, factor, rows=rows).verdict

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

        `clear`: the interval must clear every limit; else the mean of one look is enough. Bracket by doubling
        the step from `start`, bisect on single replications, then walk to the first that passes.
        """

        def quick(i: int) -> bool:
            return self.judged(candidate, counts[i], rate, factor, count=1, rows=rows).holds

        def sure(i: int) -> bool:
            if not clear:
                return self.judged(candidate, counts[i], rate, factor, rows=rows).holds
            return self.verdict(candidate, counts[i], rate, factor, rows) == "meets"

        i = _boundary(quick, min(max(0, bisect.bisect_left(counts, start)), len(counts) - 1), len(counts))
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

    def solve(self, found: Ready, rate: float) -> Outcome:
        """The whole search for one candidate at `rate` times the workload's traffic."""
        candidate, spec = found.candidate, self.spec
        if found.setup is None:
            return Outcome(candidate, "does not fit", found.reason)
        trace = self.runner.bench.traffic.trace(0)
        arriving = mean_rate(trace) * rate
        bound = fewest_replicas(found.setup, trace, arriving)
        allowed = spec.candidates.allowed(candidate.tensor_parallel)
        counts = [n for n in allowed if n >= bound]
        if not allowed:
            return Outcome(candidate, "infeasible", "no layout of exactly the number of GPUs asked for", bound=bound)
        if not counts:
            return self._failed(
                candidate,
                allowed[-1],
                rate,
                bound,
                f"needs at least {bound} replicas to keep up, {allowed[-1]} are allowed",
            )
        tpot = min((t.max_s for t in spec.slo.targets if t.metric == "tpot"), default=None)
        start = likely_replicas(found.setup, trace, arriving, tpot)
        error = found.error.relative
        need = self.smallest(candidate, counts, rate, 1 + error, start)
        if need is None:
            return self._failed(candidate, counts[-1], rate, bound, "")
        least = need
        if error > 0:
            lower = [n for n in counts if n <= need]
            least = (
                self.smallest(
                    candidate, lower, rate, 1 - error, max(lower[0], int(need * (1 - 2 * error))), clear=False
                )
                or need
            )
        nominal, slow, fast = (self.judged(candidate, need, rate, f) for f in (1.0, 1 + error, 1 - error))
        return Outcome(candidate, "feasible", "", need, (least, need), bound, nominal, slow, fast)

    def _failed(self, candidate: Candidate, most: int, rate: float, bound: int, reason: str) -> Outcome:
        """Tell a cap on replicas from a level no fleet meets, and find what the largest fleet carries."""
        at_most = self.judged(candidate, most, rate, count=2)
        carried = self.highest_rate(candidate, most, 0.0, rate)
        level = at_most.binding
        value, limit = (_shown(level.name, v) for v in (level.interval.value, level.limit))
        shown = f"{level.name} {value} against a limit of {limit}"
        if at_most.overloaded:
            shown = f"overloaded; {shown}"
        if carried > 0:
            text = reason or f"{most} replicas are the most allowed and do not meet it: {shown}"
            return Outcome(
                candidate,
                "capped",
                f"{text}; they carry {carried / rate:.2f} of the traffic",
                bound=bound,
                best_try=at_most,
                rate_met=carried,
            )
        return Outcome(
            candidate,
            "infeasible",
            f"no fleet meets it, even nearly idle: {shown}",
            bound=bound,
            best_try=self.judged(candidate, most, rate * LOWEST_RATE, count=2),
            rate_met=0.0,
        )

    def highest_rate(
        self,
        candidate: Candidate,
        replicas: int,
        low: float,
        high: float,
        *,
        relief: str | None = None,
        factor: float = 1.0,
    ) -> float:
        """Largest multiple of the workload's traffic that holds, by the mean; `low` holds or is 0.

        0 when not even LOWEST_RATE of `high` holds.
        """

        def holds(rate: float) -> bool:
            return self.judged(candidate, replicas, rate, factor, count=2, relief=relief).holds

        if holds(high):
            return high
        if low <= 0:
            least, low = high * LOWEST_RATE, high / 2
            while not holds(low):
                high, low = low, low / 2
                if low < least:
                    return 0.0
        while high / low > 1 + RATE_STEP:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low

    def wall(self, candidate: Candidate, replicas: int, rate: float, relief: str | None = None) -> float:
        """Largest multiple of the workload's traffic this fleet carries; bracketed upwards from `rate`."""
        low, high = rate, rate * 1.15
        if not self.judged(candidate, replicas, rate, count=2, relief=relief).holds:
            return self.highest_rate(candidate, replicas, 0.0, rate, relief=relief)
        while self.judged(candidate, replicas, high, count=2, relief=relief).holds:
            low, high = high, high * 1.3
            if high > rate * self.spec.search.max_rate_scale:
                return low
        return self.highest_rate(candidate, replicas, low, high, relief=relief)


def _shown(name: str, value: float) -> str:
    """A service level's value or limit with its unit."""
    from simulator.report.plan.words import level_value

    return level_value({"name": name, "v": None if value == float("inf") else value}, "v")


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

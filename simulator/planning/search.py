"""The smallest fleet that meets the service levels: bounds first, then bisection on simulated points.

A fleet counts only when, simulated whole, the confidence interval of every level clears its limit with step times
slower by the profile's error. The cap on replicas is never an answer: beyond it the outcome says `capped`.
"""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.planning.bounds import Ready, fewest_replicas, likely_replicas
from simulator.planning.candidate import Candidate
from simulator.planning.passing import surely
from simulator.planning.statistics import Judgement, reason
from simulator.planning.traffic import mean_rate
from simulator.planning.walls import LOWEST_RATE, Walls
from simulator.planning.ways import Way
from simulator.scenario.setup import Setup
from simulator.text import verb

Status = Literal["feasible", "infeasible", "capped", "does not fit", "pruned", "not finished"]


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


class Search(Walls):
    """Searches of one plan for the smallest fleets."""

    def smallest(
        self,
        candidate: Candidate,
        counts: Sequence[int],
        rate: float,
        factor: float,
        start: int,
        clear: bool = True,
        rows: tuple[int, int] | None = None,
        way: Way | None = None,
    ) -> int | None:
        """Fewest replicas among `counts` (rising) that pass; None when the last does not.

        `clear`: the interval must clear every limit; else the mean is enough. Bracket by doubling the step from
        `start`, bisect on single looks; then walk down on whole fleets to the first that passes, or bracket upwards.
        """

        def quick(i: int) -> bool:
            return self.judged(candidate, counts[i], rate, factor, count=1, rows=rows, way=way).holds

        def sure(i: int) -> bool:
            if not clear:
                count = self.fewest(candidate)
                return self.judged(candidate, counts[i], rate, factor, count=count, rows=rows, way=way).holds
            return surely(self.verdict(candidate, counts[i], rate, factor, rows, way))

        i = _boundary(quick, counts.index(_near(counts, start)), len(counts))
        i = min(i, len(counts) - 1)
        if sure(i):
            while i > 0 and sure(i - 1):
                i -= 1
            return counts[i]
        high = _boundary(sure, i + 1, len(counts), low=i) if i + 1 < len(counts) else len(counts)
        return counts[high] if high < len(counts) else None

    def needed(self, found: Ready, rate: float, start: int) -> int | None:
        """Replicas at `rate` times the traffic, looked for around `start`; None = not among those allowed."""
        assert found.setup is not None
        _, _, counts = self._choices(found.candidate, found.setup, rate)
        return self.smallest(found.candidate, counts, rate, 1 + found.error.relative, start) if counts else None

    def _choices(self, candidate: Candidate, setup: Setup, rate: float) -> tuple[list[int], int, list[int]]:
        """Numbers of replicas that are allowed, the proved least at `rate` times the traffic, and those from it on."""
        trace = self.runner.bench.traffic.trace(0)
        bound = fewest_replicas(setup, trace, mean_rate(trace) * rate)
        allowed = list(candidate.counts(self.spec))
        return allowed, bound, [n for n in allowed if n >= bound]

    def solve(self, found: Ready, rate: float, near: int | None = None) -> Outcome:
        """The whole search for one candidate at `rate` times the workload's traffic, from `near` replicas if given."""
        candidate, spec = found.candidate, self.spec
        if found.setup is None:
            return Outcome(candidate, "does not fit", found.reason)
        if found.setup.limits.stream == 0 and any(metric == "tpot" for _, metric, _ in spec.slo.written()):
            return Outcome(candidate, "infeasible", "answers are returned whole: there is no TPOT to be within a limit")
        allowed, bound, counts = self._choices(candidate, found.setup, rate)
        error = found.error.relative
        if not allowed:
            why = "no layout of exactly the number of GPUs asked for" if spec.candidates.total_gpus else (
                f"fewer replicas are allowed than it takes beside the {candidate.prefill_replicas} for prompts")
            return Outcome(candidate, "infeasible", why, bound=bound)
        if not counts:
            most = candidate.own(allowed[-1])
            needs = (f"needs at least {candidate.said(bound, ' replicas')} to keep up, {most} "
                     f"{verb(most, 'is', 'are')} allowed")
            return self._failed(candidate, allowed[-1], rate, bound, error, needs)
        tpot = min((t.max_s for t in spec.slo.targets if t.metric == "tpot"), default=None)
        trace = self.runner.bench.traffic.trace(0)
        start = near or likely_replicas(found.setup, trace, mean_rate(trace) * rate, tpot)
        if not self.judged(candidate, _near(counts, start), rate, 1 + error, count=1).holds:
            never = self.never(candidate, counts[-1], rate, bound, error)
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
        count = self.fewest(candidate)
        nominal = self.judged(candidate, need, rate, count=count, whole=True)
        fast = self.judged(candidate, need, rate, 1 - error, count=count, whole=candidate in self.careful)
        fewer = [n for n in allowed if n < need]
        return Outcome(candidate, "feasible", "", need, (least, need), bound, nominal, slow, fast,
                       self._fewer(candidate, fewer[-1] if fewer else 0, bound, rate, error))  # fmt: skip

    def _fewer(self, candidate: Candidate, replicas: int, bound: int, rate: float, error: float) -> str:
        """Why `replicas` are not enough; empty when there is no smaller fleet."""
        if replicas == 0:
            return ""
        spare = self.spec.survive
        with_them = candidate.said(replicas + spare)
        if spare:
            with_them += f", of which {replicas} {verb(replicas, 'serves', 'serve')} when {_fail(spare)},"
        if replicas < bound:
            least = str(bound) if candidate.beside is None else f"{candidate.own(bound)} {candidate.gpu}"
            least += " that serve" if spare else ""
            return f"{with_them} cannot keep up: it takes {least} at least, however full their steps are"
        why = reason(self.verdict(candidate, replicas, rate, 1 + error), error)
        return f"with {with_them.removesuffix(',')}, {why}"

    def _failed(
        self, candidate: Candidate, most: int, rate: float, bound: int, error: float, needs: str
    ) -> Outcome:
        """Tell a cap on replicas from a level no fleet meets, and find what the largest fleet carries."""
        at_most = self.verdict(candidate, most, rate, 1 + error)
        carried = self.highest_rate(candidate, most, rate, factor=1 + error, passes=surely, whole=True)
        if carried > 0:
            text = needs or f"{_cap(candidate, most)}: {reason(at_most, error)}"
            carry = verb(most, "it carries", "they carry")
            carries = f"; {carry} {carried / rate:.2f} of the traffic" if carried < rate else ""
            return Outcome(candidate, "capped", text + carries, bound=bound, best_try=at_most, rate_met=carried)
        never = self.never(candidate, most, rate, bound, error)
        if never is None:
            text = f"{_cap(candidate, most)}: {reason(at_most, error)}"
            return Outcome(candidate, "capped", text, bound=bound, best_try=at_most, rate_met=0.0)
        return never

    def never(
        self, candidate: Candidate, most: int, rate: float, bound: int, error: float, way: Way | None = None
    ) -> Outcome | None:
        """What is said of a candidate that even nearly idle does not meet the levels; None where it does.

        What replicas show to miss by their share is not simulated whole: percentiles of fewer requests are lower.
        """
        if self.judged(candidate, most, rate * LOWEST_RATE, 1 + error, count=1, way=way).holds:
            return None
        idle = self.judged(candidate, most, rate * LOWEST_RATE, 1 + error, count=2, way=way)
        if idle.verdict != "misses" and self.shares(candidate, most):
            idle = self.judged(candidate, most, rate * LOWEST_RATE, 1 + error, way=way)
        if idle.verdict != "misses":
            idle = self.verdict(candidate, most, rate * LOWEST_RATE, 1 + error, way=way)
        if surely(idle):
            return None
        text = f"no fleet meets it, even nearly idle: {reason(idle, error)}"
        return Outcome(candidate, "infeasible", text, bound=bound, best_try=idle, rate_met=0.0)


def _near(counts: Sequence[int], start: int) -> int:
    """The first of `counts` (rising) at or above `start`, else the last."""
    return counts[min(bisect.bisect_left(counts, start), len(counts) - 1)]


def _boundary(passes: Callable[[int], bool], start: int, size: int, low: int = -1) -> int:
    """First index of a rising predicate, found by doubling steps from `start`; `size` when none passes. `low`: an index
    that does not, below `start`."""
    high, step = size, 1
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


def _cap(candidate: Candidate, most: int) -> str:
    return f"{candidate.said(most, ' replicas')} {verb(most, 'is', 'are')} the most allowed"


def _fail(spare: int) -> str:
    return "one fails" if spare == 1 else f"{spare} fail"

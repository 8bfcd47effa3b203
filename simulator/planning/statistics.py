"""Intervals and verdicts: does a service level hold, beyond what chance could explain?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from simulator.metrics.intervals import t_quantile
from simulator.planning.measure import key_of
from simulator.planning.spec import PlanSpec, Target

Verdict = Literal["meets", "misses", "open"]


@dataclass(frozen=True)
class Interval:
    """A mean over replications with its confidence interval; infinite when a replication is."""

    value: float
    low: float
    high: float
    count: int

    def clears(self, limit: float) -> Verdict:
        """Against an upper limit."""
        return "meets" if self.high <= limit else "misses" if self.low > limit else "open"


def interval(values: Sequence[float], confidence: float) -> Interval:
    """Student-t interval of a mean; a single value has no width, it is a sample of one."""
    data = np.asarray([v for v in values if not math.isnan(v)], dtype=np.float64)
    if data.size == 0:
        return Interval(0.0, 0.0, 0.0, 0)
    if not np.all(np.isfinite(data)):
        return Interval(math.inf, float(data.min()), math.inf, int(data.size))
    mean = float(data.mean())
    if data.size == 1:
        return Interval(mean, mean, mean, 1)
    half = t_quantile(0.5 + confidence / 2, data.size - 1) * float(data.std(ddof=1)) / math.sqrt(data.size)
    return Interval(mean, mean - half, mean + half, int(data.size))


@dataclass(frozen=True)
class Judged:
    """One service level on a set of replications."""

    name: str
    limit: float
    interval: Interval
    verdict: Verdict
    target: Target | None = None  # None: attainment, where `interval` is of the share that missed

    @property
    def ratio(self) -> float:
        """Value over limit: above 1 it is broken."""
        if self.limit > 0:
            return self.interval.value / self.limit
        return 1.0 if self.interval.value <= 0 else math.inf


@dataclass(frozen=True)
class Judgement:
    """All service levels; `verdict` is the worst of them, overload is a miss whatever the percentiles say."""

    levels: tuple[Judged, ...]
    overloaded: bool
    records: tuple[dict[str, Any], ...] = field(repr=False)

    @property
    def verdict(self) -> Verdict:
        verdicts = {level.verdict for level in self.levels}
        if self.overloaded or "misses" in verdicts:
            return "misses"
        return "open" if "open" in verdicts else "meets"

    @property
    def holds(self) -> bool:
        """By the mean alone, intervals left aside."""
        return not self.overloaded and all(level.ratio <= 1 for level in self.levels)

    @property
    def binding(self) -> Judged:
        """The service level nearest to its limit, or furthest beyond."""
        return max(self.levels, key=lambda level: level.ratio)


def judge(spec: PlanSpec, records: Sequence[dict[str, Any]]) -> Judgement:
    """Judge the replications of one fleet. An idle replica (no request) meets everything."""
    busy = [r for r in records if not r["idle"]]
    levels = []
    for target in spec.slo.targets:
        key = key_of(target.metric, target.cls, target.percentile)
        got = interval([r["values"][key] for r in busy], spec.search.confidence)
        levels.append(Judged(target.name, target.max_s, got, got.clears(target.max_s), target))
    if spec.slo.attainment:
        missed = interval([1.0 - r["attained"] for r in busy], spec.search.confidence)
        limit = 1.0 - spec.slo.attainment.share
        levels.append(Judged("requests that miss a limit", limit, missed, missed.clears(limit)))
    overloaded = sum(r["overloaded"] for r in busy) * 2 > len(busy)
    return Judgement(tuple(levels), overloaded, tuple(records))

"""Verdicts: does a service level hold, beyond what chance could explain?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from simulator.errors import ConfigError
from simulator.metrics.intervals import Interval, interval
from simulator.metrics.samples import mean
from simulator.planning.asking import Asking
from simulator.planning.measure import key_of
from simulator.planning.slo import Target
from simulator.text import SHORT, level_value
from simulator.workload.trace import Trace

Verdict = Literal["meets", "misses", "open"]
_VERDICT: Final[dict[str, Verdict]] = {"below": "meets", "above": "misses", "open": "open"}


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
        """Mean over limit: above 1 it is broken."""
        return _over(self.interval.mean, self.limit)

    @property
    def shown(self) -> float:
        """The number that speaks against the level: the mean when it is above the limit, else the upper bound."""
        return self.interval.mean if self.interval.mean > self.limit else self.interval.high


def finite(value: float) -> float | None:
    """A number as answers hold it: null where it is infinite or not a number."""
    return float(value) if math.isfinite(value) else None


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
        return not self.overloaded and all(level.interval.mean <= level.limit for level in self.levels)

    @property
    def binding(self) -> Judged:
        """The service level nearest to its limit, or furthest beyond; one that is not met before one that is."""
        return max(self.levels, key=lambda x: (x.verdict != "meets", x.ratio, _over(x.shown, x.limit)))


def judge(spec: Asking, records: Sequence[dict[str, Any]], exact: bool = False, part: bool = False) -> Judgement:
    """Judge the replications of one fleet.

    `exact`: one recorded trace, whose answer is that of this very trace and no sample: the value decides, and the
    interval comes from within the run. `part`: records of a part of the trace, which say how high levels are at least;
    a window that it has none of says nothing, and the backlog of the part is not judged.
    Raises ConfigError for a level that no request of a replication has.
    """
    busy = [r for r in records if not r["idle"]]
    if not busy:
        raise ConfigError(f"{spec.name}: no replica got a request, nothing can be judged")
    levels = []
    for target in spec.slo.targets:
        values = [value_of(record, target) for record in busy]
        if part:
            values = [0.0 if math.isnan(value) else value for value in values]
        if np.isnan(values).any():
            raise ConfigError(f"{target.name}: no request has it; a service level without data cannot be judged")
        got, level = interval(values, spec.search.confidence), spec.search.confidence
        if exact and target.window_s is None:
            low, high, _ = busy[0]["within"][key_of(target.metric, target.cls, target.percentile)]
            got = Interval(values[0], low, high, 1, level)
        verdict = _VERDICT["below" if values[0] <= target.max_s else "above"] if exact else against(got, target.max_s)
        levels.append(Judged(target.name, target.max_s, got, verdict, target))
    for name, values, limit in _shares(spec, busy):
        got = interval(values, spec.search.confidence)
        verdict = _VERDICT["below" if values[0] <= limit else "above"] if exact else against(got, limit)
        levels.append(Judged(name, limit, got, verdict))
    overloaded = sum(r["overloaded"] for r in busy) * 2 > len(busy) and not part
    return Judgement(tuple(levels), overloaded, tuple(records))


def _shares(spec: Asking, busy: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[float], float]]:
    """Levels that count requests: (name, share that is missing in each replication, how much may be)."""
    slo = spec.slo
    if slo.attainment:
        yield "requests that miss a limit", [1.0 - r["attained"] for r in busy], 1.0 - slo.attainment.share + 1e-12
    for name, asked in slo.class_attainment.items():
        values = [1.0 - r["attained_of"][name] for r in busy]
        yield f"requests that miss a limit ({name})", values, 1.0 - asked.share + 1e-12
    if slo.goodput_per_s:
        wanted = slo.goodput_per_s
        short = [max(0.0, 1.0 - r["attained"] * r["rate"] / wanted) for r in busy]
        yield f"{SHORT} of {wanted:g} requests/s", short, 1e-12


def against(got: Interval, limit: float) -> Verdict:
    """An interval against an upper limit."""
    return _VERDICT[got.against(limit)]


def value_of(record: dict[str, Any], target: Target) -> float:
    """A level's value in a record; NaN when no request has it, or no window enough of them."""
    key = key_of(target.metric, target.cls, target.percentile)
    if target.window_s is None:
        return float(record["values"][key])
    worst = record["worst"][key][f"{target.window_s:g}"]
    return float("nan") if worst is None else float(worst[0])


def check_levels(spec: Asking, trace: Trace) -> None:
    """Raise ConfigError for a level that this traffic cannot answer: no such class, no data, too few requests."""
    kept = np.arange(len(trace)) >= int(spec.warmup_fraction * len(trace))
    for name in spec.slo.class_attainment:
        if name not in trace.class_names:
            known = ", ".join(trace.class_names)
            raise ConfigError(f"slo.classes.{name}: no request is of class {name!r}; classes: {known}")
    for (key, metric, _), target in zip(spec.slo.written(), spec.slo.targets, strict=False):
        rows = kept
        if target.cls is not None:
            if target.cls not in trace.class_names:
                known = ", ".join(trace.class_names)
                raise ConfigError(f"{key}: no request is of class {target.cls!r}; classes: {known}")
            rows = kept & (trace.cls == trace.class_names.index(target.cls))
        if metric in ("tpot", "itl"):
            rows = rows & (trace.output > 1)
        found, least = int(np.count_nonzero(rows)), target.needed(spec.search.confidence)
        if target.window_s is not None:
            at = np.sort(trace.arrival_ns[rows]) / 1e9
            most = int((np.searchsorted(at, at + target.window_s) - np.arange(found)).max(initial=0))
            if most < least:
                place = key if target.window_s != spec.slo.window_s else "slo.window_s"
                raise ConfigError(
                    f"{place}: {target.name} needs {least} requests in a window, the fullest has {most}; "
                    "accepted: a longer window, a lower percentile, more requests"
                )
        if found < least:
            what = "answer of more than one token" if metric == "tpot" else "request"
            raise ConfigError(
                f"{key}: {found} {what}{'' if found == 1 else 's'} cannot tell {target.name}, it takes {least} at "
                f"{spec.search.confidence:.0%} confidence; accepted: {_longer(trace)}, a lower percentile"
            )


def _longer(trace: Trace) -> str:
    """Where more requests come from."""
    drawn = trace.meta.source in ("generated", "sessions", "requests")
    return "more requests" if drawn else ("a longer trace, or copies of it (trace.copies: N makes N times the traffic; "
                                          "rate_scale: 1/N, as a number, with it keeps the rate)")


def check_prefixes(asked: Sequence[bool | None], trace: Trace) -> None:
    """Raise ConfigError for candidates with and without a prefix cache where the traffic names no shared prefix."""
    if any(value is not None for value in asked) and not trace.extras:
        raise ConfigError(
            "candidates.prefix_caching has no effect: the requests name no shared prefixes; accepted: a trace with "
            "prefix hashes, or with session and turn (workload.trace.columns)"
        )


def only_overloaded(judged: Judgement) -> bool:
    """Whether it is the backlog that does not hold, every level being within its limit as long as the trace is."""
    return judged.overloaded and judged.binding.interval.mean <= judged.binding.limit


def first_broken(above: Judgement) -> str:
    """Name of what breaks, of a fleet just above its wall."""
    return "overload" if only_overloaded(above) else above.binding.name


def reason(judged: Judgement, error: float = 0.0) -> str:
    """Why a fleet is not taken, in the numbers that it was decided on."""
    def shown(level: Judged, value: float) -> str:
        return level_value({"name": level.name, "v": None if value == float("inf") else value}, "v")

    level = judged.binding
    slow = f" (judged, as all fleets are, with steps {100 * error:.0f} % slower than predicted)" if error else ""
    if only_overloaded(judged):
        return f"overloaded: the backlog grows as long as requests arrive{slow}"
    mean_text, limit = shown(level, level.interval.mean), shown(level, level.limit)
    if level.interval.mean > level.limit:
        far = f"{100 * (level.ratio - 1):.2g} % above it" if level.ratio < 1.1 else "just above it"
        above = f" ({far})" if mean_text == limit else ""
        text = f"{level.name} {mean_text} against a limit of {limit}{above}"
    else:
        high = shown(level, level.interval.high)
        text = f"{level.name} is not shown to stay within {limit}: {mean_text}, up to {high} by its interval"
    return f"{'overloaded; ' if judged.overloaded else ''}{text}{slow}"


def level_rows(judged: Judgement) -> list[dict[str, Any]]:
    """Each level by its mean over replications, as answers hold it; null = not finite."""
    return [{"name": x.name, "value": finite(x.interval.mean), "limit": x.limit} for x in judged.levels]


def mean_of(records: Sequence[dict[str, Any]], key: str) -> float:
    """Mean over replications of one recorded number."""
    return mean(np.array([r["values"][key] for r in records if not r["idle"]]))


def _over(value: float, limit: float) -> float:
    if limit > 0:
        return value / limit
    return 1.0 if value <= 0 else float("inf")

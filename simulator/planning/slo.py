"""Service levels of a plan: percentiles over all requests, of a class, in the worst window; shares of good requests.

    slo: {ttft_p99_s: 0.5, itl_p99_s: 0.1, worst_hour: {ttft_p99_s: 0.8}, worst_5min: {ttft_p99_s: 1.5},
          classes: {chat: {e2e_p95_s: 20, attainment: {share: 0.95, e2e_s: 30}}},
          attainment: {share: 0.95, ttft_s: 1}, goodput_per_s: 30}
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field, model_validator

from simulator.config import Section
from simulator.metrics.samples import needed
from simulator.scenario.limits import LONGEST_S, RequestLimits
from simulator.text import joined, seconds

METRICS: Final = ("ttft", "tpot", "itl", "e2e", "queue")
WINDOWS: Final = {"worst_hour": 3600.0, "worst_5min": 300.0}
"""Key -> length [s] of the window whose worst must meet the limits below it."""
MEAN: Final = -1.0
"""Stands for the mean where a percentile is asked for."""
_KEY: Final = re.compile(r"^(ttft|tpot|itl|e2e|queue)_(mean|p\d{1,2}(?:\.\d+)?)_s$")


@dataclass(frozen=True)
class Target:
    """One service level: a percentile (or the mean) of a metric must not be above `max_s` [s]."""

    metric: str
    percentile: float  # MEAN or 0 < p < 100
    max_s: float
    cls: str | None = None  # class of requests, None = all
    window_s: float | None = None  # [s] the worst window of this length must meet it; None = all requests together

    @property
    def name(self) -> str:
        """For tables, e.g. `p99 TTFT`, `mean E2E (chat)` or `p99 TTFT in the worst 300 s`."""
        which = "mean" if self.percentile == MEAN else f"p{self.percentile:g}"
        text = f"{which} {'queue time' if self.metric == 'queue' else self.metric.upper()}"
        text += f" ({self.cls})" if self.cls else ""
        return text + (f" in the worst {self.window_s:g} s" if self.window_s else "")

    @property
    def share(self) -> float | None:
        """The percentile as a share, None for the mean."""
        return None if self.percentile == MEAN else self.percentile / 100

    def needed(self, level: float) -> int:
        """Requests that it takes to tell, at a two-sided confidence `level`."""
        return 2 if self.share is None else needed(self.share, level)


class Attainment(RequestLimits):
    """At least `share` of all arrived requests must meet every one of these limits, each on its own."""

    share: float = Field(gt=0, le=1)

    @model_validator(mode="after")
    def _some(self) -> "Attainment":
        if not self.limits:
            raise ValueError("attainment needs at least one of ttft_s, tpot_s, e2e_s, queue_s")
        return self


class SloSpec(Section):
    """Service levels: percentile keys (`ttft_p99_s`), per class, in the worst window, shares of good requests."""

    targets: tuple[Target, ...] = ()
    window_s: float | None = Field(default=None, gt=0, le=LONGEST_S)
    attainment: Attainment | None = None
    class_attainment: dict[str, Attainment] = Field(default_factory=dict)
    goodput_per_s: float | None = Field(default=None, gt=0, le=1e9, description="good requests a second, at least")

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "targets" in data:
            return data
        classes = _sections(data, "classes", data.get("classes") or {})
        plain = {k: v for k, v in data.items() if k not in (*OTHER_KEYS, *WINDOWS)}
        window = data.get("window_s")
        length = window if isinstance(window, int | float) and window > 0 else None  # else refused as the field it is
        targets = [_target(f"slo.{k}", k, v, None, length) for k, v in plain.items()]
        for name, limits in classes.items():
            own = {k: v for k, v in limits.items() if k != "attainment"}
            targets += [_target(f"slo.classes.{name}.{k}", k, v, str(name), length) for k, v in own.items()]
        for key, worst in WINDOWS.items():
            limits = _sections(data, key, {key: data.get(key) or {}})[key]
            targets += [_target(f"slo.{key}.{k}", k, v, None, worst) for k, v in limits.items()]
        shares = {str(name): limits["attainment"] for name, limits in classes.items() if "attainment" in limits}
        return {"targets": tuple(targets), "attainment": data.get("attainment"), "window_s": window,
                "class_attainment": shares, "goodput_per_s": data.get("goodput_per_s")}  # fmt: skip

    @model_validator(mode="after")
    def _some(self) -> "SloSpec":
        if not self.targets and not self.attainment and not self.class_attainment:
            raise ValueError("slo must hold at least one limit, e.g. ttft_p99_s: 0.5")
        if self.window_s is not None and not self.targets:
            raise ValueError("slo.window_s has no effect without a percentile or mean, e.g. ttft_p99_s: 0.5")
        if self.goodput_per_s is not None and not self.request_limits():
            raise ValueError("slo.goodput_per_s has no effect without limits of a request: attainment or percentiles")
        return self

    def written(self) -> Iterator[tuple[str, str, float]]:
        """Every limit as (key, metric, [s]); those of the targets first, in their order."""
        for t in self.targets:
            which = "mean" if t.percentile == MEAN else f"p{t.percentile:g}"
            place = next((k for k, length in WINDOWS.items() if length == t.window_s != self.window_s), "")
            place = f"{place}." if place else f"classes.{t.cls}." if t.cls else ""
            yield f"slo.{place}{t.metric}_{which}_s", t.metric, t.max_s
        shares = {"slo": self.attainment} | {f"slo.classes.{k}": v for k, v in self.class_attainment.items()}
        for place, asked in shares.items():
            for metric, limit in (asked.limits if asked else {}).items():
                yield f"{place}.attainment.{metric}_s", metric, limit

    def words(self) -> Iterator[str]:
        """Every limit as it is said: `p95 TTFT < 2 s`, `95 % of requests with TTFT < 1 s and E2E < 30 s`."""
        for target in self.targets:
            yield f"{target.name} < {seconds(target.max_s)}"
        shares = {"requests": self.attainment} | {f"requests ({k})": v for k, v in self.class_attainment.items()}
        for which, asked in shares.items():
            if asked:
                yield f"{100 * asked.share:g} % of {which} with {_both(asked.limits)}"
        if self.goodput_per_s:
            yield f"{self.goodput_per_s:g} requests/s with {_both(self.request_limits())}"

    @property
    def counts(self) -> bool:
        """Whether requests within limits are counted: a share of them or so many a second is asked for."""
        return bool(self.attainment or self.class_attainment or self.goodput_per_s)

    def request_limits(self) -> dict[str, float]:
        """Metric -> limit [s] that one request must meet to count as good: the attainment's, else those of
        the percentile targets for all classes."""
        if self.attainment:
            return self.attainment.limits
        return self._tightest(None)

    def limits_of_classes(self) -> dict[str, dict[str, float]]:
        """Class -> metric -> limit [s] that one of its requests must meet besides, likewise."""
        names = dict.fromkeys([*(t.cls for t in self.targets if t.cls is not None), *self.class_attainment])
        return {name: self.class_attainment[name].limits if name in self.class_attainment else self._tightest(name)
                for name in names}  # fmt: skip

    def _tightest(self, cls: str | None) -> dict[str, float]:
        limits: dict[str, float] = {}
        for target in self.targets:
            if target.cls == cls and target.metric != "itl":
                limits[target.metric] = min(target.max_s, limits.get(target.metric, target.max_s))
        return limits


def _both(limits: Mapping[str, float]) -> str:
    return joined([f"{'queue time' if metric == 'queue' else metric.upper()} < {seconds(limit)}"
                   for metric, limit in limits.items()])  # fmt: skip


OTHER_KEYS: Final = ("classes", "attainment", "window_s", "goodput_per_s")


def _sections(data: Mapping[str, Any], key: str, found: Any) -> dict[str, Mapping[str, Any]]:
    """The mappings below a key. Raises ValueError where something else stands there."""
    if not isinstance(found, Mapping) or not all(isinstance(v, Mapping) for v in found.values()):
        what = "class names to limits" if key == "classes" else "limits, e.g. ttft_p99_s: 1"
        raise ValueError(f"slo.{key} must map {what}, got {data[key]!r}")
    return dict(found)


def _target(where: str, key: str, value: Any, cls: str | None, window_s: float | None) -> Target:
    match = _KEY.match(key)
    if not match:
        raise ValueError(
            f"{where}: unknown limit; accepted: METRIC_pNN_s or METRIC_mean_s with METRIC one of "
            f"{', '.join(METRICS)}, e.g. ttft_p99_s; {', '.join((*OTHER_KEYS, *WINDOWS))}"
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{where} must be a number of seconds > 0, got {value!r}")
    percentile = MEAN if match[2] == "mean" else float(match[2][1:])
    if percentile != MEAN and not 0 < percentile < 100:
        raise ValueError(f"{where}: the percentile must be between 0 and 100, got {percentile:g}")
    if match[1] == "itl" and (cls is not None or window_s is not None):
        raise ValueError(f"{where}: gaps between tokens are counted over all requests together, not by class or window")
    return Target(match[1], percentile, float(value), cls, window_s)

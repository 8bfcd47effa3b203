"""Service levels of a plan: percentiles over all requests, of a class, in the worst window; a share of good requests.

    slo: {ttft_p99_s: 0.5, tpot_p99_s: 0.05, window_s: 300, classes: {chat: {e2e_p95_s: 20}},
          attainment: {share: 0.95, ttft_s: 1}}
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field, model_validator

from simulator.config import Section
from simulator.metrics.samples import needed
from simulator.scenario.limits import LONGEST_S, RequestLimits

METRICS: Final = ("ttft", "tpot", "e2e", "queue")
MEAN: Final = -1.0
"""Stands for the mean where a percentile is asked for."""
_KEY: Final = re.compile(r"^(ttft|tpot|e2e|queue)_(mean|p\d{1,2}(?:\.\d+)?)_s$")


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
    """Service levels: percentile keys (`ttft_p99_s`), per class, in the worst window, and an attainment share."""

    targets: tuple[Target, ...] = ()
    window_s: float | None = Field(default=None, gt=0, le=LONGEST_S)
    attainment: Attainment | None = None

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "targets" in data:
            return data
        classes = data.get("classes") or {}
        if not isinstance(classes, Mapping) or not all(isinstance(v, Mapping) for v in classes.values()):
            raise ValueError(f"slo.classes must map class names to limits, got {classes!r}")
        plain = {k: v for k, v in data.items() if k not in ("classes", "attainment", "window_s")}
        window = data.get("window_s")
        length = window if isinstance(window, int | float) and window > 0 else None  # else refused as the field it is
        targets = [_target(k, v, None, length) for k, v in plain.items()]
        targets += [_target(k, v, str(name), length) for name, limits in classes.items() for k, v in limits.items()]
        return {"targets": tuple(targets), "attainment": data.get("attainment"), "window_s": window}

    @model_validator(mode="after")
    def _some(self) -> "SloSpec":
        if not self.targets and self.attainment is None:
            raise ValueError("slo must hold at least one limit, e.g. ttft_p99_s: 0.5")
        if self.window_s is not None and not self.targets:
            raise ValueError("slo.window_s has no effect without a percentile or mean, e.g. ttft_p99_s: 0.5")
        return self

    def written(self) -> Iterator[tuple[str, str, float]]:
        """Every limit as (key, metric, [s])."""
        for t in self.targets:
            which = "mean" if t.percentile == MEAN else f"p{t.percentile:g}"
            yield f"slo.{f'classes.{t.cls}.' if t.cls else ''}{t.metric}_{which}_s", t.metric, t.max_s
        for metric, limit in (self.attainment.limits if self.attainment else {}).items():
            yield f"slo.attainment.{metric}_s", metric, limit

    def request_limits(self) -> dict[str, float]:
        """Metric -> limit [s] that one request must meet to count as good: the attainment's, else those of
        the percentile targets for all classes."""
        if self.attainment:
            return self.attainment.limits
        limits: dict[str, float] = {}
        for target in self.targets:
            if target.cls is None:
                limits[target.metric] = min(target.max_s, limits.get(target.metric, target.max_s))
        return limits


def _target(key: str, value: Any, cls: str | None, window_s: float | None) -> Target:
    match = _KEY.match(key)
    where = f"slo.classes.{cls}.{key}" if cls else f"slo.{key}"
    if not match:
        raise ValueError(
            f"{where}: unknown limit; accepted: METRIC_pNN_s or METRIC_mean_s with METRIC one of "
            f"{', '.join(METRICS)}, e.g. ttft_p99_s; window_s; classes; attainment"
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{where} must be a number of seconds > 0, got {value!r}")
    percentile = MEAN if match[2] == "mean" else float(match[2][1:])
    if percentile != MEAN and not 0 < percentile < 100:
        raise ValueError(f"{where}: the percentile must be between 0 and 100, got {percentile:g}")
    return Target(match[1], percentile, float(value), cls, window_s)

"""Autoscaling of a fleet or a pool: cluster.autoscale, and what the engines make of it."""

from typing import Final, Literal

from pydantic import Field, model_validator

from simulator.config import Section
from simulator.engines.forecast import AHEAD, MOST_AHEAD, MOST_HISTORY
from simulator.engines.scaler import Scaler, Shift
from simulator.engines.scaling import METRICS as CODES
from simulator.engines.scaling import MILLI, NOTHING
from simulator.scenario.limits import LONGEST_S
from simulator.units import to_ticks

DAY_S: Final = 86_400.0
WEEK_S: Final = 7 * DAY_S
"""Longest wait beside an autoscaler, which decides again and again all the while."""
SCALE_TO_ZERO: Final = ("waiting", "requests")
"""Metrics that tell of requests when there is no replica."""
POLLING_S: Final = 30.0
COOL_DOWN_S: Final = 300.0
"""KEDA's defaults of pollingInterval and cooldownPeriod (keda.sh, ScaledObject specification)."""


class StartSpec(Section):
    """How long a replica takes from its order until it serves, in parts."""

    node_s: float = Field(default=0.0, ge=0, le=WEEK_S, description="until there is a machine with GPUs")
    image_s: float = Field(default=0.0, ge=0, le=WEEK_S, description="pulling the image")
    weights_s: float = Field(default=0.0, ge=0, le=WEEK_S, description="reading the weights")
    compile_s: float = Field(default=0.0, ge=0, le=WEEK_S, description="compiling, capturing graphs, warming up")

    @property
    def pending_s(self) -> float:
        """The part in which its pod is pending."""
        return self.node_s + self.image_s

    @property
    def total_s(self) -> float:
        """From the order until it serves."""
        return self.pending_s + self.weights_s + self.compile_s


class RateSpec(Section):
    """Most replicas ordered or released in a period: the larger of both."""

    pods: int = Field(default=0, ge=0, le=4096)
    percent: int = Field(default=100, ge=0, le=100_000)
    period_s: float = Field(default=15.0, ge=1, le=1800)


class ShiftSpec(Section):
    """Replicas wanted at a time of the day; the run begins at 0."""

    from_s: float = Field(ge=0, le=LONGEST_S)
    to_s: float = Field(gt=0, le=LONGEST_S)
    replicas: int = Field(ge=0, le=4096)
    every_s: float = Field(default=DAY_S, ge=1e-3, le=LONGEST_S)

    @model_validator(mode="after")
    def _in_order(self) -> "ShiftSpec":
        if not self.from_s < self.to_s <= self.every_s:
            raise ValueError(f"to_s must be > from_s and <= every_s ({self.every_s:g}), got {self.to_s:g}")
        return self


class ForecastSpec(Section):
    """A line through past decisions: the model Linear of the Predictive Horizontal Pod Autoscaler."""

    history: int = Field(default=6, ge=2, le=MOST_HISTORY, description="decisions that it goes through")
    look_ahead_s: float | None = Field(default=None, ge=0, le=LONGEST_S, description="default: from a replica's order "
                                       "until it serves")


class AutoscaleSpec(Section):
    """How many of the replicas there are, by Kubernetes' HorizontalPodAutoscaler or by KEDA."""

    formula: Literal["hpa", "keda"] = "hpa"
    metric: Literal["waiting", "running", "requests", "kv", "ttft"] | None = Field(
        default=None, description="requests waiting, running, both, share of KV blocks held, mean time to first token")
    target: float | None = Field(default=None, ge=1e-3, le=1e6, description="of the metric: a replica's, or [s]")
    min: int = Field(default=1, ge=0, le=4096)
    initial: int | None = Field(default=None, ge=0, le=4096, description="replicas at the start, default min")
    start: StartSpec
    sync_s: float = Field(default=15.0, ge=0.1, le=3600)
    tolerance: float = Field(default=0.1, ge=0, le=1)
    scale_up_window_s: float = Field(default=0.0, ge=0, le=3600)
    scale_down_window_s: float = Field(default=300.0, ge=0, le=3600)
    scale_up: RateSpec = RateSpec(pods=4)
    scale_down: RateSpec = RateSpec()
    grace_s: float | None = Field(default=None, ge=1, le=LONGEST_S, description="for the last requests of a replica "
                                  "that is released, then they are lost; default: as long as they take")
    ttft_window_s: float = Field(default=60.0, ge=1, le=3600, description="of the mean time to first token")
    forecast: ForecastSpec | None = Field(default=None, description="of replicas, as the Predictive Horizontal Pod "
                                          "Autoscaler makes it; the larger of it and the formula's counts")
    schedule: list[ShiftSpec] = Field(default=[], max_length=1000)
    polling_s: float | None = Field(default=None, ge=1, le=3600)
    cool_down_s: float | None = Field(default=None, ge=0, le=LONGEST_S)
    activation: float | None = Field(default=None, ge=0, le=1e6)

    @model_validator(mode="after")
    def _consistent(self) -> "AutoscaleSpec":
        if (self.metric is None) != (self.target is None):
            raise ValueError("autoscale.metric and autoscale.target belong together, got only one of them")
        if self.metric is None and not self.schedule:
            raise ValueError("autoscale.metric must be given where there is no schedule; accepted: "
                             + ", ".join(CODES))
        if self.metric == "kv" and self.target is not None and self.target > 1:
            raise ValueError(f"autoscale.target of metric: kv must be a share <= 1, got {self.target:g}")
        if self.min == 0 and (self.formula != "keda" or self.metric not in SCALE_TO_ZERO):
            raise ValueError("autoscale.min: 0 needs formula: keda and metric: waiting or requests (nothing else tells "
                             f"of requests when no replica is there), got {self.formula} and {self.metric}")
        if self.min == 0 and self.grace_s and self.metric == "waiting":
            raise ValueError("autoscale.grace_s with min: 0 and metric: waiting would release the last replica while "
                             "it answers, again and again; use metric: requests")
        self._check_forecast()
        for key in ("polling_s", "cool_down_s", "activation"):
            if getattr(self, key) is not None and self.min > 0:
                raise ValueError(f"autoscale.{key} has no effect with min > 0: KEDA uses it from and to zero only")
        if (self.initial if self.initial is not None else self.min) < self.min:
            raise ValueError(f"autoscale.initial must be >= min, got {self.initial}")
        return self

    def _check_forecast(self) -> None:
        if self.forecast is None:
            return
        if self.metric is None or self.min == 0:
            raise ValueError("autoscale.forecast needs a metric, and min >= 1 (at zero replicas KEDA decides, which "
                             f"makes none), got {self.metric} and min {self.min}")
        if self.look_ahead_s > MOST_AHEAD * self.sync_s:
            raise ValueError(f"autoscale.forecast.look_ahead_s must be <= {MOST_AHEAD} times sync_s "
                             f"({self.sync_s:g}), got {self.look_ahead_s:g}")

    @property
    def look_ahead_s(self) -> float:
        """How far a forecast looks, 0 where none is made."""
        if self.forecast is None:
            return 0.0
        return self.start.total_s if self.forecast.look_ahead_s is None else self.forecast.look_ahead_s

    def check_most(self, where: str, replicas: int) -> None:
        """Raise ValueError where min, initial or a shift is above `replicas`, the most there can be."""
        given = {"min": self.min, "initial": self.initial or 0}
        given |= {f"schedule[{k}].replicas": shift.replicas for k, shift in enumerate(self.schedule)}
        for key, value in given.items():
            if value > replicas:
                raise ValueError(f"{where}.{key} must be <= replicas ({replicas}), got {value}")


def scaler(spec: AutoscaleSpec, pool: int, first: int, count: int) -> Scaler:
    """The autoscaler of replicas first .. first + count - 1."""
    initial = spec.min if spec.initial is None else spec.initial
    up, down, from_zero = spec.scale_up, spec.scale_down, spec.min == 0
    return Scaler(
        pool=pool, first=first, count=count, low=spec.min, keda=int(spec.formula == "keda"),
        metric=NOTHING if spec.metric is None else CODES[spec.metric], target=round(MILLI * (spec.target or 1.0)),
        tolerance=round(MILLI * spec.tolerance), sync=to_ticks(spec.sync_s),
        up_window=to_ticks(spec.scale_up_window_s), down_window=to_ticks(spec.scale_down_window_s),
        up_pods=up.pods, up_percent=up.percent, up_period=to_ticks(up.period_s),
        down_pods=down.pods, down_percent=down.percent, down_period=to_ticks(down.period_s),
        pending=to_ticks(spec.start.pending_s), start=to_ticks(spec.start.total_s), grace=to_ticks(spec.grace_s or 0.0),
        ttft_window=to_ticks(spec.ttft_window_s),
        polling=to_ticks(POLLING_S if spec.polling_s is None else spec.polling_s) if from_zero else 0,
        cool_down=to_ticks(COOL_DOWN_S if spec.cool_down_s is None else spec.cool_down_s),
        activation=round(MILLI * (spec.activation or 0.0)),
        history=spec.forecast.history if spec.forecast else 0, ahead=round(AHEAD * spec.look_ahead_s / spec.sync_s),
        wanted=initial)


def shifts(spec: AutoscaleSpec, k: int) -> list[Shift]:
    """The schedule of autoscaler k."""
    return [Shift(k, to_ticks(each.from_s), to_ticks(each.to_s), to_ticks(each.every_s), each.replicas)
            for each in spec.schedule]

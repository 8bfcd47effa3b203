"""Fleets beside the fixed one that a plan may ask for: autoscaled, or partly on spot capacity."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field, model_validator

from simulator.planning.names import gpu_name
from simulator.scenario.autoscale import AutoscaleSpec
from simulator.scenario.sections import SpotSpec

ROOM: Final = 2
"""An autoscaler may order so many times the replicas of the fixed fleet, and begins with as many as that has."""


class ScaledSpec(AutoscaleSpec):
    """An autoscaler whose target is searched for: the largest with which every level is met."""

    target: float | None = Field(default=None, ge=1e-3, le=1e6, description="of the metric; not given: searched for")

    @model_validator(mode="before")
    @classmethod
    def _any_target(cls, data: Any) -> Any:
        """A metric without a target gets one for the checks."""
        if isinstance(data, Mapping) and data.get("metric") is not None and data.get("target") is None:
            return {**data, "target": 1.0, "searched": True}
        return data

    searched: bool = Field(default=False, exclude=True, repr=False)

    @model_validator(mode="after")
    def _scales_by_metric(self) -> "ScaledSpec":
        if self.metric is None:
            raise ValueError("autoscale.metric must be given in a plan; accepted: waiting, running, requests, kv, ttft")
        if self.activation is not None or self.grace_s is not None:
            raise ValueError("autoscale.activation and autoscale.grace_s are not modelled in a plan")
        return self

    def scaler(self, target: float, most: int) -> dict[str, Any]:
        """cluster.autoscale of a fleet of `most` replicas at the most."""
        own = self.model_dump(exclude={"searched"}, exclude_unset=True)
        first = self.initial if self.initial is not None else max(self.min, -(-most // ROOM))
        return own | {"target": target, "initial": first}


class PlanSpotSpec(SpotSpec):
    """Spot capacity for some of the replicas."""

    share: float = Field(default=0.5, gt=0, le=1, description="of the replicas that may be spot, at most")
    prices: dict[str, float] = Field(min_length=1, description="USD per spot GPU and hour, by GPU name")

    @model_validator(mode="after")
    def _priced(self) -> "PlanSpotSpec":
        wrong = next((price for price in self.prices.values() if not price > 0), None)
        if wrong is not None:
            raise ValueError(f"spot.prices must be > 0, got {wrong}")
        return self

    def price(self, gpu: str) -> float | None:
        """[USD per GPU and hour], None of a GPU without one."""
        return {gpu_name(name): usd for name, usd in self.prices.items()}.get(gpu)

    def conditions(self) -> dict[str, Any]:
        """cluster.pools.*.spot."""
        return self.model_dump(include=set(SpotSpec.model_fields))

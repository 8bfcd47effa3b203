"""Replications of a scenario: the same experiment with other random numbers, until the answer is clear enough."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.routers import DRAWN, ROUTERS
from simulator.errors import ConfigError
from simulator.metrics.intervals import Interval, interval
from simulator.run import Result, simulate
from simulator.scenario.setup import Setup, prepare
from simulator.scenario.spec import Scenario
from simulator.workload.build import is_random

Floats = npt.NDArray[np.float64]
Metric = str | Callable[[Result], float | None]


def value_at(summary: Mapping[str, Any], path: str) -> float:
    """A number of a summary by dotted name, e.g. "ttft_s.p99"; null (an infinite percentile) is +infinity.

    Raises ConfigError naming what there is when the name is not in the summary.
    """
    node: Any = summary
    for part in path.split("."):
        if not isinstance(node, Mapping) or part not in node:
            known = ", ".join(node) if isinstance(node, Mapping) else "nothing below it"
            raise ConfigError(f"metric {path!r}: no {part!r} in the summary; known here: {known}")
        node = node[part]
    if node is None:
        return math.inf
    if isinstance(node, bool) or not isinstance(node, int | float):
        raise ConfigError(f"metric {path!r} is not a number, got {type(node).__name__}")
    return float(node)


def metric_of(result: Result, metric: Metric) -> float:
    """The metric of one result: a dotted summary name or a function of the result (None = +infinity)."""
    if isinstance(metric, str):
        return value_at(result.summary, metric)
    value = metric(result)
    return math.inf if value is None else float(value)


def replicate(
    scenario: Scenario, n: int, *metrics: Metric, start: int = 0, setup: Setup | None = None
) -> Floats:
    """Run replications start .. start + n - 1; returns values, shape (n, len(metrics)).

    Replication k draws the same random numbers whatever the GPU or policy, so rows of two scenarios pair up.
    Raises ConfigError for n < 1, no metric, or n > 1 when nothing in the scenario is random.
    """
    if n < 1 or not metrics:
        raise ConfigError(
            f"replicate needs n >= 1 and at least one metric, got n = {n}, {len(metrics)} metrics"
        )
    if n > 1 and not varies(scenario):
        raise ConfigError(
            f"{scenario.name}: its workload is the same in every replication; n must be 1, got {n}"
        )
    ready = setup or prepare(scenario)
    runs = (simulate(scenario, setup=ready, replication=k) for k in range(start, start + n))
    return np.array([[metric_of(run, metric) for metric in metrics] for run in runs], dtype=np.float64)


def varies(scenario: Scenario) -> bool:
    """Whether replications differ: a generated workload, or a random router among several replicas."""
    lots = ROUTERS[scenario.cluster.router] in DRAWN and scenario.cluster.size > 1
    return is_random(scenario.parsed_workload()) or lots


def replicate_until(
    draw: Callable[[int], float],
    *,
    limit: float | None = None,
    relative: float | None = None,
    least: int = 3,
    most: int = 30,
    level: float = 0.9,
) -> tuple[Interval, str]:
    """Call draw(0), draw(1), ... until the interval is clear; returns it and why it stopped.

    "below" / "above": the interval clears `limit`. "precise": its half width is at most `relative` x mean.
    "most": neither after `most` draws (never to be read as a pass).
    Raises ConfigError unless 2 <= least <= most.
    """
    if not 2 <= least <= most:
        raise ConfigError(f"replications: 2 <= least <= most, got {least} and {most}")
    values: list[float] = []
    while True:
        values.append(draw(len(values)))
        now = interval(values, level)
        if len(values) < least:
            continue
        side = "open" if limit is None else now.against(limit)
        if side != "open":
            return now, side
        if relative is not None and now.half_width <= relative * abs(now.mean):
            return now, "precise"
        if len(values) >= most:
            return now, "most"

"""Worst windows of a plan's page: each beside the limit that is its own."""

from types import SimpleNamespace
from typing import Any

from simulator.planning.measure import key_of
from simulator.planning.slo import Target
from simulator.report.plan.data import worst


def limits(*targets: Target) -> dict[float, float]:
    """Window -> limit, of a run of two hours whose windows are 0.9 and 0.6 s."""
    record = {"worst": {key_of("ttft", None, 95.0): {"300": (0.9, 10.0, 70), "3600": (0.6, 0.0, 800)}}, "span_s": 7200}
    judged: Any = SimpleNamespace(records=[record])
    spec: Any = SimpleNamespace(slo=SimpleNamespace(targets=targets))
    return {row["window_s"]: row["limit"] for row in worst(judged, spec)}


def test_a_window_without_a_limit_is_held_beside_that_of_all_requests() -> None:
    assert limits(Target("ttft", 95.0, 1.0)) == {300: 1.0, 3600: 1.0}


def test_the_limit_of_five_minutes_is_not_the_hours() -> None:
    every, short = Target("ttft", 95.0, 1.0), Target("ttft", 95.0, 2.0, window_s=300.0)
    assert limits(every, short) == limits(short, every) == {300: 2.0, 3600: 1.0}
    assert limits(short) == {300: 2.0}

"""Worst windows of a plan's page: each beside the limit that is its own."""

from types import SimpleNamespace
from typing import Any

import pytest

from simulator.planning.loss import strictest
from simulator.planning.measure import key_of
from simulator.planning.slo import Target
from simulator.report.plan.data import worst


def limits(*targets: Target) -> dict[float, float]:
    """Window -> limit, of a run of two hours whose windows are 0.9 and 0.6 s."""
    worsts = {"300": (0.9, 10.0, 70), "3600": (0.6, 0.0, 800)}
    record = {"worst": {key_of("ttft", None, 95.0): worsts}, "span_s": 7200, "idle": False}
    judged: Any = SimpleNamespace(records=[record])
    spec: Any = SimpleNamespace(slo=SimpleNamespace(targets=targets))
    return {row["window_s"]: row["limit"] for row in worst(judged, spec)}


def test_a_window_without_a_limit_is_held_beside_that_of_all_requests() -> None:
    assert limits(Target("ttft", 95.0, 1.0)) == {300: 1.0, 3600: 1.0}


def test_the_limit_of_five_minutes_is_not_the_hours() -> None:
    every, short = Target("ttft", 95.0, 1.0), Target("ttft", 95.0, 2.0, window_s=300.0)
    assert limits(every, short) == limits(short, every) == {300: 2.0, 3600: 1.0}
    assert limits(short) == {300: 2.0}


def test_a_worst_window_is_a_mean_of_the_same_runs_as_its_level() -> None:
    """Windows of 0.9 s and 0.5 s, in runs whose whole p95 is 0.85 and 0.45 s: 0.7 stands beside 0.65."""
    key = key_of("ttft", None, 95.0)
    records = [{"worst": {key: {"300": found}}, "span_s": 7200, "idle": False, "values": {key: whole}}
               for found, whole in (((0.9, 10.0, 70), 0.85), ((0.5, 40.0, 60), 0.45))]  # fmt: skip
    spec: Any = SimpleNamespace(slo=SimpleNamespace(targets=(Target("ttft", 95.0, 1.0),)))
    for order in (records, records[::-1]):
        judged: Any = SimpleNamespace(records=[*order, {"idle": True}])
        (row,) = worst(judged, spec)
        assert row["value"] == pytest.approx(0.7) and row["value"] >= sum(r["values"][key] for r in records) / 2
        assert (row["start_s"], row["requests"], row["replications"]) == (10.0, 70, 2)


def test_the_time_after_a_loss_is_no_worst_hour() -> None:
    """Its 300 s are held to the lowest limit of each percentile, by the name of that, once."""
    hour, day = Target("ttft", 95.0, 1.2, window_s=3600.0), Target("ttft", 95.0, 1.0)
    short, gaps = Target("ttft", 90.0, 2.0, window_s=300.0), Target("itl", 99.0, 0.1)
    chat = Target("ttft", 95.0, 0.3, "chat")
    for targets in ((day, hour, short, gaps, chat), (hour, day, short, gaps, chat)):
        assert [(t.name, t.max_s) for t in strictest(targets)] == [
            ("p95 TTFT", 1.0), ("p90 TTFT", 2.0), ("p95 TTFT (chat)", 0.3)]  # fmt: skip

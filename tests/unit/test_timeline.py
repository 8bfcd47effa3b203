"""Slots, levels and Chrome traces against worked examples and the totals of the engine."""

import itertools

import numpy as np
import pytest

from simulator import simulate
from simulator.errors import ConfigError
from simulator.report.chrome_trace import chrome_trace
from simulator.report.timeline import level, levels, slot_spans
from simulator.run import Result
from simulator.scenario.spec import scenario_from
from simulator.units import NS_PER_S

S = NS_PER_S


def textbook(outputs: list[int], policy: str, slots: int = 4, log: bool = True, **more: object) -> Result:
    """All requests wait at 0, one step lasts 1 s."""
    knobs = {"name": policy, "max_num_seqs": slots}
    data = {
        "workload": {"requests": {"output": outputs}},
        "hardware": {"gpu": "unit"},
        "policy": knobs,
        **more,
    }
    return simulate(scenario_from(data), engine="reference", log=log)


def intervals(result: Result) -> dict[int, tuple[int, int, int, int]]:
    """Request -> (slot, start, useful, held) [steps]."""
    spans = slot_spans(result)
    columns = (spans.slot, spans.start // S, spans.useful // S, spans.held // S)
    return {int(row): tuple(int(c[k]) for c in columns) for k, row in enumerate(spans.row)}  # type: ignore[misc]


def test_static_batch_holds_slots_to_its_longest_answer() -> None:
    seen = intervals(textbook([4, 4, 10, 10, 4, 4], "static"))
    assert seen == {
        0: (0, 0, 4, 10),
        1: (1, 0, 4, 10),
        2: (2, 0, 10, 10),
        3: (3, 0, 10, 10),
        4: (0, 10, 14, 14),
        5: (1, 10, 14, 14),
    }


def test_continuous_batch_hands_a_slot_on_at_once() -> None:
    seen = intervals(textbook([4, 4, 10, 10, 4, 4], "chunked"))
    assert seen == {
        0: (0, 0, 4, 4),
        1: (1, 0, 4, 4),
        2: (2, 0, 10, 10),
        3: (3, 0, 10, 10),
        4: (0, 4, 8, 8),
        5: (1, 4, 8, 8),
    }


@pytest.mark.parametrize("log", [True, False])
def test_useful_ends_of_equal_steps_do_not_depend_on_the_log(log: bool) -> None:
    result = textbook([5, 200, 3, 150], "static", log=log)
    assert [useful for _, _, useful, _ in intervals(result).values()] == [5, 200, 3, 150]
    assert slot_spans(result).exact is log


def test_streaming_static_batch_is_exact_without_a_log() -> None:
    result = textbook([2, 6], "static", slots=2, log=False)
    streamed = simulate(result.scenario.updated({"policy.stream": True}), engine="reference")
    assert intervals(streamed) == {0: (0, 0, 2, 6), 1: (1, 0, 6, 6)}


def chat(**more: object) -> Result:
    data = {
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 20, "requests": 120},
            "prompt": {"kind": "lognormal", "mean": 600, "cv": 1, "max": 2000},
            "output": {"kind": "lognormal", "mean": 60, "cv": 1, "max": 400},
        },
        "policy": {"name": "chunked", "max_num_seqs": 16},
        "max_model_len": 4096,
        **more,
    }
    return simulate(scenario_from(data), engine="reference", log=True)


@pytest.mark.parametrize("blocks", [None, 400])
def test_nobody_shares_a_slot(blocks: int | None) -> None:
    result = chat(kv={"num_gpu_blocks": blocks})
    assert (int(result.requests.preempted.sum()) > 0) is (blocks is not None)
    spans = slot_spans(result)
    same = (spans.slot[1:] == spans.slot[:-1]) & (spans.replica[1:] == spans.replica[:-1])
    assert np.all(spans.start[1:][same] >= spans.held[:-1][same])


def test_level_is_time_weighted_and_knows_its_peak() -> None:
    seen = level(np.array([0, 2]), np.array([4, 3]), 1, np.array([0, 4, 8]))
    assert seen.mean.tolist() == [1.25, 0.0] and seen.peak.tolist() == [2.0, 0.0]


@pytest.mark.parametrize("blocks", [None, 400])
def test_running_over_time_has_the_mean_of_the_engine(blocks: int | None) -> None:
    result = chat(kv={"num_gpu_blocks": blocks}, cluster={"replicas": 2})
    seen = levels(result, bins=50)["running"]
    area = float((seen.mean * np.diff(seen.edges)).sum()) * NS_PER_S
    assert area == pytest.approx(int(result.totals["running"].sum()), rel=1e-9)


def test_estimate_without_log_equals_the_log_where_nobody_is_preempted() -> None:
    result = chat()
    exact, estimate = levels(result), levels(Result(**{**vars_of(result), "log": None}))
    assert result.log is not None
    longest = float((result.log["wall_ns"] / result.log["steps"]).max()) / NS_PER_S
    gap = np.abs(exact["running"].mean - estimate["running"].mean) * np.diff(exact["running"].edges)
    assert float(gap.sum()) <= 2 * 120 * longest  # each of 120 requests is off by a step at its start and end
    assert not estimate["kv"].exact and exact["kv"].exact


def vars_of(result: Result) -> dict[str, object]:
    return {name: getattr(result, name) for name in Result.__dataclass_fields__}


def test_waiting_ends_at_zero_and_counts_the_textbook_queue() -> None:
    seen = levels(textbook([4, 4, 10, 10, 4, 4], "chunked"), bins=10)["waiting"]
    assert seen.mean.tolist() == [2, 2, 2, 2, 0, 0, 0, 0, 0, 0]


def test_chrome_trace_covers_every_step_once() -> None:
    result = chat(cluster={"replicas": 2})
    events = chrome_trace(result)["traceEvents"]
    steps = [event for event in events if event["ph"] == "X"]
    assert sum(event["args"]["steps"] for event in steps) == result.summary["steps"]
    assert sum(event["dur"] for event in steps) == pytest.approx(
        result.totals["wall"].sum() / 1000, rel=1e-12
    )
    for r in (0, 1):
        own = sorted((event["ts"], event["ts"] + event["dur"]) for event in steps if event["pid"] == r)
        assert all(after[0] >= before[1] - 1e-3 for before, after in itertools.pairwise(own))
    assert (
        sum(event["ph"] == "b" for event in events) == sum(event["ph"] == "e" for event in events) == 3 * 120
    )


def test_chrome_trace_is_cut_and_says_so() -> None:
    result = textbook([4, 4, 10, 10, 4, 4], "chunked")
    assert result.log is not None
    trace = chrome_trace(result, max_rows=2)
    assert trace["otherData"]["rows"] == 2 and trace["otherData"]["rows_left_out"] == len(result.log) - 2


def test_chrome_trace_needs_the_log() -> None:
    with pytest.raises(ConfigError, match="step log"):
        chrome_trace(textbook([1], "chunked", log=False))

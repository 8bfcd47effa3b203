"""Trace columns, transforms, saved columns, figures of inspect, the workload section of a scenario."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from simulator.errors import ConfigError, TraceError
from simulator.workload import (
    Generated,
    Inline,
    Trace,
    TraceFile,
    build_trace,
    cap_output,
    inspect_table,
    inspect_trace,
    load_trace,
    make_trace,
    open_columns,
    parse_workload,
    save_columns,
    superpose,
)
from simulator.workload.extras import Extras
from simulator.workload.trace import COLUMN_TYPES
from simulator.workload.transform import scale_rate, window

S = 10**9


def small(arrival_s: list[int], **columns: Any) -> Trace:
    n = len(arrival_s)
    given_columns = {"prompt": np.arange(n) + 1, "output": np.arange(n) + 10} | columns
    return make_trace(np.array(arrival_s, dtype=np.int64) * S, **given_columns)


def write_csv(folder: Path, rows: int = 4) -> Path:
    lines = ["arrival_s,prompt_tokens,output_tokens", *(f"{10 * i},{i + 1},{i + 10}" for i in range(rows))]
    (folder / "t.csv").write_text("\n".join(lines))
    return folder / "t.csv"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": [1, 0]}, "row 2: prompt must be"),
        ({"output": [0, 1]}, "row 1: output must be"),
        ({"max_tokens": [10, 10]}, "row 2: max_tokens must be output"),
        ({"cached": [0, 3]}, "row 2: cached must be 0..prompt"),
        ({"cls": [0, 1]}, "row 2: cls must index class_names"),
        ({"ids": [5, 5]}, "row 2: id must be unique, got 5 again"),
        ({"prompt": [1.0, 2.0]}, "must hold integers"),
        ({"prompt": [1, 2, 3]}, "must have shape"),
    ],
)
def test_columns_are_checked(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        small([0, 1], **columns)


def test_order_and_negative_times_are_checked() -> None:
    with pytest.raises(TraceError, match=r"row 3: arrival .* before the row above"):
        small([0, 5, 4])
    with pytest.raises(TraceError, match="row 1: arrival_ns must be >= 0"):
        small([-1, 5])
    with pytest.raises(TraceError, match="empty trace"):
        small([])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_sorting_is_stable_with_ties(times: list[int]) -> None:
    trace = small(times, sort=True)
    assert trace.id.tolist() == [row for _, row in sorted((time, row) for row, time in enumerate(times))]
    assert np.array_equal(trace.prompt, trace.id + 1)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=30), st.integers(2, 9))
def test_copies_conserve_requests_tokens_and_span(times: list[int], copies: int) -> None:
    trace = small(sorted(times))
    many = superpose(trace, copies)
    assert len(many) == copies * len(trace)
    assert many.prompt.sum() == copies * trace.prompt.sum()
    assert many.output.sum() == copies * trace.output.sum()
    assert len(set(many.id.tolist())) == len(many)
    assert np.all(np.diff(many.arrival_ns) >= 0)
    period = trace.span_ns + max(1, trace.span_ns // (len(trace) - 1))
    assert many.arrival_ns[0] >= trace.arrival_ns[0]
    assert many.arrival_ns[-1] < trace.arrival_ns[0] + period
    for k in range(copies):  # each is the trace, turned as a whole
        own = many.id // len(trace) == k
        gaps = np.sort((many.arrival_ns[own] - many.arrival_ns[own][0]) % period)
        turns = [np.sort((trace.arrival_ns - at) % period) for at in trace.arrival_ns]
        assert any(np.array_equal(gaps, each) for each in turns)


def test_copies_are_rotated_by_the_shift() -> None:
    # Arrivals 0, 10, 20: period 30. Shifted by 15: 15, 25, 35 -> 5.
    many = superpose(small([0, 10, 20]), 2, 15.0)
    assert (many.arrival_ns // S).tolist() == [0, 5, 10, 15, 20, 25]
    assert many.id.tolist() == [0, 5, 1, 3, 2, 4]


def test_turns_of_copies_are_uniform_over_the_period() -> None:
    """Arrivals 0, 10, 20 s, a period of 30: a copy's first request is anywhere in it with equal chance, so the mean of
    4,000 is 15 s with a standard error of 30 / sqrt(12 x 4000) = 0.137 s. Seed and replication draw other turns."""
    many = superpose(small([0, 10, 20]), 4000)
    first = many.arrival_ns[many.id % 3 == 0] / S
    assert abs(first.mean() - 15) < 4 * 0.137 and abs((first < 7.5).mean() - 0.25) < 4 * (0.25 * 0.75 / 4000) ** 0.5
    ways = ((0, 0), (1, 0), (0, 1), (0, 0))
    drawn = [superpose(small([0, 10, 20]), 5, None, *way).arrival_ns.tolist() for way in ways]
    assert drawn[0] == drawn[3] and drawn[0] != drawn[1] != drawn[2] != drawn[0]
    fixed = [superpose(small([0, 10, 20]), 2, 7.0, *way).arrival_ns.tolist() for way in ((0, 0), (1, 1))]
    assert fixed[0] == fixed[1]


@pytest.mark.parametrize(("copies", "shift"), [(0, None), (2, -1.0), (2, 0.0), (2, 30.0), (1, 5.0)])
def test_refused_copies(copies: int, shift: float | None) -> None:
    with pytest.raises(ConfigError, match="cop"):
        superpose(small([0, 10, 20]), copies, shift)


def test_rate_scale_keeps_the_first_arrival() -> None:
    assert (scale_rate(small([4, 8, 16]), 2.0).arrival_ns // S).tolist() == [4, 6, 10]
    for factor in (0.0, -1.0, float("nan"), 1e-300):
        with pytest.raises(ConfigError, match="rate_scale"):
            scale_rate(small([4, 8]), factor)


def test_window_and_limit() -> None:
    trace = small([5, 15, 25, 35])
    assert (window(trace, None, 20.0).arrival_ns // S).tolist() == [5, 15]
    inside = window(trace, 10.0, 30.0)
    assert (inside.arrival_ns // S).tolist() == [0, 10]
    assert inside.id.tolist() == [1, 2]
    assert sum(inside.meta.rows_dropped.values()) == 2
    with pytest.raises(TraceError, match="empty trace: no arrival between"):
        window(trace, 31.0, 40.0)
    with pytest.raises(ConfigError, match="start_s < end_s"):
        window(trace, 5.0, 5.0)


def test_limit_reads_no_further_and_accounts_for_every_row(tmp_path: Path) -> None:
    path = write_csv(tmp_path)
    path.write_text(path.read_text() + "\nnot,a,row")
    trace = load_trace(path, limit=3)
    assert (len(trace), trace.meta.rows_read, trace.meta.rows_dropped) == (3, 3, {})
    options = load_trace(write_csv(tmp_path), start_s=10.0, limit=2, copies=2, max_tokens=11)
    assert len(options) == 4
    assert options.output.max() == 11 and set(options.max_tokens.tolist()) == {11}
    assert options.meta.rows_read == 4 and sum(options.meta.rows_dropped.values()) == 2


def test_the_account_names_the_rate_that_copies_make_beside_the_logs_own(tmp_path: Path) -> None:
    """Requests every 2 s for 10: 0.5 a second."""
    path = tmp_path / "t.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(f"{2 * k},5,5\n" for k in range(6)))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"copies": 4}, "; 4 copies: 2 requests/s, where the log has 0.5"),
        ({"rate_scale": 3.0}, "; 3 times its speed: 1.5 requests/s, where the log has 0.5"), ({}, "")]
    for options, said in cases:
        meta = load_trace(path, time_unit="s", **options).meta
        assert meta.account == "6 rows read" + said and meta.facts["account"] == (meta.account if said else "")
    saved = load_trace(save_columns(load_trace(path, time_unit="s", copies=4), tmp_path / "saved"))
    assert saved.meta.account == "6 rows read; 4 copies: 2 requests/s, where the log has 0.5"


def test_cap_output_leaves_the_original_alone() -> None:
    trace = small([0, 1])
    assert cap_output(trace, 10).output.tolist() == [10, 10]
    assert trace.output.tolist() == [10, 11]


def test_saved_columns_come_back_as_memory_maps(tmp_path: Path) -> None:
    trace = superpose(small([0, 1, 2], class_names=("a", "b"), cls=[0, 1, 0]), 3)
    back = open_columns(save_columns(trace, tmp_path / "saved"))
    for (name, before), (_, after) in zip(trace.columns(), back.columns(), strict=True):
        assert np.array_equal(before, after) and before.dtype == after.dtype, name
        assert isinstance(after.base, np.memmap) and not after.flags.writeable
        assert type(after) is np.ndarray
    assert (back.class_names, back.meta) == (trace.class_names, trace.meta)
    assert np.array_equal(load_trace(tmp_path / "saved", limit=2).id, trace.id[:2])


def test_damaged_saved_columns_are_refused(tmp_path: Path) -> None:
    folder = save_columns(small([0, 1]), tmp_path / "saved")
    np.save(folder / "prompt.npy", np.array([1], dtype=np.int64))
    with pytest.raises(TraceError, match=r"prompt\.npy"):
        open_columns(folder)
    (folder / "trace.json").write_text("{")
    with pytest.raises(TraceError, match="not a folder of saved trace columns"):
        open_columns(folder)
    with pytest.raises(TraceError):
        load_trace(tmp_path)


@pytest.mark.parametrize(("name", "values", "words"), [
    ("arrival_ns", [5, 4], r"row 2: arrival 4 ns is before the row above"), ("arrival_ns", [-1, 0], r"arrival_ns must"),
    ("prompt", [1, -7], r"row 2: prompt must be 1\.\."), ("output", [0, 1], r"row 1: output must be 1\.\."),
    ("cached", [0, 99], r"row 2: cached must be 0\.\.prompt"), ("cls", [0, 5], r"cls must index"),
    ("id", [3, 3], r"unique"),
    ("max_tokens", [1, 2**40], r"max_tokens must be"), ("session", [0, 1, 2], r"rows|must hold"),
    ("hash_ends", [9, 1], r"hash_ends must rise"),
])  # fmt: skip
def test_saved_columns_that_are_no_trace_are_refused(tmp_path: Path, name: str, values: Any, words: str) -> None:
    extras = Extras(session=np.array([0, 1]), hash_ids=np.array([7, 8, 9]), hash_ends=np.array([1, 3]), hash_block=16)
    trace = replace(small([0, 1]), extras=extras)
    folder = save_columns(trace, tmp_path / "saved")
    assert len(open_columns(folder)) == 2
    np.save(folder / f"{name}.npy", np.array(values, dtype=COLUMN_TYPES.get(name, np.int64)))
    with pytest.raises(TraceError, match=words) as refused:
        open_columns(folder)
    assert str(folder) in str(refused.value)


def test_inspect_figures_worked_by_hand() -> None:
    # 121 arrivals a second apart, 59 more with the last: [61 s, 121 s) holds 59 + 60.
    times = np.concatenate([np.arange(121), np.full(59, 120)]) * S
    facts = inspect_trace(make_trace(times, 100, 7), max_model_len=100)
    assert facts["requests"] == 180
    assert facts["span_s"] == 120
    assert facts["rate_per_s"] == pytest.approx(179 / 120)
    assert facts["peak_minute_per_s"] == pytest.approx((59 + 60) / 60)
    assert facts["prompt"]["p99"] == 100 and facts["output"]["total"] == 7 * 180
    assert facts["too_long"] == {"max_model_len": 100, "prompts": 180, "requests": 180}
    json.dumps(facts, allow_nan=False)


def test_gap_cv_of_even_and_two_point_gaps() -> None:
    assert inspect_trace(small([0, 2, 4]))["gap_cv"] == 0
    # Gaps 1 and 3: mean 2, deviation 1.
    assert inspect_trace(small([0, 1, 4]))["gap_cv"] == pytest.approx(0.5)
    assert inspect_trace(small([3, 3]))["rate_per_s"] is None


def test_inspect_table_shows_drops_without_markup(tmp_path: Path) -> None:
    path = tmp_path / "t[bold].csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n1,5,0\n2,5,5\n")
    out = io.StringIO()
    Console(file=out, width=160).print(inspect_table(inspect_trace(load_trace(path), 4096)))
    assert "t[bold].csv" in out.getvalue()
    assert "failed request (0 response tokens)" in out.getvalue()
    assert "max_model_len 4,096" in out.getvalue()


def test_workload_section_of_each_kind(tmp_path: Path) -> None:
    write_csv(tmp_path)
    file = parse_workload({"trace": {"path": "t.csv", "limit": 2}}, tmp_path)
    assert isinstance(file, TraceFile) and len(build_trace(file)) == 2
    assert len(build_trace({"trace": "t.csv"}, base=tmp_path)) == 4
    inline = parse_workload({"requests": {"output": [4, 4, 10], "arrival_s": [0, 0, 1.5]}})
    assert isinstance(inline, Inline)
    trace = build_trace(inline)
    assert trace.prompt.tolist() == [1, 1, 1] and trace.arrival_ns.tolist() == [0, 0, 1_500_000_000]
    generated = parse_workload(
        {
            "arrivals": {"kind": "poisson", "rate": 2, "requests": 50},
            "classes": {
                "chat": {"weight": 4, "prompt": 10, "output": {"kind": "empirical", "path": "t.csv"}},
                "code": {"joint": "t.csv", "cached": 2},
            },
            "max_tokens": 12,
        },
        tmp_path,
    )
    assert isinstance(generated, Generated)
    drawn = build_trace(generated, seed=1)
    chat = drawn.cls == 0
    assert set(drawn.prompt[chat].tolist()) == {10}
    assert set(drawn.output[chat].tolist()) <= {10, 11, 12}
    assert np.array_equal(drawn.cached[~chat], np.minimum(2, drawn.prompt[~chat]))
    assert set(drawn.max_tokens.tolist()) == {12}


POISSON = {"kind": "poisson", "rate": 2.0, "requests": 5}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "workload needs exactly one of trace, requests, sessions, arrivals; got none"),
        ({"trace": "a.csv", "arrivals": POISSON}, "got trace, arrivals"),
        (
            {"trace": {"path": "a.csv", "sorted": True}},
            "workload.trace.sorted is not known here; accepted: path",
        ),
        (
            {"trace": {"path": "a.csv", "limit": "x"}},
            "workload.trace.limit must be a valid integer, got 'x'",
        ),
        ({"trace": {"limit": 3}}, "workload.trace.path is needed"),
        (
            {"arrivals": {**POISSON, "rate": 0}, "prompt": 1, "output": 1},
            "workload.arrivals.rate must be > 0, got 0",
        ),
        (
            {"arrivals": {**POISSON, "rate": "fast"}, "prompt": 1, "output": 1},
            "workload.arrivals.rate must be a valid number, got 'fast'",
        ),
        (
            {"arrivals": {**POISSON, "kind": "x"}, "prompt": 1, "output": 1},
            "workload.arrivals: unknown arrivals 'x'",
        ),
        ({"arrivals": POISSON, "prompt": 0, "output": 1}, "workload.prompt.value must be a whole number"),
        ({"arrivals": POISSON, "prompt": 5}, "needs prompt and output lengths"),
        ({"arrivals": POISSON, "prompt": 5, "output": 1, "classes": {}}, "workload.prompt is not known here"),
        (
            {"arrivals": POISSON, "classes": {"a": {"prompt": 1, "output": 1, "weight": 0}}},
            "weight must be > 0",
        ),
        ({"requests": {"output": [1, 0]}}, "workload.requests: row 2: output must be"),
        ({"requests": {"output": [1, 1], "prompt": [1]}}, "workload.requests: column prompt must have shape"),
    ],
)
def test_refused_workload_sections(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_trace(section)
    assert message in str(caught.value)


def test_public_names_resolve() -> None:
    import simulator.workload as package

    assert sorted(package.__all__) == sorted(package._HOME)
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError):
        package.nothing  # noqa: B018

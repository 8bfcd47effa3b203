"""What if: paired differences on the same requests; overlays are checked; a change that does nothing is told so."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from simulator.config import Document
from simulator.errors import ConfigError
from simulator.planning.whatif import _cell, _run, asked_for, compare, load_overlays, transformed
from simulator.report.plan.forest import Bar, forest
from simulator.report.plan.whatif import (
    _within_lines,
    amount,
    change_text,
    pictures,
    render_whatif,
    verdict_lines,
    whatif_tables,
)
from simulator.scenario.spec import Scenario, scenario_from
from simulator.workload.build import build_trace

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def base(**changes: Any) -> Scenario:
    return scenario_from(
        {
            "name": "base",
            "workload": {
                "arrivals": {"kind": "poisson", "rate": 10, "requests": 800},
                "prompt": {"kind": "lognormal", "mean": 600, "cv": 1.0, "max": 4000},
                "output": {"kind": "lognormal", "mean": 120, "cv": 0.8, "max": 800},
            },
            "policy": {"name": "chunked", "max_num_seqs": 64},
            "max_model_len": 8192,
            "cluster": {"replicas": 2},
            "slo": {"ttft_s": 0.5},
            **changes,
        }
    )


def run(text: str, **changes: Any) -> dict[str, Any]:
    return compare(asked_for(base(**changes), Document("whatif.yaml", text=text)), jobs=1)


def cells(data: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in data["rows"] if row["name"] == name)["cells"]
    return found


def test_half_the_rate_is_half_the_throughput_and_slower_prompts_cost_ttft() -> None:
    data = run("""
replications: 3
overlays:
  - {name: half, traffic: 0.5}
  - {name: long, prompt_scale: 2}
  - {name: one lost, lose_replicas: 1}
""")
    half = cells(data, "half")["output tokens/s"]
    assert half["change"] == pytest.approx(0.5, abs=0.03) and half["told_apart"]
    assert cells(data, "long")["TTFT p50"]["change_low"] > 1
    assert cells(data, "one lost")["TPOT mean"]["change_low"] > 1


def test_common_random_numbers_an_overlay_without_effect_differs_by_nothing() -> None:
    data = run("overlays: [{name: same, set: {kv.block_size: 16}}]")
    for cell in cells(data, "same").values():
        assert cell["change"] == (0 if cell["kind"] == "points" else 1) and cell["told_apart"] is False


def test_the_pairing_narrows_the_interval() -> None:
    """Overlay and base share arrivals and lengths, so the change is known better than either value."""
    data = run("replications: 6\noverlays: [{name: lost, lose_replicas: 1}]")
    cell, own = cells(data, "lost")["E2E mean"], cells(data, "base")["E2E mean"]
    of_value = (own["high"] - own["low"]) / own["value"]
    of_change = cell["change_high"] - cell["change_low"]
    assert of_change < of_value


def test_a_change_and_its_reverse_are_one_factor_and_its_inverse() -> None:
    """Twice the value and half of it, replication by replication: log ratios average to the geometric mean."""
    a, b = [1.0, 2.0, 4.0], [2.0, 2.0, 16.0]
    there, back = _cell("E2E p99", a, b, 0.9, False), _cell("E2E p99", b, a, 0.9, False)
    assert there["change"] == pytest.approx((2 * 1 * 4) ** (1 / 3)) == pytest.approx(1 / back["change"])
    assert there["change_low"] == pytest.approx(1 / back["change_high"])


def test_shares_change_by_points() -> None:
    cell = _cell("within SLO", [0.02, 0.04], [0.05, 0.07], 0.9, False)
    assert (cell["kind"], cell["change"]) == ("points", pytest.approx(3.0))
    assert amount(cell, "change") == "+3.0 points"
    none = _cell("within SLO", [0.0, 0.0], [0.5, 0.5], 0.9, False)  # no ratio to nothing, but fifty points
    assert none["change"] == 50


def test_a_latency_that_grows_with_the_trace_is_not_compared() -> None:
    data = run("overlays: [{name: flood, traffic: 20}, {name: more, traffic: 1.1}]")
    flood, row = cells(data, "flood"), data["rows"][1]
    assert row["overloaded"] and flood["E2E p99"]["change"] is None and flood["E2E p99"]["value"] > 0
    assert flood["output tokens/s"]["change"] > 1
    assert cells(data, "more")["E2E p99"]["change"] is not None
    assert "of an overloaded case are not compared" in render_whatif(data)["report.html"]


@pytest.mark.parametrize(
    ("factor", "text"),
    [(1.5, "+50.0 %"), (0.5, "-50.0 %"), (1, "same"), (2.5, "2.50x"), (1 / 12, "0.083x"), (7372, "7,372x")],
)
def test_a_change_is_a_share_up_to_twofold_then_a_factor(factor: float, text: str) -> None:
    assert amount({"kind": "factor", "change": factor}, "change") == text


def test_static_batches_have_no_tpot_and_are_slower_to_start() -> None:
    calm = {"arrivals": {"kind": "poisson", "rate": 1, "requests": 300}, "prompt": 600, "output": 120}
    data = run("overlays: [{name: static, set: {policy: {name: static, max_num_seqs: 8}}}]", workload=calm)
    assert not cells(data, "static")["TPOT mean"]["defined"]
    assert cells(data, "static")["TTFT p50"]["change_low"] > 1
    assert "–" in render_whatif(data)["report.html"] or "-" in render_whatif(data)["report.html"]


def test_a_model_too_large_is_a_row_not_a_failure() -> None:
    data = run("overlays: [{name: 70B, set: {model: llama-3.1-70b}}]")
    assert "needs at least" in data["rows"][1]["error"]
    assert list(whatif_tables(data))


def test_the_table_fits_a_terminal_of_100_columns_whole() -> None:
    """Every metric with its value and its change: nothing is cut off or left out."""
    data = run("overlays: [{name: a change with quite a long name, traffic: 1.3}, "
               "{name: 70B, set: {model: llama-3.1-70b}}]")  # fmt: skip
    screen = Console(width=100, record=True, file=io.StringIO())
    for part in whatif_tables(data):
        screen.print(part)
    text = screen.export_text()
    assert max(map(len, text.splitlines())) <= 100 and "…" not in text
    for metric in data["metrics"]:
        lines = [line for line in text.splitlines() if metric in line and "│" in line]
        assert len(lines) == 2 and change_text(cells(data, "a change with quite a long name")[metric]) in lines[1]


def test_factors_keep_requests_and_at_least_one_token() -> None:
    asked = asked_for(base(), Document("w", text="overlays: [{name: short, output_scale: 0.001, traffic: 2}]"))
    trace = build_trace(asked.base.workload)
    short = transformed(trace, asked.whatif.overlays[0])
    assert len(short) == len(trace)
    assert short.output.min() == 1 and short.output.max() >= 1
    assert short.span_ns == pytest.approx(trace.span_ns / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("overlays: []", ["overlays"]),
        ("overlays: [{name: x}]", ["changes nothing", "accepted"]),
        ("overlays: [{name: x, traffic: 0}]", ["overlays.0.traffic", "> 0", "got 0"]),
        ("overlays: [{name: x, traffic: 2}, {name: x, traffic: 3}]", ["'x'", "more than once"]),
        ("overlays: [{name: x, lose_replicas: 2}]", ["whatif.yaml:1", "must leave one of 2", "got 2"]),
        ("overlays: [{name: x, set: {policy.max_seqs: 3}}]", ["overlay 'x'", "max_seqs"]),
        ("overlays: [{name: x, speed: 2}]", ["speed", "traffic"]),
    ],
)
def test_overlays_that_are_not_accepted(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        asked_for(base(), Document("whatif.yaml", text=text))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "name,assignments",
    [
        ("whatif_chat", ["workload.arrivals.requests=400"]),
        ("whatif_fleet", ["workload.arrivals.requests=400", "cluster.replicas=3"]),
    ],
)
def test_shipped_overlays_run(name: str, assignments: list[str]) -> None:
    data = compare(load_overlays(SCENARIOS / "chat.yaml", SCENARIOS / f"{name}.yaml", assignments), jobs=1)
    assert all(row["error"] is None for row in data["rows"])
    assert change_text(data["rows"][1]["cells"]["E2E mean"]).startswith(("+", "-", "same"))
    assert "<script>" in render_whatif(data)["report.html"]


def test_throughput_counts_from_the_first_arrival() -> None:
    """A prompt at 100 s, an answer of 4 tokens in 4 steps of 1 s: 1 token a second."""
    requests = {"output": [4], "arrival_s": [100.0]}
    found = _run(scenario_from({"workload": {"requests": requests}, "hardware": "unit"}), None, 0)
    assert found["values"]["output tokens/s"] == pytest.approx(1.0)


def case(name: str, factor: float | None = None, told: bool = True, overloaded: bool = False) -> dict[str, Any]:
    """A row whose times are all `factor` times those of the base, of 0.1 s."""
    known = factor is not None
    cell = {"kind": "factor", "value": 0.1 * (factor or 1.0), "low": None, "high": None, "defined": True,
            "grows": not known, "change": factor, "change_low": factor and 0.9 * factor,
            "change_high": factor and 1.1 * factor, "told_apart": told if known else None}  # fmt: skip
    cells = dict.fromkeys(("TTFT p99", "TPOT p99", "E2E mean"), cell)
    return {"name": name, "error": None, "overloaded": overloaded, "cells": cells}


def test_the_page_begins_with_the_answer_and_draws_what_can_be_compared() -> None:
    rows = [case("base", 1.0), case("half", 0.5), case("thrice", 3.0), case("alike", 1.01, told=False),
            case("flooded", overloaded=True)]  # fmt: skip
    rows[-1]["cells"]["TPOT p99"] = case("", 10.0)["cells"]["TPOT p99"]  # no waiting is in it
    data = {"name": "n", "description": "", "base": "b", "replications": 3, "confidence": 0.9, "stopped": "",
            "metrics": ["TTFT p99", "TPOT p99", "E2E mean"], "rows": rows, "missing": []}  # fmt: skip
    lines = verdict_lines(data)
    assert lines[0] == "The base keeps up: TTFT p99 100 ms, TPOT p99 100 ms."
    assert lines[1].startswith("TTFT p99: best with half, -50.0 %") and "worst with thrice, 3.00x " in lines[1]
    assert "TPOT p99: best with half" in lines[2] and "worst with flooded (overloaded), 10.0x" in lines[2]
    assert lines[-1] == "Overloaded, and so not compared by TTFT p99 and E2E mean, which grow with the trace: flooded."
    page = render_whatif(data)["report.html"]
    assert page.index("The base keeps up") < page.index("<svg") < page.index("<table")
    drawn = [picture["svg"] for picture in pictures(data)]
    assert ["flooded (overloaded)" in svg for svg in drawn] == [False, True, False]
    assert [svg.count("<circle") for svg in drawn] == [2 * 3, 2 * 4, 2 * 3]


def test_factors_and_their_inverses_stand_as_far_from_the_base() -> None:
    """On a logarithmic axis 1/2 and 2 are mirror images; what is not told apart is grey."""
    both = forest([Bar("half", 0.5, 0.5, 0.5, ""), Bar("same", 1, 1, 1, ""), Bar("twice", 2, 2, 2, "")], "t", "l")
    broad, narrow, _ = both.split("</svg>")
    for svg in (broad, narrow):
        half, same, twice = (float(x) for x in re.findall(r'<circle cx="([0-9.]+)"', svg))
        assert same - half == pytest.approx(twice - same, abs=0.11)


@pytest.mark.parametrize(("factors", "unit"), [((0.35, 1.05), "x"), ((0.62, 8.2), "x"), ((0.78, 1.3), " %")])
def test_an_axis_has_ticks_on_both_sides_of_one_kind_and_no_line_through_a_name(
    factors: tuple[float, float], unit: str
) -> None:
    """Beyond each end of the rows, or where there is next to nothing on a side, none."""
    made = forest([Bar("a row", *factors, None, ""), Bar("another", *factors, None, "")], "t", "l")
    for svg in made.split("</svg>")[:2]:
        ticks = re.findall(r'<text x="([0-9.]+)" y="[0-9.]+" text-anchor="middle" fill="var\(--muted\)">([^<]+)<', svg)
        *ticks, (_, label) = ticks
        assert label == "l" and all(text.endswith(unit) for _, text in ticks)
        at = {float(re.sub(r"[^0-9.+-]", "", text)) / (100 if "%" in unit else 1) + ("%" in unit) for _, text in ticks}
        assert min(at) <= factors[0] and (max(at) >= factors[1] or factors[1] < 1.1)
    names = [float(y) for y in re.findall(r'<text x="16" y="([0-9.]+)"', svg)]
    lines = [(float(top), float(end)) for top, end in re.findall(r'y1="([0-9.]+)" y2="([0-9.]+)" stroke="var', svg)]
    assert len(names) == 2 and lines and not any(top < y - 3 < end for y in names for top, end in lines)


def test_fixed_or_autoscaled_says_what_each_costs() -> None:
    """A fixed fleet is paid for from the first arrival to the last token, an autoscaled one as long as it is there: one
    that never looks has one of its two replicas, and costs what one costs."""
    data = run("""
        replications: 2
        overlays:
          - {name: scaled, set: {cluster.autoscale: {metric: requests, target: 1, sync_s: 3600, start: {weights_s: 1}}}}
          - {name: one, set: {cluster.replicas: 1}}
    """)
    assert data["metrics"][-2:] == ["replica hours", "USD/M output"]
    two, scaled, one = (cells(data, name) for name in ("base", "scaled", "one"))
    for key in ("replica hours", "USD/M output"):
        assert scaled[key]["value"] == pytest.approx(one[key]["value"])
        assert scaled[key]["value"] == pytest.approx(two[key]["value"] / 2, rel=0.1)
    assert "USD/M output: best with" in " ".join(verdict_lines(data))
    plain = run("overlays: [{name: one, set: {cluster.replicas: 1}}]")
    assert "USD/M output" not in plain["metrics"] and not any("USD" in line for line in verdict_lines(plain))


def test_a_falling_share_within_the_slo_is_said_first_whether_its_case_is_overloaded_or_not() -> None:
    """97.6 % in the base and 14.6 % in a flood: the fall is named, with the case."""
    rows = [{"name": name, "error": None, "overloaded": flood, "cells": {"within SLO": {"value": value}}}
            for name, value, flood in (("base", 0.976, False), ("flood", 0.146, True), ("idle", 0.976, False))]
    said = _within_lines({"rows": rows})
    assert said == ["The share within the SLO, 97.6 % in the base, falls to 14.6 % with flood (overloaded)."]
    assert _within_lines({"rows": [rows[0], rows[2]]}) == []

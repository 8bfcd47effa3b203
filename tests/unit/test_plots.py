"""Figures: what is drawn is what the result says, for textbook, crowded, failed and large results."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from simulator import simulate
from simulator.report import plots, svg
from simulator.report.slots import MAX_SPANS
from simulator.run import Result
from simulator.scenario.spec import scenario_from


def run(log: bool = True, engine: str = "reference", **more: object) -> Result:
    data = {
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 20, "requests": 80},
            "prompt": {"kind": "lognormal", "mean": 400, "cv": 1, "max": 1500},
            "output": {"kind": "lognormal", "mean": 40, "cv": 1, "max": 200},
        },
        "policy": {"name": "chunked", "max_num_seqs": 16},
        "max_model_len": 2048,
        **more,
    }
    return simulate(scenario_from(data), engine=engine, log=log)  # type: ignore[arg-type]


def toy(policy: str) -> Result:
    data = {
        "name": policy,
        "workload": {"requests": {"output": [4, 4, 10, 10, 4, 4]}},
        "hardware": {"gpu": "unit"},
        "policy": {"name": policy, "max_num_seqs": 4},
    }
    return simulate(scenario_from(data), engine="reference", log=True)


@pytest.fixture(scope="module")
def chat() -> Result:
    return run(slo={"ttft_s": 0.5})


def test_slot_bars_are_the_steps_of_the_worked_example() -> None:
    fig = plots.slot_figure([toy("static"), toy("chunked")])
    held, free = fig.axes
    widths = [sorted(bar.get_width() for bar in ax.patches) for ax in (held, free)]
    assert widths[0] == [4, 4, 4, 4, 6, 6, 10, 10]  # six requests and two slots held for six steps
    assert widths[1] == [4, 4, 4, 4, 10, 10]
    assert held.get_xlim() == free.get_xlim() == (0, 14)
    assert "14 steps · slot use 64.29 %" in held.get_title(loc="left")
    assert {text.get_text()[0] for text in free.texts} == set("ABCDEF")


@pytest.mark.parametrize("key", ["ttft_s", "tpot_s", "e2e_s", "itl_s"])
def test_distribution_agrees_with_the_percentiles(chat: Result, key: str) -> None:
    values, share = plots.distribution(chat, key)
    assert np.all(np.diff(values) >= 0) and share[-1] == pytest.approx(1)
    for mark, level in (("p50", 0.5), ("p99", 0.99)):
        at = int(np.searchsorted(share, level))
        low, high = values[max(at - 1, 0)], values[min(at + 1, len(values) - 1)]
        assert low * 0.995 <= chat.summary[key][mark] <= high * 1.005


def test_a_curve_ends_at_the_share_that_was_answered() -> None:
    result = run(max_model_len=1000)
    rejected = result.summary["requests"]["rejected"]
    assert 0 < rejected < 80
    assert plots.distribution(result, "ttft_s")[1][-1] == pytest.approx(1 - rejected / 80)


def test_time_shares_add_up(chat: Result) -> None:
    shares = plots.time_shares(chat.summary, 1)
    assert sum(shares.values()) == pytest.approx(1) and min(shares.values()) >= 0
    assert shares["dense_s"] + shares["decode_attention_s"] + shares["prefill_attention_s"] == pytest.approx(
        chat.summary["gpu_utilization"]
    )


@pytest.mark.parametrize("name", ["$\\frac{", "<b>&\"'", "a\nb\x00", "x" * 500, "日本"])
def test_names_are_labels_not_markup(name: str) -> None:
    result = simulate(toy("static").scenario.updated({"name": name}), engine="reference", log=True)
    for fig in plots.figures(result).values():
        ET.fromstring(svg.to_svg(fig, name.replace("\x00", "")))
        assert svg.to_png(fig)[:4] == b"\x89PNG"


def test_svg_is_equal_for_equal_results_and_has_no_foreign_parts(chat: Result) -> None:
    first = [svg.to_svg(fig, "x") for fig in plots.figures(chat).values()]
    second = [svg.to_svg(fig, "x") for fig in plots.figures(run(slo={"ttft_s": 0.5})).values()]
    assert first == second
    for text in first:
        used = set(re.findall(r"(?:url\(#|href=\"#)([\w.-]+)", text))
        ids = re.findall(r' id="([\w.-]+)"', text)
        assert set(ids) == used and len(ids) == len(used)
        assert not re.search(r"<script|<image|(?:href|src)=\"(?!#)", text)
        assert "var(--ink, " in text


def test_png_keeps_no_date_or_version(chat: Result) -> None:
    content = svg.to_png(plots.time_figure([chat]))
    assert b"tIME" not in content and b"Software" not in content and b"Date" not in content


def test_drawing_leaves_the_settings_of_the_caller_alone(chat: Result) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    svg.to_svg(plots.latency_figure([chat]))
    assert dict(matplotlib.rcParams) == before


def test_nothing_answered_and_nothing_logged_still_draws() -> None:
    result = run(log=False, max_model_len=2)
    assert result.summary["requests"]["completed"] == 0
    for fig in [*plots.figures(result).values(), *plots.compare_figures([result, toy("static")]).values()]:
        svg.to_svg(fig)


def test_one_time_axis_shows_all_results_of_a_long_comparison() -> None:
    slow = {
        "arrivals": {"kind": "poisson", "rate": 20, "requests": 600},
        "prompt": {"kind": "fixed", "value": 400},
        "output": {"kind": "lognormal", "mean": 40, "cv": 1, "max": 200},
    }
    results = [run(workload=slow, policy={"name": "static", "max_num_seqs": 4}), run(workload=slow)]
    fig = plots.slot_figure(results)
    drawn = [sum(len(bars.get_paths()) for bars in ax.collections) for ax in fig.axes]
    assert all(0 < bars <= 2.5 * MAX_SPANS for bars in drawn)


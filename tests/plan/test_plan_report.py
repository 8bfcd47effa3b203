"""The report: every value escaped, nothing fetched, one script by hash, the same facts in three forms."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.planning.plan import plan
from simulator.planning.spec import plan_from
from simulator.report.plan.charts import Series, axis, chart, columns
from simulator.report.plan.data import plain
from simulator.report.plan.hosts import host_lines
from simulator.report.plan.page import _front, render_markdown, render_plan, write_plan
from simulator.report.plan.words import answer_lines, worst_lines
from simulator.report.render import SORT_SCRIPT, script_hash
from simulator.report.trusted import short_line, trust_line, trusted_lines
from simulator.text import bounded

EVIL = '<script>alert(1)</script> | `x` & "y"'


def small(**changes: Any) -> dict[str, Any]:
    spec = plan_from(
        {
            "name": EVIL,
            "description": EVIL,
            "workload": {"arrivals": {"kind": "poisson", "rate": 8, "requests": 600}, "prompt": 400, "output": 60},
            "slo": {"ttft_p95_s": 0.4},
            "candidates": {"gpu": ["h100-sxm", "l40s"], "replicas": {"max": 8}},
            "max_model_len": 4096,
            "search": {"replications": 2},
            **changes,
        }
    )
    return plain(plan(spec, jobs=1))


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return small()


class Page(HTMLParser):
    """Collects what a page could fetch or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts = 0
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "action", "xlink:href")]
        self.handlers += [k for k, _ in attrs if k.startswith("on")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_escapes_input_and_fetches_nothing(data: dict[str, Any]) -> None:
    page = Page(render_plan(data))
    assert page.scripts == 1
    assert page.links == [] and page.handlers == [] and page.open == []
    assert "<script>alert" not in render_plan(data)


def test_policy_names_the_hash_of_the_script_that_is_there(data: dict[str, Any]) -> None:
    text = render_plan(data)
    assert script_hash() in text and "default-src 'none'" in text
    assert re.findall(r"<script>(.*?)</script>", text, re.S) == [SORT_SCRIPT]


def test_equal_plans_give_equal_bytes() -> None:
    assert render_plan(small()) == render_plan(small())


def test_markdown_cells_cannot_break_the_table(data: dict[str, Any]) -> None:
    text = render_markdown(data)
    assert "<script>" not in text.replace("\\<script\\>", "")
    for line in text.splitlines():
        if line.startswith("| h100"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 7


def test_three_forms_hold_the_same_fleet(data: dict[str, Any], tmp_path: Path) -> None:
    write_plan(data, tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "plan.json").read_text())
    fleet = stored["recommended"]
    assert stored == json.loads(json.dumps(data))
    for name in ("report.html", "report.md"):
        assert f"{fleet['usd_per_hour']:.2f} USD/h" in (tmp_path / "out" / name).read_text()
    deployment = next(yaml.safe_load_all((tmp_path / "out" / "deploy.yaml").read_text()))
    assert deployment["spec"]["replicas"] == fleet["replicas"]


def test_money_adds_up(data: dict[str, Any]) -> None:
    fleet, asked = data["recommended"], data["question"]
    assert fleet["usd_per_hour"] == pytest.approx(fleet["gpus"] * fleet["price_usd_per_gpu_hour"])
    assert fleet["usd_per_month"] == pytest.approx(730 * fleet["usd_per_hour"])
    tokens_per_hour = asked["requests_per_s"] * asked["output_mean"] * 3600
    assert fleet["usd_per_million_output_tokens"] == pytest.approx(1e6 * fleet["usd_per_hour"] / tokens_per_hour)


def test_step_times_of_a_measured_set_up_on_a_gpu_that_was_not_are_called_so(data: dict[str, Any]) -> None:
    """llama-3.1-8b was run on one H100; an L40S was measured in parts only, or not at all."""
    marks = {f["candidate"]["gpu"]: f["trust"]["mark"] for f in [data["recommended"], *data["runners_up"]]}
    assert marks["h100-sxm"] == "measured" and marks["l40s"] != "measured"
    known = data["recommended"]["trust"]
    assert f"Step times: {known['mark']}" in " ".join(answer_lines(data))
    assert all(bare(text) in bare(page) for text in known["not_measured"] for page in (render_plan(data),))


def test_the_other_hosts_are_in_the_answer(data: dict[str, Any]) -> None:
    rows, fleet = data["answer"]["hosts"], data["recommended"]
    assert [row["host"] for row in rows] == ["fast", "measured", "slow"]
    (own,) = [row for row in rows if row["planned"]]
    assert (own["host"], own["replicas"], own["usd_per_hour"]) == (
        "measured", fleet["replicas"], fleet["usd_per_hour"])  # fmt: skip
    assert host_lines(data["answer"])[0] in answer_lines(data)


def bare(text: str) -> str:
    return re.sub(r"&#\d+;|\W", "", text)


def test_two_of_what_was_not_measured_are_said_and_the_rest_counted() -> None:
    line = trust_line({"mark": "scaled", "step_time_error": 0.0735, "not_measured": ["a", "b", "c", "d"]})
    assert "scaled" in line and "7.3 %" in line and line.endswith("Not measured: a; b; the report has 2 more.")
    assert "Not measured" not in trust_line({"mark": "measured", "step_time_error": 0.05, "not_measured": []})


def test_a_worst_window_over_the_limit_of_all_requests_says_how_windows_get_one() -> None:
    row = {"name": "p95 TTFT", "window_s": 300.0, "value": 1.04, "limit": 0.5}
    level = {"name": "p95 TTFT", "limit": 0.5}
    assert worst_lines({"worst_windows": [row], "levels": [level]}) == [
        "Worst window of p95 TTFT: 1.04 s in 300 s, over the limit of all requests.",
        "No limit was set on windows; slo.worst_5min and slo.worst_hour set one.",
    ]
    asked = [level, {"name": "p95 TTFT in the worst 300 s", "limit": 0.5}]
    assert worst_lines({"worst_windows": [row], "levels": asked}) == [
        "Worst window of p95 TTFT: 1.04 s in 300 s, over the limit."]
    assert len(worst_lines({"worst_windows": [row | {"value": 0.4}], "levels": [level]})) == 1


def test_answer_is_complete(data: dict[str, Any]) -> None:
    answer = data["answer"]
    assert answer["headroom_pct"] >= 0 and answer["breaks"] in ("p95 TTFT", "overload")
    assert {row["resource"] for row in answer["relief"]} == {
        "compute",
        "bandwidth",
        "KV memory",
        "scheduler CPU",
        "slots",
    }
    assert [g["factor"] for g in answer["growth"]] == [1.5, 2.0, 4.0]
    assert all(c["goodput_per_s"] <= c["requests_per_s"] * (1 + 1e-9) for c in answer["curve"])
    assert answer["bought"]["holds"]
    assert answer["hourly"] is None


def test_prices_of_the_profiles_are_called_examples_beside_the_cost(data: dict[str, Any]) -> None:
    fleet = data["recommended"]
    words = f"{fleet['usd_per_hour']:.2f} USD/h (example price)"
    for text in (answer_lines(data)[0], render_plan(data), render_markdown(data).replace("\\", "")):
        assert words in text
    assert "USD a month (example price)" in render_plan(data)
    assert f"{fleet['candidate']['gpu']} {fleet['price_usd_per_gpu_hour']:.2f}" in answer_lines(data)[1]


def test_prices_of_the_plan_are_not_called_examples() -> None:
    data = small(candidates={"gpu": "l40s", "replicas": {"max": 8}}, prices={"l40s": 0.9})
    assert "example price" not in " ".join(answer_lines(data)).lower() + render_plan(data).lower()


def test_kv_blocks_printed_are_those_of_the_chosen_candidate() -> None:
    """Llama-3.1-8B: 16.06 GB of weights; 32 layers x 2 x 8 heads x 128 x 2 B = 128 KiB a token, so 2 MiB a block of 16.

    Over two GPUs a block takes 1 MiB of each and the weights 8.03 GB: of 0.92 x 79.18 GiB the 65.37 GiB that are left
    hold 66,936 blocks at most. Over eight GPUs a block takes 256 KiB, which makes four times as many.
    """
    data = small(candidates={"gpu": "h100-sxm", "tensor_parallel": [8, 2], "replicas": {"max": 2}})
    assert data["recommended"]["candidate"]["tensor_parallel"] == 2
    printed = re.search(r"One replica: ([\d,]+) KV blocks \(([\d,]+) tokens\)", render_plan(data))
    assert printed is not None and printed.group(0) in render_markdown(data)
    blocks, tokens = (int(group.replace(",", "")) for group in printed.groups())
    assert 0.9 * 66_936 < blocks < 66_936 and tokens == 16 * blocks


def test_infeasible_report_names_limit_and_nearest_point() -> None:
    data = small(slo={"tpot_p50_s": 0.0005})
    text = " ".join(answer_lines(data))
    assert "What stands in the way: p50 TPOT" in text and "Nearest that does" in text
    assert data["recommended"] is None and data["nearest"]["value"] > 0.0005
    render_plan(data)
    render_markdown(data)


def test_capped_report_does_not_recommend_the_cap() -> None:
    data = small(
        workload={"arrivals": {"kind": "poisson", "rate": 400, "requests": 4000}, "prompt": 900, "output": 300},
        candidates={"gpu": "l40s", "replicas": {"max": 2}},
    )
    assert data["recommended"] is None
    assert "cap on replicas, not an answer" in " ".join(answer_lines(data))


def test_axis_ticks_cover_the_data_in_round_steps() -> None:
    found = axis([0.0, 43.0])
    assert found.ticks[0] == 0 and found.ticks[-1] >= 43 and found.ticks[1] in (5, 10, 20)


def test_charts_escape_and_carry_hover_titles() -> None:
    svg = chart([Series("<b>", [(1.0, 2.0, "a < b"), (2.0, 3.0, "c")])], "x", "y", "<t>")
    assert svg.count("<title>") == 2 and "a &lt; b" in svg and "<b>" not in svg
    assert columns([("0", 1.0, "h")], "y", "t", 2.0).count("<title>") == 1


@pytest.mark.parametrize(("value", "text"), [(0.25, "250 ms"), (2.5, "2.5 s"), (None, "unbounded")])
def test_times_read_well(value: float | None, text: str) -> None:
    assert bounded(value) == text


@pytest.mark.parametrize(("breaks", "drawn", "why"), [
    ("p99 TPOT", "p99 TPOT", "the level that breaks first"),
    ("overload", "p99 TTFT", "the level nearest to its limit")])
def test_cost_is_drawn_against_the_level_that_decides(breaks: str, drawn: str, why: str) -> None:
    """TTFT is at 80 % of its limit, TPOT at 60 %; the requests that miss a limit are a share and no latency."""
    levels = {"requests that miss a limit": 0.01, "p99 TTFT": 0.4, "p99 TPOT": 0.03}
    limits = {"p99 TTFT": 0.5, "p99 TPOT": 0.05}
    data = {"front": [{"label": "a", "replicas": 1, "usd_per_hour": 1.0, "latency_s": levels, "best": True}],
            "question": {"slo": [{"name": name, "limit_s": limit} for name, limit in limits.items()]},
            "answer": {"breaks": breaks},
            "recommended": {"levels": [{"name": name, "value": levels[name], "limit": limit}
                                       for name, limit in limits.items()]}}  # fmt: skip
    svg, caption = _front(data)
    assert f"{drawn} [ms]" in svg and caption.startswith(f"Cost against {drawn}, {why}: ")
    assert "limit</text>" in svg


def test_the_words_of_trust_say_all_that_is_known_of_a_prediction() -> None:
    known = {"mark": "scaled", "step_time_error": 0.0735, "not_measured": ["a", "b", "c"]}
    assert trusted_lines(known)[1:] == ["Not measured: a.", "Not measured: b.", "Not measured: c."]
    assert "scaled" in short_line(known) and "7.3 %" in short_line(known) and "3 notes" in short_line(known)
    assert "note" not in short_line(known | {"not_measured": []})
    assert trusted_lines(None) == []

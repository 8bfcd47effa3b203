"""What a budget buys: arithmetic by hand, M/M/1 behind a random router, and service levels of other kinds."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import ConfigError
from simulator.planning.budget import affordable, spend
from simulator.planning.candidate import candidates_of
from simulator.planning.growing import more_requests
from simulator.planning.measure import Wanted, key_of, measure
from simulator.planning.news import News
from simulator.planning.plan import plan
from simulator.planning.points import Bench, Point
from simulator.planning.slo import Target
from simulator.planning.spec import PlanSpec, plan_from
from simulator.planning.statistics import judge
from simulator.report.load.words import span_line
from simulator.report.plan.budget import _static_lines, budget_lines, carries_text, render_budget, write_budget
from simulator.report.plan.data import plain
from simulator.report.plan.page import render_plan
from simulator.report.plan.words import answer_lines
from simulator.run import simulate
from simulator.scenario.spec import scenario_from
from tests.plan.test_load import mm1_rate

CHAT = {"prompt": 500, "output": 100, "arrivals": {"kind": "poisson", "rate": 10, "requests": 200}}
STEP = 0.001


def textbook(**changes: Any) -> PlanSpec:
    """Servers of 1 ms a token, one request each, behind a random router."""
    return plan_from({
        "name": "textbook",
        "workload": {"arrivals": {"kind": "poisson", "rate": 50, "requests": 12_000}, "prompt": 1,
                     "output": {"kind": "exponential", "mean": 20}},
        "step_s": STEP, "max_model_len": 100_000, "warmup_fraction": 0.1, "slo": {"queue_p95_s": 0.106},
        "candidates": {"gpu": "unit", "policy": "static", "max_num_seqs": 1, "router": "random"},
        "budget": {"replicas": 2},
    } | changes)  # fmt: skip


@pytest.mark.parametrize(
    "budget, price, parallel, replicas",
    [
        ({"usd_per_hour": 12}, 2.69, 1, 4),  # 10.76 and not 13.45
        ({"usd_per_hour": 12}, 2.69, 2, 2),
        ({"usd_per_hour": 5.38}, 2.69, 1, 2),  # to the cent
        ({"gpus": 8}, 2.69, 4, 2),
        ({"gpus": 7}, 2.69, 4, 1),
        ({"replicas": 3}, 2.69, 4, 3),
    ],
)
def test_what_the_money_pays_for(budget: dict[str, Any], price: float, parallel: int, replicas: int) -> None:
    spec = plan_from({"workload": CHAT, "slo": {"ttft_p50_s": 1}, "budget": budget, "prices": {"h100-sxm": price},
                      "candidates": {"tensor_parallel": parallel}})  # fmt: skip
    assert spec.objective == "max_traffic"
    assert affordable(spec, candidates_of(spec)[0]) == replicas


def test_two_servers_carry_twice_the_rate_of_mm1() -> None:
    data = spend(textbook(growth_pct_per_month=[100]), jobs=1)
    best, theory = data["best"], mm1_rate(20 * STEP, 0.106)
    assert best["low"] <= 2 * theory <= best["high"]
    assert best["breaks"]["level"] == "p95 queue time"
    assert [step["replicas"] for step in data["steps"]] == [2, 3, 4, 5, 6]
    assert data["steps"][0]["months"]["100"] == pytest.approx(math.log2(best["carries"] / data["traffic"]))
    for step in data["steps"]:  # and more servers as many times that, each seen over as much time
        assert step["replicas"] / 2 * best["low"] <= step["rate"] <= step["replicas"] / 2 * best["high"]
        assert step["span_s"] == pytest.approx(data["steps"][0]["span_s"], rel=0.1)
    assert "2 replicas of unit" in budget_lines(data)[0] and "add a replica before" in render_budget(data)


def test_larger_fleets_get_more_requests_where_there_are_more(tmp_path: Path) -> None:
    """Drawn ones for longer, copies more at once; a recorded trace and a day's curve are what they are."""
    (tmp_path / "own.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n1,5,5\n")

    def more(workload: dict[str, Any], factor: float = 2.5) -> dict[str, Any]:
        spec = plan_from({"workload": workload, "slo": {"ttft_p50_s": 1}, "budget": {"replicas": 1}}, tmp_path)
        wider = more_requests(spec, factor)
        assert (wider is spec) == (wider.workload == spec.workload) and wider.base == spec.base
        return wider.workload

    assert more(CHAT) == CHAT | {"arrivals": {"kind": "poisson", "rate": 10, "requests": 500}}
    assert more(CHAT, 1.0) == CHAT
    timed = CHAT | {"arrivals": {"kind": "gamma", "cv": 2, "rate": 10, "duration_s": 20.0}}
    assert more(timed)["arrivals"]["duration_s"] == 50
    file = {"path": "own.csv", "time_unit": "s"}
    assert more({"trace": file | {"copies": 4}}) == {"trace": file | {"copies": 10}}
    day = CHAT | {"arrivals": {"kind": "diurnal", "rate": 10, "requests": 200, "amplitude": 0.5}}
    even = file | {"copies": 4, "copy_shift_s": 0.3}
    for fixed in ({"trace": file}, {"trace": even}, {"requests": {"output": [1]}}, day):
        assert more(fixed) == fixed
    steps = [{"replicas": n, "span_s": 172 / n, "rate": n, "months": {}} for n in (1, 2, 5)]
    assert span_line({"steps": steps}).startswith("Seen over 172 s of arrivals with 1 replica, over 34 s with 5: ")
    assert span_line({"steps": [step | {"span_s": 170 + step["replicas"]} for step in steps]}) == ""


@pytest.mark.parametrize("objective", ["max_traffic", "best_slo"])
def test_a_budget_that_does_not_carry_the_traffic_says_so_first(objective: str) -> None:
    """Two servers at 2.5 times what one of M/M/1 carries: the limit is missed, in the headline, by its name and value,
    and the box is that of a miss; at 1.5 times none of that."""
    theory = mm1_rate(20 * STEP, 0.106)
    for times, short in ((2.5, True), (1.5, False)):
        arrivals = {"kind": "poisson", "rate": times * theory, "requests": 12_000}
        workload = {"arrivals": arrivals, "prompt": 1, "output": {"kind": "exponential", "mean": 20}}
        data = spend(textbook(workload=workload, objective=objective, budget={"gpus": 2}), jobs=1, explain=False)
        page, said = render_budget(data), " ".join(budget_lines(data))
        assert budget_lines(data)[0].startswith("2 GPUs do not carry the plan's") == short
        assert ("(limit 106 ms: missed)" in said) == short and "limit 106 ms" in said
        assert ('class="verdict overloaded"' in page, "<td>missed</td>" in page) == (short, short)
        assert "within p95 queue time &lt; 106" in page and ("; the plan has" in page) == short


def test_every_limit_of_a_plan_in_words() -> None:
    slo = plan_from({"workload": CHAT, "slo": {
        "ttft_p99_s": 0.5, "worst_5min": {"tpot_p50_s": 0.05}, "attainment": {"share": 0.95, "ttft_s": 1, "e2e_s": 30},
        "classes": {"default": {"attainment": {"share": 0.9, "queue_s": 2}}}, "goodput_per_s": 4}}).slo  # fmt: skip
    assert list(slo.words()) == [
        "p99 TTFT < 500 ms", "p50 TPOT in the worst 300 s < 50 ms", "95 % of requests with TTFT < 1 s and E2E < 30 s",
        "90 % of requests (default) with queue time < 2 s", "4 requests/s with TTFT < 1 s and E2E < 30 s"]  # fmt: skip


def test_the_best_levels_are_those_of_more_servers() -> None:
    """One queue for four slots waits less than one slot at the same traffic (Erlang C)."""
    candidates = {"gpu": "unit", "policy": "orca", "max_num_seqs": [1, 4], "router": "random"}
    data = spend(textbook(objective="best_slo", candidates=candidates), jobs=1, explain=False)
    assert [row["label"] for row in data["rows"]] == ["unit, orca, seqs 4, random", "unit, orca, seqs 1, random"]
    assert data["rows"][0]["worst"] < data["rows"][1]["worst"]


def test_a_wall_that_goes_away_and_an_answer_that_never_comes_are_null(tmp_path: Path) -> None:
    """A server a quarter faster carries a quarter more at least (M/M/1 scales with its rate); the search ends at 1.2
    times. exp(-50 / 20) = 8 % of the answers are longer than max_model_len leaves: the p95 never comes."""
    rate = 1.9 * mm1_rate(20 * STEP, 0.106)
    arrivals = {"kind": "poisson", "rate": rate, "requests": 12_000}
    workload = {"arrivals": arrivals, "prompt": 1, "output": {"kind": "exponential", "mean": 20}}
    data = spend(textbook(workload=workload, search={"max_rate_scale": 1.2}), jobs=1)
    assert data["best"]["wall"] and data["relief"][0]["gain_pct"] is None
    assert f"With 25 % more {data['relief'][0]['resource']} no limit breaks at any rate." in budget_lines(data)
    write_budget(data, tmp_path / "relieved")
    assert json.loads((tmp_path / "relieved" / "budget.json").read_text())["relief"] == data["relief"]
    assert "no wall" in (tmp_path / "relieved" / "report.html").read_text()
    refused = spend(textbook(max_model_len=51), jobs=1)
    assert refused["best"] is None and refused["rows"][0]["worst"] is None
    write_budget(refused, tmp_path / "refused")


def test_spares_are_paid_from_the_budget() -> None:
    data = spend(textbook(survive=2), jobs=1)
    assert data["best"] is None and "does not pay for one serving replica beside 2 spare" in budget_lines(data)[0]


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"budget": {}}, "must hold one of usd_per_hour, gpus, replicas"),
        ({"budget": {"gpus": 8, "replicas": 2}}, "got gpus, replicas"),
        ({"budget": {"gpus": 8}, "objective": "min_cost"}, "objective min_cost and budget"),
        ({"objective": "best_slo"}, "objective best_slo needs a budget"),
        ({"growth_pct_per_month": [5]}, "belongs to a budget"),
        ({"candidates": {"gpu": "h100-sxm", "model": ["llama-3.1-8b", "lama-3"]}}, "candidates.model: unknown model"),
        ({"host": "quick"}, "host.name: "),
        ({"slo": {"classes": {"default": {"itl_p99_s": 0.1}}}}, "not by class or window"),
        ({"slo": {"worst_hour": {"itl_p99_s": 0.1}}}, "not by class or window"),
        ({"slo": {"worst_hour": 3}}, "slo.worst_hour must map limits"),
        ({"slo": {"goodput_per_s": 3}}, "at least one limit"),
        ({"slo": {"itl_p99_s": 0.1, "goodput_per_s": 3}}, "goodput_per_s has no effect without limits of a request"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        plan_from({"workload": CHAT, "slo": {"ttft_p50_s": 1}} | changes)


def test_a_prefix_cache_without_shared_prefixes_is_refused() -> None:
    spec = plan_from({"workload": CHAT, "slo": {"ttft_p50_s": 1}, "candidates": {"prefix_caching": [True, False]}})
    with pytest.raises(ConfigError, match="the requests name no shared prefixes"):
        plan(spec, jobs=1)


def test_another_model_is_another_candidate() -> None:
    """A 70B model does not fit one H100, an 8B model does."""
    spec = plan_from({"workload": CHAT, "slo": {"ttft_p50_s": 1}, "max_model_len": 2048,
                      "candidates": {"model": ["llama-3.1-8b", "llama-3.1-70b"], "replicas": [1]}})  # fmt: skip
    found = plan(spec, jobs=1, explain=False)
    assert [o.status for o in found.outcomes] == ["feasible", "does not fit"]
    assert found.outcomes[1].candidate.label == "h100-sxm, llama-3.1-70b"


def test_windows_and_classes_as_written() -> None:
    slo = plan_from({"workload": CHAT, "slo": {
        "ttft_p90_s": 1, "worst_hour": {"ttft_p90_s": 2}, "worst_5min": {"tpot_p50_s": 0.5},
        "classes": {"default": {"attainment": {"share": 0.9, "e2e_s": 10}}}}}).slo  # fmt: skip
    assert slo.targets == (Target("ttft", 90.0, 1.0), Target("ttft", 90.0, 2.0, None, 3600.0),
                           Target("tpot", 50.0, 0.5, None, 300.0))  # fmt: skip
    assert [key for key, _, _ in slo.written()] == [
        "slo.ttft_p90_s", "slo.worst_hour.ttft_p90_s", "slo.worst_5min.tpot_p50_s",
        "slo.classes.default.attainment.e2e_s"]  # fmt: skip
    with pytest.raises(ConfigError, match=r"slo\.worst_5min\.ttft_p99_s: p99 TTFT in the worst 300 s needs 299 "):
        plan(plan_from({"workload": CHAT, "slo": {"worst_5min": {"ttft_p99_s": 1}}}), jobs=1)
    with pytest.raises(ConfigError, match="no request is of class 'chat'"):
        plan(plan_from({"workload": CHAT, "slo": {"classes": {"chat": {"attainment": {"share": 0.5, "e2e_s": 1}}}}}))


def test_gaps_and_shares_by_hand() -> None:
    """One slot, 1 ms a step: a (10 tokens), then b (10 tokens), both at 0: a has its first token at 1 ms, b waits 10.
    Gaps between tokens are steps of 1 ms."""
    scenario = scenario_from({
        "workload": {"requests": {"prompt": 1, "output": [10, 10], "arrival_s": 0, "cls": ["a", "b"]}},
        "hardware": {"gpu": "unit", "step_s": STEP}, "policy": {"name": "orca", "max_num_seqs": 1},
        "engine": {"name": "vllm-0.24", "schedule_ahead": 0}})  # fmt: skip
    limits = (("ttft", 0.005),)
    wanted = Wanted((("itl", None, 99.0), ("ttft", None, 50.0)), limits, class_limits=(("a", limits), ("b", limits)))
    result = simulate(scenario, "reference")
    record = measure(result, wanted)
    assert record["values"][key_of("itl", None, 99.0)] == pytest.approx(STEP)
    assert record["attained"] == 0.5 and record["attained_of"] == {"a": 1.0, "b": 0.0}
    for b_within, good in ((0.02, 1.0), (0.005, 0.5)):  # the goodput curve holds each class to its own limits
        own = Wanted((), (), own_limits=(("a", limits), ("b", (("ttft", b_within),))))
        assert measure(result, own)["attained_every"] == good


def test_a_class_is_held_to_its_own_limits() -> None:
    """A share's limits where one is asked for, else those of its levels; gaps between tokens are not a request's."""
    spec = plan_from({"workload": CHAT, "slo": {"e2e_p90_s": 9, "itl_p99_s": 0.2, "classes": {
        "a": {"ttft_p95_s": 0.5, "ttft_p50_s": 0.2},
        "b": {"attainment": {"share": 0.9, "tpot_s": 0.04}, "ttft_p95_s": 3}}}})  # fmt: skip
    assert spec.slo.request_limits() == {"e2e": 9}
    assert spec.slo.limits_of_classes() == {"a": {"ttft": 0.2}, "b": {"tpot": 0.04}}


def test_good_requests_a_second() -> None:
    """30 requests/s, nearly all of them good: 20 are delivered, of 40 a quarter is missing."""
    arrivals = {"kind": "constant", "rate": 30, "requests": 600}
    spec = textbook(budget={"replicas": 1}, slo={"queue_p50_s": 10, "goodput_per_s": 40},
                    workload={"arrivals": arrivals, "prompt": 1, "output": 1})  # fmt: skip
    bench = Bench(spec)
    record = {"idle": False, **bench.run(Point(candidates_of(spec)[0], 1, full=True))}
    level = judge(spec, [record]).levels[-1]
    assert level.name == "goodput short of 40 requests/s" and level.interval.mean == pytest.approx(0.25)
    less = textbook(budget={"replicas": 1}, slo={"queue_p50_s": 10, "goodput_per_s": 20}, workload=spec.workload)
    assert judge(less, [record]).levels[-1].interval.mean == 0 and np.isfinite(record["rate"])


def test_an_interrupted_plan_keeps_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C after the first of two candidates is found: it is the answer so far, and marked."""
    spec = plan_from({"workload": CHAT, "slo": {"ttft_p50_s": 1}, "max_model_len": 2048, "search": {"replications": 2},
                      "candidates": {"max_num_seqs": [64, 128], "replicas": [1, 2]}})  # fmt: skip
    whole = plan(spec, jobs=1, explain=False)
    assert whole.complete and [o.status for o in whole.outcomes] == ["feasible", "feasible"]
    found = None
    for after in range(1, whole.simulated):

        def stop(news: News, after: int = after) -> None:
            if news.simulated >= after:
                raise KeyboardInterrupt

        found = plan(spec, jobs=1, explain=False, progress=stop)
        assert not found.complete and found.stopped == "an interruption"
        if found.best is not None:
            break
    assert found is not None and found.best is not None
    assert [o.status for o in found.outcomes] == ["feasible", "not finished"]
    assert found.best.outcome.replicas == whole.outcomes[0].replicas
    data = plain(found)
    assert any("stopped by an interruption: this is the best so far" in line for line in answer_lines(data))
    assert render_plan(data)


def test_how_many_times_the_static_fleet_a_continuous_one_carries() -> None:
    """30 a second against the better of 6 and 5 is five times; a row that was never simulated has a dash."""
    row = {"low": None, "high": None, "wall": True, "levels": []}
    rows = [row | {"label": f"unit, {name}", "carries": carries}
            for name, carries in (("chunked", 30.0), ("static, seqs 4", 6.0), ("static, seqs 8", 5.0))]
    said = _static_lines({"best": rows[0], "rows": rows})
    assert len(said) == 1 and "continuous batching" in said[0] and "5 times" in said[0] and "6 requests/s" in said[0]
    assert _static_lines({"best": rows[1], "rows": rows}) == []
    assert carries_text(row | {"carries": None}) == "–"

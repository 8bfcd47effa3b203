"""Service levels: no data is an error, few requests are no percentile, a verdict is never at odds with its numbers."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator import simulate
from simulator.cli.main import main
from simulator.errors import ConfigError
from simulator.planning.candidate import Candidate
from simulator.planning.loss import across
from simulator.planning.measure import Wanted, key_of, measure
from simulator.planning.plan import Plan, plan
from simulator.planning.price import Fleet
from simulator.planning.slo import MEAN
from simulator.planning.spec import plan_from
from simulator.planning.statistics import check_levels, judge
from simulator.report.plan.data import plain
from simulator.report.plan.words import answer_lines
from simulator.scenario.setup import prepare
from simulator.scenario.spec import scenario_from
from simulator.workload.build import build_trace
from simulator.workload.trace import make_trace

PLAN = Path(__file__).parents[2] / "scenarios" / "plan_chat.yaml"


def textbook(rate: float = 30.0, requests: int = 3000, **changes: Any) -> dict[str, Any]:
    """Poisson arrivals for servers of 1 ms a token, one request each."""
    return {
        "name": "textbook",
        "workload": {
            "arrivals": {"kind": "poisson", "rate": rate, "requests": requests},
            "prompt": 1,
            "output": {"kind": "exponential", "mean": 100},
        },
        "step_s": 0.001,
        "max_model_len": 100_000,
        "slo": {"queue_p95_s": 0.5},
        "candidates": {"gpu": "unit", "policy": "orca", "max_num_seqs": 1, "replicas": {"max": 12}},
    } | changes


def solved(**changes: Any) -> Plan:
    return plan(plan_from(textbook(**changes)), jobs=1, explain=False)


# Levels without data.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slo": {"classes": {"chta": {"ttft_p50_s": 1}}}}, ["slo.classes.chta.ttft_p50_s", "'chta'", "default"]),
        ({"workload": {"requests": {"output": [1] * 50}}, "slo": {"tpot_p50_s": 1}}, ["0 answer", "than one token"]),
        ({"requests": 30, "slo": {"ttft_p99_s": 1}}, ["30 requests", "299", "90%"]),
        ({"warmup_fraction": 0.99, "slo": {"ttft_p95_s": 1}}, ["30 requests", "59"]),
        ({"requests": 31, "warmup_fraction": 0.05, "slo": {"ttft_p99_s": 1}}, ["30 requests", "299"]),  # 1.55 of 31
        ({"slo": {"ttft_p99_s": 1, "window_s": 2}}, ["slo.window_s", "299", "fullest"]),
    ],
)
def test_a_level_that_the_traffic_cannot_answer_is_refused(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        solved(**changes)
    for word in words:
        assert word in str(error.value)


def test_answers_returned_whole_have_no_tpot_to_win_with() -> None:
    """Static batching once won with a TPOT of 0 ms, because no request had one."""
    both = {"gpu": "unit", "policy": ["static", "orca"], "max_num_seqs": 1, "replicas": {"max": 12}}
    found = solved(slo={"tpot_p95_s": 0.002, "queue_p95_s": 0.5}, candidates=both)
    assert [o.status for o in found.outcomes] == ["infeasible", "feasible"]
    assert "returned whole" in found.outcomes[0].reason


def test_no_record_without_data_passes() -> None:
    spec = plan_from(textbook())
    empty = {"idle": False, "values": {key_of("queue", None, 95.0): math.nan}, "overloaded": False}
    for record in ({"idle": True}, empty):
        with pytest.raises(ConfigError, match="be judged"):
            judge(spec, [record])


def test_enough_requests_are_accepted() -> None:
    spec = plan_from(textbook(requests=299, slo={"ttft_p99_s": 1}))
    check_levels(spec, build_trace(spec.workload, 0, 0))


# One set of definitions for a run and a plan.


def test_a_plan_measures_what_a_run_reports() -> None:
    """Rejected and unfinished requests, one-token answers and a warm-up share that is not whole: 0.3 x 11 = 3.3."""
    output = [3, 1, 2, 50, 4, 1, 7, 2, 9, 1, 5]
    data = {
        "workload": {"requests": {"output": output, "arrival_s": [float(k) for k in range(11)]}},
        "hardware": {"gpu": "unit"},
        "policy": {"name": "chunked", "max_num_seqs": 2},
        "max_model_len": 20,
        "warmup_fraction": 0.3,
    }
    result = simulate(scenario_from(data), "reference")
    asked = tuple((m, None, p) for m in ("ttft", "tpot", "e2e", "queue") for p in (50.0, 90.0, MEAN))
    record = measure(result, Wanted(asked, ()))
    for metric, _, p in asked:
        stats = result.summary[f"{metric}_s"]
        told = stats["mean" if p == MEAN else f"p{p:g}"]
        got = record["values"][key_of(metric, None, p)]
        failed = np.count_nonzero(result.requests.status[3:] != 3)
        if p == MEAN and failed:
            assert got == math.inf  # a limit on a mean is not met by leaving out who was not answered
        else:
            assert got == (math.inf if told is None else pytest.approx(told))
    assert record["arrived"] == 11 and record["rejected"] == 1


def test_plan_tpot_divides_by_n_minus_1_and_warmup_is_cut_down() -> None:
    """Outputs 3 and 5, a step a second: 2 gaps in 2 s, 4 gaps in 4 s. 0.5 of 3 requests leaves out one, not two."""
    data = {
        "workload": {"requests": {"output": [9, 3, 5], "arrival_s": [0.0, 20.0, 40.0]}},
        "hardware": {"gpu": "unit"},
        "policy": {"name": "chunked", "max_num_seqs": 1},
        "warmup_fraction": 0.5,
    }
    result = simulate(scenario_from(data), "reference")
    record = measure(result, Wanted((("tpot", None, 50.0), ("e2e", None, MEAN)), ()))
    assert record["values"]["tpot * 50"] == 1.0
    assert record["values"]["e2e * mean"] == 4.0 == result.summary["e2e_s"]["mean"]


def test_a_value_at_the_limit_is_within_it() -> None:
    policy = {"name": "orca", "max_num_seqs": 80}
    data = {"workload": {"requests": {"output": [3] * 80}}, "hardware": {"gpu": "unit"}, "policy": policy}
    result = simulate(scenario_from(data), "reference")
    record = {"idle": False, **measure(result, Wanted((("e2e", None, 50.0),), (("e2e", 3.0),)))}
    assert record["attained"] == 1.0
    spec = plan_from(textbook(slo={"e2e_p50_s": 3.0}))
    assert judge(spec, [record, record]).verdict == "meets"
    assert judge(plan_from(textbook(slo={"e2e_p50_s": 2.999})), [record, record]).verdict == "misses"


# Verdicts and what is said of them.


def test_every_printed_fleet_was_simulated_whole() -> None:
    found = plan(plan_from(textbook(requests=12_000)), jobs=1)
    assert found.best is not None and found.answer is not None
    judged = [x for o in found.outcomes for x in (o.judgement, o.slow, o.fast)] + [found.answer.bought]
    for one in judged:
        assert one is not None
        assert all(record["arrived"] == 12_000 for record in one.records)


def test_reasons_speak_against_the_fleet() -> None:
    """A fleet is turned down by a number beyond its limit: the mean, or the end of an interval."""
    limit = 0.3
    found = solved(slo={"queue_p95_s": limit}, candidates=textbook()["candidates"] | {"replicas": {"max": 4}})
    outcome = found.outcomes[0]
    assert outcome.status == "capped" and outcome.best_try is not None
    level = outcome.best_try.binding
    assert level.shown > limit and 0 < outcome.rate_met < 1
    best = solved(slo={"queue_p95_s": limit}).best
    assert best is not None and best.outcome.fewer.startswith(f"with {best.outcome.replicas - 1}, p95 queue time")


def test_headroom_has_an_interval_and_changes_start_from_the_wall() -> None:
    """And the level that breaks first is named: a wait beyond 0.5 s, long before an answer takes 1,000 s."""
    slo = {"queue_p95_s": 0.5, "e2e_p95_s": 1000}
    answer = plan(plan_from(textbook(slo=slo, search={"calibration_error": 0.1})), jobs=1).answer
    assert answer is not None and answer.breaks == "p95 queue time"
    low, high = answer.headroom_range
    assert 0 <= low <= answer.headroom_pct <= high
    assert high - answer.headroom_pct > 5  # steps 10 % faster carry at least that much more of a saturated server


def test_without_a_wall_nothing_is_compared_with_a_cap() -> None:
    """Each of 12 requests takes 0.1 s: all at once they are done in 1.2 s, and no rate breaks a limit of 99 s."""
    workload = {"requests": {"output": [100] * 12, "arrival_s": [float(k) for k in range(12)]}}
    found = plan(plan_from(textbook(workload=workload, slo={"queue_p50_s": 99})), jobs=1)
    assert found.answer is not None and math.isinf(found.answer.headroom_pct)
    assert found.answer.relief == [] and found.answer.changes == []
    assert "there is no wall" in " ".join(answer_lines(plain(found)))


def fleet(gpu: str, low: float, high: float, seqs: int = 64) -> Fleet:
    candidate = Candidate(gpu, 1, None, seqs, None, "bf16", "bf16", "round_robin")
    return Fleet(candidate, 1, 0, high, (low, high), 1.0, 1.0, 1.0, 1.0)


def test_candidates_of_one_gpu_are_compared_in_pairs() -> None:
    """Steps of one GPU err together: 5-8 against 7-10 is apart at either end, though the ranges overlap."""
    from simulator.planning.ties import _tied

    assert not _tied(fleet("l40s", 5.0, 8.0), fleet("l40s", 7.0, 10.0, 128))
    assert _tied(fleet("l40s", 5.0, 8.0), fleet("a100-sxm-80gb", 7.0, 10.0))
    assert _tied(fleet("l40s", 5.0, 8.0), fleet("l40s", 5.0, 10.0, 128))
    assert not _tied(fleet("l40s", 5.0, 8.0), fleet("h100-sxm", 9.0, 10.0))


# Windows.


def test_a_limit_in_the_worst_window_asks_for_more() -> None:
    """Half a minute at 8 times the rate is 1 % of the requests of a quiet day, and most of its worst 30 s."""
    quiet, burst = np.arange(0.0, 3000.0, 0.5), 1500 + np.arange(0.0, 30.0, 0.05)
    workload = {"requests": {"output": [100] * 6600, "arrival_s": sorted([*quiet.tolist(), *burst.tolist()])}}
    day = solved(workload=workload, slo={"queue_p50_s": 0.2})
    peak = solved(workload=workload, slo={"queue_p50_s": 0.2, "window_s": 30})
    assert day.best is not None and peak.best is not None
    assert day.best.outcome.replicas == 1
    assert peak.best.outcome.replicas > 1
    assert "in the worst 30 s" in " ".join(answer_lines(plain(peak)))


# Losing a replica.


def test_a_lost_replica_by_hand() -> None:
    """Two servers of one request, 4 s each, both start at 0; the second server is lost at 2 s. Its request starts again
    when the first is free: at 4 s, to 8 s. The third arrives at 3 s and waits for both: 12 - 3 = 9 s."""
    scenario = scenario_from(
        {
            "workload": {"requests": {"output": [4, 4, 4], "arrival_s": [0.0, 0.0, 3.0]}},
            "hardware": {"gpu": "unit"},
            "policy": {"name": "orca", "max_num_seqs": 1},
        }
    )
    second = 10**9
    trace = make_trace(np.array([0, 0, 3 * second]), np.ones(3, int), np.full(3, 4))
    seen = across(prepare(scenario), trace, 2 * second, 1, 1, 0)
    order = np.lexsort((seen.restarted, seen.arrival))
    assert seen.times["e2e"][order].tolist() == [4.0, 8.0, 9.0]
    assert seen.times["ttft"][order].tolist() == [1.0, 5.0, 6.0]
    assert seen.restarted[order].tolist() == [False, True, False]


def test_survive_judges_the_fleet_bought_and_the_loss() -> None:
    found = plan(plan_from(textbook(survive=2)), jobs=1, explain=False)
    assert found.best is not None and found.answer is not None
    bought = found.answer.bought
    left = found.best.outcome.slow
    assert left is not None
    assert bought.levels[0].interval.mean < left.levels[0].interval.mean
    loss = found.answer.loss
    assert loss is not None and loss["modelled"] and loss["replicas"] == 2 and loss["restarted"] >= 1
    text = " ".join(answer_lines(plain(found)))
    serving = found.best.fleet.serving
    assert found.best.outcome.fewer.startswith(
        (f"with {serving + 1}, of which {serving - 1} ", f"{serving + 1}, of which {serving - 1} "))
    assert "With every replica up, and with the margin on step times" in text and "Losing 2 under load" in text


# What is asked back.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["slo={ttft_p99_s: 500}"], ["ttft_p99_s", "500 s", "did you mean 0.5"]),
        (["slo={classes: {default: {tpot_p50_s: 50}}}"], ["tpot_p50_s", "did you mean 0.05"]),
        (["slo={attainment: {share: 0.9, queue_s: 300}}"], ["slo.attainment.queue_s", "did you mean 0.3"]),
        (["policy.max_num_seqs=64"], ["policy.max_num_seqs", "candidates.max_num_seqs"]),
        (["hardware.gpu=l40s"], ["candidates.gpu"]),
        (["candidates.gpu=H10O-SXM"], ["--set", "candidates.gpu", "did you mean h100-sxm"]),
        (["candidates.gpu=H1000"], ["--set", "candidates.gpu", "did you mean h100"]),
        (["candidates.router=round_robbin"], ["candidates.router", "did you mean round_robin"]),
        (["candidates.policy=chunkt"], ["candidates.policy", "did you mean chunked"]),
        (["candidates.weight_dtype=fp9"], ["candidates.weight_dtype", "fp8"]),
        (["model=llama-3.1-9b"], ["model", "did you mean llama-3.1-8b"]),
    ],
)
def test_messages_name_what_would_work(
    changes: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(PLAN), *(x for change in changes for x in ("--set", change))]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and text.count("did you mean") <= 1
    for word in words:
        assert word in text


def test_a_gpu_may_be_set_by_an_alias_and_prices_of_others_are_not_in_the_way() -> None:
    from simulator.planning.price import price_of
    from simulator.planning.spec import load_plan

    spec = load_plan(PLAN, ["candidates.gpu=H100"])
    assert spec.candidates.gpu == ("h100-sxm",) and price_of(spec, "h100-sxm").usd_per_hour == 2.69


def test_a_run_asks_back_too() -> None:
    data = {"workload": {"requests": {"output": [1]}}, "slo": {"ttft_s": 500.0}}
    with pytest.raises(ConfigError, match=r"did you mean 0\.5"):
        scenario_from(data)


def test_the_page_prices_output_tokens() -> None:
    """2 replicas at 3 USD/h, 10 requests/s of 100 tokens: 3.6 million tokens an hour for 6 USD."""
    from simulator.ui.model import evaluate
    from simulator.ui.settings import Settings

    view = evaluate(Settings(rate=10.0, output=100, prompt=200, replicas=2, price=3.0), pictures=False)
    assert view.usd_per_million == pytest.approx(6 / 3.6)

"""Metrics against numbers worked out by hand on the textbook GPU (a step = 1 s, prompts of one token)."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import Result, scenario_from, simulate
from simulator.engines.booking import itl_bin
from simulator.metrics.latency import PERCENTILES, TIMES, histogram_quantiles, quantiles
from simulator.metrics.summary import request_table, summarize
from simulator.scenario.setup import prepare
from simulator.state import ITL_BINS

NULLS = {"mean": None, "p50": None, "p90": None, "p95": None, "p99": None, "p999": None, "count": 0}


def unit(output: list[int], policy: str = "chunked", slots: int = 2, **more: Any) -> dict[str, Any]:
    requests: dict[str, Any] = {"output": output} | more.pop("requests", {})
    knobs: dict[str, Any] = {"name": policy, "max_num_seqs": slots} | more.pop("knobs", {})
    return {
        "name": "hand",
        "workload": {"requests": requests},
        "hardware": {"gpu": "unit"},
        "policy": knobs,
    } | more


def run(data: dict[str, Any], **options: Any) -> Result:
    return simulate(scenario_from(data), "reference", **options)


def chat(**more: Any) -> dict[str, Any]:
    workload = {
        "arrivals": {"kind": "poisson", "rate": 12, "requests": 400},
        "prompt": {"kind": "lognormal", "mean": 800, "cv": 1.2, "max": 4000},
        "output": {"kind": "lognormal", "mean": 60, "cv": 0.9},
    }
    return {"name": "chat", "seed": 3, "workload": workload, "hardware": {"gpu": "h100-sxm"}} | more


# Outputs 3, 1, 2 on two slots. Steps end at 1, 2, 3 s: A and B, A and C, A and C; C waits for one step.


def test_three_requests_by_hand() -> None:
    got = run(unit([3, 1, 2])).summary
    assert got["requests"] | {"rejected_by_reason": None} == {
        "arrived": 3,
        "completed": 3,
        "rejected": 0,
        "aborted": 0,
        "lost": 0,
        "unfinished": 0,
        "rejected_by_reason": None,
        "preempted": 0,
        "preemptions": 0,
        "after_horizon": 0,
        "not_sent": 0,
    }
    assert got["conservation"] == "arrived 3 = completed 3 + rejected 0 + unfinished 0"
    assert got["makespan_s"] == 3 and got["steps"] == 3
    assert got["throughput"] == {
        "requests_per_s": 1,
        "output_tokens_per_s": 2,
        "prompt_tokens_per_s": 1,
        "total_tokens_per_s": 3,
    }
    assert got["ttft_s"]["mean"] == pytest.approx(4 / 3) and got["ttft_s"]["p50"] == 1
    assert got["ttft_s"]["p90"] == pytest.approx(1.8)  # between 1 (rank 1) and 2 (rank 2), at rank 1.8
    assert got["e2e_s"]["mean"] == pytest.approx(7 / 3)
    assert got["queue_s"]["mean"] == pytest.approx(1 / 3)
    assert got["prefill_s"]["mean"] == 1 and got["frontend_s"]["mean"] == 0
    assert got["normalized_latency_s"]["mean"] == pytest.approx((3 / 3 + 1 / 1 + 3 / 2) / 3)
    assert got["slot_utilization"] == 1 and got["gpu_utilization"] == 1 and got["busy_share"] == 1


def test_tpot_divides_by_n_minus_1_and_skips_one_token_answers() -> None:
    tpot = run(unit([3, 1, 2])).summary["tpot_s"]
    assert tpot["count"] == 2 and tpot["mean"] == 1 and tpot["p999"] == 1
    assert run(unit([1, 1, 1])).summary["tpot_s"] == NULLS


def test_itl_counts_every_gap_once() -> None:
    itl = run(unit([3, 1, 2])).summary["itl_s"]
    assert itl == {"mean": 1, "p50": 1, "p90": 1, "p95": 1, "p99": 1, "p999": 1, "count": 3}


def test_slot_use_of_the_textbook_batch() -> None:
    """Outputs 5, 200, 3, 150 in a static batch of four: 358 of 800 slot steps."""
    got = run(unit([5, 200, 3, 150], "static", 4)).summary
    assert got["slot_utilization"] == 0.4475 and got["steps"] == 200
    assert got["batch"]["distribution"] == [[1, 50 / 200], [2, 145 / 200], [3, 2 / 200], [4, 3 / 200]]
    assert got["batch"]["p50"] == 2 and got["batch"]["max"] == 4 and got["batch"]["mean_running"] == 4
    assert got["batch"]["mean_scheduled"] == 358 / 200


def test_utilisation_is_weighted_by_time_not_by_iteration() -> None:
    """Steps of 2 s with two sequences, then twice 1 s with one: 6 of 8 slot seconds (4 of 6 by iteration)."""
    scenario = scenario_from(unit([1, 3]))
    cost = prepare(scenario).cost
    table = np.tile(np.arange(3) * 10**9, (2, 1))
    got = simulate(scenario, "reference", cost=cost._replace(dense_ns=table)).summary
    assert got["makespan_s"] == 4 and got["slot_utilization"] == 6 / 8


def test_answers_returned_whole_have_no_tpot_or_itl() -> None:
    got = run(unit([2, 4], "static")).summary
    assert got["tpot_s"] == NULLS and got["itl_s"] == NULLS
    assert got["ttft_s"]["p50"] == got["e2e_s"]["p50"] == 4


# Preemption: two requests of 1 + 5 tokens, 6 usable blocks of one token. Both have 3 tokens at 3 s; step 4
# needs 8 blocks, so B is preempted. A ends at 5 s; B computes its 4 known tokens in step 6 and ends at 7 s.


def test_preemption_by_hand() -> None:
    result = run(unit([5, 5], kv={"num_gpu_blocks": 7}, max_model_len=6))
    got, table = result.summary, request_table(result)
    assert got["requests"]["preempted"] == 1 and got["requests"]["preemptions"] == 1
    assert table["ttft_s"].tolist() == [1, 1] and table["e2e_s"].tolist() == [5, 7]
    assert table["tpot_s"].tolist() == [1, 1.5] and table["itl_max_s"].tolist() == [1, 3]
    assert table["preemptions"].tolist() == [0, 1]
    assert got["itl_s"]["count"] == 8 and got["itl_s"]["mean"] == 10 / 8
    assert got["itl_s"]["p50"] == pytest.approx(1, rel=0.005)
    assert got["itl_s"]["p999"] == pytest.approx(np.quantile([1, 1, 1, 1, 1, 1, 1, 3], 0.999), rel=0.005)


# Requests that do not complete.


def test_all_rejected() -> None:
    got = run(unit([5, 6], max_model_len=3, slo={"e2e_s": 10.0})).summary
    assert got["requests"]["rejected"] == 2
    assert got["requests"]["rejected_by_reason"] == {"longer than max_model_len": 2}
    assert all(got[name] == NULLS for name in (*TIMES, "itl_s"))
    assert got["throughput"]["requests_per_s"] == 0 and got["makespan_s"] == 0
    assert got["goodput"]["attained"] == 0
    assert got["slot_utilization"] is None and got["gpu_utilization"] is None
    json.dumps(got, allow_nan=False)


def test_one_rejected_of_ten_is_infinite_in_percentiles() -> None:
    """Ranks 0..9, the last infinite: p50 at 4.5 and p90 at 8.1 -> the latter needs rank 9."""
    got = run(unit([1] * 9 + [50], slots=10, max_model_len=20)).summary
    assert got["ttft_s"] == NULLS | {"mean": 1, "p50": 1, "count": 9}
    assert got["conservation"] == "arrived 10 = completed 9 + rejected 1 + unfinished 0"


def test_unfinished_at_the_horizon() -> None:
    """Outputs 2 and 10 stopped at 5 s, a third request would come at 100 s: 2 + 5 tokens in 5 s."""
    data = unit([2, 10, 1], requests={"arrival_s": [0.0, 0.0, 100.0]}, horizon_s=5.0, slo={"ttft_s": 1.0})
    got = run(data).summary
    counts = got["requests"]
    assert (counts["arrived"], counts["completed"], counts["unfinished"], counts["after_horizon"]) == (
        2,
        1,
        1,
        1,
    )
    assert got["conservation"].endswith("unfinished 1; 1 more after the horizon")
    assert got["throughput"]["output_tokens_per_s"] == 7 / 5
    assert got["e2e_s"] == NULLS | {"mean": 2, "count": 1}  # every percentile of two lies beyond the first
    assert got["goodput"]["attained"] == 0.5
    assert request_table(run(data))["status"].tolist() == ["finished", "unfinished", "after horizon"]


def test_a_batch_not_yet_returned_at_the_horizon_delivers_nothing() -> None:
    got = run(unit([2, 10], "static", horizon_s=5.0)).summary
    assert got["requests"]["completed"] == 0 and got["requests"]["unfinished"] == 2
    assert got["throughput"]["output_tokens_per_s"] == 0 and got["makespan_s"] == 0


def test_closed_load_counts_only_what_was_submitted() -> None:
    """One client, answers of 2 s, horizon 5 s: two completed, a third under way, seven never sent."""
    got = run(unit([2] * 10, load={"kind": "closed", "width": 1}, horizon_s=5.0)).summary["requests"]
    assert (got["arrived"], got["completed"], got["unfinished"], got["after_horizon"]) == (3, 2, 1, 7)


# Goodput.


def test_goodput_needs_targets_and_counts_everybody() -> None:
    assert run(unit([3, 1, 2])).summary["goodput"]["attained"] is None
    good = run(unit([3, 1, 2, 50], max_model_len=20, slo={"ttft_s": 1.0})).summary["goodput"]
    assert good["attained"] == 2 / 4  # A and B; C waited, the fourth was refused
    assert good["requests_per_s"] == 2 / 3
    assert good["slo"] == {"ttft_s": 1.0, "tpot_s": None, "e2e_s": None, "queue_s": None}


def test_goodput_needs_all_targets_and_tpot_binds_only_where_there_is_one() -> None:
    result = run(unit([3, 1, 2], slo={"tpot_s": 0.9, "queue_s": 5.0}))
    assert result.summary["goodput"]["attained"] == 1 / 3  # B has one token, hence no TPOT to miss
    result = run(unit([3, 1, 2], slo={"tpot_s": 1.0, "e2e_s": 2.9}))
    assert result.summary["goodput"]["attained"] == 1 / 3  # A and C take 3 s


# Warm-up and classes.


def test_warm_up_leaves_counts_alone() -> None:
    """One slot, one-token answers at 0, 0, 0, 0: they end at 1, 2, 3, 4 s; the first half is dropped."""
    got = run(unit([1, 1, 1, 1], slots=1, warmup_fraction=0.5)).summary
    assert got["e2e_s"]["count"] == 2 and got["e2e_s"]["mean"] == 3.5
    assert got["requests"]["completed"] == 4 and got["throughput"]["requests_per_s"] == 1


def test_per_class() -> None:
    data = unit([3, 1, 2], requests={"cls": ["long", "short", "long"]}, slo={"ttft_s": 1.0})
    got = run(data).summary["per_class"]
    assert list(got) == ["long", "short"]
    assert got["long"]["ttft_s"]["mean"] == 1.5 and got["short"]["ttft_s"]["mean"] == 1
    assert got["long"]["requests"] == {"arrived": 2, "completed": 2, "rejected": 0, "aborted": 0, "lost": 0,
                                       "unfinished": 0}
    assert got["long"]["goodput"]["attained"] == 0.5 and got["short"]["goodput"]["attained"] == 1
    assert "per_class" not in run(unit([1, 2])).summary


# Memory.


def test_fragmentation_of_reserved_and_paged_memory() -> None:
    """One request of 1 + 3 tokens: 10 reserved, 1, 2, 3 filled as steps run; paged by the token: no waste."""
    reserved = run(
        unit(
            [3],
            "orca",
            1,
            kv={"layout": "contiguous", "reserve_tokens": 10, "num_gpu_blocks": 40},
            max_model_len=10,
        )
    ).summary["kv"]
    assert reserved["mean_use"] == pytest.approx(10 / 40) and reserved["peak_use"] == 10 / 40
    assert reserved["internal_fragmentation"] == pytest.approx(1 - (1 + 2 + 3) / 30)
    assert reserved["external_fragmentation"] == 0
    paged = run(unit([3], kv={"num_gpu_blocks": 41}, max_model_len=10)).summary["kv"]
    assert paged["num_gpu_blocks"] == 41 and paged["tokens_capacity"] == 40
    assert paged["internal_fragmentation"] == pytest.approx(0)
    assert paged["mean_use"] == pytest.approx((1 + 2 + 3) / 3 / 40) and paged["peak_use"] == 3 / 40


# Identities on a realistic run.


@pytest.fixture(scope="module")
def served() -> Result:
    return simulate(scenario_from(chat()))


def test_ttft_is_the_sum_of_its_parts(served: Result) -> None:
    table = request_table(served)
    parts = table["frontend_s"] + table["queue_s"] + table["prefill_s"]
    np.testing.assert_allclose(parts, table["ttft_s"], atol=2e-9)
    assert (table["frontend_s"] > 0).all()


def test_itl_mean_and_count_follow_from_the_requests(served: Result) -> None:
    table, itl = request_table(served), served.summary["itl_s"]
    assert itl["count"] == (table["output_tokens"] - 1).sum()
    assert itl["mean"] == pytest.approx((table["e2e_s"] - table["ttft_s"]).sum() / itl["count"])
    assert itl["p999"] <= table["itl_max_s"].max()


def test_percentiles_equal_those_of_the_request_table(served: Result) -> None:
    table = request_table(served)
    for name in ("ttft_s", "tpot_s", "e2e_s", "queue_s"):
        values = table[name].dropna()
        for label, q in PERCENTILES:
            assert served.summary[name][label] == pytest.approx(np.quantile(values, q), abs=1e-12)


def test_summary_is_plain_data_with_every_term_defined(served: Result) -> None:
    got = json.loads(json.dumps(summarize(served), allow_nan=False))
    assert {"ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s", "goodput", "makespan_s"} <= set(
        got["definitions"]
    )
    assert got["scenario"]["policy"]["name"] == "chunked" and got["scenario"]["policy"]["max_num_seqs"] > 0
    assert got["time"]["gpu_s"] == pytest.approx(
        got["time"]["dense_s"] + got["time"]["decode_attention_s"] + got["time"]["prefill_attention_s"]
    )
    assert got["kv"]["breakdown"]["weight_bytes"] > 10**10


def test_resolved_scenario_runs_to_the_same_result(served: Result) -> None:
    again = simulate(scenario_from(served.summary["scenario"]))
    np.testing.assert_array_equal(again.requests.last, served.requests.last)


# Quantiles.


@given(
    st.lists(st.integers(0, 10**12), max_size=30),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
)
def test_quantiles_agree_with_numpy_and_never_hide_the_infinite(
    values: list[int], missing: int, q: float
) -> None:
    got = quantiles(np.array(values, dtype=np.float64), missing, [q])[0]
    total = len(values) + missing
    if total == 0:
        assert got is None
        return
    needed = int(np.ceil((total - 1) * q))
    if needed >= len(values):
        assert got is None
    else:
        padded = np.array([*values, *[10.0**13] * missing])
        assert got == np.quantile(padded, q)


@given(st.lists(st.integers(1, 10**11), min_size=2, max_size=200))
def test_histogram_quantiles_are_within_half_a_percent(gaps: list[int]) -> None:
    counts = np.bincount([itl_bin(gap) for gap in gaps], minlength=ITL_BINS)
    shares = [q for _, q in PERCENTILES]
    got = histogram_quantiles(counts, shares, float(np.mean(gaps)), float(max(gaps)))
    np.testing.assert_allclose(got, np.quantile(gaps, shares), rtol=0.005, atol=1)


def test_importing_metrics_stays_light() -> None:
    heavy = ("pandas", "matplotlib", "pyarrow")
    code = f"import sys, simulator.metrics.summary; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"

"""The small numbers of a plan and a what-if, worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.planning.bounds import request_seconds_bound, scaled_cost
from simulator.planning.candidate import Candidate
from simulator.planning.fleets import relieved
from simulator.planning.measure import Wanted, measure
from simulator.planning.price import Fleet, bound_key, fleet_of, rank_key
from simulator.planning.search import Outcome
from simulator.planning.spec import PlanSpec, plan_from
from simulator.planning.traffic import asked_rate, busiest_hour_rate, mean_rate, share_of_replica
from simulator.planning.whatif import Overlay, _changed, transformed
from simulator.run import Result, simulate
from simulator.scenario.setup import prepare
from simulator.scenario.spec import Scenario, scenario_from
from simulator.workload.trace import Trace, make_trace

S = 10**9


def textbook(requests: dict[str, Any], **changes: Any) -> Scenario:
    return scenario_from({"workload": {"requests": requests}, "hardware": "unit", "policy": "chunked", **changes})


def done(requests: dict[str, Any], **changes: Any) -> Result:
    return simulate(textbook(requests, **changes), "reference")


def plan_of(**changes: Any) -> PlanSpec:
    arrivals = {"kind": "poisson", "rate": 1, "requests": 10}
    workload = {"arrivals": arrivals, "prompt": 1, "output": 2}
    return plan_from({"workload": workload, "slo": {"e2e_mean_s": 9.0}, **changes})


def candidate(gpu: str = "h100-sxm", tp: int = 1) -> Candidate:
    return Candidate(gpu, tp, None, None, None, "bf16", "bf16", "round_robin")


def fleet(tp: int, replicas: int) -> Fleet:
    return Fleet(candidate(tp=tp), replicas, 0, 2.0, (2.0, 2.0), 1.0, 1.0, 1.0, 1.0)


def test_only_random_arrivals_are_drawn_to_a_rate() -> None:
    lengths = {"prompt": 1, "output": 2}
    asked = [{"kind": "gamma", "rate": 3, "cv": 2, "requests": 10}, {"kind": "constant", "rate": 3, "requests": 10}]
    workloads = [lengths | {"arrivals": each} for each in asked] + [{"requests": {"output": [1, 2]}}]
    assert asked_rate(plan_of()) == 1.0
    assert [asked_rate(plan_of(workload=each)) for each in workloads] == [3.0, None, None]


def test_a_refused_request_is_not_a_good_one() -> None:
    """3 of 4 are answered: 0.75 attain any limit."""
    result = done({"output": [2, 2, 2, 99], "arrival_s": [0.0, 10.0, 20.0, 30.0]}, max_model_len=50)
    assert measure(result, Wanted((), (("e2e", 1e6),)))["attained"] == 0.75
    assert measure(result, Wanted((), ()))["attained"] == 0.75


def test_the_rate_is_gaps_over_their_span() -> None:
    """5 arrivals a second apart: 4 gaps in 4 s, 1 a second; 3 shares of 2 replicas are 0, 2, 4 and 1, 3."""
    trace = make_trace(np.arange(5) * S, 1, 1)
    assert mean_rate(trace) == 1.0
    result = done({"output": [1] * 5, "arrival_s": [0.0, 1.0, 2.0, 3.0, 4.0]})
    assert measure(result, Wanted((), ()))["rate"] == 1.0
    shares = [share_of_replica(trace, "round_robin", 2, index, 0, 0).id.tolist() for index in (0, 1)]
    assert shares == [[0, 2, 4], [1, 3]]


def test_the_busiest_hour_is_the_busiest() -> None:
    """1,000, 3,600 and 1,000 requests in three hours: 1 a second at most."""
    hours = [np.linspace(h * 3600, (h + 1) * 3600 - 1, count) for h, count in enumerate((1000, 3600, 1000))]
    trace = make_trace((np.concatenate(hours) * S).astype(np.int64), 1, 1)
    assert busiest_hour_rate(trace) == 1.0


def test_kv_use_is_blocks_held_over_time() -> None:
    """Blocks of 4, 8 of them: a prompt of 4 and an answer of 4 hold 1, 2, 2, 2 blocks in steps of 1 s: 7/32."""
    kv = {"block_size": 4, "num_gpu_blocks": 9}
    record = measure(done({"prompt": 4, "output": [4]}, kv=kv, max_model_len=8), Wanted((), ()))
    assert record["kv_mean"] == pytest.approx(7 / 32, rel=1e-6)
    assert record["kv_peak"] == 2 / 8


def test_a_month_has_730_hours() -> None:
    """365 days x 24 h / 12 months."""
    assert fleet(1, 1).usd_per_month == pytest.approx(2.0 * 365 * 24 / 12)


def test_fewest_gpus_counts_gpus() -> None:
    """Two replicas of one GPU before one of eight."""
    spec = plan_of(objective="min_gpus")
    assert rank_key(spec, fleet(1, 2), 0.0) < rank_key(spec, fleet(8, 1), 0.0)
    assert bound_key(spec, candidate(tp=8), 3) == 24.0


def test_bound_and_fleet_pay_for_the_spare() -> None:
    """3 replicas serve, 1 may fail, 2 GPUs each at 5 USD/h: 40 USD/h."""
    spec = plan_of(survive=1, prices={"h100-sxm": 5.0})
    assert bound_key(spec, candidate(tp=2), 3) == 40.0
    outcome = Outcome.__new__(Outcome)
    for name, value in {"candidate": candidate(tp=2), "replicas": 3, "range": (3, 3)}.items():
        object.__setattr__(outcome, name, value)
    bought = fleet_of(spec, outcome, (1000.0, 3000.0))
    assert bought.usd_per_hour == 40.0 and bought.gpus == 8
    assert bought.usd_per_million_output == pytest.approx(40 / 3.6)
    assert bought.usd_per_million_total == pytest.approx(40 / 10.8)


def test_the_bound_leaves_out_what_is_cached() -> None:
    """10 of 100 prompt tokens to compute at 1 us each, one output: 10 us."""
    setup = prepare(textbook({"output": [1]}))
    cost = setup.cost._replace(dense_ns=np.tile(np.arange(201) * 1000, (2, 1)))
    setup = replace(setup, cost=cost, limits=setup.limits._replace(max_num_batched_tokens=200, max_model_len=1000))
    assert request_seconds_bound(setup, make_trace([0], 100, 1, cached=90)) == pytest.approx(1e-5)
    assert request_seconds_bound(setup, make_trace([0], 100, 1)) == pytest.approx(1e-4)


def test_relief_and_slower_steps() -> None:
    """A quarter more memory; steps 10 % slower in GPU and CPU time, the front end as before."""
    setup = prepare(textbook({"output": [1]}, kv={"num_gpu_blocks": 1001}))
    assert relieved(setup, "KV memory").limits.num_blocks == 1250
    cost = setup.cost._replace(cpu_ns=np.full((2, 1), 500), frontend_in_ns=np.int64(70))
    slower = scaled_cost(cost, 1.1)
    assert slower.dense_ns.tolist() == [[1_100_000_000]] * 2
    assert slower.cpu_ns.tolist() == [[550]] * 2 and slower.frontend_in_ns == 70


def test_a_good_request_meets_the_strictest_limit() -> None:
    spec = plan_of(slo={"ttft_p50_s": 0.2, "ttft_p99_s": 0.5})
    assert spec.slo.request_limits() == {"ttft": 0.2}
    assert plan_of(slo={"ttft_p99_s": 0.5, "ttft_p50_s": 0.2}).slo.request_limits() == {"ttft": 0.2}


def test_lost_replicas_are_gone() -> None:
    base = textbook({"output": [1]}, cluster={"replicas": 5})
    assert _changed(base, Overlay(name="one lost", lose_replicas=1)).cluster.replicas == 4


def test_a_shorter_prompt_has_no_more_cached_than_it_is_long() -> None:
    trace: Trace = make_trace([0, 5 * S], [100, 10], 4, cached=[80, 0])
    shorter = transformed(trace, Overlay(name="half", prompt_scale=0.5, traffic=2.0))
    assert shorter.prompt.tolist() == [50, 5] and shorter.cached.tolist() == [50, 0]
    assert (shorter.arrival_ns - shorter.arrival_ns[0]).tolist() == [0, 2.5 * S]  # twice the traffic

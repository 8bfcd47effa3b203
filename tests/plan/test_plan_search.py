"""The search: brute force finds nothing cheaper, infeasible plans say why, bounds hold, the cache reuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.metrics.latency import seconds
from simulator.metrics.samples import percentile
from simulator.planning.bounds import fewest_replicas, ready, scaled_cost, step_error
from simulator.planning.cache import PointCache
from simulator.planning.candidate import candidates_of
from simulator.planning.plan import plan
from simulator.planning.points import Bench, Point
from simulator.planning.spec import PlanSpec, plan_from
from simulator.planning.traffic import mean_rate
from simulator.report.plan.data import plain
from simulator.report.plan.words import answer_lines
from simulator.run import simulate
from simulator.scenario.setup import prepare
from simulator.workload.build import build_trace


def chat(**changes: Any) -> PlanSpec:
    """A small plan: chat-like lengths, two GPUs, two batch limits."""
    data: dict[str, Any] = {
        "name": "chat",
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 40, "requests": 6000},
            "prompt": {"kind": "lognormal", "mean": 900, "cv": 1.0, "max": 6000},
            "output": {"kind": "lognormal", "mean": 180, "cv": 0.8, "max": 1500},
        },
        "slo": {"ttft_p95_s": 0.6, "tpot_p95_s": 0.05},
        "max_model_len": 8192,
        "candidates": {
            "gpu": ["h100-sxm", "a100-sxm-80gb"],
            "max_num_seqs": [16, 64],
            "replicas": {"max": 24},
        },
        "prices": {"h100-sxm": 3.0, "a100-sxm-80gb": 1.5},
        "search": {"replications": 3, "calibration_error": 0.03},
    }
    data = {**data, **changes}
    gpus = data["candidates"]["gpu"]
    data["prices"] = {k: v for k, v in data["prices"].items() if k in gpus or k == gpus}
    return plan_from(data)


def whole_fleet_holds(spec: PlanSpec, k: int, replicas: int) -> bool:
    """Brute force, another way: all replicas under the router, numpy's percentiles, step times 3 % slower."""
    candidate = candidates_of(spec)[k]
    found = ready(spec, candidate)
    assert found.setup is not None
    scenario = found.setup.scenario.updated({"cluster.replicas": replicas})
    for replication in range(spec.search.replications):
        setup = prepare(scenario)
        result = simulate(scenario, replication=replication, setup=setup, cost=scaled_cost(setup.cost, 1.03))
        times = {m: seconds(result, f"{m}_s") for m in ("ttft", "tpot")}
        if np.nanpercentile(times["ttft"], 95) > 0.6 or np.nanpercentile(times["tpot"], 95) > 0.05:
            return False
    return True


def test_brute_force_over_the_same_grid_finds_nothing_cheaper() -> None:
    spec = chat()
    best = plan(spec, jobs=1, explain=False).best
    assert best is not None
    price = {"h100-sxm": 3.0, "a100-sxm-80gb": 1.5}
    cheapest = min(
        price[c.gpu] * n
        for k, c in enumerate(candidates_of(spec))
        for n in range(1, 25)
        if price[c.gpu] * n <= best.fleet.usd_per_hour and whole_fleet_holds(spec, k, n)
    )
    assert cheapest <= best.fleet.usd_per_hour  # the answer is feasible by brute force as well
    # the planner asks more than brute force: its interval must clear; one replica is the most that costs
    assert best.fleet.usd_per_hour - cheapest <= price[best.fleet.candidate.gpu]


def test_no_fewer_replicas_than_the_bound_can_keep_up() -> None:
    spec = chat()
    for outcome in plan(spec, jobs=1, explain=False).outcomes:
        if outcome.status == "feasible":
            assert outcome.bound <= outcome.range[0] <= outcome.replicas


def test_the_bound_is_below_the_gpu_time_that_simulations_use() -> None:
    spec = chat()
    trace = build_trace(spec.workload, spec.seed, 0)
    for candidate in candidates_of(spec):
        setup = ready(spec, candidate).setup
        assert setup is not None
        result = simulate(setup.scenario, trace=trace, setup=setup)
        busy = result.totals["gpu"].sum() / 1e9 / len(trace)
        assert fewest_replicas(setup, trace, 1.0 / busy) <= 1


def test_one_replica_on_every_nth_request_is_the_fleet_exactly() -> None:
    spec = chat(candidates={"gpu": "h100-sxm", "router": ["round_robin", "random"]})
    bench = Bench(spec)
    for candidate in candidates_of(spec):
        scenario = bench.setup(candidate).scenario.updated({"cluster.replicas": 3})
        whole = simulate(scenario)
        own = whole.requests.replica == 1
        part = bench.trace(Point(candidate, 3, replication=1))  # replica 1 of 3, but of replication 1's trace
        same = build_trace(spec.workload, spec.seed, 1)
        assert set(part.id) <= set(same.id)
        point = Point(candidate, 3)
        alone = simulate(bench.setup(candidate).scenario, trace=bench.trace(point))
        of_fleet = whole.requests.replica == 0
        first = np.asarray(whole.requests.first)[of_fleet] / 1e9
        assert own.sum() + of_fleet.sum() < len(whole.trace)
        gap = np.abs(first - np.asarray(alone.requests.first) / 1e9)
        # front ends are used in turn: a random replica's requests meet each other there more when it is alone
        assert np.median(gap) < 1e-3 if candidate.router == "random" else not gap.any()


def test_infeasible_names_the_binding_limit_and_the_nearest_point() -> None:
    found = plan(chat(slo={"ttft_p95_s": 0.6, "tpot_p50_s": 0.001}), jobs=1, explain=False)
    assert found.best is None
    assert {o.status for o in found.outcomes} == {"infeasible"}
    near = found.nearest
    assert near is not None and near.best_try is not None
    assert near.best_try.binding.name == "p50 TPOT"
    assert near.candidate.gpu == "h100-sxm"  # the faster memory is the nearest to 1 ms
    # the unloaded step of an 8B model cannot be faster than reading its 15 GB of weights once
    assert near.best_try.binding.interval.mean > 15.0e9 / 3.35e12


def test_the_cap_on_replicas_is_never_the_answer() -> None:
    found = plan(chat(candidates={"gpu": "h100-sxm", "replicas": {"max": 1}}), jobs=1, explain=False)
    assert found.best is None
    assert found.outcomes[0].status == "capped"
    assert 0 < found.outcomes[0].rate_met < 1


def test_a_budget_that_runs_out_is_said() -> None:
    found = plan(chat(search={"max_simulations": 3}), jobs=1, explain=False)
    assert not found.complete
    assert "not finished" in {o.status for o in found.outcomes}


def test_a_model_that_does_not_fit_is_a_reason_not_an_error() -> None:
    found = plan(chat(model="llama-3.1-70b", candidates={"gpu": "h100-sxm", "replicas": [1]}), jobs=1, explain=False)
    assert found.outcomes[0].status == "does not fit"
    assert "needs at least" in found.outcomes[0].reason


def test_survivors_alone_carry_the_load() -> None:
    plain = plan(chat(candidates={"gpu": "h100-sxm"}), jobs=1, explain=False).best
    safe = plan(chat(candidates={"gpu": "h100-sxm"}, survive=2), jobs=1, explain=False).best
    assert plain is not None and safe is not None
    assert safe.fleet.replicas == plain.fleet.replicas + 2
    assert safe.fleet.serving == plain.fleet.serving


def test_exactly_n_gpus() -> None:
    spec = chat(candidates={"gpu": "h100-sxm", "tensor_parallel": [1, 2], "total_gpus": [6]}, objective="min_gpus")
    found = plan(spec, jobs=1, explain=False)
    assert {c.fleet.gpus for c in found.choices} == {6}
    assert {(c.fleet.candidate.tensor_parallel, c.fleet.serving) for c in found.choices} <= {(1, 6), (2, 3)}


def test_objectives_differ() -> None:
    """A100s at a tenth of the price: cheapest is a fleet of many, fewest is one of the faster."""
    prices = {"h100-sxm": 3.0, "a100-sxm-80gb": 0.3}
    cheap = plan(chat(prices=prices), jobs=1, explain=False).best
    few = plan(chat(prices=prices, objective="min_gpus"), jobs=1, explain=False).best
    assert cheap is not None and few is not None
    assert cheap.fleet.candidate.gpu == "a100-sxm-80gb"
    assert few.fleet.candidate.gpu == "h100-sxm"
    assert few.fleet.gpus < cheap.fleet.gpus


def test_stable_over_seeds() -> None:
    sizes = set()
    for seed in (1, 2, 3):
        best = plan(chat(seed=seed, candidates={"gpu": "h100-sxm"}), jobs=1, explain=False).best
        assert best is not None
        sizes.add(best.outcome.replicas)
    assert max(sizes) - min(sizes) <= 1


def test_a_cached_plan_simulates_only_what_changed(tmp_path: Path) -> None:
    cache = PointCache(tmp_path)
    first = plan(chat(), jobs=1, cache=cache, explain=False)
    again = plan(chat(), jobs=1, cache=PointCache(tmp_path), explain=False)
    assert first.simulated > 0 and again.simulated == 0
    assert again.choices[0].fleet == first.choices[0].fleet
    prices = plan(chat(prices={"h100-sxm": 9.0}), jobs=1, cache=cache, explain=False)
    assert prices.simulated <= first.simulated / 2  # new prices may look at a candidate pruned before
    other = plan(chat(candidates={"gpu": "l40s", "max_num_seqs": 64}), jobs=1, cache=cache, explain=False)
    assert other.simulated > 0


def test_the_same_plan_in_one_process_and_in_several() -> None:
    one = plan(chat(candidates={"gpu": "h100-sxm"}), jobs=1, explain=False)
    two = plan(chat(candidates={"gpu": "h100-sxm"}), jobs=2, explain=False)
    assert one.outcomes == two.outcomes


def test_attainment_and_classes() -> None:
    workload = {
        "arrivals": {"kind": "poisson", "rate": 10, "requests": 3000},
        "classes": {
            "chat": {"weight": 4, "prompt": 500, "output": 100},
            "code": {"weight": 1, "prompt": 4000, "output": 50},
        },
    }
    spec = chat(
        workload=workload,
        candidates={"gpu": "h100-sxm"},
        slo={
            "classes": {"chat": {"ttft_p95_s": 0.4}, "code": {"ttft_p95_s": 1.0}},
            "attainment": {"share": 0.9, "ttft_s": 0.8, "tpot_s": 0.05},
        },
    )
    found = plan(spec, jobs=1, explain=False).best
    assert found is not None and found.outcome.judgement is not None
    names = [level.name for level in found.outcome.judgement.levels]
    assert names == ["p95 TTFT (chat)", "p95 TTFT (code)", "requests that miss a limit"]


def test_slower_step_times_never_need_fewer_replicas() -> None:
    sure = plan(chat(candidates={"gpu": "h100-sxm"}), jobs=1, explain=False).best
    unsure = plan(
        chat(candidates={"gpu": "h100-sxm"}, search={"replications": 3, "calibration_error": 0.3}),
        jobs=1,
        explain=False,
    ).best
    assert sure is not None and unsure is not None
    assert unsure.outcome.replicas > sure.outcome.replicas
    assert unsure.outcome.range[0] <= sure.outcome.replicas


def test_error_of_step_times_follows_the_profile() -> None:
    measured, sheet = (
        ready(
            chat(candidates={"gpu": g}, prices={}, search={}),
            candidates_of(chat(candidates={"gpu": g}, prices={}))[0],
        )
        for g in ("h100-sxm", "b200")
    )
    assert 0 < measured.error.relative < sheet.error.relative
    roofline = ready(chat(cost_model="roofline"), candidates_of(chat())[0])
    assert roofline.setup is not None
    assert step_error(roofline.setup).relative == 0.25
    assert step_error(roofline.setup, 0.07).relative == 0.07


@pytest.mark.parametrize("percent", [1.0, 50.0, 99.0, 99.9])
def test_percentile_is_numpys_where_all_finished(percent: float) -> None:
    values = np.sort(np.random.default_rng(3).exponential(size=997))
    assert percentile(values, percent / 100) == pytest.approx(float(np.percentile(values, percent)), rel=1e-12)


def test_percentile_that_touches_a_failed_request_is_infinite() -> None:
    values = np.array([1.0, 2.0, 3.0, np.inf])
    assert percentile(values, 0.5) == 2.5
    assert percentile(values, 0.7) == np.inf


def test_rates_are_those_of_the_trace() -> None:
    spec = chat()
    bench = Bench(spec)
    point = Point(candidates_of(spec)[0], 4, rate=2.0)
    assert mean_rate(bench.trace(point)) == pytest.approx(2 * 40 / 4, rel=0.05)


def test_the_fleet_before_is_named_where_the_list_skips_some() -> None:
    """A replica serves 4 / (0.1 s x 20 tokens) = 2 requests/s: of 1, 2, 4 and 8 it takes 4 for 5/s, and before it are
    2, not 3."""
    arrivals = {"kind": "poisson", "rate": 5, "requests": 2000}
    asked: dict[str, Any] = {
        "workload": {"arrivals": arrivals, "prompt": 1, "output": 20}, "max_model_len": 64, "step_s": 0.1,
        "slo": {"e2e_p90_s": 20}, "candidates": {"gpu": "unit", "max_num_seqs": [4]}}  # fmt: skip
    for counts, line in (([1, 2, 4, 8], "The next smaller fleet, of 2 replicas, does not do: 2 cannot keep up"),
                         ([1, 2, 3, 4], "One replica less does not do: 2 cannot keep up")):  # fmt: skip
        asked["candidates"]["replicas"] = counts
        data = plain(plan(plan_from({"name": "lists", **asked}), jobs=1, explain=False))
        assert any(text.startswith(line) for text in answer_lines(data)), answer_lines(data)

"""Unlike replicas behind one router: against every fleet tried, the same GPU twice, and numbers by hand."""

from dataclasses import replace
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import numpy as np
import pytest
import yaml
from jsonschema import Draft202012Validator
from scipy.optimize import linprog  # type: ignore[import-untyped]

from simulator.errors import ConfigError
from simulator.planning.bounds import fewest_replicas, request_seconds_bound, scaled_cost, step_error
from simulator.planning.budget import affordable, spend
from simulator.planning.candidate import candidates_of
from simulator.planning.plan import Plan, plan
from simulator.planning.points import Bench, Point, Runner
from simulator.planning.price import usd_of, watts_of
from simulator.planning.search import Search
from simulator.planning.spec import PlanSpec, plan_from
from simulator.planning.ways import changed_setup
from simulator.profiles.gpu import load_gpu
from simulator.report.plan.data import plain
from simulator.report.plan.page import render_markdown, render_plan
from simulator.report.plan.words import answer_lines
from simulator.report.schemas import schema_for
from simulator.run import simulate
from simulator.scenario.setup import prepare
from simulator.scenario.spec import scenario_from
from simulator.workload.build import build_trace
from tests.plan.brute import FIRST, level

CHAT = {"arrivals": {"kind": "poisson", "rate": 32, "requests": 1800},
        "prompt": {"kind": "lognormal", "mean": 800, "cv": 1.0, "max": 6000},
        "output": {"kind": "lognormal", "mean": 150, "cv": 0.8, "max": 1200}}  # fmt: skip
OLD = {"gpu": "a100-sxm-80gb", "replicas": 2}


def asked(candidates: dict[str, Any], **more: Any) -> PlanSpec:
    return plan_from({
        "name": "two kinds", "workload": CHAT, "model": "llama-3.1-8b", "max_model_len": 8192,
        "slo": {"ttft_p95_s": 0.6, "tpot_p95_s": 0.05},
        "candidates": {"gpu": "l40s", "router": "least_work", "replicas": {"max": 16}} | candidates,
        "search": {"calibration_error": 0.05, "batch_limits": False}} | more)  # fmt: skip


def fleet(kinds: dict[str, int], router: str = "least_work") -> dict[str, Any]:
    """A scenario of so many replicas of each GPU, written without the planner."""
    pools = {f"p{k}": {"replicas": n, "hardware": {"gpu": gpu}} for k, (gpu, n) in enumerate(kinds.items()) if n}
    return {"name": "fleet", "workload": CHAT, "model": "llama-3.1-8b", "max_model_len": 8192,
            "cluster": {"router": router, "pools": pools}}  # fmt: skip


def holds(spec: PlanSpec, kinds: dict[str, int], error: float, replications: int) -> bool:
    """Every level's mean over replications that the planner never saw within its limit, all steps slower."""
    setup = prepare(scenario_from(fleet(kinds)))
    setup = replace(setup, pools={name: replace(pool, cost=scaled_cost(pool.cost, 1 + error))
                                  for name, pool in setup.pools.items()})  # fmt: skip
    runs = [simulate(setup.scenario, setup=setup, trace=build_trace(spec.workload, spec.seed, k, spec.base))
            for k in range(FIRST, FIRST + replications)]  # fmt: skip
    return all(np.mean([level(run, t) for run in runs]) <= t.max_s for t in spec.slo.targets)


PRICES = {"l40s": 0.79, "h100-sxm": 2.69}


@pytest.fixture(scope="module")
def both() -> Plan:
    spec = asked({"gpu": ["l40s", "h100-sxm"], "beside": [None, OLD | {"price": 0.6}]}, prices=PRICES)
    return plan(spec, jobs=1, explain=False)


def test_no_fleet_of_one_kind_or_two_that_holds_is_cheaper(both: Plan) -> None:
    """Every number of L40S or H100, alone and beside two A100, by numpy's percentiles of 12 other replications: what
    costs less than the fleet bought by more than one replica of its kind does not hold."""
    assert both.best and both.best.fleet.candidate.beside
    bought, tried = both.best.fleet.usd_per_hour, 0
    for gpu, price in PRICES.items():
        for old in (0, 2):
            for own in range(17):
                if own + old and own * price + old * 0.6 + price < bought - 1e-9:
                    tried += 1
                    assert not holds(both.spec, {gpu: own, OLD["gpu"]: old}, 0.05, 12), (gpu, own, old)
    assert tried >= 4


def test_each_pair_has_as_few_as_can_be_or_one_more(both: Plan) -> None:
    assert any(outcome.status == "feasible" and outcome.candidate.beside for outcome in both.outcomes)
    for outcome in both.outcomes:
        if outcome.status == "feasible":
            own, old = outcome.candidate.own(outcome.replicas), 2 if outcome.candidate.beside else 0
            assert holds(both.spec, {outcome.candidate.gpu: own, OLD["gpu"]: old}, 0.05, 12), outcome
            less = {outcome.candidate.gpu: own - 2, OLD["gpu"]: old}
            assert own < 2 or not sum(less.values()) or not holds(both.spec, less, 0.05, 12), outcome


@pytest.mark.parametrize("router", ["least_work", "least_outstanding", "power_of_two"])
def test_beside_the_same_gpu_it_is_one_fleet(router: str) -> None:
    """Two and three of the same GPU are five of them: the same numbers to the bit, faster, slower and relieved."""
    spec = asked({"router": router, "beside": [None, {"gpu": "l40s", "replicas": 2}]})
    plain_one, beside = candidates_of(spec)
    bench = Bench(spec)
    for more in ({}, {"step_factor": 1.05}, {"relief": "compute"}, {"way": ("prompt length", 1.2)}):
        one, two = (bench.run(Point(c, 5, full=True, **more)) for c in (plain_one, beside))
        assert one["values"] == two["values"] and one["worst"] == two["worst"], more
        assert one["attained"] == two["attained"] and one["steps"] == two["steps"]
        assert [two[key] for key in ("cpu_share", "kv_mean", "kv_peak", "slots_mean", "waiting_mean")] == pytest.approx(
            [one[key] for key in ("cpu_share", "kv_mean", "kv_peak", "slots_mean", "waiting_mean")], rel=0.05)


def test_a_plan_beside_the_same_gpu_buys_as_many_less() -> None:
    spec = asked({"beside": [None, {"gpu": "l40s", "replicas": 2}]}, prices={"l40s": 1.0},
                 search={"calibration_error": 0.05, "batch_limits": False, "replications": 2})  # fmt: skip
    found = plan(spec, jobs=1, explain=False)
    one, two = found.outcomes
    assert (one.replicas, one.range, one.bound) == (two.replicas, two.range, two.bound)
    assert [choice.fleet.usd_per_hour for choice in found.choices] == [one.replicas] * 2
    assert one.judgement and two.judgement and one.judgement.levels == two.judgement.levels


def test_the_proved_least_is_that_of_the_best_split() -> None:
    """Least seconds of the own kind over all ways to deal requests out, whole or in parts (scipy's linear program),
    where those beside are busy all the time at the most."""
    lengths = {"prompt": [8000, 10, 900] * 20, "output": [2, 1000, 150] * 20}
    spec = asked({"beside": OLD}, workload={"requests": lengths})
    setup = Bench(spec).setup(candidates_of(spec)[0])
    trace = build_trace(spec.workload, 0, 0, spec.base)
    own, old = (np.array([request_seconds_bound(pool, trace.take(np.array([k]))) for k in range(60)])
                for pool in setup.pools.values())  # fmt: skip
    assert (own / old).max() > 1.5 * (own / old).min()  # L40S compute as fast and read at half the speed of A100
    for rate in (5.0, 30.0, 60.0, 100.0, 250.0):
        span = 60 / rate
        solved = linprog(-own, A_ub=[old], b_ub=[2 * span], bounds=(0, 1), method="highs")
        need = (own.sum() + solved.fun) / span
        assert fewest_replicas(setup, trace, rate) == 2 + np.ceil(need - 1e-6), rate


def test_gpus_dollars_and_watts_are_those_of_both() -> None:
    """3 replicas of 2 H100 at 2 USD and 4 of 1 A100 at 0.9: 10 GPUs, 12 + 3.6 USD/h; paid for, 12."""
    spec = asked({"gpu": "h100-sxm", "tensor_parallel": 2, "beside": [
        {"gpu": "a100-sxm-80gb", "replicas": 4, "price": price} for price in (0.9, 0)]
        + [{"gpu": "a100-sxm-80gb", "replicas": 4}]}, prices={"h100-sxm": 2.0, "a100-sxm-80gb": 1.25})  # fmt: skip
    found = candidates_of(spec)
    assert [usd_of(spec, c, 7) for c in found] == pytest.approx([15.6, 12, 17])
    assert {c.gpus_of(7) for c in found} == {10}
    assert watts_of(found[0], 7) == 6 * load_gpu("h100-sxm").tdp_w + 4 * load_gpu("a100-sxm-80gb").tdp_w
    assert found[1].label == "h100-sxm, TP2, least work, beside 4 a100-sxm-80gb (paid for)"
    assert found[0].counts(spec) == tuple(range(4, 21))
    some = asked({"beside": OLD, "total_gpus": [4, 6]})
    assert candidates_of(some)[0].counts(some) == (4, 6)
    least = asked({"beside": OLD, "replicas": {"min": 2, "max": 4}})
    assert candidates_of(least)[0].counts(least) == (4, 5, 6)


def test_what_a_budget_leaves_for_the_searched_kind() -> None:
    """10 GPUs or 10 USD/h less 2 A100 (at 1.5 each): 8 L40S of 1 USD, or 7; 1 GPU does not pay for the two."""
    beside = {"beside": OLD | {"price": 1.5}}

    def bought(**budget: Any) -> int:
        spec = asked(beside, prices={"l40s": 1.0}, budget=budget)
        return affordable(spec, candidates_of(spec)[0])

    assert [bought(gpus=10), bought(usd_per_hour=10), bought(replicas=5), bought(gpus=2)] == [10, 9, 5, 2]
    spec = asked(beside, prices={"l40s": 1.0}, budget={"gpus": 1})
    data = spend(spec, jobs=1)
    assert data["best"] is None and data["rows"][0]["reason"] == "the budget does not pay for the 2 replicas beside"
    assert not list(Draft202012Validator(schema_for("budget")).iter_errors(data))
    assert data["rows"][0]["gpus"] == data["rows"][0]["usd_per_hour"] == 0 and "beside" not in data["rows"][0]


def test_a_budget_of_two_kinds_carries_what_its_fleet_does() -> None:
    spec = asked({"beside": OLD | {"price": 0}}, prices={"l40s": 1.0}, budget={"usd_per_hour": 1})
    data = spend(spec, jobs=1)
    assert not list(Draft202012Validator(schema_for("budget")).iter_errors(data))
    best = data["best"]
    assert (best["gpus"], best["usd_per_hour"], best["beside"]["own"]) == (3, 1.0, 1)
    candidate = candidates_of(spec)[0]
    traffic = data["traffic"]
    bench = Bench(spec)

    def within(rate: float) -> bool:
        values = bench.run(Point(candidate, 3, rate=rate / traffic, full=True))["values"]
        return bool(values["ttft * 95"] <= 0.6 and values["tpot * 95"] <= 0.05)

    assert within(0.9 * best["carries"]) and not within(1.1 * best["carries"])


def test_each_gpu_has_its_own_error() -> None:
    """L40S and H100 with their profiles' own: one pool's steps grow by one error, the other's by the other."""
    spec = asked({"gpu": "h100-sxm", "beside": {"gpu": "l40s", "replicas": 2}}, search={})
    bench, (candidate,) = Bench(spec), candidates_of(spec)
    ready = bench.ready(candidate)
    assert ready.setup is not None
    errors = [step_error(pool).relative for pool in ready.setup.pools.values()]
    assert errors[0] != errors[1] and ready.error.relative == max(errors)
    slow = bench.setup_of(Point(candidate, 4, step_factor=1 + ready.error.relative, full=True))
    for pool, before, error in zip(slow.pools.values(), ready.setup.pools.values(), errors, strict=True):
        steps = pool.cost.dense_ns[0, 1:] / before.cost.dense_ns[0, 1:]
        assert steps == pytest.approx(1 + error, rel=1e-4)


def test_a_change_of_the_host_reaches_both_pools() -> None:
    spec = asked({"gpu": "h100-sxm", "beside": OLD})
    setup = Bench(spec).setup(candidates_of(spec)[0])
    slower = changed_setup(setup, ("host time", 1.25))
    for name, pool in setup.pools.items():
        assert int(slower.pools[name].cost.cpu_seq_ns) == round(1.25 * int(pool.cost.cpu_seq_ns))


def test_shares_and_peaks_are_those_of_both_pools() -> None:
    """KV peaks of a run are held against each pool's own blocks, as its summary does."""
    spec = asked({"gpu": "l40s", "beside": OLD})
    (candidate,) = candidates_of(spec)
    record = Bench(spec).run(Point(candidate, 3, full=True))
    run = simulate(scenario_from(fleet({"l40s": 1, "a100-sxm-80gb": 2}))).summary
    assert record["values"]["ttft * 95"] == pytest.approx(run["ttft_s"]["p95"])
    assert record["kv_peak"] == pytest.approx(run["kv"]["peak_use"])
    assert 0 < record["bandwidth_share"] + record["compute_share"] + record["cpu_share"] <= 1 + 1e-9


def test_other_replicas_are_another_point() -> None:
    spec = asked({"beside": [OLD, OLD | {"max_num_seqs": 32}, {"gpu": "h100-sxm", "replicas": 2}]})
    keys = {Bench(spec).key(Point(c, 4, full=True)) for c in candidates_of(spec)}
    assert len(keys) == 3


@pytest.fixture(scope="module")
def there() -> Plan:
    """Six A100 that are there and would do alone."""
    spec = asked({"beside": OLD | {"price": 0, "replicas": 6}}, prices={"l40s": 0.79},
                 search={"calibration_error": 0.05, "batch_limits": False, "replications": 2})  # fmt: skip
    return plan(spec, jobs=1, explain=True)


def test_what_does_already_is_not_bought_again(there: Plan) -> None:
    """Six A100 carry it alone: nothing is bought, and the page, the words and the manifest say so."""
    assert there.best and there.best.fleet.candidate.own(there.best.fleet.replicas) == 0
    assert there.best.fleet.usd_per_hour == 0
    data = plain(there)
    assert not list(Draft202012Validator(schema_for("plan")).iter_errors(data))
    assert answer_lines(data)[0].startswith("Buy nothing: 6 replicas of a100-sxm-80gb (paid for): 0.00 USD/h")
    deployment, service = yaml.safe_load_all(data["export"]["kubernetes"])
    assert (deployment["spec"]["replicas"], service["kind"]) == (6, "Service")
    assert "nothing" in render_plan(data) and "Buy nothing" in render_markdown(data)


def test_both_kinds_are_named_and_run(both: Plan) -> None:
    """Two Deployments of their own GPUs behind one Service, by the schema of Kubernetes; both commands."""
    data = plain(both)
    best = data["recommended"]
    own, kind = best["beside"]["own"], best["candidate"]["gpu"]
    assert answer_lines(data)[0].startswith(
        f"Buy {own + 2} GPUs: {own} replica{'s' if own > 1 else ''} of {kind}, least work, beside 2 replicas of "
        f"a100-sxm-80gb: {own * PRICES[kind] + 1.2:.2f} USD/h, ")  # fmt: skip
    first, second, service = yaml.safe_load_all(data["export"]["kubernetes"])
    for part, count in ((first, own), (second, 2)):
        kubernetes_validate.validate(part, "1.33", strict=True)
        assert part["spec"]["replicas"] == count
        labels = part["spec"]["template"]["metadata"]["labels"]
        assert part["spec"]["selector"]["matchLabels"] == labels
        assert labels.items() >= service["spec"]["selector"].items()
    assert first["spec"]["selector"] != second["spec"]["selector"] and first["metadata"] != second["metadata"]
    assert data["export"]["command"].count("vllm serve") == 2
    page = render_plan(data)
    assert f"{own} + 2" in page and "One replica of a100-sxm-80gb:" in page
    known = {load_gpu(gpu).name for gpu in (*PRICES, OLD["gpu"])}
    assert {row["gpu"] for row in data["provenance"]["profiles"]} == known


def test_no_replica_stands_for_unlike_ones(both: Plan) -> None:
    """Every point of such a fleet has all requests: 1,800, not a share of them."""
    runner, candidate = Runner(both.spec, jobs=1), both.outcomes[1].candidate
    Search(both.spec, runner).judged(candidate, 4, 1.0, count=2)
    assert (runner.simulated, runner.requests) == (2, 3600)


@pytest.mark.parametrize(
    ("candidates", "more", "words"),
    [
        ({"router": "round_robin"}, {}, "round_robin gives unlike ones equal shares; accepted for candidates.router: "
         "least_outstanding"),
        ({"router": ["least_work", "random"]}, {}, "random gives unlike ones equal shares"),
        ({}, {"survive": 1}, "survive is not modelled with candidates.beside"),
        ({}, {"spot": {"prices": {"l40s": 1}, "reclaims_per_hour": 1, "replace_s": 60}}, "spot is not modelled with"),
        ({}, {"autoscale": {"metric": "requests", "start": {"weights_s": 1}}}, "autoscale is not modelled with"),
        ({}, {"reserved_prices": {"l40s": 1}}, "reserved_prices is not modelled with candidates.beside"),
        ({"prefill_replicas": 1}, {"link": {"gb_per_s": 25}}, "prefill_replicas is not modelled with"),
        ({"beside": {"gpu": "a101", "replicas": 2}}, {}, "candidates.beside.gpu: unknown GPU 'a101'"),
        ({"beside": OLD | {"weight_dtype": "fp9"}}, {}, r"candidates.beside.weight_dtype: unknown .*did you mean fp8"),
        ({"beside": {"gpu": "l40s", "replicas": 0}}, {}, "replicas must be >= 1, got 0"),
        ({"beside": OLD | {"price": 0}}, {"prices": {"a100-sxm-80gb": 1}}, "prices.a100-sxm-80gb has no effect"),
    ],
)  # fmt: skip
def test_what_is_refused(candidates: dict[str, Any], more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        asked({"beside": OLD} | candidates, **more)


def test_a_gpu_that_does_not_fit_beside_is_a_reason() -> None:
    """70 billion parameters of 2 bytes are more than the 80 GB of one A100."""
    spec = asked({"gpu": "h100-sxm", "tensor_parallel": 4, "beside": OLD}, model="llama-3.1-70b")
    found = Bench(spec).ready(candidates_of(spec)[0])
    assert found.setup is None and "cluster.pools.beside" in found.reason

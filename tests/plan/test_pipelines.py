"""Candidates in pipeline stages: the numbers of `run`, GPUs and dollars of all stages, what is refused by its name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.planning.bounds import RELIEF
from simulator.planning.budget import affordable
from simulator.planning.candidate import candidates_of, scenario_of
from simulator.planning.fleets import relieved
from simulator.planning.plan import plan
from simulator.planning.points import Bench, Point
from simulator.planning.price import Fleet
from simulator.planning.spec import PlanSpec, plan_from
from simulator.planning.ways import changed_setup
from simulator.report.plan.data import plain
from simulator.report.plan.deploy import kubernetes, vllm_flags
from simulator.run import simulate
from simulator.scenario.setup import prepare
from simulator.scenario.spec import scenario_from

WORKLOAD = {"arrivals": {"kind": "poisson", "rate": 10, "requests": 300},
            "prompt": {"kind": "lognormal", "mean": 900, "cv": 1.0, "max": 6000},
            "output": {"kind": "lognormal", "mean": 120, "cv": 0.8, "max": 900}}  # fmt: skip


def asked(candidates: dict[str, Any], **more: Any) -> PlanSpec:
    return plan_from({
        "name": "stages", "workload": WORKLOAD, "model": "llama-3.1-8b", "max_model_len": 8192,
        "slo": {"ttft_p90_s": 0.6, "tpot_p90_s": 0.06},
        "candidates": {"gpu": "h200-sxm", "pipeline_parallel": 2} | candidates} | more)  # fmt: skip


def test_the_numbers_are_those_of_the_same_scenario() -> None:
    spec = asked({"tensor_parallel": 2, "max_num_seqs": 64})
    (candidate,) = candidates_of(spec)
    assert candidate.label == "h200-sxm, TP2, PP2, seqs 64" and candidate.gpus == 4
    found = Bench(spec).run(Point(candidate, 2, full=True))["values"]
    run = simulate(scenario_from({
        "name": "stages", "workload": WORKLOAD, "model": "llama-3.1-8b", "max_model_len": 8192,
        "hardware": {"gpu": "h200-sxm", "tensor_parallel": 2, "pipeline_parallel": 2},
        "policy": {"max_num_seqs": 64}, "cluster": {"replicas": 2}})).summary  # fmt: skip
    assert found["ttft * 90"] == pytest.approx(run["ttft_s"]["p90"], rel=1e-9)
    assert found["tpot * 90"] == pytest.approx(run["tpot_s"]["p90"], rel=1e-9)


def test_every_stage_is_bought_and_paid_for() -> None:
    """1 replica of 2 stages of 2 GPUs at 3 USD an hour: 4 GPUs, 12 USD/h; nine GPUs are two such replicas."""
    spec = asked({"tensor_parallel": 2, "replicas": {"max": 2}}, prices={"h200-sxm": 3.0}, objective="min_gpus",
                 search={"batch_limits": False, "replications": 2, "most_replications": 2})  # fmt: skip
    found = plain(plan(spec, jobs=1, explain=False))
    best = found["recommended"]
    assert (best["replicas"], best["gpus"], best["usd_per_hour"]) == (1, 4, 12.0)
    assert best["candidate"]["pipeline_parallel"] == 2
    bought = asked({"tensor_parallel": 2}, prices={"h200-sxm": 3.0}, budget={"gpus": 9})
    assert affordable(bought, candidates_of(bought)[0]) == 2
    paid = asked({"tensor_parallel": 2}, prices={"h200-sxm": 3.0}, budget={"usd_per_hour": 35.9})
    assert affordable(paid, candidates_of(paid)[0]) == 2
    assert asked({"total_gpus": [4, 8]}).candidates.allowed(candidates_of(spec)[0].gpus) == (1, 2)


def test_the_command_and_the_pods_have_all_stages() -> None:
    """vllm/engine/arg_utils.py: --pipeline-parallel-size; a pod holds tensor x pipeline GPUs."""
    spec = asked({"tensor_parallel": 2})
    (candidate,) = candidates_of(spec)
    setup = prepare(scenario_of(spec, candidate))
    assert "--pipeline-parallel-size=2" in vllm_flags(spec, setup)
    fleet = Fleet(candidate, 3, 0, 10.0, (9.0, 11.0), 1.0, 0.1, 700.0, 0.1)
    assert fleet.gpus == 12
    assert "nvidia.com/gpu: 4" in kubernetes(spec, setup, fleet)
    alone = replace(candidate, pipeline_parallel=1)
    assert not any("pipeline" in flag for flag in vllm_flags(spec, prepare(scenario_of(spec, alone))))


@pytest.mark.parametrize(
    ("candidates", "more", "words"),
    [
        ({"policy": "static"}, {}, "needs a policy that lets requests rest between tokens"),
        ({"tensor_parallel": 4, "pipeline_parallel": 4}, {}, "must be <= 8, the GPUs of one host"),
        ({}, {"cost_model": "roofline"}, "not modelled together with cost_model: roofline"),
        ({}, {"engine": "sglang"}, "modelled as vllm 0.24 runs them, not sglang"),
        ({"draft_tokens": 1}, {"engine": {"name": "vllm-0.24", "speculation": {
            "method": "ngram", "tokens": 1, "acceptance": [0.5]}}}, "not modelled together with engine.speculation"),
        ({"prefill_replicas": 1}, {"link": {"gb_per_s": 25}, "kv": {"prefix_caching": False}},
         "pipeline stages (hardware.pipeline_parallel) are not modelled in prefill and decode pools"),
        ({}, {"model": "qwen2.5-7b"}, "engine.schedule_ahead: 0"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_with_stages_is_a_reason(
    candidates: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    spec = asked(candidates, **more)
    found = Bench(spec).ready(candidates_of(spec)[0])
    assert found.setup is None and words in found.reason


def test_shares_of_time_are_of_all_stages_together() -> None:
    """Reading, computing and neither are the whole time of a replica's GPUs, however many stages they are in."""
    spec = asked({"pipeline_parallel": [1, 2, 4]})
    for candidate in candidates_of(spec):
        record = Bench(spec).run(Point(candidate, 1, full=True))
        shares = [record[name] for name in ("compute_share", "bandwidth_share", "cpu_share")]
        assert sum(shares) == pytest.approx(1, abs=1e-6) and min(shares) > 0


def test_more_of_a_resource_reaches_the_scheduler_and_the_last_stage() -> None:
    spec = asked({})
    setup = Bench(spec).setup(candidates_of(spec)[0])
    assert relieved(setup, "scheduler CPU").cost.plan_ns == int(setup.cost.plan_ns / RELIEF)
    slower = changed_setup(setup, ("host time", 1.25)).cost
    assert slower.plan_ns == round(1.25 * setup.cost.plan_ns)
    assert slower.plan_seq_ns == round(1.25 * setup.cost.plan_seq_ns)
    for resource in ("compute", "bandwidth"):
        cost = relieved(setup, resource).cost
        assert (cost.head_ns / np.maximum(1, cost.dense_ns)) == pytest.approx(
            setup.cost.head_ns / np.maximum(1, setup.cost.dense_ns), abs=1e-6)

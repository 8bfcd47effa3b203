"""Twelve plans against every fleet tried one by one: the planner's answer is that number of replicas, or one more
and it says why (its interval must clear the limit, the mean of more replications need not)."""

from typing import Any

import pytest

from simulator.planning.plan import plan
from simulator.planning.spec import plan_from
from tests.plan.brute import every, truth

CHAT = {
    "prompt": {"kind": "lognormal", "mean": 800, "cv": 1.0, "max": 6000},
    "output": {"kind": "lognormal", "mean": 150, "cv": 0.8, "max": 1200},
}


def poisson(rate: float, requests: int) -> dict[str, Any]:
    return {"arrivals": {"kind": "poisson", "rate": rate, "requests": requests}, **CHAT}


def l40s(rate: float, requests: int, **slo: Any) -> dict[str, Any]:
    return {
        "workload": poisson(rate, requests),
        "slo": slo or {"ttft_p95_s": 0.6, "tpot_p95_s": 0.06},
        "candidates": {"gpu": "l40s", "replicas": {"max": 16}},
    }


CLASSES = {
    "arrivals": {"kind": "gamma", "rate": 8, "cv": 1.5, "requests": 2000},
    "classes": {
        "chat": {"weight": 4, "prompt": 500, "output": 120},
        "code": {"weight": 1, "prompt": 4000, "output": 40},
    },
}
PLANS: dict[str, dict[str, Any]] = {
    "l40s": l40s(14, 2500),
    "short trace": l40s(8, 300, ttft_p90_s=0.5, tpot_p90_s=0.05),
    "random router": l40s(12, 2000) | {"candidates": {"gpu": "l40s", "router": "random", "replicas": {"max": 16}}},
    "4090": l40s(8, 1500, ttft_p95_s=1.0, tpot_p95_s=0.08)
    | {"candidates": {"gpu": "rtx-4090", "weight_dtype": "fp8", "replicas": {"max": 24}}},
    "bursty": l40s(8, 2000)
    | {"workload": {"arrivals": {"kind": "gamma", "rate": 8, "cv": 3.0, "requests": 2000}, **CHAT}},
    "two classes": {
        "workload": CLASSES,
        "slo": {"classes": {"chat": {"ttft_p95_s": 0.5}, "code": {"ttft_p95_s": 1.0}}, "tpot_p90_s": 0.06},
        "candidates": {"gpu": "a100-sxm-80gb", "replicas": {"max": 12}},
    },
    "attainment": l40s(10, 1500)
    | {"slo": {"attainment": {"share": 0.9, "ttft_s": 0.4, "e2e_s": 12}}},
    "least outstanding": l40s(12, 2000)
    | {"candidates": {"gpu": "l40s", "router": "least_outstanding", "replicas": {"max": 16}}},
    "mean wait": l40s(16, 2000, queue_mean_s=0.05)
    | {"candidates": {"gpu": "l40s", "max_num_seqs": 16, "replicas": {"max": 16}}},
    "growth": l40s(6, 2000) | {"growth": 2.5},
    "recorded": {
        "workload": {
            "requests": {
                "prompt": [400 + 137 * k % 900 for k in range(600)],
                "output": [40 + 61 * k % 160 for k in range(600)],
                "arrival_s": [0.56 * (k // 7) + 0.02 * (k % 7) for k in range(600)],
            }
        },
        "slo": {"ttft_p95_s": 0.5, "tpot_p95_s": 0.06},
        "candidates": {"gpu": "l40s", "replicas": {"max": 16}},
    },
}
SEVERAL: dict[str, Any] = {
    "workload": poisson(16, 2000),
    "max_model_len": 8192,
    "slo": {"ttft_p95_s": 0.6, "tpot_p95_s": 0.05},
    "candidates": {
        "gpu": ["l40s", "a100-sxm-80gb"], "max_num_batched_tokens": [512, 2048], "replicas": {"max": 16},
    },
    "prices": {"l40s": 0.8, "a100-sxm-80gb": 1.4},
    "search": {"calibration_error": 0.05, "batch_limits": False},
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_the_answer_is_the_fewest_that_hold(name: str) -> None:
    data = {"max_model_len": 8192, "search": {"calibration_error": 0.05}, **PLANS[name]}
    spec = plan_from({"name": name, **data})
    outcome = plan(spec, jobs=1, explain=False).outcomes[0]
    found = truth(spec, outcome.candidate, 0.05, around=outcome.replicas or 1)
    assert outcome.status == "feasible" and found.replicas is not None, (outcome.status, outcome.reason, found)
    assert outcome.replicas - found.replicas in (0, 1), (found.replicas, outcome.replicas, outcome.fewer)
    if outcome.replicas > found.replicas:
        assert outcome.fewer


def test_the_best_is_the_cheapest_of_every_fleet_of_every_candidate() -> None:
    """Two GPUs with two token budgets each: no fleet that holds is cheaper, but for one replica of the one bought."""
    spec = plan_from({"name": "several", **SEVERAL})
    found = plan(spec, jobs=1, explain=False)
    assert found.best is not None
    bought = found.best.fleet
    tried = {o.candidate: o.replicas or 1 for o in found.outcomes}
    cheapest = min(
        holds.replicas * spec.prices[holds.candidate.gpu] * holds.candidate.gpus
        for holds in (truth(spec, c, 0.05, around=tried[c]) for c in every(spec))
        if holds.replicas is not None
    )
    assert 0 <= bought.usd_per_hour - cheapest <= spec.prices[bought.candidate.gpu] * bought.candidate.gpus + 1e-9

"""LoRA adapters in plans: memory and step times worked by hand, and the other fleets as plans made apart."""

import re
from typing import Any

import pytest

from simulator.errors import ConfigError
from simulator.planning.adapters import decode_step_s
from simulator.planning.bounds import ready
from simulator.planning.budget import spend
from simulator.planning.candidate import candidates_of
from simulator.planning.plan import Plan, plan
from simulator.planning.spec import PlanSpec, plan_from
from simulator.report.plan.data import plain
from simulator.report.plan.page import render_markdown, render_plan
from simulator.report.plan.words import answer_lines

TENANTS = {
    "workload": {"arrivals": {"kind": "poisson", "rate": 30, "requests": 700}, "prompt": 900,
                 "output": {"kind": "lognormal", "mean": 200, "cv": 0.9, "max": 1500}},
    "model": "llama-3.1-8b", "max_model_len": 8192, "slo": {"tpot_p90_s": 0.025},
    "search": {"replications": 2, "batch_limits": False},
}  # fmt: skip
LORA = {"max_loras": 12, "rank": 16, "adapters": 12}


def tenants(**changes: Any) -> PlanSpec:
    return plan_from(TENANTS | {"engine": {"name": "vllm-0.24", "lora": LORA},
                                "candidates": {"gpu": "h200-sxm"}} | changes)  # fmt: skip


def bought(**changes: Any) -> Plan:
    """A plan without adapters."""
    return plan(plan_from(TENANTS | {"engine": "vllm-0.24", "candidates": {"gpu": "h200-sxm"}} | changes), jobs=1,
                explain=False)  # fmt: skip


def test_slots_in_kv_blocks_by_hand() -> None:
    """Llama 3.1 8B: 32 layers, hidden 4096, q 4096, k and v 1024 each, feed-forward 14336, two bytes a number.

    First matrices (inputs of q, k, v, o, gate, up, down): 5 x 4096 + 4096 + 14336 = 38912 rows; second ones
    (outputs): 4096 + 2 x 1024 + 4096 + 2 x 14336 + 4096 = 43008. (38912 + 43008) x 16 x 32 x 2 bytes = 80 MiB a slot
    of rank 16. A token's KV is 2 x 1024 x 32 x 2 bytes = 128 KiB, a block of 16 of them 2 MiB: 40 blocks a slot of
    rank 16, 20 of rank 8.
    """
    blocks = {}
    spec = tenants(candidates={"gpu": "h200-sxm", "max_loras": [12, 48]})
    for candidate in candidates_of(spec):
        found = ready(spec, candidate)
        assert found.setup is not None
        blocks[candidate.label] = found.setup.limits.num_blocks
    plain_spec = tenants(engine="vllm-0.24")
    without = ready(plain_spec, candidates_of(plain_spec)[0]).setup
    half_spec = tenants(engine={"name": "vllm-0.24", "lora": LORA | {"rank": 8}})
    half = ready(half_spec, candidates_of(half_spec)[0]).setup
    assert without is not None and half is not None
    assert without.limits.num_blocks - blocks["h200-sxm, 12 adapter slots"] == 12 * 40
    assert without.limits.num_blocks - blocks["h200-sxm, 48 adapter slots"] == 48 * 40
    assert without.limits.num_blocks - half.limits.num_blocks == 12 * 20


def test_each_further_adapter_of_a_step_takes_as_long_as_measured() -> None:
    """docs/scenarios.md: 0.34 ms for each adapter that a step meets beyond the first. 21 sequences of 12 tenants meet
    12 (1 - (11 / 12)^21) = 10.07 of them."""

    def step(adapters: int) -> float:
        spec = tenants(engine={"name": "vllm-0.24", "lora": LORA | {"adapters": adapters}})
        setup = ready(spec, candidates_of(spec)[0]).setup
        assert setup is not None
        return decode_step_s(setup.cost, 21, 1000.0)

    met = 12 * (1 - (11 / 12) ** 21)
    assert step(12) - step(1) == pytest.approx(0.34e-3 * (met - 1), rel=0.01)
    assert 1.5e-3 <= step(1) - step(0) <= 3.3e-3


def test_the_other_fleets_are_those_of_plans_made_apart() -> None:
    """No adapters: the plan without engine.lora. A fleet for each: twelve of that plan at a twelfth of the rate."""
    found = plan(tenants(survive=1), jobs=1, explain=False)
    assert found.best is not None and found.answer is not None
    row = found.answer.adapters
    without, alone = bought(survive=1).best, bought(survive=1, growth=1 / 12).best
    assert row is not None and without is not None and alone is not None
    assert row["without"]["replicas"] == without.fleet.replicas < found.best.fleet.replicas
    assert row["apart"]["each"] == alone.fleet.replicas and row["apart"]["gpus"] == 12 * alone.fleet.gpus
    assert row["apart"]["usd_per_hour"] == pytest.approx(12 * alone.fleet.usd_per_hour)
    data = plain(found)
    text = " ".join(answer_lines(data))
    assert f"A fleet for each of the 12 adapters, merged into its weights: 12 x {alone.fleet.replicas} replicas" in text
    assert "480 of " in text
    for page in (render_plan(data), render_markdown(data)):
        assert f"a fleet for each of 12 adapters: {row['apart']['replicas']} replicas" in page
    assert "--max-loras=12" in data["export"]["command"]


def test_a_budget_carries_less_with_adapters() -> None:
    with_them = spend(tenants(budget={"gpus": 1}), jobs=1, explain=False)["best"]
    without = spend(tenants(budget={"gpus": 1}, engine="vllm-0.24"), jobs=1, explain=False)["best"]
    assert 0 < with_them["carries"] < without["carries"]


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"engine": "vllm-0.24", "candidates": {"max_loras": 4}}, "candidates.max_loras needs engine.lora"),
        ({"candidates": {"max_loras": [8, 16]}}, r"must be >= engine.lora.adapters \(12; loading them in turn"),
        ({"candidates": {"max_loras": 0}}, "must be >= 1, got 0"),
        ({"engine": {"lora": {"adapters": 3}}}, "adapters must be <= max_loras"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        tenants(**changes)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"candidates": {"gpu": "h200-sxm", "tensor_parallel": 2}}, "adapters are modelled on one GPU"),
        ({"candidates": {"gpu": "h200-sxm", "pipeline_parallel": 2}}, "stages are not modelled .* engine.lora"),
        ({"engine": {"name": "vllm-0.10", "lora": LORA}}, "modelled for engine vllm-0.24"),
        ({"model": "qwen3-30b-a3b"}, "adapters on experts are not modelled"),
        ({"engine": {"name": "vllm-0.24", "lora": LORA | {"rank": 32}}}, "rank must be <= 16"),
        ({"cost_model": "roofline"}, "engine.lora has no effect with cost_model: roofline"),
    ],
)
def test_a_candidate_that_is_not_modelled_says_why(changes: dict[str, Any], text: str) -> None:
    found = plan(tenants(**changes), jobs=1, explain=False)
    assert [o.status for o in found.outcomes] == ["does not fit"]
    assert re.search(text, found.outcomes[0].reason), found.outcomes[0].reason


def test_a_plan_without_adapters_says_nothing_of_them() -> None:
    found = bought(workload=TENANTS["workload"] | {"arrivals": {"kind": "poisson", "rate": 2, "requests": 100}})  # type: ignore[operator]
    assert found.answer is not None and found.answer.adapters is None
    assert "adapter" not in " ".join(answer_lines(plain(found)))

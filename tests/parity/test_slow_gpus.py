"""The engines agree on whole scenarios of real profiles: long prompts on slow GPUs, where products are largest, with
samplers and adapters."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.errors import CapacityError
from simulator.run import simulate
from simulator.scenario.spec import scenario_from

GPUS = ("dgx-spark", "a10g", "l4", "rtx-4090", "h100-sxm")
MODELS = (("qwen2.5-7b", 1), ("llama-3.1-8b", 1), ("llama-3.1-8b", 8), ("llama-3.1-70b", 8))
"""(model, tensor_parallel)"""
SAMPLERS = ("greedy", "top_p", "top_k", "top_k_top_p")


@st.composite
def scenarios(draw: Any) -> dict[str, Any]:
    """Few requests, prompts up to the model's length; blocks enough for one or two of them."""
    n = draw(st.integers(1, 4))
    model, tp = draw(st.sampled_from(MODELS))
    lengths = st.integers(1, 17).flatmap(lambda bits: st.integers(1, 2**bits - 1))
    policy: dict[str, Any] = {"name": draw(st.sampled_from(("static", "orca", "vllm_v0", "chunked")))}
    policy["max_num_seqs"] = draw(st.integers(1, 4))
    cost_model = draw(st.sampled_from(("calibrated", "roofline")))
    engine: dict[str, Any] = {}
    if cost_model == "calibrated":  # what only it has tables of
        engine["sampling"] = draw(st.sampled_from(SAMPLERS))
        held = draw(st.integers(0, 8)) if tp == 1 else 0
        if held:
            engine["lora"] = {"max_loras": held, "rank": draw(st.sampled_from((8, 16))),
                              "adapters": draw(st.integers(0, held))}
    return {
        "workload": {"requests": {
            "prompt": draw(st.lists(lengths, min_size=n, max_size=n)), "output": draw(st.lists(st.integers(1, 4),
            min_size=n, max_size=n)), "arrival_s": sorted(draw(st.lists(st.floats(0, 3), min_size=n, max_size=n)))}},
        "model": model,
        "hardware": {"gpu": draw(st.sampled_from(GPUS)), "weight_dtype": draw(st.sampled_from(("bf16", "int4"))),
                     "tensor_parallel": tp},
        "kv": {"num_gpu_blocks": draw(st.sampled_from((9_000, 20_000)))}, "policy": policy,
        "cost_model": cost_model, "engine": engine,
    }  # fmt: skip


def agree(given_: dict[str, Any]) -> None:
    scenario = scenario_from(given_)
    try:
        first = simulate(scenario, "reference", log=True)
    except CapacityError:
        return
    second = simulate(scenario, "fast", log=True)
    assert all(np.array_equal(a, b) for a, b in zip(first.requests, second.requests, strict=True))
    for name in ("totals", "itl", "rows_time", "log"):
        assert np.array_equal(getattr(first, name), getattr(second, name)), name


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_=scenarios())
def test_engines_agree_on_long_prompts(given_: dict[str, Any]) -> None:
    agree(given_)


@pytest.mark.nightly
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_=scenarios())
def test_engines_agree_on_long_prompts_nightly(given_: dict[str, Any]) -> None:
    agree(given_)

"""Candidates with drafts, and fleets in which some replicas compute prompts and the rest go on: steps by hand."""

from typing import Any

import pytest

from simulator.errors import ConfigError
from simulator.planning.bounds import RELIEF
from simulator.planning.candidate import candidates_of
from simulator.planning.fleets import relieved, resized
from simulator.planning.plan import plan
from simulator.planning.points import Bench, Point
from simulator.planning.spec import PlanSpec, plan_from

SPECULATION = {"method": "ngram", "tokens": 3, "acceptance": [1.0, 1.0, 1.0]}


def textbook(candidates: dict[str, Any], **more: Any) -> PlanSpec:
    """One request of 4 prompt and 9 output tokens, on GPUs whose every step takes 1 s."""
    return plan_from({
        "workload": {"requests": {"prompt": [4], "output": [9]}}, "max_model_len": 64, "slo": {"e2e_mean_s": 60},
        "kv": {"prefix_caching": False}, "candidates": {"gpu": "unit", "max_num_batched_tokens": 64} | candidates,
    } | more)  # fmt: skip


def times(spec: PlanSpec, replicas: int = 1, factor: float = 1.0) -> list[tuple[float, float]]:
    """(TTFT, E2E) [s] of the one request under each candidate."""
    bench = Bench(spec)
    found = [bench.run(Point(c, replicas, step_factor=factor, full=True))["values"] for c in candidates_of(spec)]
    return [(values["ttft * mean"], values["e2e * mean"]) for values in found]


def test_drafts_that_are_always_right_are_so_many_steps_less() -> None:
    """The prompt's step yields 1 token; the other 8 take 8 steps, 4 with one draft and 2 with three."""
    spec = textbook({"draft_tokens": [0, 1, 3]}, engine={"name": "vllm-0.24", "speculation": SPECULATION})
    assert times(spec) == [(1, 9), (1, 5), (1, 3)]
    assert [c.label for c in candidates_of(spec)][1:] == ["unit, tokens 64, 1 draft", "unit, tokens 64, 3 drafts"]


def test_a_prompt_computed_elsewhere_is_sent_once_and_the_link_is_no_slower_for_slower_steps() -> None:
    """One step, 0.5 s on the link, 8 steps; with steps of 2 s: 2 + 0.5 + 16."""
    spec = textbook({"prefill_replicas": [0, 1, 2]}, link={"gb_per_s": 1e6, "latency_s": 0.5})
    assert times(spec, replicas=3) == [(1, 9), (1, 9.5), (1, 9.5)]
    assert times(spec, replicas=3, factor=2.0)[1] == pytest.approx((2, 18.5))


def test_every_pool_is_resized_and_relieved() -> None:
    spec = textbook({"gpu": "h100-sxm", "prefill_replicas": 2}, link={"gb_per_s": 25})
    setup = Bench(spec).setup(candidates_of(spec)[0])
    fleet = resized(setup, 7)
    assert {name: pool.scenario.cluster.replicas for name, pool in fleet.pools.items()} == {"prefill": 2, "decode": 5}
    assert fleet.scenario.cluster.size == 7
    more, slots = relieved(setup, "KV memory"), relieved(setup, "slots")
    for name, pool in setup.pools.items():
        assert more.pools[name].limits.num_blocks == int(RELIEF * pool.limits.num_blocks)
        assert slots.pools[name].limits.max_num_seqs == int(RELIEF * pool.limits.max_num_seqs)
        assert slots.pools[name].limits.hand_over == more.pools[name].limits.hand_over == int(name == "prefill")


def test_what_decides_a_point_is_in_its_key() -> None:
    """Points are kept between plans: drafts that are right less often, or another link, are other points."""
    less = SPECULATION | {"acceptance": [1.0, 0.5, 0.2]}
    specs = [textbook({}, engine={"name": "vllm-0.24", "speculation": spec}) for spec in (SPECULATION, less)]
    specs += [textbook({"prefill_replicas": 1}, link={"gb_per_s": gb}) for gb in (10, 20)]
    keys = [Bench(spec).key(Point(candidates_of(spec)[0], 3, full=True)) for spec in specs]
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    ("candidates", "more", "words"),
    [
        ({"draft_tokens": [0, 2]}, {}, "draft_tokens needs engine.speculation"),
        ({"draft_tokens": 4}, {"engine": {"speculation": SPECULATION}}, "of 4 drafts are right; accepted: 0, 1, 2, 3"),
        ({"draft_tokens": 2}, {"engine": {"speculation": {"method": "ngram", "tokens": 3, "tokens_per_step": 2}}},
         "of 2 drafts are right; accepted: 0, 3"),
        ({"draft_tokens": -1}, {}, "must be >= 0, got -1"),
        ({"prefill_replicas": 1}, {}, "needs link"),
        ({}, {"link": {"gb_per_s": 1}}, "link has no effect"),
        ({"prefill_replicas": 1}, {"link": {"gb_per_s": 1}, "survive": 1}, "survive is not modelled"),
    ],
)  # fmt: skip
def test_what_is_refused(candidates: dict[str, Any], more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        textbook(candidates, **more)


def test_more_for_prompts_than_replicas_allowed_is_said() -> None:
    spec = textbook({"prefill_replicas": 5, "replicas": {"max": 3}}, link={"gb_per_s": 25},
                    workload={"requests": {"prompt": [4, 4], "output": [9, 9]}})
    (outcome,) = plan(spec).outcomes
    assert (outcome.status, outcome.reason) == (
        "infeasible", "fewer replicas are allowed than it takes beside the 5 for prompts")

"""The two capacity policies of TensorRT-LLM, worked out by hand on steps of 10 ns; parity and oracle test the rest."""

import pytest
from parity.cases import Case, run

from policies.registry import ORDERS
from simulator.cost.unit import unit_cost
from simulator.state import REJECTED_BUDGET, Limits


def case(policy: str, prompt: list[int], output: list[int], limit: list[int], **limits: int) -> Case:
    """Requests that come at 0, on 4 KV blocks of 4 tokens."""
    known = {"max_num_seqs": 4, "max_num_batched_tokens": 100, "long_prefill_token_threshold": 0, "watermark_blocks": 0,
             "reserve_prompt": 0, "block_size": 4, "num_blocks": 4, "max_model_len": 1000, "contiguous": 0,
             "reserve_tokens": 0, "batch_window": 0, "length_bucket": 0, "stream": 1, "schedule_ahead": 0,
             "whole_prompt": 1, "order": ORDERS[policy]} | limits  # fmt: skip
    n = len(prompt)
    return Case(policy, (0,) * n, tuple(prompt), tuple(output), tuple(limit), (0,) * n, (0,) * n, Limits(**known),
                unit_cost(10))  # fmt: skip


@pytest.mark.parametrize(("policy", "last", "preempted", "prefill"), [
    ("guaranteed_no_evict", [80, 160], [0, 0], 8), ("max_utilization", [80, 110], [0, 1], 17)])
def test_two_answers_of_eight_where_one_fits(
        policy: str, last: list[int], preempted: list[int], prefill: int) -> None:
    """Prompts of 4, answers of 8: 3 blocks each. Not evicting, the second waits until the first has ended. Else both
    start; the first's ninth token, at 50, finds no block and pauses the second, which computes 4 + 5 tokens at 80."""
    done = run(case(policy, [4, 4], [8, 8], [8, 8]), "reference")
    assert done.req.last.tolist() == last
    assert done.req.preempted.tolist() == preempted
    assert done.stats["prefill"][0] == prefill


@pytest.mark.parametrize(("policy", "second"), [("guaranteed_no_evict", 10), ("max_utilization", 0)])
def test_what_is_asked_for_is_reserved_not_what_is_answered(policy: str, second: int) -> None:
    """One-token answers that may have had 8: 3 blocks are kept for the first all the same."""
    done = run(case(policy, [4, 4], [1, 1], [8, 8]), "reference")
    assert done.req.scheduled.tolist() == [0, second]


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
def test_prompts_are_computed_whole_beside_those_that_decode(policy: str) -> None:
    """7 tokens a step: prompts of 4 and 3 fill it, the next of 6 goes beside one decode, a fourth of 7 with nobody; one
    of 8 can never run."""
    done = run(case(policy, [4, 3, 6, 7, 8], [2, 1, 3, 1, 1], [2, 1, 3, 1, 1], num_blocks=100,
                    max_num_batched_tokens=7), "reference")
    assert done.req.scheduled.tolist()[:4] == [0, 0, 10, 40]
    assert done.req.last.tolist()[:4] == [20, 10, 40, 50]
    assert done.req.status[4] == REJECTED_BUDGET

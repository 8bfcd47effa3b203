"""TGI's batching rules, worked out by hand on steps of 10 ns; parity and oracle test the rest."""

import pytest
from parity.cases import Case, run

from policies.tgi import ONE
from simulator.cost.unit import unit_cost
from simulator.state import Limits


def case(arrival: list[int], prompt: list[int], output: list[int], limit: list[int], **limits: int) -> Case:
    known = {"max_num_seqs": 8, "max_num_batched_tokens": 100, "long_prefill_token_threshold": 0, "watermark_blocks": 0,
             "reserve_prompt": 0, "block_size": 4, "num_blocks": 100, "max_model_len": 1000, "contiguous": 0,
             "reserve_tokens": 0, "batch_window": 0, "length_bucket": 0, "stream": 1, "schedule_ahead": 0,
             "whole_prompt": 1, "served_ratio": ONE, "max_waiting_tokens": 3} | limits  # fmt: skip
    n = len(arrival)
    return Case("tgi", tuple(arrival), tuple(prompt), tuple(output), tuple(limit), (0,) * n, (0,) * n, Limits(**known),
                unit_cost(10))  # fmt: skip


@pytest.mark.parametrize(("ratio", "waiting", "third"), [(1.0, 3, 40), (0.5, 3, 30), (1.0, 2, 30), (1.0, 20, 60)])
def test_enough_that_wait_or_long_enough(ratio: float, waiting: int, third: int) -> None:
    """The first prompt at 0, the second right after it at 10, since one waits for one that runs; then a decode, to 30.
    The third came at 22: two run, so it is enough for half of them at 30; for all of them only when 2 steps (30) or 3
    (40) have passed since the second was taken in, or when that has ended, with its fifth token at 60."""
    done = run(case([0, 5, 22], [4, 4, 4], [9, 5, 1], [9, 5, 1], served_ratio=round(ratio * ONE),
                    max_waiting_tokens=waiting), "reference")  # fmt: skip
    assert done.req.scheduled.tolist() == [0, 10, third]
    assert done.req.last[2] == third + 10
    assert done.req.last[0] == 110  # nine tokens, two steps for others' prompts


def test_a_decode_step_follows_each_interruption() -> None:
    """A prompt of 4 fills a step. The first two go one after the other, the third only after a token for both."""
    done = run(case([0, 0, 0], [4, 4, 4], [5, 5, 5], [5, 5, 5], max_num_batched_tokens=4, served_ratio=0),
               "reference")
    assert done.req.scheduled.tolist() == [0, 10, 30]


def test_memory_for_the_longest_answer_is_kept() -> None:
    """4 + 9 - 1 tokens are 3 blocks of 4; of 5 the second finds 2 and waits for the end of the first, though it answers
    with one token only."""
    done = run(case([0, 0], [4, 4], [4, 1], [9, 9], num_blocks=5), "reference")
    assert done.req.scheduled.tolist() == [0, 40]
    assert not done.req.preempted.any()

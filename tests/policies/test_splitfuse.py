"""Dynamic SplitFuse by hand, on steps of 10 ns with blocks of 4 tokens; parity and oracle test the rest."""

from parity.cases import run
from unit.steps import ENGINES, requests, times


@ENGINES
def test_prompts_are_composed_to_fill_the_budget_exactly(engine: str) -> None:
    """10 tokens a step: prompt 4 and 6 of 12; a decode, the other 6 and 3 of 5; a decode and 2. Long prompts take
    several passes and short ones are put together (arXiv 2401.08671, section 3.2)."""
    done = run(requests([0, 0, 0], [4, 12, 5], [3, 1, 1], "splitfuse", max_num_batched_tokens=10), engine)
    assert times(done) == ([0, 0, 10], [10, 20, 30], [30, 20, 30])
    assert [(row["decode"], row["prefill_tokens"]) for row in done.logged] == [(0, 10), (1, 9), (1, 2)]


@ENGINES
def test_a_prompt_is_taken_in_when_all_of_it_finds_memory(engine: str) -> None:
    """4 blocks: 2 are free beside the first prompt, the second needs 3 in all, one for the 2 tokens that the budget
    leaves. So it waits for the end of the first, where `chunked` takes it in at once."""
    lim = {"num_blocks": 4, "max_num_batched_tokens": 10}
    assert times(run(requests([0, 0], [8, 12], [5, 1], "splitfuse", **lim), engine))[0] == [0, 50]
    assert times(run(requests([0, 0], [8, 12], [5, 1], "chunked", **lim), "reference"))[0] == [0, 0]


@ENGINES
def test_a_decode_without_a_block_waits_and_preempts_nobody(engine: str) -> None:
    """Two prompts hold all 4 blocks. The second token of the first needs another, that of the second has room: it ends
    at 20, and the first goes on with what it gives back."""
    done = run(requests([0, 0], [8, 7], [2, 2], "splitfuse", num_blocks=4), engine)
    assert times(done)[2] == [30, 20] and not done.req.preempted.any()


@ENGINES
def test_when_nobody_can_go_on_all_begin_again(engine: str) -> None:
    """Both need a fifth block: all is dropped at 10, 8 tokens and 1 of the first are computed, then of the second."""
    done = run(requests([0, 0], [8, 8], [2, 2], "splitfuse", num_blocks=4), engine)
    assert times(done)[2] == [20, 30] and done.req.preempted.tolist() == [1, 1]
    assert done.stats["prefill"][0] == 8 + 8 + 9 + 9

"""FastServe by hand, on steps of 10 ns with blocks of 4 tokens; parity and oracle test the rest."""

from typing import Any

import numpy as np
import pytest
from parity.cases import run
from unit.steps import ENGINES, requests, times

from simulator import scenario_from, simulate
from simulator.cost.step import prefill_attention_time, table_at
from simulator.scenario.setup import prepare


def served(arrival: list[int], prompt: list[int], output: list[int], joins: list[int] | None = None,
           **limits: int) -> Any:  # fmt: skip
    known = {"quantum": 20, "starvation": 10**6, "max_batch": 1} | limits
    asks = (("joins", tuple(joins or [0] * len(arrival))),)
    return requests(arrival, prompt, output, "fastserve", more={"asks": asks}, whole_prompt=1, **known)


@ENGINES
def test_who_has_run_for_longer_than_its_quantum_goes_down(engine: str) -> None:
    """One at a time; 20 ns on the first level. At 30 the first has run 30 and goes down; the second, which came at 5,
    runs then, and the first after it. The third comes at 35 and passes it too."""
    done = run(served([0, 5, 35], [1, 1, 1], [5, 1, 1]), engine)
    assert times(done) == ([0, 30, 40], [10, 40, 50], [70, 40, 50])
    assert done.req.level.tolist() == [1, 0, 0] and not done.req.preempted.any()


@ENGINES
@pytest.mark.parametrize(("joins", "first"), [(0, 40), (1, 60)])
def test_a_long_prompt_joins_further_down(joins: int, first: int, engine: str) -> None:
    """On the second level the first, which came before it, goes before it once it is there too; on the first it
    does not."""
    assert times(run(served([0, 5], [1, 1], [5, 1], [0, joins]), engine))[1][1] == first


@ENGINES
def test_the_next_level_has_twice_the_time(engine: str) -> None:
    """The first goes down at 30, and at 80, when it has run for more than 40 there. The second has waited for that."""
    assert times(run(served([0, 5], [1, 1], [12, 1], [0, 1]), engine))[1][1] == 90


@ENGINES
@pytest.mark.parametrize(("starvation", "last"), [(25, 60), (10**6, 120)])
def test_who_waits_for_long_enough_goes_up(starvation: int, last: int, engine: str) -> None:
    """The first goes down at 30, a token short, and is passed by all that come. At 50 its last step began 30 ago."""
    done = run(served([0, 25, 45, 65, 85], [1] * 5, [4, 2, 2, 2, 2], starvation=starvation), engine)
    assert times(done)[2][0] == last


@ENGINES
def test_the_lowest_makes_room_in_host_memory(engine: str) -> None:
    """4 blocks, quantum 5. A prompt of 5 holds 2, on the third level, when one of 12, which needs 3, comes at 25.
    Its 2 blocks are copied out in 6 before the step of 30 and back in 6 before that of 56."""
    done = run(served([0, 25], [5, 12], [4, 2], quantum=5, max_batch=2, num_blocks=4, swap_blocks=99, swap_ns=3),
               engine)
    assert times(done) == ([0, 30], [10, 46], [72, 56])
    stats = done.stats[0]
    assert (stats["swapped_out"], stats["swapped_in"], stats["copies"], stats["prefill"]) == (2, 2, 12, 17)


@ENGINES
def test_without_room_on_the_host_it_is_computed_again(engine: str) -> None:
    """As above, with a host memory of one block: 5 tokens and 3 of the answer are computed once more."""
    done = run(served([0, 25], [5, 12], [4, 2], quantum=5, max_batch=2, num_blocks=4, swap_blocks=1, swap_ns=3), engine)
    assert times(done) == ([0, 30], [10, 40], [60, 50])
    assert (done.stats["swapped_out"][0], done.stats["prefill"][0]) == (0, 5 + 12 + 8)


@ENGINES
def test_memory_is_kept_free_beside_a_step(engine: str) -> None:
    """One at a time, so one block is kept free. The second takes the last of 4 blocks at 10, and the 3 of the first,
    which is passed, are copied out beside that step: it takes 10 all the same. At 20 they come back, in 9."""
    done = run(served([0, 5], [9, 1], [2, 1], quantum=5, num_blocks=4, swap_blocks=99, swap_ns=3), engine)
    assert times(done) == ([0, 10], [10, 20], [39, 20])
    assert (done.stats["swapped_out"][0], done.stats["copies"][0]) == (3, 9)


def test_requests_join_the_level_of_their_prompts_time() -> None:
    """The first level of 0.01 s, doubled from one to the next, that is no shorter than the prompt's step alone."""
    data = {"workload": {"requests": {"prompt": [10, 500, 4000], "output": [2, 2, 2]}}, "model": "llama-3.1-8b",
            "hardware": "l40s", "policy": "fastserve", "max_model_len": 8192}
    setup = prepare(scenario_from(data))
    done = simulate(scenario_from(data), "reference")
    for tokens, level in zip((10, 500, 4000), done.requests.joins.tolist(), strict=True):
        gpu = int(np.interp(tokens, np.arange(setup.cost.dense_ns.shape[1]), setup.cost.dense_ns[1]))
        time = gpu + prefill_attention_time(setup.cost, 1, tokens, tokens * (tokens + 1) // 2)
        time += table_at(setup.cost.prep_ns, 1, tokens) + setup.cost.prep_seq_ns
        assert 10**7 * 2**level >= time > (10**7 * 2 ** (level - 1) if level else 0)
    assert len(set(done.requests.joins.tolist())) == 3

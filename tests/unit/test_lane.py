"""The lane and quiet runs leave what stepping leaves: one small run each, worked out by hand; ticks are ns."""

from typing import Any

import numpy as np
from parity.cases import run
from unit.steps import ENGINES, cost, requests, times

from simulator.engines.changes import SLOW
from simulator.engines.gaps import bin_start
from simulator.state import CALENDAR

NS = 2**32
"""A linear coefficient of 1 ns."""


def gaps(done: Any) -> dict[int, int]:
    """{gap: how many}, gaps by the begin of their bin."""
    return {bin_start(int(k)): int(done.itl[k]) for k in np.nonzero(done.itl)[0]}


@ENGINES
def test_who_shares_a_place_of_the_calendar_leaves_in_its_own_round(engine: str) -> None:
    """A token every 10. The second ends a round of the calendar after the first; the third ends before that, and the
    fourth, who comes then, beyond the horizon: it has 144 tokens from 9010 on."""
    output = [3, 3 + CALENDAR, 1000, 1000]
    case = requests([0, 0, 0, 9000], [1] * 4, output, num_blocks=2_000, max_model_len=5_000,
                    more={"until": 10 * CALENDAR + 205})
    done = run(case, engine)
    assert done.req.done.tolist() == [3, CALENDAR + 3, 1000, 144]
    assert done.req.last.tolist() == [30, 10 * CALENDAR + 30, 10_000, 10 * CALENDAR + 200]


def test_who_ends_a_round_later_stays_in_the_lane() -> None:
    """Both joined with its first step; results would be the same if the second left with the first and came again."""
    done = run(requests([0] * 2, [1] * 2, [3, 3 + CALENDAR], num_blocks=2_000, max_model_len=5_000,
                        more={"until": 105}), "fast")  # fmt: skip
    assert done.req.done.tolist() == [3, 10]
    assert done.reps.seats["born"][0].tolist() == [1, 1]


@ENGINES
def test_a_slot_in_the_lane_is_taken(engine: str) -> None:
    """One slot, held until 100."""
    done = run(requests([0, 15], [1, 1], [10, 1], max_num_seqs=1), engine)
    assert times(done) == ([0, 100], [10, 110], [100, 110])


@ENGINES
def test_gaps_count_from_the_token_before(engine: str) -> None:
    """Steps of 10 and 1 for each token of a prompt. The first has its tokens at 11, 21, 31, 41; with 30 tokens of the
    second in the step until 81, 91, 101; with 5 of the third until 116, 126, 136."""
    case = requests([0, 35, 95], [1, 30, 5], [10, 4, 2], cost=cost(10, prefill_token_fp=NS))
    done = run(case, engine)
    assert times(done) == ([0, 41, 101], [11, 81, 116], [136, 116, 126])
    assert done.req.itl_max.tolist() == [40, 15, 10]
    assert gaps(done) == {10: 7 + 2 + 1, 15: 2, 40: 1}


@ENGINES
def test_a_long_gap_is_remembered_when_shorter_ones_follow(engine: str) -> None:
    """Planned ahead: the sixth step is planned at 40, the replica being five times as slow from 35 to 45, and runs from
    50 to 100. All others take 10."""
    changes = ((35, SLOW, 0, 5_000), (45, SLOW, 0, 0))
    done = run(requests([0], [1], [12], schedule_ahead=1, more={"changes": changes}), engine)
    assert times(done) == ([0], [10], [160])
    assert done.req.itl_max.tolist() == [50]
    assert gaps(done) == {10: 10, 50: 1}


@ENGINES
def test_eager_launches_of_a_long_answer_are_counted(engine: str) -> None:
    """Forty steps, all eager; the launch of 30 outlasts the GPU's 10."""
    done = run(requests([0], [1], [40], cost=cost(10, 30, eager=1)), engine)
    assert times(done) == ([0], [30], [1200])
    assert done.stats["eager"][0] == 40


LOADS = {"replicas": 2, "router": "least_outstanding"}


@ENGINES
def test_an_end_in_the_lane_is_known_to_the_router_at_its_tick(engine: str) -> None:
    """The second is alone on replica 1 and ends at 50, as the fourth arrives; the first is still on replica 0, which
    the third came to at 25 and has left at 40."""
    done = run(requests([0, 0, 25, 50], [1] * 4, [50, 5, 1, 1], more=LOADS), engine)
    assert done.req.replica.tolist() == [0, 1, 0, 1]
    assert done.req.last.tolist() == [500, 50, 40, 60]


@ENGINES
def test_an_end_beside_the_lane_is_known_to_the_router(engine: str) -> None:
    """Two on each replica. When the fifth arrives at 25 the last token of the fourth, on replica 1, is under way; at 50
    its end is known: one is left there, and two on replica 0, where the fifth has ended at 40."""
    done = run(requests([0, 0, 0, 0, 25, 50], [1] * 6, [50, 50, 50, 3, 1, 1], more=LOADS, max_num_seqs=6), engine)
    assert done.req.replica.tolist() == [0, 1, 0, 1, 0, 1]
    assert done.req.last.tolist() == [500, 500, 500, 30, 40, 60]


@ENGINES
def test_who_waits_for_blocks_from_the_host_comes_before_those_admitted_later(engine: str) -> None:
    """12 blocks of 4 tokens, 8 tokens a step. The first leaves 2 blocks, which the second, of 12, drives out to host
    memory. The third is admitted at 100 and has them back at 130, 15 for each; the fourth, behind it, decodes
    meanwhile. Of the other 20 tokens of the third 8 are computed in each of the steps at 130 and 140, which are all
    there are, and 4 at 150."""
    limits = {"num_blocks": 12, "max_num_batched_tokens": 8, "prefix": 1, "offload_blocks": 99, "offload_ns": 15}
    case = requests([0, 20, 100, 100], [8, 47, 28, 1], [1, 1, 1, 6], **limits,
                    more={"chains": ((1, 2), (), (1, 2), ())})
    done = run(case, engine)
    assert times(done) == ([0, 20, 130, 100], [10, 80, 160, 110], [10, 80, 160, 180])
    assert done.req.itl_max.tolist() == [0, 0, 0, 30]


@ENGINES
def test_a_spilled_lane_leaves_nothing_in_the_calendar(engine: str) -> None:
    """12 blocks of 4. In step j, at 10 j - 10, the three have computed j + 2, j - 1 and j tokens: 12 blocks in step 14,
    13 in step 15, which preempts the third, with 12 tokens. It needs 4 blocks: there are 3 at most, until the first
    ends at 200. Then it takes the slot of the first; its 18 tokens more come at 210 to 380."""
    done = run(requests([0, 5, 15], [3, 1, 3], [20, 25, 30], num_blocks=12), engine)
    assert times(done) == ([0, 10, 20], [10, 20, 30], [200, 260, 380])
    assert (done.req.preempted.tolist(), done.req.itl_max.tolist()) == ([0, 0, 1], [10, 10, 70])


@ENGINES
def test_a_block_that_the_lane_gives_back_is_not_for_who_was_admitted_before(engine: str) -> None:
    """4 blocks of 2 tokens, windows of 4. Beyond its window a sequence that computes its token n holds 3 blocks when n
    is odd, 2 when it is even. At 10 the first computes its 2nd token and the second its 5th: 1 and 3 blocks. At 20 the
    first needs another, before the second, at its 6th, gives one back: the second is preempted, and has room for its 6
    tokens only when the first ends at 70."""
    windows = {"window": 4, "window_groups": 1, "full_groups": 0, "block_size": 2, "num_blocks": 4}
    done = run(requests([0, 0], [1, 4], [7, 4], **windows), engine)
    assert times(done) == ([0, 0], [10, 10], [70, 90])
    assert (done.req.preempted.tolist(), done.req.itl_max.tolist()) == ([0, 1], [10, 60])


@ENGINES
def test_a_batch_whose_window_ends_takes_who_comes_in_that_tick(engine: str) -> None:
    """Two replicas, batches of 2 or after 10, steps of 10. The first and the third fill replica 0; the second waits at
    replica 1. At 10 two clients have their answers and the fourth request comes, to replica 1, whose window ends: it
    is in the batch. The output of replica 0 is seen after its look for a step more, in the same tick."""
    case = requests([0] * 4, [3, 2, 1, 2], [1] * 4, policy="static", cost=cost(10, cpu=10), batch_window=10,
                    schedule_ahead=1, max_num_seqs=2, more={"replicas": 2, "load": "closed", "width": 3})
    assert times(run(case, engine)) == ([0, 10, 0, 10], [10, 20, 10, 20], [10, 20, 10, 20])

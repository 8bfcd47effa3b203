"""Replicas that crash, are drained and come back: the engines agree, and no request and no block is lost."""

import numpy as np
from hypothesis import given, settings
from parity.cases import COMMON, SEEDS, Case, differences, outcome, run

from simulator.cost.unit import unit_cost
from simulator.selftest.fleets import changing, limits_of
from simulator.state import FINISHED, REJECTED_LENGTH, Limits


@settings(max_examples=120, **COMMON)
@given(seed=SEEDS)
def test_engines_agree(seed: int) -> None:
    wanted = outcome(run(changing(seed), "reference"))
    assert wanted == outcome(run(changing(seed), "fast")) == outcome(run(changing(seed), "fast without leaps"))


@settings(max_examples=120, **COMMON)
@given(seed=SEEDS)
def test_nothing_is_lost(seed: int) -> None:
    case = changing(seed)
    done = run(case, "reference")
    req, stats = done.req, done.stats
    held = np.zeros(done.replicas, dtype=np.int64)
    np.add.at(held, np.maximum(req.replica, 0), req.blocks)
    if not case.limits.prefix or case.until is None:  # blocks that several share have one place and count for each
        assert (held + done.reps.c["free_blocks"] == [lim.num_blocks for lim in limits_of(case)]).all()
    assert done.reps.front["outstanding"].sum() == np.isin(req.status, (1, 2)).sum()
    assert req.done.sum() == stats["output"].sum() - stats["failed_tokens"].sum()
    if case.until is None:
        assert ((req.status == FINISHED) | (req.status >= REJECTED_LENGTH)).all()
        ended = req.status == FINISHED
        assert (req.done[ended] == req.output[ended]).all() and not req.blocks.any()
        assert (req.queued[ended] <= req.scheduled[ended]).all() and (req.scheduled <= req.first)[ended].all()


def test_cases_are_hard() -> None:
    """Requests are lost in the middle of their answers, and find nobody in service."""
    failed = tokens = parked = 0
    for seed in range(300):
        done = run(changing(seed), "reference")
        failed += int(done.stats["failed"].sum())
        tokens += int(done.stats["failed_tokens"].sum())
        parked += int(done.ctl["n_parked"][0] > 0)
    assert failed > 100 and tokens > 100 and parked > 10


def test_a_window_that_moves_on_makes_room_for_who_waits() -> None:
    """Four requests in seven blocks, of which windowed layers give one back every 16 tokens: the one preempted for want
    of blocks is admitted again as soon as there is one, though nobody ends or comes. (They start together when their
    replica is back from a restart.)"""
    limits = Limits(
        max_num_seqs=6, max_num_batched_tokens=20, long_prefill_token_threshold=5, watermark_blocks=1, reserve_prompt=0,
        block_size=16, num_blocks=7, max_model_len=4096, contiguous=0, reserve_tokens=0, batch_window=0,
        length_bucket=0, stream=1, schedule_ahead=0, whole_prompt=0, window=8, full_groups=0, window_groups=1,
    )  # fmt: skip
    lengths = (95, 95, 194, 61)
    case = Case("chunked", (8, 11, 20, 20), (2, 3, 3, 1), lengths, lengths, (0,) * 4, (0,) * 4, limits, unit_cost(1),
                changes=((0, 1, 0, 70),))
    assert differences(case) == {}
    assert run(case, "fast").req.preempted.tolist() == [0, 0, 0, 5]

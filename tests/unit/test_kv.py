"""KV memory by hand: blocks for tokens, growth, first-fit places, the longest free run."""

import pytest

from policies.queues import admit
from simulator import kv
from simulator.cost.unit import unit_cost
from simulator.engines.job import Job, list_job, request_columns
from simulator.state import Limits
from simulator.windows import blocks_for, full_blocks, phase_of


def made(prompts: list[int], blocks: int, block_size: int = 16, contiguous: int = 0, reserve: int = 0) -> Job:
    """A job of one replica whose requests have these prompts and one output token each."""
    n = len(prompts)
    ones = [1] * n
    lim = Limits(
        max_num_seqs=n, max_num_batched_tokens=10**6, long_prefill_token_threshold=0, watermark_blocks=0,
        reserve_prompt=0, block_size=block_size, num_blocks=blocks, max_model_len=10**6, contiguous=contiguous,
        reserve_tokens=reserve, batch_window=0, length_bucket=0, stream=1, schedule_ahead=0, whole_prompt=0,
    )  # fmt: skip
    return list_job(request_columns([0] * n, prompts, ones, ones, [0] * n, []), lim, unit_cost(1), 1, False)


def place(job: Job, i: int) -> bool:
    return kv.grow(job.req, job.reps[0], job.lim, i, job.req.prompt[i] + 1, 0)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3), (500, 32)])
def test_blocks_of_16(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 16) == blocks == kv.blocks_of(made([1], blocks=1).lim, tokens)


@pytest.mark.parametrize("size", [1, 2, 3, 16, 48, 64, 784, 2**20])
def test_blocks_of_any_size_hold_what_is_in_them(size: int) -> None:
    """Full blocks are the most that fit, as many as hold all of it are one more unless it fits exactly."""
    lim = made([1], blocks=1, block_size=size).lim
    for tokens in (0, 1, size - 1, size, size + 1, 5 * size - 1, 5 * size, 2**31 - 1):
        full = full_blocks(lim, tokens)
        assert full * size <= tokens < (full + 1) * size
        assert kv.blocks_of(lim, tokens) == full + (tokens > full * size)
        assert phase_of(lim, tokens) == tokens - full * size


def test_paged_grows_a_block_at_a_time() -> None:
    """A block is taken by its first token; the last token of a block takes none."""
    job = made([40], blocks=10)
    held = []
    for tokens in range(1, 50):
        assert kv.grow(job.req, job.reps[0], job.lim, 0, tokens, 0)
        held.append(job.req.blocks[0])
    assert held == [1] * 16 + [2] * 16 + [3] * 16 + [4]
    assert job.reps[0].c.free_blocks == 6


def test_growth_is_all_or_nothing() -> None:
    job = made([100], blocks=4)
    assert not kv.grow(job.req, job.reps[0], job.lim, 0, 65, 0)
    assert (job.req.blocks[0], job.reps[0].c.free_blocks) == (0, 4)
    assert kv.grow(job.req, job.reps[0], job.lim, 0, 64, 0)
    assert (job.req.blocks[0], job.reps[0].c.free_blocks) == (4, 0)


@pytest.mark.parametrize(("keep", "enough"), [(0, True), (1, True), (2, False)])
def test_watermark_is_left_free(keep: int, enough: bool) -> None:
    """3 of 4 blocks: 1 is left."""
    job = made([48], blocks=4)
    assert kv.fits(job.req, job.reps[0], job.lim, 0, 48, keep) is enough
    assert kv.grow(job.req, job.reps[0], job.lim, 0, 48, keep) is enough


def test_release_returns_everything_once() -> None:
    job = made([40], blocks=10)
    kv.grow(job.req, job.reps[0], job.lim, 0, 40, 0)
    kv.release(job.req, job.reps[0], job.lim, 0)
    kv.release(job.req, job.reps[0], job.lim, 0)
    assert (job.req.blocks[0], job.reps[0].c.free_blocks) == (0, 10)


def test_contiguous_first_fit_and_gaps() -> None:
    """10 blocks of one token: 3 at 0, 2 at 3, 3 at 5. The 2 leaves a hole that a 2 fills and a 3 does not."""
    job = made([2, 1, 2, 1, 2, 1], blocks=10, block_size=1, contiguous=1)
    rep, extent = job.reps[0], job.req.extent
    assert all(place(job, i) for i in (0, 1, 2))
    assert (extent[0], extent[1], extent[2]) == (0, 3, 5)
    kv.release(job.req, rep, job.lim, 1)
    assert (rep.c.free_blocks, rep.c.largest_gap) == (4, 2)
    assert not place(job, 4)  # needs 3 in one piece; 2 + 2 are free
    assert place(job, 3)
    assert extent[3] == 3
    assert place(job, 5)
    assert extent[5] == 8
    assert (rep.c.free_blocks, rep.c.largest_gap, rep.c.n_extents) == (0, 0, 4)


def test_contiguous_growth_inside_the_reservation_takes_nothing() -> None:
    """The reservation is made once, for the longest that may come."""
    job = made([2, 2], blocks=8, block_size=1, contiguous=1, reserve=4)
    assert place(job, 0)
    before = job.reps[0].c.free_blocks
    for tokens in (1, 3, 4, 9):
        assert kv.grow(job.req, job.reps[0], job.lim, 0, tokens, 0)
    assert (before, job.reps[0].c.free_blocks, job.reps[0].c.n_extents) == (4, 4, 1)


def test_reservation_is_the_longer_of_need_and_minimum() -> None:
    job = made([500, 9000], blocks=1000, contiguous=1, reserve=8000)
    assert kv.reservation(job.req, job.lim, 0, 1) == 500
    assert kv.reservation(job.req, job.lim, 1, 1) == 563  # 9,001 tokens


def test_two_requests_never_share_a_block() -> None:
    job = made([3, 4, 5, 6], blocks=40, block_size=4, contiguous=1)
    for i in range(4):
        assert place(job, i)
        admit(job.req, job.reps[0], i)
    cells = [at for i in range(4) for at in range(job.req.extent[i], job.req.extent[i] + job.req.blocks[i])]
    assert len(cells) == len(set(cells)) == 1 + 2 + 2 + 2

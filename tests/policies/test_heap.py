"""The waiting queue in order of a key against Python's heapq."""

import heapq
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies import heap
from policies.queues import push, take_head, take_out
from simulator.cost.unit import unit_cost
from simulator.engines.job import Job, list_job, request_columns
from simulator.state import WAITING, Limits

SIZE = 40


def made(keys: list[int]) -> Job:
    n = len(keys)
    lim = Limits(
        max_num_seqs=4, max_num_batched_tokens=100, long_prefill_token_threshold=0, watermark_blocks=0,
        reserve_prompt=0, block_size=4, num_blocks=50, max_model_len=1000, contiguous=0, reserve_tokens=0,
        batch_window=0, length_bucket=0, stream=1, schedule_ahead=1, whole_prompt=0,
    )  # fmt: skip
    req = request_columns([0] * n, [5] * n, [3] * n, [3] * n, [0] * n, [], ordered=True)
    job = list_job(req, lim, unit_cost(1), 1, False)
    job.req.key[:] = keys
    return job


@given(keys=st.lists(st.integers(-3, 3), min_size=SIZE, max_size=SIZE),
       moves=st.lists(st.tuples(st.sampled_from(["push", "push", "take", "leave"]), st.integers(0, 99)), max_size=90))
def test_the_heap_is_a_heap(keys: list[int], moves: list[tuple[str, int]]) -> None:
    """Pushed in any order, taken by (key, index); some leave from the middle; all may come back."""
    job = made(keys)
    req, rep = job.req, job.reps[0]
    model: list[tuple[int, int]] = []
    outside = list(range(SIZE))
    for what, place in moves:
        if what == "push" and outside:
            i = outside.pop(place % len(outside))
            push(req, rep, i)
            heapq.heappush(model, (keys[i], i))
            assert req.status[i] == WAITING
        elif what == "take" and model:
            i = take_head(req, rep)
            assert (keys[i], i) == heapq.heappop(model)
            outside.append(i)
        elif what == "leave" and model:
            _, i = model.pop(place % len(model))
            heapq.heapify(model)
            take_out(req, rep, job.lim, i)
            assert req.status[i] != WAITING
            outside.append(i)
        assert rep.c.n_waiting == len(model)
        assert rep.c.head == (model[0][1] if model else -1)


def test_who_left_from_the_middle_is_never_the_head() -> None:
    job = made([1, 2, 3])
    for i in range(3):
        heap.push(job.req, job.reps[0], i)
    heap.leave(job.req, job.reps[0], 1)
    assert heap.pop(job.req, job.reps[0]) == 0
    assert (job.reps[0].c.head, job.reps[0].c.n_waiting) == (2, 1)


def test_of_equal_keys_the_lower_index_goes_first() -> None:
    job = made([7] * 5)
    for i in (3, 1, 4, 0, 2):
        heap.push(job.req, job.reps[0], i)
    taken: list[Any] = [heap.pop(job.req, job.reps[0]) for _ in range(5)]
    assert taken == [0, 1, 2, 3, 4]

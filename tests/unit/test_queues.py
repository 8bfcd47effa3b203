"""The waiting queue against a plain list, the slots, and what preemption takes away."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies import queues
from simulator.cost.unit import unit_cost
from simulator.engines.job import Job, list_job, request_columns
from simulator.state import RUNNING, WAITING, Limits


def made(n: int, slots: int = 4) -> Job:
    lim = Limits(
        max_num_seqs=slots, max_num_batched_tokens=100, long_prefill_token_threshold=0, watermark_blocks=0,
        reserve_prompt=0, block_size=4, num_blocks=max(50, slots), max_model_len=1000, contiguous=0, reserve_tokens=0,
        batch_window=0, length_bucket=0, stream=1, schedule_ahead=1, whole_prompt=0,
    )  # fmt: skip
    return list_job(request_columns([0] * n, [5] * n, [3] * n, [3] * n, [0] * n, []), lim, unit_cost(1), 1, False)


def waiting(job: Job) -> list[int]:
    found, i = [], job.reps[0].c.head
    while i >= 0:
        found.append(i)
        i = job.req.next[i]
    return found


@given(moves=st.lists(st.tuples(st.sampled_from(["back", "front", "take"]), st.integers(0, 30)), max_size=60))
def test_queue_is_a_list(moves: list[tuple[str, int]]) -> None:
    job = made(60)
    model: list[int] = []
    fresh = iter(range(60))
    for what, place in moves:
        if what == "take" and model:
            at = place % len(model)
            taken = queues.take_after(job.req, job.reps[0], -1 if at == 0 else model[at - 1])
            assert taken == model.pop(at)
        elif what != "take":
            i = next(fresh)
            (queues.push_back if what == "back" else queues.push_front)(job.req, job.reps[0], i)
            model.insert(len(model) if what == "back" else 0, i)
            assert job.req.status[i] == WAITING
        assert waiting(job) == model
        assert job.reps[0].c.n_waiting == len(model)
        assert job.reps[0].c.tail == (model[-1] if model else -1)


def running(n: int) -> Job:
    """n requests admitted, each with 5 of its tokens computed in 2 blocks; two more have not come."""
    job = made(n + 2)
    for i in range(n):
        job.req.computed[i], job.req.blocks[i] = 5, 2
        job.reps[0].c.free_blocks -= 2
        queues.admit(job.req, job.reps[0], i)
    return job


def test_admission_takes_the_lowest_free_slot() -> None:
    job = running(3)
    assert job.req.slot[:3] == [0, 1, 2]
    job.req.status[1] = 3
    queues.retire_finished(job.req, job.reps[0], job.lim)
    assert job.reps[0].running[: job.reps[0].c.n_running] == [0, 2]
    assert (job.reps[0].c.free_blocks, job.reps[0].c.kv_tokens) == (46, 10)
    queues.admit(job.req, job.reps[0], 3)
    assert job.req.slot[3] == 1


def state_of(job: Job, i: int) -> dict[str, Any]:
    return {name: getattr(job.req, name)[i] for name in ("computed", "planned", "done", "blocks", "preempted")}


def test_preemption_takes_the_last_and_keeps_what_was_seen() -> None:
    """Request 2 has 1 token seen and 1 in flight: that one still comes, only its memory goes."""
    job = running(3)
    job.req.planned[2], job.req.done[2] = 2, 1
    job.reps[0].flight[1][:3] = [0, 1, 2]
    assert queues.preempt_last(job.req, job.reps[0], job.lim) == 2
    assert state_of(job, 2) == {"computed": 0, "planned": 2, "done": 1, "blocks": 0, "preempted": 1}
    assert waiting(job) == [2]
    assert job.reps[0].flight[1][:3] == [0, 1, 2]
    assert (job.reps[0].c.n_running, job.reps[0].c.free_blocks, job.reps[0].c.kv_tokens) == (2, 46, 10)
    assert [job.req.status[i] for i in range(3)] == [RUNNING, RUNNING, WAITING]


def test_a_waiting_request_leaves_the_queue_wherever_it_stands() -> None:
    for place in range(3):
        job = made(3)
        for i in range(3):
            queues.push_back(job.req, job.reps[0], i)
        queues.take_out(job.req, job.reps[0], job.lim, place)
        left = [i for i in range(3) if i != place]
        assert (waiting(job), job.reps[0].c.n_waiting, job.reps[0].c.tail) == (left, 2, left[-1])


def test_preempted_waits_before_those_who_came_later() -> None:
    job = running(2)
    queues.push_back(job.req, job.reps[0], 2)
    queues.preempt_last(job.req, job.reps[0], job.lim)
    queues.preempt_last(job.req, job.reps[0], job.lim)
    assert waiting(job) == [0, 1, 2]


@given(moves=st.lists(st.integers(0, 200), max_size=300))
def test_the_lowest_free_of_many_slots(moves: list[int]) -> None:
    """70 slots, more than two words of free slots, against a set: even numbers admit, odd ones give a slot back."""
    job, slots = made(70, slots=70), 70
    rep, free = job.reps[0], set(range(slots))
    held: list[int] = []
    for move in [0] * slots + [1] * 40 + moves:
        if move % 2 == 0 and free:
            slot = queues._lowest_vacant(rep)
            assert slot == min(free)
            free.remove(slot)
            held.append(slot)
        elif move % 2 == 1 and held:
            slot = held.pop(move * 7 % len(held))
            queues._return_slot(rep, slot)
            free.add(slot)


def test_no_more_slots_than_requests() -> None:
    """Memory is taken for what can run: three requests hold three slots, whatever the limit."""
    job = made(3, slots=65_536)
    rep = job.reps[0]
    assert {len(column) for column in (rep.running, rep.slots, rep.seats, rep.batch, rep.flight[0])} == {3}

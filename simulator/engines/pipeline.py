"""Pipelines: several steps in flight, each with other requests, and rounds in which nobody may be planned.

A request gets its next token `stages` rounds of the scheduler after the last, so that as many batches take turns in the
stages, with one more planned ahead; without planning ahead, when its token was seen (policies.queues.wanted_in_turn).
A round that plans nothing while others are in flight is a step all the same: it takes its place among them, is over
when the one before it is, and the scheduler pauses after it (vLLM 0.24 vllm/config/vllm.py, max_concurrent_batches;
vllm/v1/engine/core.py, EngineCore.step_with_batch_queue and EngineCoreProc._process_engine_step;
vllm/v1/core/sched/async_scheduler.py, next_decode_eligible_step).
"""

from simulator.cost.step import Cost
from simulator.engines.booking import ring_place
from simulator.jit import jitable
from simulator.state import Limits, Replica, Requests


@jitable
def begin_round(rep: Replica) -> None:
    """The policy is asked for a plan once more; where there is no request, no round is counted."""
    if rep.c.n_running + rep.c.n_waiting > 0:
        rep.c.rounds += 1
    rep.c.pause = 0


@jitable
def commit_empty(req: Requests, rep: Replica, lim: Limits, cost: Cost) -> bool:
    """SCHEDULE, nothing planned: put an empty step in flight; False when there is nothing to wait for in this way."""
    c = rep.c
    if c.n_running + c.n_waiting == 0 or not (_work_in_flight(rep, lim) or _somebody_rests(req, rep)):
        return False
    step = rep.steps[ring_place(rep, lim, c.n_flight)]
    step.start = c.now
    step.gpu_end = c.gpu_free
    step.gpu_ns = 0
    step.yields = 0
    step.decode = 0
    step.prefill = 0
    c.n_flight += 1
    c.cpu_free = c.now + cost.plan_ns
    c.pause = cost.pause_ns
    return True


@jitable
def _work_in_flight(rep: Replica, lim: Limits) -> bool:
    """Whether any step in flight has work."""
    for ahead in range(rep.c.n_flight):
        step = rep.steps[ring_place(rep, lim, ahead)]
        if step.decode + step.prefill > 0:
            return True
    return False


@jitable
def _somebody_rests(req: Requests, rep: Replica) -> bool:
    """Whether a running request may be planned in a later round for no other reason than that it is later."""
    k = 0
    while k < rep.c.n_running and req.due[rep.running[k]] <= rep.c.rounds:
        k += 1
    return bool(k < rep.c.n_running)


@jitable
def drop_empty(rep: Replica, lim: Limits) -> bool:
    """COMPLETE: take the oldest step out of flight if it is empty; False when it has work."""
    step = rep.steps[rep.c.first_flight]
    if step.decode + step.prefill > 0:
        return False
    rep.c.first_flight = ring_place(rep, lim, 1)
    rep.c.n_flight -= 1
    return True

"""DEADLINE: a client gives up, and its request is aborted.

The engine drops it before its next step: slot and KV blocks are free for that step, and tokens in flight for it are
computed for nobody (vLLM 0.24 vllm/v1/engine/core.py, EngineCore.abort_requests and _process_aborts_queue, between
outputs and the next schedule; vllm/v1/core/sched/scheduler.py, Scheduler.finish_requests, frees its blocks). What the
engine had put out by then counts: a first token or an answer on its way to the client is in time.
"""

from policies.queues import retire_finished, take_out
from simulator.engines.again import BEGUN, NOTED, on_failed
from simulator.engines.booking import ring_place
from simulator.engines.clients import ENTER, Habits
from simulator.engines.future import event_code, push, withdraw
from simulator.engines.gateway import leave
from simulator.engines.handover import LAND, let_go_of
from simulator.engines.lane import pull
from simulator.engines.world import World
from simulator.jit import jitable
from simulator.records import ARRIVE, DEADLINE, TRANSFER
from simulator.state import ABORTED, FUTURE, RUNNING, Replica, Requests
from simulator.units import NEVER


@jitable
def patience(req: Requests, habits: Habits, i: int) -> int:
    """[tick] at which the client of request i next looks whether it gives up, NEVER = never.

    Who has had a first token waits for no other, though that answer was lost with its replica.
    """
    if habits.ttft_ns > 0 and req.first[i] == NEVER and req.watched[i] < BEGUN:
        return req.sent[i] + habits.ttft_ns
    return req.sent[i] + habits.total_ns if habits.total_ns > 0 else NEVER


@jitable
def watch(world: World, i: int, now: int) -> None:
    """Note when the client of request i, now in a queue or at the gateway, will look, if that is not noted."""
    req = world.req
    if len(req.sent) > 0 and req.watched[i] & NOTED == 0:
        tick = patience(req, world.clients.habits, i)
        if tick < NEVER:
            req.watched[i] |= NOTED
            push(world.clients.future, world.clients.ctl, max(tick, now), event_code(DEADLINE, i, 0))


@jitable
def deadline(world: World, rep: Replica, i: int, now: int) -> bool:
    """DEADLINE of request i, at its replica or between two; True when it was aborted at one."""
    req = world.req
    req.watched[i] &= BEGUN
    if req.status[i] > RUNNING:
        return False
    if patience(req, world.clients.habits, i) > now:
        watch(world, i, now)
        return False
    there = req.status[i] != FUTURE
    if there:
        abort(world, rep, i)
    else:
        _leave_gateway(world, i)
    req.status[i] = ABORTED
    let_go_of(world, i, now)
    on_failed(world, i, now)
    return bool(there)


@jitable
def _leave_gateway(world: World, i: int) -> None:
    """Request i, lost with its replica, waiting for one in service, or its KV on the way, goes on to none."""
    req, clients = world.req, world.clients
    if (withdraw(clients.future, clients.ctl, event_code(ARRIVE, i, ENTER))
            or withdraw(clients.future, clients.ctl, event_code(TRANSFER, i, LAND))):
        return
    leave(req, clients.ctl, i)


@jitable
def abort(world: World, rep: Replica, i: int) -> None:
    """Take request i, waiting or running, off its replica."""
    req, c = world.req, rep.c
    if req.status[i] == RUNNING:
        if not _in_running(rep, i):
            pull(world, rep, req.slot[i])
        req.status[i] = ABORTED
        retire_finished(req, rep, world.lim)
    else:
        take_out(req, rep, world.lim, i)
    _leave_flight(world, rep, i)
    c.version += 1
    rep.front.outstanding -= 1
    rep.front.work -= req.prompt[i] + req.limit[i]
    if len(req.whole) > 0:
        req.limit[i] = req.whole[i]


@jitable
def _in_running(rep: Replica, i: int) -> bool:
    """Whether request i is in `running`; else it is in the lane."""
    k = 0
    while k < rep.c.n_running and rep.running[k] != i:
        k += 1
    return bool(k < rep.c.n_running)


@jitable
def _leave_flight(world: World, rep: Replica, i: int) -> None:
    """Tokens in flight for request i are for nobody. (Drafts, whose `gains` go with `flight`, are refused here.)"""
    for ahead in range(rep.c.n_flight):
        at = ring_place(rep, world.lim, ahead)
        flight, step = rep.flight[at], rep.steps[at]
        kept = 0
        for k in range(step.yields):
            if flight[k] != i:
                flight[kept] = flight[k]
                kept += 1
        step.dropped += step.yields - kept
        step.yields = kept

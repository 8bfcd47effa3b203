"""CONTROL: replicas that crash or are taken out of service, and come back; replicas that are ordered and released.

A crash ends every request at the replica: what it held is gone, and the gateway submits the request again, from its
prompt, after `retry` ns, or tells its client when it has done so `retries` times (`again`).
Until a health check finds the replica gone the router goes on choosing it, and what it sends
there fails at once (a refused connection). A drained replica gets no new requests and is restarted when its last one
has ended, as in a rolling update of Kubernetes with connection draining; one that is reclaimed (spot capacity) is too,
but what has not ended when its notice is over is lost. A replica that hangs makes no step until a health check finds
that out, and is restarted then; a slow one takes longer for each step that it plans from then on. Requests that find no
replica in service wait at the gateway. Autoscaling is in `scaling`, who is in the fleet in `members`.
"""

from typing import Final

from policies.queues import take_head, vacate
from policies.routers import COUNT, group_at
from simulator.engines.again import fail
from simulator.engines.clients import Clients
from simulator.engines.future import event_code, index_of, push, what_of
from simulator.engines.gateway import let_in
from simulator.engines.handover import lose_kv
from simulator.engines.lane import spill
from simulator.engines.members import (
    ABSENT,
    BACK,
    BEGIN,
    DOWN,
    DRAINING,
    EXPIRE,
    FOUND,
    LEFT,
    POLL,
    READY,
    STARTING,
    SYNC,
    UP,
    drained,
    enter,
    gone,
    list_members,
    scaler_of,
)
from simulator.engines.scaling import poll, sync
from simulator.engines.world import Changes, World
from simulator.jit import jitable
from simulator.prefix import disown, forget_all
from simulator.records import COMPLETE, CONTROL, TIMER, Front
from simulator.state import Column, Replica, Requests
from simulator.units import NEVER

CRASH: Final = 0
DRAIN: Final = 1
SLOW: Final = 2
HANG: Final = 3
RECLAIM: Final = 4
"""What a change is: SLOW multiplies GPU times from now on by `lasts` / booking.SLOW_UNIT, 0 ends it."""


@jitable
def start_changes(changes: Changes, clients: Clients, fronts: Column, routing: Column) -> None:
    """The changes that are known before the run, and the fleet as it is then."""
    clients.ctl.parked = -1
    for k in range(len(changes.tick)):
        push(clients.future, clients.ctl, changes.tick[k], event_code(CONTROL, k, BEGIN))
    for k in range(len(changes.scaling.scalers)):
        scaler = changes.scaling.scalers[k]
        scaler.members = scaler.wanted
        for r in range(scaler.first + scaler.wanted, scaler.first + scaler.count):
            fronts[r].listed = 0
            enter(changes, clients.ctl, fronts[r], r, ABSENT, 0)
        push(clients.future, clients.ctl, scaler.sync, event_code(CONTROL, k, SYNC))
        if scaler.polling > 0:
            push(clients.future, clients.ctl, scaler.polling, event_code(CONTROL, k, POLL))
    list_members(changes, fronts, routing)


@jitable
def replica_of(changes: Changes, code: int) -> int:
    """Replica that a CONTROL event is about, the first of its pool for an autoscaler's."""
    what = what_of(code)
    if what == BEGIN:
        return int(changes.replica[index_of(code)])
    if what in (SYNC, POLL):
        return int(changes.scaling.scalers[index_of(code)].first)
    return index_of(code)


@jitable
def change(world: World, rep: Replica, r: int, fronts: Column, counters: Column, tick: int, code: int) -> bool:
    """A CONTROL event at replica r; True when it has crashed, or hangs."""
    front, changes, clients, what = rep.front, world.changes, world.clients, what_of(code)
    crashed = False
    if what == BEGIN:
        k = index_of(code)
        _is_back(world, rep, r, tick)
        if changes.kind[k] == SLOW:
            rep.c.slow = changes.lasts[k]
        elif changes.kind[k] == HANG and (front.state == UP or front.state == DRAINING) and front.hung == NEVER:
            crashed = True
            _hang(changes, clients, front, r, tick, changes.lasts[k])
        elif changes.kind[k] == CRASH and (front.state == UP or front.state == DRAINING):
            crashed = True
            _crashed(world, rep, r, counters, tick, changes.lasts[k])
        elif (changes.kind[k] == DRAIN or changes.kind[k] == RECLAIM) and front.state == UP:
            enter(changes, clients.ctl, front, r, DRAINING, tick)
            front.rest = changes.lasts[k]
            front.listed = 0
            if not drained(changes, clients, front, rep.c, r, tick) and changes.kind[k] == RECLAIM:
                push(clients.future, clients.ctl, tick + changes.notice, event_code(CONTROL, r, EXPIRE))
    elif what == FOUND:
        if front.hung < NEVER and tick - front.hung >= changes.found_after:
            crashed = True
            front.listed = 0
            _crashed(world, rep, r, counters, tick, front.repair)
        elif front.state == DOWN and tick - front.since >= changes.found_after:  # not one that was back in between
            front.listed = 0
    elif what == BACK:
        _is_back(world, rep, r, tick)
    elif what == READY:
        if front.state == STARTING and tick - front.since == changes.scaling.scalers[scaler_of(changes, r)].start:
            _serves(world, rep, r, tick)
    elif what == EXPIRE:
        due = changes.notice if front.rest < NEVER else _grace(changes, r)
        if front.state == DRAINING and tick - front.since == due:
            crashed = True
            _crashed(world, rep, r, counters, tick, front.rest)
    elif what == LEFT:
        drained(changes, clients, front, rep.c, r, tick)
    elif what == SYNC:
        sync(world, index_of(code), fronts, counters, tick)
    else:
        poll(world, index_of(code), fronts, counters, tick)
    list_members(changes, fronts, world.routing)
    return crashed


@jitable
def _grace(changes: Changes, r: int) -> int:
    """[ns] that a released replica has; no replica without an autoscaler is released."""
    return int(changes.scaling.scalers[scaler_of(changes, r)].grace)


@jitable
def _is_back(world: World, rep: Replica, r: int, tick: int) -> None:
    """Replica r, if it is down until this tick, serves again: what befalls it in the same tick comes after that."""
    if rep.front.state == DOWN and rep.front.rest == tick:
        rep.stats.down += tick - rep.front.since
        _serves(world, rep, r, tick)


@jitable
def _serves(world: World, rep: Replica, r: int, tick: int) -> None:
    """Replica r is in service, with nothing in its memory."""
    forget_all(rep)
    enter(world.changes, world.clients.ctl, rep.front, r, UP, tick)
    rep.front.listed = 1
    let_in(world.req, world.clients.ctl, tick)


@jitable
def _hang(changes: Changes, clients: Clients, front: Front, r: int, tick: int, repair: int) -> None:
    """Replica r makes no step any more; the router goes on choosing it until a health check finds that out."""
    front.hung = tick
    front.repair = repair
    front.event_tick = NEVER
    front.event_phase = COMPLETE  # nothing wakes it
    front.bound = 0
    push(clients.future, clients.ctl, tick + changes.found_after, event_code(CONTROL, r, FOUND))


@jitable
def _crashed(world: World, rep: Replica, r: int, counters: Column, tick: int, lasts: int) -> None:
    """Replica r crashes; it comes back unless it was leaving for good."""
    front, changes, clients = rep.front, world.changes, world.clients
    leaving = front.state == DRAINING and front.rest == NEVER
    _lose(world, rep, tick)
    if len(world.links.free) > 0:
        lose_kv(world, rep, r, counters, tick)
    if leaving:
        gone(changes, clients, front, r, tick)
        return
    enter(changes, clients.ctl, front, r, DOWN, tick)
    front.rest = tick + lasts
    push(clients.future, clients.ctl, front.rest, event_code(CONTROL, r, BACK))
    if changes.found_after > 0 and front.listed == 1:
        push(clients.future, clients.ctl, tick + changes.found_after, event_code(CONTROL, r, FOUND))
    else:
        front.listed = 0


@jitable
def _lose(world: World, rep: Replica, tick: int) -> None:
    """All that the replica holds is gone, its steps in flight too."""
    req, c, front = world.req, rep.c, rep.front
    spill(world, rep)
    for k in range(c.n_running):
        i = rep.running[k]
        vacate(req, rep, world.lim, i)
        disown(req, rep, world.lim, i)
        fail(world, rep, int(i), tick)
    c.n_running = 0
    while c.n_waiting > 0:
        i = take_head(req, rep)
        disown(req, rep, world.lim, i)
        fail(world, rep, i, tick)
    for k in range(len(rep.aux)):
        rep.aux[k] = 0
    c.n_flight = 0
    c.lane_seen = c.lane_steps
    c.gpu_free = tick
    c.cpu_free = tick
    for s in range(len(rep.stage_gpu)):
        rep.stage_gpu[s] = tick
        rep.stage_cpu[s] = tick
    c.wake = NEVER
    c.hold = 0
    c.version += 1
    front.outstanding = 0
    front.work = 0
    front.bound = 0
    front.hung = NEVER
    front.event_tick = NEVER
    front.event_phase = TIMER


@jitable
def nobody(req: Requests, i: int, routing: Column) -> bool:
    """True when no replica that request i may go to is in service."""
    return bool(routing[group_at(req, i) + COUNT] == 0)

"""Whose turn it is: which replica the compiled engine advances next, and to where."""

from typing import NamedTuple

from policies.routers import RANDOM
from simulator.engines.booking import output_tick
from simulator.engines.clients import ENTER
from simulator.engines.future import what_of
from simulator.engines.visit import replica_for
from simulator.engines.world import World
from simulator.jit import jitable
from simulator.records import ARRIVE, COMPLETE, SCHEDULE, TIMER, Front
from simulator.state import Column, Replica
from simulator.units import NEVER

ADVANCE = 0
END = 1
ACT = 2
"""What is done: a replica's events, at the end the lane's figures written, or the clients' next event."""


class Mode(NamedTuple):
    """How the engine runs."""

    replicas: int
    router: int
    until: int      # [tick] horizon
    stop_at: int    # come back when so many requests have entered a queue
    lane: bool      # use the lane
    quiet: bool     # run quietly where that is possible


@jitable
def behind(front: Front, limit: int, until: int) -> bool:
    """True when the replica has an event before those of clients at `limit`: COMPLETE comes first in a tick."""
    tick = front.event_tick
    return tick <= until and tick < NEVER and (tick < limit or (tick == limit and front.event_phase < ARRIVE))


@jitable
def earliest(fronts: Column, replicas: int) -> int:
    """Replica with the first event by (tick, phase, index)."""
    best = 0
    for r in range(1, replicas):
        tick = fronts[r].event_tick
        first = fronts[best].event_tick
        if tick < first or (tick == first and fronts[r].event_phase < fronts[best].event_phase):
            best = r
    return best


@jitable
def next_replica(world: World, fronts: Column, mode: Mode, limit: int, code: int, start: int) -> tuple[int, int]:
    """A replica and what to do with it: ADVANCE it before the clients' event at `limit` (NEVER: none), ACT or END.

    Where an output may cause an arrival, everybody; else whoever the router's choice depends on, and the chosen one,
    or the one whose request may be aborted. Replicas below `start` are done.
    """
    alone = world.clients.coupled == 0
    if not alone:
        r = earliest(fronts, mode.replicas)
        if behind(fronts[r], limit, mode.until):
            return r, ADVANCE
    elif limit == NEVER or (mode.router > RANDOM and what_of(code) == ENTER):
        for r in range(start, mode.replicas):
            if fronts[r].bound <= limit and behind(fronts[r], limit, mode.until):
                return r, ADVANCE
    if limit == NEVER:
        return 0, END
    r = replica_for(world, mode.router, fronts, code, limit)
    if r < 0:
        return 0, ACT
    return r, ADVANCE if alone and behind(fronts[r], limit, mode.until) else ACT


@jitable
def wake(rep: Replica, tick: int) -> None:
    """What happened at the replica may change its decision: if it sleeps, it looks at its queue in this tick."""
    rep.front.bound = 0
    if rep.front.event_phase == TIMER:
        rep.front.event_tick = tick
        rep.front.event_phase = SCHEDULE


@jitable
def set_event(rep: Replica, ahead: int, planned: bool) -> None:
    """The replica's next event after a SCHEDULE."""
    if planned and rep.c.n_flight <= ahead:
        rep.front.event_tick = rep.c.cpu_free + rep.c.pause
        rep.front.event_phase = SCHEDULE
    elif rep.c.n_flight == 0:
        rep.front.event_tick = rep.c.wake
        rep.front.event_phase = TIMER
    else:
        rep.front.event_tick = output_tick(rep)
        rep.front.event_phase = COMPLETE

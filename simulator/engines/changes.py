"""CONTROL: replicas that crash or are taken out of service, and come back.

A crash ends every request at the replica: what it held is gone, and the gateway submits the request again, from its
prompt, after `retry` ns. Until a health check finds the replica gone the router goes on choosing it, and what it sends
there fails at once (a refused connection). A drained replica gets no new requests and is restarted when its last one
has ended, as in a rolling update of Kubernetes with connection draining. Requests that find no replica in service wait
at the gateway.
"""

from typing import Final

from policies.queues import take_head, vacate
from policies.routers import COUNT, GROUPS, START, WIDTH, group_at
from simulator.engines.clients import ENTER, Clients, begin_anew
from simulator.engines.future import event_code, index_of, push, what_of
from simulator.engines.lane import spill
from simulator.engines.world import Changes, World
from simulator.jit import jitable
from simulator.records import ARRIVE, CONTROL, TIMER
from simulator.state import Column, Replica, Requests
from simulator.units import NEVER

UP: Final = 0
DRAINING: Final = 1
DOWN: Final = 2
"""records.Front.state of a replica."""

CRASH: Final = 0
DRAIN: Final = 1
"""What a change is."""

BEGIN: Final = 0
FOUND: Final = 1
BACK: Final = 2
"""What a CONTROL event is: change `index` happens; a health check finds that replica `index` is gone; it is back."""


@jitable
def start_changes(changes: Changes, clients: Clients) -> None:
    """The changes that are known before the run."""
    clients.ctl.parked = -1
    for k in range(len(changes.tick)):
        push(clients.future, clients.ctl, changes.tick[k], event_code(CONTROL, k, BEGIN))


@jitable
def replica_of(changes: Changes, code: int) -> int:
    """Replica that a CONTROL event is about."""
    return int(changes.replica[index_of(code)]) if what_of(code) == BEGIN else index_of(code)


@jitable
def change(world: World, rep: Replica, r: int, fronts: Column, tick: int, code: int) -> bool:
    """A CONTROL event at replica r; True when it has crashed."""
    front, changes, clients, what = rep.front, world.changes, world.clients, what_of(code)
    crashed = False
    if what == BEGIN:
        k = index_of(code)
        if changes.kind[k] == CRASH and front.state != DOWN:
            crashed = True
            _crash(world, rep, tick)
            push(clients.future, clients.ctl, tick + changes.lasts[k], event_code(CONTROL, r, BACK))
            if changes.found_after > 0 and front.listed == 1:
                push(clients.future, clients.ctl, tick + changes.found_after, event_code(CONTROL, r, FOUND))
            else:
                front.listed = 0
        elif changes.kind[k] == DRAIN and front.state == UP:
            front.state = DRAINING
            front.rest = changes.lasts[k]
            front.listed = 0
            drained(world, rep, r, tick)
    elif what == FOUND:
        if front.state == DOWN and tick - front.since >= changes.found_after:  # not one that was back in between
            front.listed = 0
    else:
        front.state = UP
        front.listed = 1
        rep.stats.down += tick - front.since
        _let_in(world.req, clients, tick)
    _list_members(changes, fronts, world.routing)
    return crashed


@jitable
def drained(world: World, rep: Replica, r: int, tick: int) -> None:
    """If replica r waits for its last request to end, and it has, it is restarted."""
    if rep.front.state == DRAINING and rep.front.outstanding == 0:
        rep.front.state = DOWN
        rep.front.since = tick
        push(world.clients.future, world.clients.ctl, tick + rep.front.rest, event_code(CONTROL, r, BACK))


@jitable
def _crash(world: World, rep: Replica, tick: int) -> None:
    """All that the replica holds is gone, its steps in flight too."""
    req, c, front = world.req, rep.c, rep.front
    spill(world, rep)
    for k in range(c.n_running):
        i = rep.running[k]
        vacate(req, rep, world.lim, i)
        fail(world, rep, int(i), tick)
    c.n_running = 0
    while c.n_waiting > 0:
        fail(world, rep, take_head(req, rep), tick)
    for k in range(len(rep.aux)):
        rep.aux[k] = 0
    c.n_flight = 0
    c.lane_seen = c.lane_steps
    c.gpu_free = tick
    c.cpu_free = tick
    c.wake = NEVER
    c.hold = 0
    c.version += 1
    front.state = DOWN
    front.since = tick
    front.outstanding = 0
    front.work = 0
    front.bound = 0
    front.event_tick = NEVER
    front.event_phase = TIMER


@jitable
def fail(world: World, rep: Replica, i: int, tick: int) -> None:
    """Request i, lost with its replica or sent to one that is gone, is submitted again by the gateway, as new."""
    req, clients = world.req, world.clients
    rep.stats.failed += 1
    rep.stats.failed_tokens += req.done[i]
    begin_anew(req, i)
    push(clients.future, clients.ctl, tick + world.changes.retry, event_code(ARRIVE, i, ENTER))


@jitable
def nobody(req: Requests, i: int, routing: Column) -> bool:
    """True when no replica that request i may go to is in service."""
    return bool(routing[group_at(req, i) + COUNT] == 0)


@jitable
def park(req: Requests, clients: Clients, i: int) -> None:
    """Request i waits at the gateway with those that do: a list through req.next, in no order."""
    req.next[i] = clients.ctl.parked
    clients.ctl.parked = i
    clients.ctl.n_parked += 1


@jitable
def _let_in(req: Requests, clients: Clients, tick: int) -> None:
    """Those that wait at the gateway try again."""
    ctl = clients.ctl
    while ctl.parked >= 0:
        push(clients.future, ctl, tick, event_code(ARRIVE, ctl.parked, ENTER))
        ctl.parked = req.next[ctl.parked]


@jitable
def _list_members(changes: Changes, fronts: Column, routing: Column) -> None:
    """The members of each group are those of its replicas that the router thinks in service."""
    for group in range(changes.groups):
        at = GROUPS + WIDTH * group
        start = changes.roster[at + START]
        count = 0
        for k in range(start, start + changes.roster[at + COUNT]):
            r = changes.roster[k]
            if fronts[r].listed == 1:
                routing[start + count] = r
                count += 1
        routing[at + COUNT] = count

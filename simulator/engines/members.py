"""Who is in a fleet: states of replicas, whom the router lists, and how replicas are ordered and released.

A replica is paid for from the order until it is released: absent ones are places for GPUs that nobody has ordered.
"""

from typing import Final

from policies.routers import COUNT, GROUPS, START, WIDTH
from simulator.engines.clients import Clients
from simulator.engines.future import event_code, push
from simulator.engines.scaler import Scaler
from simulator.engines.world import Changes
from simulator.jit import jitable
from simulator.records import CONTROL, Control, Counters, FleetRow, Front
from simulator.state import Column
from simulator.units import NEVER

UP: Final = 0
DRAINING: Final = 1
DOWN: Final = 2
STARTING: Final = 3
ABSENT: Final = 4
"""records.Front.state of a replica: in service; ending its last requests; crashed or restarting; ordered; not there."""
STATES: Final = ("up", "draining", "down", "starting", "absent")

BEGIN: Final = 0
FOUND: Final = 1
BACK: Final = 2
SYNC: Final = 3
POLL: Final = 4
READY: Final = 5
EXPIRE: Final = 6
LEFT: Final = 7
"""What a CONTROL event is: change `index` happens; a health check finds that replica `index` is gone; it is back;
autoscaler `index` decides; looks whether it is needed at all; replica `index` has started; its grace is over; the last
request of a replica that is drained has ended."""


@jitable
def enter(changes: Changes, ctl: Control, front: Front, r: int, state: int, tick: int) -> None:
    """Replica r comes into a state."""
    front.state = state
    front.since = tick
    row = changes.fleet[ctl.fleet_rows]
    row.tick = tick
    row.pool = front.pool
    row.replica = r
    row.state = state
    ctl.fleet_rows += 1


@jitable
def order(changes: Changes, clients: Clients, scaler: Scaler, front: Front, r: int, tick: int) -> None:
    """A new replica takes the place r."""
    scaler.members += 1
    enter(changes, clients.ctl, front, r, STARTING, tick)
    push(clients.future, clients.ctl, tick + scaler.start, event_code(CONTROL, r, READY))


@jitable
def release(changes: Changes, clients: Clients, front: Front, c: Counters, r: int, tick: int) -> None:
    """Replica r goes for good, one in service when it has ended its last request. Its scaler counts it no more."""
    served = front.state == UP or front.state == DRAINING
    front.listed = 0
    if not served:
        enter(changes, clients.ctl, front, r, ABSENT, tick)
        return
    enter(changes, clients.ctl, front, r, DRAINING, tick)
    front.rest = NEVER
    if not drained(changes, clients, front, c, r, tick):
        scaler = changes.scaling.scalers[scaler_of(changes, r)]
        if scaler.grace > 0:
            push(clients.future, clients.ctl, tick + scaler.grace, event_code(CONTROL, r, EXPIRE))


@jitable
def left(clients: Clients, front: Front, c: Counters, r: int, tick: int) -> None:
    """Note that replica r, which is drained, has ended its last request."""
    if front.state == DRAINING and front.outstanding == 0 and c.free_blocks == front.blocks:
        push(clients.future, clients.ctl, tick, event_code(CONTROL, r, LEFT))


@jitable
def drained(changes: Changes, clients: Clients, front: Front, c: Counters, r: int, tick: int) -> bool:
    """If replica r waits for its last request to end, and it has, it is restarted or released; True then.

    Where it hands requests over, it stays until their KV has been taken. One that hangs ends nothing: a
    health check has to find it first.
    """
    if front.state != DRAINING or front.outstanding > 0 or c.free_blocks < front.blocks or front.hung < NEVER:
        return False
    if front.rest < NEVER:
        enter(changes, clients.ctl, front, r, DOWN, tick)
        front.rest += tick
        push(clients.future, clients.ctl, front.rest, event_code(CONTROL, r, BACK))
        return True
    gone(changes, clients, front, r, tick)
    return True


@jitable
def gone(changes: Changes, clients: Clients, front: Front, r: int, tick: int) -> None:
    """Replica r is released; one that waits for GPUs takes its place."""
    enter(changes, clients.ctl, front, r, ABSENT, tick)
    scaler = changes.scaling.scalers[scaler_of(changes, r)]
    if scaler.members < scaler.wanted:
        order(changes, clients, scaler, front, r, tick)


@jitable
def scaler_of(changes: Changes, r: int) -> int:
    """Autoscaler of replica r, -1 = none."""
    for k in range(len(changes.scaling.scalers)):
        scaler = changes.scaling.scalers[k]
        if scaler.first <= r < scaler.first + scaler.count:
            return k
    return -1


@jitable
def list_members(changes: Changes, fronts: Column, routing: Column) -> None:
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


def more_rows(fleet: list[FleetRow], ctl: Control, replicas: int) -> None:
    """Room for what an event may write (SimPy engine)."""
    while len(fleet) < ctl.fleet_rows + rows_an_event(replicas):
        fleet.append(FleetRow())


@jitable
def rows_an_event(replicas: int) -> int:
    """Most rows that one event writes: each replica changes its state twice at most, and a decision."""
    return 2 * replicas + 2

"""Requests that begin anew: the gateway submits again what was lost with a replica, clients try again.

Nothing of an earlier attempt is left then, neither at a replica nor on its way between two.
"""

from simulator.engines.clients import ENTER, GO, on_ended
from simulator.engines.future import event_code, push, withdraw
from simulator.engines.handover import let_go_of
from simulator.engines.world import World
from simulator.jit import jitable
from simulator.records import ARRIVE, DEADLINE
from simulator.state import FUTURE, LOST, REJECTED_QUEUE, Replica
from simulator.units import NEVER

NOTED = 1
BEGUN = 2
"""Bits of Requests.watched: a DEADLINE is pending; its client has had a token of this submission, lost since."""


@jitable
def begin_anew(world: World, i: int, tick: int) -> None:
    """Request i is as if it had never been at a replica; KV that waits for it somewhere is let go."""
    req = world.req
    if req.done[i] > 1:
        world.clients.ctl.again_ns += req.last[i] - req.first[i]
    if len(req.landed) > 0:
        if req.landed[i] < NEVER:
            req.group[i] -= world.links.groups
            req.landed[i] = NEVER
        req.limit[i] = req.whole[i]
        let_go_of(world, i, tick)
        if req.held[i] == 0:  # else that replica is still to be told
            req.source[i] = -1
    req.status[i] = FUTURE
    req.scheduled[i] = NEVER
    req.first[i] = NEVER
    req.last[i] = NEVER
    req.itl_max[i] = 0
    req.computed[i] = 0
    req.planned[i] = 0
    req.done[i] = 0
    if len(req.due) > 0:
        req.due[i] = 0


@jitable
def fail(world: World, rep: Replica, i: int, tick: int) -> None:
    """Request i was lost with its replica or sent to one that is gone: the gateway submits it again, as new, unless it
    has done so as often as it may."""
    req, ctl, changes = world.req, world.clients.ctl, world.changes
    rep.stats.failed += 1
    rep.stats.failed_tokens += req.done[i]
    if len(req.watched) > 0 and req.done[i] > 0:
        req.watched[i] |= BEGUN
    begin_anew(world, i, tick)
    if len(req.losses) > 0:
        req.losses[i] += 1
        if req.losses[i] > changes.retries:
            req.status[i] = LOST
            req.lost_at[i] = tick
            on_failed(world, i, tick)
            return
    push(world.clients.future, ctl, tick + changes.retry, event_code(ARRIVE, i, ENTER))


@jitable
def on_failed(world: World, i: int, tick: int) -> None:
    """The client of request i learns at `tick` that it was refused or lost, or gives up: it tries again, or it is
    over."""
    req, clients = world.req, world.clients
    habits = clients.habits
    if habits.attempts == 1 or req.status[i] < REJECTED_QUEUE or req.attempts[i] == habits.attempts:
        on_ended(req, clients, i, tick)
        return
    wait = habits.backoff_ns
    for _ in range(req.attempts[i] - 1):
        wait = min(2 * wait, habits.longest_ns)
    begin_anew(world, i, tick)
    if len(req.losses) > 0:
        req.losses[i] = 0
        req.lost_at[i] = NEVER
    if req.watched[i] & NOTED == NOTED:
        withdraw(clients.future, clients.ctl, event_code(DEADLINE, i, 0))
    req.watched[i] = 0
    push(clients.future, clients.ctl, tick + wait, event_code(ARRIVE, i, GO))

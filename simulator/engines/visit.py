"""What an event from outside does at a replica, for both engines."""

from collections.abc import Callable

from policies.routers import PREFIX_AWARE, count_routed, count_turn, route
from policies.signals import look, note_sent, route_by_prefix
from simulator.engines.abort import deadline, watch
from simulator.engines.admission import enqueue
from simulator.engines.again import fail, on_failed
from simulator.engines.changes import nobody, replica_of
from simulator.engines.clients import ENTER
from simulator.engines.future import index_of, phase_of, what_of
from simulator.engines.gateway import park
from simulator.engines.handover import LAND, LET_GO, let_go
from simulator.engines.members import DOWN, left
from simulator.engines.world import World
from simulator.jit import jitable
from simulator.records import CONTROL, DEADLINE
from simulator.state import Column, Replica


@jitable
def is_visit(code: int) -> bool:
    """Whether an event is one of a request at a replica: neither the clients' own nor a change of the fleet."""
    phase = phase_of(code)
    return phase == DEADLINE or (phase != CONTROL and what_of(code) in (ENTER, LAND, LET_GO))


@jitable
def replica_for(world: World, router: int, fronts: Column, code: int, tick: int) -> int:
    """Replica that an event is about, -1 = none; the router chooses it for a request that enters a queue."""
    i = index_of(code)
    if phase_of(code) == CONTROL:
        return replica_of(world.changes, code)
    if not is_visit(code):
        return -1
    if phase_of(code) == DEADLINE:
        return int(world.req.replica[i])
    if what_of(code) == LET_GO:
        return int(world.req.source[i])
    if nobody(world.req, i, world.routing):
        return -1
    look(world.signals, fronts, world.routing, tick)
    if router == PREFIX_AWARE:
        return route_by_prefix(world.req, world.signals, i, world.routing)
    return route(router, world.req, world.signals.seen, i, world.routing, world.changes.roster)


def visit_under(key: Callable[..., int], arrived: Callable[..., None]) -> Callable[..., bool]:
    """`visit` of a policy with these hooks."""

    @jitable
    def visit(world: World, rep: Replica, r: int, tick: int, code: int) -> bool:
        """A request, from its client or handed over, enters the queue of replica r or is refused; blocks of one handed
        over are free; or a client gives up. True when the replica's decision may change."""
        req, i, what = world.req, index_of(code), what_of(code)
        if phase_of(code) == DEADLINE:
            aborted = deadline(world, rep, i, tick)
            if aborted:
                left(world.clients, rep.front, rep.c, r, tick)
            return aborted
        if what == LET_GO:
            let_go(req, rep, i)
            left(world.clients, rep.front, rep.c, r, tick)
            return True
        if nobody(req, i, world.routing):
            park(req, world.clients.ctl, i)
            watch(world, i, tick)
            return False
        if what == LAND:
            count_turn(req, i, world.routing)
        else:
            count_routed(req, i, world.routing)
            note_sent(req, world.signals, i, r)
        if rep.front.state == DOWN:
            watch(world, i, tick)
            fail(world, rep, i, tick)
            return False
        if len(req.key) > 0:
            req.key[i] = key(req, world.lim, i)
        if enqueue(world, rep, i, r):
            arrived(req, rep, world.lim, rep.aux, i)
            watch(world, i, tick)
            return True
        on_failed(world, i, tick + world.cost.frontend_out_ns)
        return False

    return visit

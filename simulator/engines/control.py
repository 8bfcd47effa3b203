"""CONTROL events of the compiled engine: a function of its own, the same for every policy, compiled when it is needed.

They are rare: the loop of a policy comes back for each, so that its machine code has none of this in it.
"""

from collections.abc import Callable

from simulator.cost.step import Cost
from simulator.engines.changes import change, replica_of, start_changes
from simulator.engines.clients import Clients, drop, upcoming
from simulator.engines.pools import PoolRows
from simulator.engines.world import World
from simulator.jit import compiled
from simulator.state import Column, Limits, Prefix, Replica


def control_function(limits_at: Callable[..., Limits], cost_at: Callable[..., Cost]) -> Callable[..., int]:
    """Function of (world, rows, control, reps, until): do the next event, which is one of CONTROL, or begin."""

    def control(shared: World, rows: PoolRows, ctls: Column, reps: Column, until: int) -> int:
        ctl = ctls[0]
        clients = Clients(ctl, *shared.clients[1:])
        if ctl.started == 0:
            start_changes(shared.changes, clients, reps.front, shared.routing)
            return 0
        tick, code = upcoming(shared.req, clients, until)
        drop(shared.req, clients, tick, code)
        r = replica_of(shared.changes, code)
        pool = reps.front[r].pool
        world = World(shared.req, limits_at(rows, pool), cost_at(rows, pool), clients, shared.itl,
                      shared.rows_time[pool], shared.log, shared.routing, shared.links, shared.acceptance,
                      shared.changes, shared.signals)
        rep = Replica(reps.running[r], reps.slots[r], reps.vacant[r], reps.seats[r], reps.extents[r],
                      reps.ended[r], reps.batch[r], reps.tokens[r], reps.flight[r], reps.gains[r], reps.steps[r],
                      reps.stage_gpu[r], reps.stage_cpu[r],
                      reps.phase[r], reps.frees[r],
                      reps.calendar[r], reps.gap_step[r], reps.gap_ns[r],
                      Prefix(reps.prefix.chain, reps.prefix.held, reps.prefix.found[r], reps.prefix.nodes[r],
                             reps.prefix.host[r]),
                      reps.aux[r], reps.stats[r], reps.front[r], reps.c[r])
        change(world, rep, r, reps.front, reps.c, tick, code)
        reps.front[r].used_blocks = world.lim.num_blocks - reps.c[r].free_blocks
        return 1

    return compiled(control, "control")

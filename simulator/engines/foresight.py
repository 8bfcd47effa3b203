"""How long the number of requests at a replica is sure to stay what it is, unless one arrives.

A router that reads it (records.Front.outstanding) need not have a replica advanced to an arrival before that tick. The
bound knows the true output lengths, as the engine does and policies do not; it may be early, never late.
"""

from typing import Final

from policies.queues import wanted
from simulator.cost.step import decode_attention_time, dense_time
from simulator.engines.booking import ring_place
from simulator.engines.world import World
from simulator.jit import jitable
from simulator.state import Replica
from simulator.windows import full_blocks

MANY: Final = 16
"""Sequences outside the lane up to which each is looked at."""


@jitable
def nobody_ends_before(world: World, rep: Replica) -> int:
    """[tick] before which no request of this replica ends; its next event is set."""
    c = rep.c
    known = rep.front.event_tick
    for ahead in range(c.n_flight):
        at = ring_place(rep, world.lim, ahead)
        step = rep.steps[at]
        known = max(known, step.gpu_end)
        if step.yields > MANY:
            return known
        for k in range(step.yields):
            i = rep.flight[at][k]
            if world.req.planned[i] >= world.req.output[i]:
                return known
    known = max(known, c.gpu_free)
    if c.n_waiting > 0 or c.n_running > MANY or c.lane == 0:
        return known
    for k in range(c.n_running):
        if wanted(world.req, rep.running[k]) > 0:
            return known
    return known + _lane_alone(world, rep)


@jitable
def _lane_alone(world: World, rep: Replica) -> int:
    """[ns] least GPU time of the steps still to be planned until the first sequence of the lane has all its tokens.

    After an admission (HOLD is 0) the same steps follow as nobody waits. 0 where the policy promises fewer of them, or
    where blocks may run out before and rows with them.
    """
    c, lim, cost = rep.c, world.lim, world.cost
    steps, width = c.lane_end - c.lane_steps, c.lane + c.pad_rows
    blocks = c.lane * (lim.full_groups + lim.window_groups) * (full_blocks(lim, steps) + 2)
    if (c.hold < steps and (c.hold > 0 or c.pad_rows > 0)) or c.free_blocks - lim.watermark_blocks < blocks:
        return 0
    context = c.lane_context + c.lane * (steps - 1) // 2  # on average; each step's time is rounded down by less than 2
    attention = max(decode_attention_time(cost, width, context) - 2, 0)
    return int(steps * (dense_time(cost, 0, width) + attention))

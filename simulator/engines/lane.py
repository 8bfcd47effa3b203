"""The lane: sequences of the compiled engine that only decode, advanced as one row.

A decode takes one token a step until its last is planned, whatever the others do. Its progress is therefore a step
number subtracted from another and need not be written anywhere until it leaves. The lane keeps what steps need of all
its sequences together: their number and summed context, how many want a KV block at each step (mod block_size), a
calendar of the steps after which each leaves, and the gaps between outputs that no later gap exceeds. A step then
costs what changes in it, not what runs in it.

A sequence joins with the step that gave it a token, and leaves when its last is planned. What needs single sequences
(a preemption, a block that cannot be had) spills the lane: all are put back into `running` as if they had never left.
Sequences join in order of admission, so those in the lane come before every prompt that still waits for tokens.
"""

from policies.queues import wanted
from simulator.engines.booking import ring_place
from simulator.engines.world import World
from simulator.jit import jitable
from simulator.state import CALENDAR, Replica
from simulator.units import NEVER
from simulator.windows import blocks_of, give_back_at, held_blocks, phase_of, settled

REST = 4
"""Steps after a spill in which nobody joins: another spill is likely."""


@jitable
def day_of(step: int) -> int:
    """Place in the calendar for those who leave after this step of the lane; CALENDAR is a power of two."""
    return step & (CALENDAR - 1)


@jitable
def join(world: World, rep: Replica) -> None:
    """Take into the lane those who only decode from now on: the yields of the step just committed."""
    req, c = world.req, rep.c
    at = ring_place(rep, world.lim, c.n_flight - 1)
    step, flight = rep.steps[at], rep.flight[at]
    if c.lane_rest > 0:
        c.lane_rest -= 1
        return
    if step.yields == 0 or (c.lane > 0 and step.lane_step == 0):
        return
    seen = 0
    kept = 0
    in_order = True
    for k in range(c.n_running):
        i = rep.running[k]
        yielded = seen < step.yields and flight[seen] == i
        seen += 1 if yielded else 0
        left = min(req.limit[i], req.output[i]) - req.planned[i]
        spare = req.blocks[i] * world.lim.block_size - req.computed[i]
        fixed = True
        if world.lim.window > 0:
            spare = blocks_of(world.lim, req.computed[i]) * world.lim.block_size - req.computed[i]
            context = int(req.prompt[i]) + int(req.planned[i])
            held = held_blocks(world.lim, context - 1, context - 2)  # else a prompt's blocks have yet to be given back
            fixed = settled(world.lim, context, context + left - 1) and req.blocks[i] == held
        if in_order and yielded and left > 0 and fixed and (spare < world.lim.block_size or spare >= left):
            _enter(world, rep, int(i), left, spare)
            step.joined = 1
            continue
        if not yielded and wanted(req, i) > 0:
            in_order = False
        rep.running[kept] = i
        kept += 1
    c.n_running = kept


@jitable
def _enter(world: World, rep: Replica, i: int, left: int, spare: int) -> None:
    """Request i joins with the next step of the lane, for `left` tokens; `spare` more have room in its blocks."""
    req, c = world.req, rep.c
    slot = req.slot[i]
    seat = rep.seats[slot]
    seat.born = c.lane_steps + 1
    seat.end = c.lane_steps + left
    seat.link = rep.calendar[day_of(seat.end)]
    rep.calendar[day_of(seat.end)] = slot
    c.lane_end = min(c.lane_end, seat.end)
    seat.crossing = -1
    if spare < left:
        seat.crossing = phase_of(world.lim, seat.born + spare)
        rep.phase[seat.crossing] += world.lim.full_groups + world.lim.window_groups
    if world.lim.window > 0:
        _watch(world, rep, i, seat.born)
    seat.before = c.lane_tail
    seat.after = -1
    if c.lane_tail < 0:
        c.lane_head = slot
    else:
        rep.seats[c.lane_tail].after = slot
    c.lane_tail = slot
    c.lane += 1
    c.lane_context += req.prompt[i] + req.planned[i]


@jitable
def depart(world: World, rep: Replica) -> None:
    """Put those back into `running` whose last token the newest step of the lane has planned."""
    c = rep.c
    at = day_of(c.lane_steps)
    slot = rep.calendar[at]
    rep.calendar[at] = -1
    while slot >= 0:
        seat = rep.seats[slot]
        following = seat.link
        if seat.end == c.lane_steps:
            _leave(world, rep, slot)
        else:
            seat.link = rep.calendar[at]
            rep.calendar[at] = slot
        slot = following
    _find_end(rep)


@jitable
def _find_end(rep: Replica) -> None:
    """The next step of the lane after which somebody may leave."""
    c = rep.c
    c.lane_end = NEVER
    if c.lane > 0:
        c.lane_end = c.lane_steps + 1
        while rep.calendar[day_of(c.lane_end)] < 0:
            c.lane_end += 1


@jitable
def pull(world: World, rep: Replica, slot: int) -> None:
    """Put the one sequence in `slot` back into `running`: it is aborted."""
    at = day_of(rep.seats[slot].end)
    if rep.calendar[at] == slot:
        rep.calendar[at] = rep.seats[slot].link
    else:
        before = rep.calendar[at]
        while rep.seats[before].link != slot:
            before = rep.seats[before].link
        rep.seats[before].link = rep.seats[slot].link
    _leave(world, rep, slot)
    _find_end(rep)


@jitable
def spill(world: World, rep: Replica) -> None:
    """Put all of the lane back into `running`; KV blocks taken for a step that is not to be are free again."""
    c = rep.c
    c.free_blocks += c.lane_took
    c.lane_took = 0
    slot = c.lane_head
    while slot >= 0:
        following = rep.seats[slot].after
        rep.calendar[day_of(rep.seats[slot].end)] = -1
        _leave(world, rep, slot)
        slot = following
    c.lane_end = NEVER
    c.lane_rest = REST


@jitable
def _leave(world: World, rep: Replica, slot: int) -> None:
    """Write what the lane's steps did to the sequence in `slot`, and put it back into `running` in its place."""
    req, c = world.req, rep.c
    seat = rep.seats[slot]
    i = rep.slots[slot]
    planned = c.lane_steps + 1 - seat.born
    req.computed[i] += planned
    req.planned[i] += planned
    if planned > 0 and world.lim.prefix == 1:  # as prefix.remember: outputs in flight do not count
        req.settled[i] = req.computed[i] - c.lane_ahead
    if seat.crossing >= 0:
        rep.phase[seat.crossing] -= world.lim.full_groups + world.lim.window_groups
        if world.lim.window == 0:
            req.blocks[i] = blocks_of(world.lim, req.computed[i])
    if world.lim.window > 0:
        _forget(world, rep, int(i), planned)
    seen = c.lane_seen + 1 - seat.born
    if seen > 0:
        req.done[i] += seen
        if world.lim.stream == 1:
            req.last[i] = c.lane_output + world.cost.frontend_out_ns
            req.itl_max[i] = max(req.itl_max[i], longest_gap(rep, seat.born))
    _to_flight(world, rep, i, seat.born)
    c.lane -= 1
    c.lane_context -= req.prompt[i] + req.planned[i]
    if seat.before < 0:
        c.lane_head = seat.after
    else:
        rep.seats[seat.before].after = seat.after
    if seat.after < 0:
        c.lane_tail = seat.before
    else:
        rep.seats[seat.after].before = seat.before
    if c.lane == 0:
        c.n_gaps = 0
    k = c.n_running
    while k > 0 and rep.seats[req.slot[rep.running[k - 1]]].turn > seat.turn:
        rep.running[k] = rep.running[k - 1]
        k -= 1
    rep.running[k] = i
    c.n_running += 1


@jitable
def _watch(world: World, rep: Replica, i: int, born: int) -> None:
    """What windowed layers see of request i, and the blocks they give back, from step `born` of the lane on."""
    lim = world.lim
    context = int(world.req.prompt[i]) + int(world.req.planned[i])
    rep.c.lane_seen_context += min(context, lim.window)
    if context > lim.window:
        rep.frees[give_back_at(lim, context, born)] += lim.window_groups
    else:
        rep.c.lane_short += 1


@jitable
def _forget(world: World, rep: Replica, i: int, planned: int) -> None:
    """Undo `_watch` for request i after `planned` steps of the lane, its counts being up to date again."""
    req, lim = world.req, world.lim
    context = int(req.prompt[i]) + int(req.planned[i])
    if context - planned > lim.window:
        rep.c.lane_seen_context -= lim.window
        born = rep.seats[req.slot[i]].born
        rep.frees[give_back_at(lim, context - planned, born)] -= lim.window_groups
    else:
        rep.c.lane_seen_context -= context  # one more than the window, where its last token filled it
        rep.c.lane_short -= 1
    if planned > 0:
        req.blocks[i] = held_blocks(lim, int(req.computed[i]), int(req.computed[i]) - 1)


@jitable
def _to_flight(world: World, rep: Replica, i: int, born: int) -> None:
    """The lane's steps in flight from number `born` on get a row of their own for request i."""
    for ahead in range(rep.c.n_flight):
        at = ring_place(rep, world.lim, ahead)
        step = rep.steps[at]
        if step.lane_step >= born:
            rep.flight[at][step.yields] = i
            step.yields += 1
            step.lane -= 1


@jitable
def longest_gap(rep: Replica, born: int) -> int:
    """[ns] longest gap before the outputs of the lane's steps from number `born` on."""
    low = 0
    high = rep.c.n_gaps
    while low < high:
        middle = (low + high) >> 1
        if rep.gap_step[middle] >= born:
            high = middle
        else:
            low = middle + 1
    return int(rep.gap_ns[low])

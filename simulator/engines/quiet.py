"""Quiet runs: steps of the lane alone, advanced without asking the policy.

When the newest steps were the lane's alone and nothing has happened since that could change the decision, the same
step follows until a sequence leaves the lane, a block cannot be had, or something arrives. Its clocks are advanced
by the integer additions that the policy's steps would do; the result is equal to stepping, bit by bit.
"""

from typing import NamedTuple

from policies.queues import held
from simulator.cost.step import Cost, decode_attention_time, dense_time, table_at
from simulator.engines.booking import note_gap, output_tick, ring_place, weigh
from simulator.engines.gaps import bin_start, itl_bin
from simulator.engines.steplog import log_step
from simulator.engines.world import World
from simulator.jit import jitable
from simulator.state import COMPLETE, GAPS, SCHEDULE, Column, Limits, Replica


class Alike(NamedTuple):
    """What all steps of a quiet run have in common."""

    rows: int      # sequences of the lane
    pads: int      # rows computed for nobody (static batch)
    dense: int     # [ns] as in Cost, for this many rows
    prep: int
    cpu: int
    eager: int


@jitable
def steps_alike(rep: Replica, lim: Limits) -> int:
    """Steps that may follow the newest without asking the policy, 0 when it must be asked."""
    c = rep.c
    if c.lane == 0 or c.n_flight != lim.schedule_ahead or c.n_gaps + lim.schedule_ahead + 2 > GAPS:
        return 0
    newest = ring_place(rep, lim, lim.schedule_ahead)
    for _ in range(max(1, lim.schedule_ahead)):
        newest = newest - 1 if newest > 0 else lim.schedule_ahead
        step = rep.steps[newest]
        if step.lane != c.lane or step.yields > 0 or step.prefill > 0 or step.version != c.version:
            return 0
    most = c.lane_end - c.lane_steps
    if lim.schedule_ahead == 0:
        most -= 1  # the last output would be collected here
    return int(min(most, c.hold))


@jitable
def run_quietly(world: World, rep: Replica, r: int, most: int, limit: int, until: int) -> bool:
    """Advance replica r by up to `most` steps of the lane alone up to tick `limit`; False when none was possible.

    Steps scheduled before `limit` and outputs up to it are done (an arrival at `limit` comes between).
    Leaves the replica's next event in front.event_tick and front.event_phase.
    """
    c, front, lim = rep.c, rep.front, world.lim
    free_place = ring_place(rep, lim, lim.schedule_ahead)
    model = rep.steps[free_place - 1 if free_place > 0 else lim.schedule_ahead]
    alike = _alike(world.cost, c.lane, model.pad_rows)
    if lim.schedule_ahead > 0:
        rep.steps[free_place] = model
        rep.steps[free_place].joined = 0
    context = model.context
    phase = c.lane_steps % lim.block_size
    place = free_place
    launched = 0
    collected = 0
    walls = 0
    shorts = 0
    at_bin = 0
    low = 0
    high = 0
    front.event_tick = c.now
    front.event_phase = SCHEDULE
    while launched < most and c.now < limit and c.now <= until and c.n_gaps + lim.schedule_ahead + 2 <= GAPS:
        phase = phase + 1 if phase + 1 < lim.block_size else 0
        if rep.phase[phase] > c.free_blocks:
            break
        c.free_blocks -= rep.phase[phase]
        context += alike.rows + alike.pads
        _launch(world, rep, rep.steps[place], alike, context)
        launched += 1
        place = place + 1 if place < lim.schedule_ahead else 0
        front.event_tick = output_tick(rep)
        if front.event_tick > limit or front.event_tick > until:
            front.event_phase = COMPLETE
            break
        gap = front.event_tick - c.lane_output
        old = rep.steps[c.first_flight]
        wall = _collect(world, rep, r, old)
        if lim.stream == 1:
            if gap < low or gap >= high:
                at_bin = itl_bin(gap)
                low, high = bin_start(at_bin), bin_start(at_bin + 1)
            world.itl[at_bin] += alike.rows
            note_gap(rep, old.lane_step, gap)
        collected += 1
        walls += wall
        shorts += wall >> 10
    _sum_up(rep, alike, launched)
    front.bound = max(front.event_tick, c.gpu_free + (most - launched) * alike.dense)
    if collected > 0:
        rep.stats.output += alike.rows * collected
        weigh(rep.stats, world.rows_time, model, walls, shorts, collected)
    return launched > 0


@jitable
def _alike(cost: Cost, rows: int, pads: int) -> Alike:
    tokens = rows + pads
    return Alike(rows, pads, dense_time(cost, 0, tokens), table_at(cost.prep_ns, 0, tokens) + rows * cost.prep_seq_ns,
                 table_at(cost.cpu_ns, 0, tokens) + rows * cost.cpu_seq_ns, table_at(cost.eager, 0, tokens))


@jitable
def _launch(world: World, rep: Replica, step: Column, alike: Alike, context: int) -> None:
    """`booking.commit` for a step of the lane alone whose blocks are taken."""
    c, lim = rep.c, world.lim
    gpu = alike.dense + decode_attention_time(world.cost, alike.rows + alike.pads, context)
    gpu_end = max(c.gpu_free, c.now + alike.prep) + gpu
    c.cpu_free = c.now + alike.cpu
    if alike.eager == 1:
        gpu_end = max(gpu_end, c.cpu_free)
    c.gpu_free = gpu_end
    c.kv_tokens += alike.rows
    c.lane_steps += 1
    c.lane_ahead = c.n_flight
    c.n_flight += 1
    step.start = c.now
    step.gpu_end = gpu_end
    step.gpu_ns = gpu
    step.context = context
    step.running = held(rep)
    step.gap = c.free_blocks - c.largest_gap if lim.contiguous == 1 else 0
    step.blocks = lim.num_blocks - c.free_blocks
    step.kv_tokens = c.kv_tokens
    step.lane_step = c.lane_steps
    rep.stats.gpu += gpu
    rep.stats.decode_attention += gpu - alike.dense


@jitable
def _collect(world: World, rep: Replica, r: int, step: Column) -> int:
    """`booking.collect` at front.event_tick for the oldest step, one of the lane alone; returns its wall time [ns].

    The sums over all steps of the run are left to `run_quietly`.
    """
    c, stats = rep.c, rep.stats
    c.now = rep.front.event_tick
    wall = c.now - max(c.last_output, step.start)
    short = wall >> 10
    stats.running += step.running * wall
    stats.peak_running = max(stats.peak_running, step.running)
    stats.blocks += step.blocks * short
    stats.kv_tokens += step.kv_tokens * short
    stats.gaps += step.gap * short
    stats.peak_blocks = max(stats.peak_blocks, step.blocks)
    stats.last = c.now
    if len(world.log) > 0:
        log_step(world.log, world.clients.ctl, rep, r, step, wall)
    c.visible = c.now + world.cost.frontend_out_ns
    c.last_output = c.now
    c.lane_output = c.now
    c.lane_seen = step.lane_step
    c.first_flight = ring_place(rep, world.lim, 1)
    c.n_flight -= 1
    return int(wall)


@jitable
def _sum_up(rep: Replica, alike: Alike, launched: int) -> None:
    """Write what `launched` steps have in common."""
    rep.c.lane_context += alike.rows * launched
    rep.c.hold -= launched
    rep.stats.dense += alike.dense * launched
    rep.stats.eager += alike.eager * launched
    rep.stats.pad_rows += alike.pads * launched

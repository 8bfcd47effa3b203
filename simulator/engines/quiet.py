"""Quiet runs: steps of the lane alone, advanced without asking the policy.

When the newest steps were the lane's alone and nothing has happened since that could change the decision, the same
step follows until a sequence leaves the lane, a block cannot be had, or something arrives. Its clocks are advanced
by the integer additions that the policy's steps would do; the result is equal to stepping, bit by bit.
"""

from typing import NamedTuple

from policies.queues import held
from simulator.cost.step import FP_BITS, LOW, Cost, dense_time, rounded_off, scaled, table_at
from simulator.engines.booking import note_gap, ring_place, weigh
from simulator.engines.gaps import bin_start, itl_bin
from simulator.engines.steplog import log_step
from simulator.engines.world import World
from simulator.jit import jitable
from simulator.records import COMPLETE, SCHEDULE
from simulator.state import GAPS, Column, Limits, Replica
from simulator.windows import phase_of


class Alike(NamedTuple):
    """What all steps of a quiet run have in common."""

    rows: int      # sequences of the lane
    width: int     # rows computed: with those for nobody (static batch)
    held: int      # slots
    dense: int     # [ns] as in Cost, for this many rows
    fixed: int     # [ns] of GPU time that does not grow with the context
    grows: int     # [ns] by which attention grows from step to step ...
    rest: int      # [2^-32 ns] ... and the rest of it
    prep: int
    cpu: int
    eager: int


class Pace(NamedTuple):
    """What a step of a quiet run hands on to the next.

    In a record instead, every step would wait for what the one before has stored.
    """

    now: int
    gpu_free: int
    cpu_free: int
    context: int
    attention: int   # [ns] of GPU time that grows with the context
    rest: int        # [2^-32 ns] rounded off it
    kv_tokens: int
    free_blocks: int
    steps: int       # of the lane
    gpu: int         # [ns] of all steps of the run


class Gaps(NamedTuple):
    """Gaps between tokens in a quiet run that are still to be written."""

    bin: int         # of the histogram
    low: int         # [ns] gaps from here ...
    high: int        # ... to here are in it
    tokens: int      # counted in it
    step: int        # of the lane
    longest: int     # [ns] gap before its output; -1 = none. No later one was longer


class Sums(NamedTuple):
    """Totals over the steps of a quiet run whose output was collected; see records.Totals."""

    outputs: int
    wall: int
    short: int
    running: int
    blocks: int
    kv_tokens: int
    gaps: int
    peak_running: int
    peak_blocks: int


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
    c, lim, stats = rep.c, world.lim, rep.stats
    place, oldest = ring_place(rep, lim, lim.schedule_ahead), c.first_flight
    model = rep.steps[place - 1 if place > 0 else lim.schedule_ahead]
    alike = _alike(world.cost, c.lane, model.pad_rows, held(rep))
    if lim.schedule_ahead > 0:
        rep.steps[place] = model
        rep.steps[place].joined = 0
    pace = Pace(c.now, c.gpu_free, c.cpu_free, model.context, scaled(model.context, world.cost.decode_context_fp),
                rounded_off(model.context, world.cost.decode_context_fp), c.kv_tokens, c.free_blocks, c.lane_steps, 0)
    sums = Sums(0, 0, 0, 0, 0, 0, 0, stats.peak_running, stats.peak_blocks)
    last, seen = c.last_output, c.lane_output
    tick, event = c.now, SCHEDULE
    last_step, room = c.lane_steps + most, GAPS - lim.schedule_ahead - 3
    phase = phase_of(lim, c.lane_steps)
    gaps = Gaps(0, 0, 0, 0, 0, -1)
    while pace.steps < last_step and pace.now < limit and pace.now <= until and c.n_gaps <= room:
        phase = phase + 1 if phase + 1 < lim.block_size else 0
        if rep.phase[phase] > pace.free_blocks:
            break
        taken = rep.phase[phase]
        if lim.offload_blocks > 0 and taken > 0 and c.n_waiting > 0:
            break  # it may be one that who waits would have found: what is copied back needs fewer blocks at first
        if lim.window > 0:
            if rep.frees[phase] > 0 and c.n_waiting > 0:
                break  # there may be room now for who waits
            taken -= rep.frees[phase]
        pace = _launch(world, rep, rep.steps[place], alike, pace, taken)
        place = place + 1 if place < lim.schedule_ahead else 0
        step = rep.steps[oldest]
        tick = max(step.gpu_end, pace.cpu_free)
        if tick > limit or tick > until:
            event = COMPLETE
            break
        oldest = oldest + 1 if oldest < lim.schedule_ahead else 0
        wall = tick - max(last, step.start)
        sums = _add(sums, step, wall)
        if len(world.log) > 0:
            c.now = tick
            log_step(world.log, world.clients.ctl, rep, r, step, wall)
        if lim.stream == 1:
            gaps = _note(world, rep, gaps, step.lane_step, tick - seen, alike.rows)
        last = seen = tick
        pace = Pace(tick, pace.gpu_free, pace.cpu_free, pace.context, pace.attention, pace.rest, pace.kv_tokens,
                    pace.free_blocks, pace.steps, pace.gpu)
    if gaps.longest >= 0:
        world.itl[gaps.bin] += gaps.tokens
        note_gap(rep, gaps.step, gaps.longest)
    rep.front.event_tick, rep.front.event_phase = tick, event
    return _write(world, rep, alike, pace, sums, oldest)


@jitable
def _note(world: World, rep: Replica, gaps: Gaps, number: int, gap: int, tokens: int) -> Gaps:
    """With the gap [ns] before the output of lane step `number`, which gave so many tokens."""
    at, low, high, before = gaps.bin, gaps.low, gaps.high, gaps.tokens
    if gap < low or gap >= high:
        world.itl[at] += before
        at = itl_bin(gap)
        low, high, before = bin_start(at), bin_start(at + 1), 0
    if gap < gaps.longest:
        note_gap(rep, gaps.step, gaps.longest)
    return Gaps(at, low, high, before + tokens, number, gap)


@jitable
def _alike(cost: Cost, rows: int, pads: int, slots: int) -> Alike:
    tokens = rows + pads
    dense = dense_time(cost, 0, tokens)
    return Alike(rows, tokens, slots, dense, dense + scaled(tokens, cost.decode_seq_fp),
                 scaled(tokens, cost.decode_context_fp), rounded_off(tokens, cost.decode_context_fp),
                 table_at(cost.prep_ns, 0, tokens) + rows * cost.prep_seq_ns,
                 table_at(cost.cpu_ns, 0, tokens) + rows * cost.cpu_seq_ns, table_at(cost.eager, 0, tokens))


@jitable
def _launch(world: World, rep: Replica, step: Column, alike: Alike, pace: Pace, blocks: int) -> Pace:
    """`booking.commit` for a step of the lane alone that takes `blocks` blocks."""
    context = pace.context + alike.width
    rest = pace.rest + alike.rest
    attention = pace.attention + alike.grows + (rest >> FP_BITS)
    gpu = alike.fixed + attention
    if world.lim.window > 0:
        step.seen_context = rep.c.lane_seen_context + rep.c.lane_short * (pace.steps - rep.c.lane_steps)
        gpu += scaled(step.seen_context, world.cost.seen_context_fp)
    gpu_free = max(pace.gpu_free, pace.now + alike.prep) + gpu
    cpu_free = pace.now + alike.cpu
    if alike.eager == 1:
        gpu_free = max(gpu_free, cpu_free)
    after = Pace(pace.now, gpu_free, cpu_free, context, attention, rest & LOW, pace.kv_tokens + alike.rows,
                 pace.free_blocks - blocks, pace.steps + 1, pace.gpu + gpu)
    step.start = pace.now
    step.gpu_end = gpu_free
    step.gpu_ns = gpu
    step.context = context
    step.running = alike.held
    step.gap = after.free_blocks - rep.c.largest_gap if world.lim.contiguous == 1 else 0
    step.blocks = world.lim.num_blocks - after.free_blocks
    step.kv_tokens = after.kv_tokens
    step.lane_step = after.steps
    return after


@jitable
def _add(sums: Sums, step: Column, wall: int) -> Sums:
    """With a step of `wall` ns that came out now."""
    short = wall >> 10
    return Sums(sums.outputs + 1, sums.wall + wall, sums.short + short, sums.running + step.running * wall,
                sums.blocks + step.blocks * short, sums.kv_tokens + step.kv_tokens * short,
                sums.gaps + step.gap * short, max(sums.peak_running, step.running), max(sums.peak_blocks, step.blocks))


@jitable
def _write(world: World, rep: Replica, alike: Alike, pace: Pace, sums: Sums, oldest: int) -> bool:
    """Write back what a quiet run has done; False when that is nothing."""
    c, stats = rep.c, rep.stats
    launched = pace.steps - c.lane_steps
    if launched == 0:
        return False
    c.lane_seen_context += c.lane_short * launched
    c.n_flight += launched - sums.outputs
    c.first_flight = oldest
    c.now, c.gpu_free, c.cpu_free = pace.now, pace.gpu_free, pace.cpu_free
    c.kv_tokens, c.free_blocks, c.lane_steps = pace.kv_tokens, pace.free_blocks, pace.steps
    c.lane_context += alike.rows * launched
    c.lane_ahead = world.lim.schedule_ahead
    c.hold -= launched
    stats.gpu += pace.gpu
    stats.dense += alike.dense * launched
    stats.decode_attention += pace.gpu - alike.dense * launched
    stats.eager += alike.eager * launched
    stats.pad_rows += (alike.width - alike.rows) * launched
    if sums.outputs > 0:
        c.visible = c.now + world.cost.frontend_out_ns
        c.last_output = c.lane_output = stats.last = c.now
        c.lane_seen += sums.outputs
        stats.output += alike.rows * sums.outputs
        weigh(stats, world.rows_time, rep.steps[oldest], sums.wall, sums.short, sums.outputs)
        stats.running += sums.running
        stats.blocks += sums.blocks
        stats.kv_tokens += sums.kv_tokens
        stats.gaps += sums.gaps
        stats.peak_running, stats.peak_blocks = sums.peak_running, sums.peak_blocks
    return True

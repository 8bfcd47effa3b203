"""The leap: run of decode steps that repeat one decision, advanced without asking the policy.

A pure-decode decision stays the same until a sequence has all its tokens planned, a block cannot be had, or
something arrives. Between these the clocks are advanced step by step, by the integer additions that single
steps would do, but each sequence is touched a fixed number of times. The result is equal to stepping, bit by bit.
"""

from simulator.cost.step import Cost, decode_attention_time, dense_time, table_at
from simulator.engines.booking import itl_bin, ring_place, weigh
from simulator.engines.steplog import log_step
from simulator.jit import jitable
from simulator.state import COMPLETE, SCHEDULE, Column, Limits, Replica, Requests


@jitable
def leap_rows(rep: Replica, lim: Limits) -> int:
    """Sequences of the decision that would be repeated now, 0 when it would not be."""
    if rep.c.n_flight != lim.schedule_ahead:
        return 0
    newest = ring_place(rep, lim, lim.schedule_ahead)
    rows = 0
    for k in range(max(1, lim.schedule_ahead)):
        newest = newest - 1 if newest > 0 else lim.schedule_ahead
        step = rep.steps[newest]
        if k == 0:
            rows = step.yields
        if step.plain == 0 or step.version != rep.c.version or step.yields != rows:
            return 0
    return rows


@jitable
def leap(req: Requests, rep: Replica, lim: Limits, cost: Cost, stats: Column, itl: Column, rows_time: Column,
         ctl: Column, log: Column, crossings: Column, r: int, rows: int, limit: int, until: int) -> bool:
    """Advance replica r by equal decode steps up to tick `limit`; False when not even one was possible.

    Steps scheduled before `limit` and outputs up to it are done (an arrival at `limit` comes between).
    Leaves the replica's next event in EVENT_TICK / EVENT_PHASE. `crossings` is scratch, (block_size,).
    """
    depth = lim.schedule_ahead + 1
    c = rep.c
    free_place = ring_place(rep, lim, lim.schedule_ahead)
    newest = free_place - 1 if free_place > 0 else lim.schedule_ahead
    model = rep.steps[newest]
    flight = rep.flight[newest]
    most = _steps_possible(req, lim, flight, rows, crossings)
    if depth == 1:
        most -= 1  # without schedule-ahead the last output would be collected inside the leap
    most = min(most, c.hold)
    if most < 1:
        return False
    if depth > 1:
        rep.steps[free_place] = model
        for k in range(rows):
            rep.flight[free_place][k] = flight[k]

    pads = model.pad_rows
    tokens = rows + pads
    dense = dense_time(cost, 0, tokens)
    prep = table_at(cost.prep_ns, 0, tokens) + rows * cost.prep_seq_ns
    cpu = table_at(cost.cpu_ns, 0, tokens) + rows * cost.cpu_seq_ns
    eager = table_at(cost.eager, 0, tokens)
    now = c.now
    context = model.context
    free = c.free_blocks
    running = c.n_running
    scattered = free - c.largest_gap if lim.contiguous == 1 else 0
    kv_tokens = c.kv_tokens
    gpu_free = c.gpu_free
    last_output = c.last_output
    first_place = c.first_flight
    place = free_place
    phase = 0
    launched = 0
    collected = 0
    next_tick = now
    next_phase = SCHEDULE
    gpu_launched = 0
    sums_wall = 0
    sums_short = 0
    longest = 0
    seen = 0
    peak_blocks = 0
    sums_running = 0
    while launched < most and now < limit and now <= until:
        need = crossings[phase]
        if need > free:
            break
        phase += 1
        if phase == lim.block_size:
            phase = 0
        free -= need
        context += tokens
        kv_tokens += rows
        gpu = dense + decode_attention_time(cost, tokens, context)
        gpu_free = max(gpu_free, now + prep) + gpu
        cpu_free = now + cpu
        if eager == 1:
            gpu_free = max(gpu_free, cpu_free)
        step = rep.steps[place]
        step.start = now
        step.gpu_end = gpu_free
        step.gpu_ns = gpu
        step.context = context
        seen = collected
        step.running = running
        step.gap = scattered
        step.blocks = lim.num_blocks - free
        step.kv_tokens = kv_tokens
        c.cpu_free = cpu_free
        gpu_launched += gpu
        launched += 1
        place += 1
        if place == depth:
            place = 0
        old = rep.steps[first_place]
        output = max(old.gpu_end, cpu_free, now)
        if output > limit or output > until:
            next_tick = output
            next_phase = COMPLETE
            break
        wall = output - max(last_output, old.start)
        short = wall >> 10
        stats.blocks += old.blocks * short
        stats.kv_tokens += old.kv_tokens * short
        stats.gaps += old.gap * short
        peak_blocks = max(peak_blocks, old.blocks)
        gap = output - last_output
        sums_running += old.running * wall
        c.now = output
        if len(log) > 0:
            log_step(log, ctl, rep, r, old, wall, 1, old.blocks, old.kv_tokens, old.gpu_ns)
        if collected == 0:
            stats.peak_running = max(stats.peak_running, old.running)
        if lim.stream == 1:
            if collected == 0:
                _first_output(req, itl, rep.flight[first_place], rows, output + cost.frontend_out_ns)
            else:
                itl[itl_bin(gap)] += rows
                longest = max(longest, gap)
        collected += 1
        sums_wall += wall
        sums_short += short
        last_output = output
        now = output
        next_tick = output
        first_place += 1
        if first_place == depth:
            first_place = 0
    if launched == 0:
        return False

    _finish_rows(req, lim, flight, rows, launched, collected, seen, longest, last_output + cost.frontend_out_ns)
    c.free_blocks = free
    c.kv_tokens = kv_tokens
    c.gpu_free = gpu_free
    c.hold -= launched
    c.n_flight += launched - collected
    c.first_flight = first_place
    c.event_tick = next_tick
    c.event_phase = next_phase
    c.bound = max(next_tick, gpu_free + (most - launched) * dense)
    stats.gpu += gpu_launched
    stats.dense += dense * launched
    stats.decode_attention += gpu_launched - dense * launched
    stats.eager += eager * launched
    stats.pad_rows += pads * launched
    if collected > 0:
        c.now = last_output
        c.last_output = last_output
        c.visible = last_output + cost.frontend_out_ns
        stats.last = last_output
        stats.output += rows * collected
        stats.peak_blocks = max(stats.peak_blocks, peak_blocks)
        stats.running += sums_running
        weigh(stats, rows_time, model, sums_wall, sums_short, collected)
    return True


@jitable
def _steps_possible(req: Requests, lim: Limits, flight: Column, rows: int, crossings: Column) -> int:
    """Steps until a sequence has all its tokens planned; fills crossings[p], the blocks needed at step p (mod size)."""
    size = lim.block_size
    for p in range(size):
        crossings[p] = 0
    most = req.limit[flight[0]] - req.planned[flight[0]]
    for k in range(rows):
        i = flight[k]
        left = min(req.limit[i], req.output[i]) - req.planned[i]
        most = min(most, left)
        if most < 1:
            return 0
        spare = req.blocks[i] * size - req.computed[i]
        if spare < size:
            crossings[spare] += 1
    return most


@jitable
def _first_output(req: Requests, itl: Column, flight: Column, rows: int, visible: int) -> None:
    """The first output of a leap: gaps may differ between sequences."""
    same_gap = -1
    same_bin = 0
    for k in range(rows):
        i = flight[k]
        gap = visible - req.last[i]
        if gap != same_gap:
            same_gap = gap
            same_bin = itl_bin(gap)
        itl[same_bin] += 1
        req.itl_max[i] = max(req.itl_max[i], gap)
        req.last[i] = visible


@jitable
def _finish_rows(req: Requests, lim: Limits, flight: Column, rows: int, launched: int, collected: int, seen: int,
                 longest: int, visible: int) -> None:
    """Write what a leap did to each of its sequences; `seen` outputs were collected when it planned its last step."""
    size = lim.block_size
    for k in range(rows):
        i = flight[k]
        spare = req.blocks[i] * size - req.computed[i]
        while launched > spare:
            req.blocks[i] += 1
            spare += size
        req.computed[i] += launched
        req.planned[i] += launched
        if lim.prefix == 1:
            req.settled[i] = req.prompt[i] + req.done[i] + seen
        req.done[i] += collected
        if collected > 0 and lim.stream == 1:
            req.last[i] = visible
        req.itl_max[i] = max(req.itl_max[i], longest)

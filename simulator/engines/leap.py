"""The leap: run of decode steps that repeat one decision, advanced without asking the policy.

A pure-decode decision stays the same until a sequence has all its tokens planned, a block cannot be had, or
something arrives. Between these the clocks are advanced step by step, by the integer additions that single
steps would do, but each sequence is touched a fixed number of times. The result is equal to stepping, bit by bit.
"""

from simulator.cost.step import Cost, decode_attention_time, dense_time, table_at
from simulator.engines.booking import COMPLETE, SCHEDULE, itl_bin, ring_place, weigh
from simulator.engines.steplog import log_step
from simulator.jit import jitable
from simulator.state import (
    BOUND,
    CPU_FREE,
    EVENT_PHASE,
    EVENT_TICK,
    FIRST_FLIGHT,
    FREE_BLOCKS,
    GPU_FREE,
    HOLD,
    KV_TOKENS,
    LARGEST_GAP,
    LAST_OUTPUT,
    N_FLIGHT,
    N_RUNNING,
    NOW,
    S_BLOCKS,
    S_CONTEXT,
    S_GAP,
    S_GPU_END,
    S_GPU_NS,
    S_KV_TOKENS,
    S_PAD_ROWS,
    S_PLAIN,
    S_RUNNING,
    S_START,
    S_VERSION,
    S_YIELD,
    STEP_FIELDS,
    T_BLOCKS,
    T_DECODE_ATTENTION,
    T_DENSE,
    T_EAGER,
    T_GAPS,
    T_GPU,
    T_KV_TOKENS,
    T_LAST,
    T_OUTPUT,
    T_PAD_ROWS,
    T_PEAK_BLOCKS,
    T_PEAK_RUNNING,
    T_RUNNING,
    VERSION,
    VISIBLE,
    Column,
    Limits,
    Replica,
    Requests,
)


@jitable
def leap_rows(rep: Replica, lim: Limits) -> int:
    """Sequences of the decision that would be repeated now, 0 when it would not be."""
    if rep.c[N_FLIGHT] != lim.schedule_ahead:
        return 0
    newest = ring_place(rep, lim, lim.schedule_ahead)
    rows = 0
    for k in range(max(1, lim.schedule_ahead)):
        newest = newest - 1 if newest > 0 else lim.schedule_ahead
        step = rep.steps[newest]
        if k == 0:
            rows = step[S_YIELD]
        if step[S_PLAIN] == 0 or step[S_VERSION] != rep.c[VERSION] or step[S_YIELD] != rows:
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
    most = min(most, c[HOLD])
    if most < 1:
        return False
    if depth > 1:
        for k in range(STEP_FIELDS):
            rep.steps[free_place][k] = model[k]
        for k in range(rows):
            rep.flight[free_place][k] = flight[k]

    pads = model[S_PAD_ROWS]
    tokens = rows + pads
    dense = dense_time(cost, 0, tokens)
    prep = table_at(cost.prep_ns, 0, tokens) + rows * cost.prep_seq_ns
    cpu = table_at(cost.cpu_ns, 0, tokens) + rows * cost.cpu_seq_ns
    eager = table_at(cost.eager, 0, tokens)
    now = c[NOW]
    context = model[S_CONTEXT]
    free = c[FREE_BLOCKS]
    running = c[N_RUNNING]
    scattered = free - c[LARGEST_GAP] if lim.contiguous == 1 else 0
    kv_tokens = c[KV_TOKENS]
    gpu_free = c[GPU_FREE]
    last_output = c[LAST_OUTPUT]
    first_place = c[FIRST_FLIGHT]
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
        step[S_START] = now
        step[S_GPU_END] = gpu_free
        step[S_GPU_NS] = gpu
        step[S_CONTEXT] = context
        step[S_RUNNING] = running
        step[S_GAP] = scattered
        step[S_BLOCKS] = lim.num_blocks - free
        step[S_KV_TOKENS] = kv_tokens
        c[CPU_FREE] = cpu_free
        gpu_launched += gpu
        launched += 1
        place += 1
        if place == depth:
            place = 0
        old = rep.steps[first_place]
        output = max(old[S_GPU_END], cpu_free, now)
        if output > limit or output > until:
            next_tick = output
            next_phase = COMPLETE
            break
        wall = output - max(last_output, old[S_START])
        short = wall >> 10
        stats[T_BLOCKS] += old[S_BLOCKS] * short
        stats[T_KV_TOKENS] += old[S_KV_TOKENS] * short
        stats[T_GAPS] += old[S_GAP] * short
        peak_blocks = max(peak_blocks, old[S_BLOCKS])
        gap = output - last_output
        sums_running += old[S_RUNNING] * wall
        c[NOW] = output
        if len(log) > 0:
            log_step(log, ctl, rep, r, old, wall, 1, old[S_BLOCKS], old[S_KV_TOKENS], old[S_GPU_NS])
        if collected == 0:
            stats[T_PEAK_RUNNING] = max(stats[T_PEAK_RUNNING], old[S_RUNNING])
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

    _finish_rows(req, lim, flight, rows, launched, collected, longest, last_output + cost.frontend_out_ns)
    c[FREE_BLOCKS] = free
    c[KV_TOKENS] = kv_tokens
    c[GPU_FREE] = gpu_free
    c[HOLD] -= launched
    c[N_FLIGHT] += launched - collected
    c[FIRST_FLIGHT] = first_place
    c[EVENT_TICK] = next_tick
    c[EVENT_PHASE] = next_phase
    c[BOUND] = max(next_tick, gpu_free + (most - launched) * dense)
    stats[T_GPU] += gpu_launched
    stats[T_DENSE] += dense * launched
    stats[T_DECODE_ATTENTION] += gpu_launched - dense * launched
    stats[T_EAGER] += eager * launched
    stats[T_PAD_ROWS] += pads * launched
    if collected > 0:
        c[NOW] = last_output
        c[LAST_OUTPUT] = last_output
        c[VISIBLE] = last_output + cost.frontend_out_ns
        stats[T_LAST] = last_output
        stats[T_OUTPUT] += rows * collected
        stats[T_PEAK_BLOCKS] = max(stats[T_PEAK_BLOCKS], peak_blocks)
        stats[T_RUNNING] += sums_running
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
def _finish_rows(req: Requests, lim: Limits, flight: Column, rows: int, launched: int, collected: int, longest: int,
                 visible: int) -> None:
    """Write what a leap did to each of its sequences."""
    size = lim.block_size
    for k in range(rows):
        i = flight[k]
        spare = req.blocks[i] * size - req.computed[i]
        while launched > spare:
            req.blocks[i] += 1
            spare += size
        req.computed[i] += launched
        req.planned[i] += launched
        req.done[i] += collected
        if collected > 0 and lim.stream == 1:
            req.last[i] = visible
        req.itl_max[i] = max(req.itl_max[i], longest)

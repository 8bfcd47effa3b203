"""The bookkeeping of a step, run by both engines: commit (plan -> clocks), collect (output -> requests).

Event order at one tick: by phase (simulator/records.py), then by replica or request index. A completion may cause an
arrival at the same tick, and a step sees every arrival of its tick.
"""

from typing import Final

from policies.queues import held, lane_gives_back, take_out
from simulator.cost.step import (
    Cost,
    decode_attention_time,
    dense_time,
    prefill_attention_time,
    scaled,
    table_at,
)
from simulator.engines.gaps import itl_bin
from simulator.engines.speculation import deliver_drafted
from simulator.engines.stages import crowded, first_start, launch_stages, part_of
from simulator.engines.world import World
from simulator.jit import jitable
from simulator.records import Totals
from simulator.state import FINISHED, FUTURE, RUNNING, WAITING, Column, Limits, Replica, Requests
from simulator.units import NEVER
from simulator.windows import counts

SLOW_UNIT: Final = 1000


@jitable
def clear_plan(rep: Replica) -> None:
    """Empty the plan before a policy fills it."""
    rep.c.n_batch = 0
    rep.c.wake = NEVER
    rep.c.hold = NEVER
    rep.c.pad_rows = 0
    rep.c.pad_context = 0
    rep.c.pad_tokens = 0
    rep.c.pad_pairs = 0
    rep.c.with_lane = 0
    rep.c.lane_took = 0
    rep.c.lane_gives = 0
    rep.c.singles = 0


@jitable
def launch(rep: Replica, cost: Cost, step: Column, kind: int, tokens: int, rows: int, gpu: int) -> int:
    """Set the two clocks for a step of `gpu` ns scheduled now; returns 1 when it was launched eagerly.

    GPU: starts when it is free and the CPU has prepared the inputs. CPU: free when all kernels are launched.
    """
    now = rep.c.now
    ready = now + table_at(cost.prep_ns, kind, tokens) + rows * cost.prep_seq_ns
    cpu_end = now + table_at(cost.cpu_ns, kind, tokens) + rows * cost.cpu_seq_ns
    gpu_end = max(rep.c.gpu_free, ready) + gpu
    eager = table_at(cost.eager, kind, tokens)
    if eager == 1:
        gpu_end = max(gpu_end, cpu_end)
    rep.c.gpu_free = gpu_end
    rep.c.cpu_free = cpu_end
    step.start = now
    step.gpu_end = gpu_end
    step.gpu_ns = gpu
    return eager


@jitable
def ring_place(rep: Replica, lim: Limits, ahead: int) -> int:
    """Place in the ring of steps in flight, `ahead` (at most its length) behind the oldest."""
    place = rep.c.first_flight + ahead
    return place if place <= lim.schedule_ahead else place - lim.schedule_ahead - 1


@jitable
def commit(req: Requests, rep: Replica, lim: Limits, cost: Cost) -> None:
    """SCHEDULE: turn the plan in rep.batch into a step in flight: advance its sequences, set its clocks."""
    at = ring_place(rep, lim, rep.c.n_flight)
    flight = rep.flight[at]
    step = rep.steps[at]
    lane = rep.c.lane if rep.c.with_lane == 1 else 0
    n_decode = lane
    context = rep.c.lane_context if lane > 0 else 0
    n_prefill = 0
    prefill_tokens = 0
    pairs = 0
    n_yield = 0
    n_drafts = 0
    _begin(req, rep, lim, step, lane)
    for k in range(rep.c.n_batch):
        i = rep.batch[k]
        tokens = int(rep.tokens[k])
        before = int(req.computed[i])
        known = int(req.prompt[i]) + int(req.planned[i])
        drafts = max(before + tokens - known, 0)
        if tokens == 1 + drafts and req.planned[i] > 0 and before + 1 == known:
            n_decode += 1
            n_drafts += drafts
            context += known + drafts
        else:
            n_prefill += 1
            prefill_tokens += tokens
            pairs += tokens * before + ((tokens * (tokens + 1)) >> 1)
            if req.scheduled[i] == NEVER:
                req.scheduled[i] = rep.c.now
        req.computed[i] = before + tokens
        if before + tokens >= known:
            req.planned[i] += 1 + drafts
            flight[n_yield] = i
            if lim.stages > 1:
                req.due[i] = rep.c.rounds + lim.stages
            if lim.draft_tokens > 0:
                rep.gains[at][n_yield] = 1 + drafts
                req.drafts[i] = lim.draft_tokens
            n_yield += 1
    rep.c.kv_tokens += n_decode + n_drafts + prefill_tokens
    step.yields = n_yield
    step.decode = n_decode
    step.drafts = n_drafts
    step.context = context + rep.c.pad_context
    step.prefill = n_prefill
    step.prefill_tokens = prefill_tokens
    step.pairs = pairs + rep.c.pad_pairs
    step.running = held(rep)
    step.waiting = rep.c.n_waiting
    step.blocks = lim.num_blocks - rep.c.free_blocks
    step.kv_tokens = rep.c.kv_tokens
    step.version = rep.c.version
    step.plain = 1 if n_prefill == 0 and n_yield + lane == n_decode and lim.draft_tokens == 0 else 0
    step.pad_rows = rep.c.pad_rows
    step.gap = rep.c.free_blocks - rep.c.largest_gap if lim.contiguous == 1 else 0
    mixed = n_prefill > 0 or n_drafts != n_decode * lim.draft_tokens
    _price(rep, lim, cost, step, 1 if mixed else 0)
    rep.c.n_flight += 1


@jitable
def _begin(req: Requests, rep: Replica, lim: Limits, step: Column, lane: int) -> None:
    """A step of which `lane` sequences of the lane are part, before the others advance."""
    if lim.window > 0:
        step.seen_context, step.seen_pairs = counts(req, rep, lim)
        if lane > 0:
            step.seen_context += rep.c.lane_seen_context
            rep.c.lane_seen_context += rep.c.lane_short
        lane_gives_back(rep)
    step.lane_step = 0
    if lane > 0:
        rep.c.lane_steps += 1
        rep.c.lane_context += lane
        rep.c.lane_ahead = rep.c.n_flight
        step.lane_step = rep.c.lane_steps
    rep.c.lane_took = 0  # those blocks are in use now: a later spill does not give them back
    step.lane = lane
    step.joined = 0
    step.dropped = 0


@jitable
def _price(rep: Replica, lim: Limits, cost: Cost, step: Column, kind: int) -> None:
    """Cost of the step just filled in, into its clocks and the totals; kind 0: a decode of equal rows."""
    stats = rep.stats
    rows = step.decode + step.prefill
    tokens = step.decode + step.drafts + rep.c.pad_rows + step.prefill_tokens + rep.c.pad_tokens
    dense = dense_time(cost, kind, tokens)
    decode = decode_attention_time(cost, step.decode + rep.c.pad_rows, step.context)
    prefill = 0
    if cost.seen_context_fp > 0:
        decode += scaled(step.seen_context, cost.seen_context_fp)
    if kind == 1:
        prefill = prefill_attention_time(cost, step.prefill, step.prefill_tokens + rep.c.pad_tokens,
                                         step.pairs)
        if cost.beside_context_fp > 0:
            decode += scaled(step.context, cost.beside_context_fp)
        if cost.seen_pair_fp > 0:
            prefill += scaled(step.seen_pairs, cost.seen_pair_fp)
    head = table_at(cost.head_ns, kind, tokens) if lim.stages > 1 else 0
    start = first_start(rep, lim, cost, kind, tokens, rows) if lim.stages > 1 else 0
    if rep.c.slow > 0:
        dense, decode, prefill, head = slowed(rep.c.slow, dense, decode, prefill, head)
    if lim.stages > 1 and crowded(rep, lim, start):
        dense, decode, prefill, head = slowed(cost.crowded, dense, decode, prefill, head)
    gpu = dense + decode + prefill + rep.c.copy_ns
    stats.copies += rep.c.copy_ns
    rep.c.copy_ns = 0
    if lim.stages > 1:
        stats.eager += launch_stages(rep, lim, cost, step, kind, tokens, rows, start, gpu, min(head, gpu))
    else:
        stats.eager += launch(rep, cost, step, kind, tokens, rows, gpu)
    stats.dense += dense
    stats.decode_attention += decode
    stats.prefill_attention += prefill
    stats.gpu += gpu
    stats.prefill += step.prefill_tokens
    stats.pad_rows += rep.c.pad_rows
    stats.pad_tokens += rep.c.pad_tokens


@jitable
def slowed(factor: int, dense: int, decode: int, prefill: int, head: int) -> tuple[int, int, int, int]:
    """[ns] parts of GPU time multiplied by `factor` / SLOW_UNIT, exact for steps of up to reach.LONGEST_STEP_NS."""
    return (part_of(dense, factor, SLOW_UNIT), part_of(decode, factor, SLOW_UNIT),
            part_of(prefill, factor, SLOW_UNIT), part_of(head, factor, SLOW_UNIT))


@jitable
def output_tick(rep: Replica) -> int:
    """[tick] when the output of the oldest step in flight can be collected."""
    return max(rep.steps[rep.c.first_flight].gpu_end, rep.c.cpu_free, rep.c.now)


@jitable
def weigh(stats: Totals, rows_time: Column, step: Column, wall: int, short: int, count: int) -> None:
    """Add `count` equal steps that lasted `wall` ns together to the time-weighted totals.

    `short` is the sum of each step's wall time >> 10. KV sums and held slots are left to the caller: within a
    run of equal steps they change.
    """
    rows = step.decode + step.prefill
    stats.steps += count
    stats.wall += wall
    stats.rows += rows * wall
    stats.waiting += step.waiting * short
    stats.wall_short += short
    rows_time[rows] += wall


@jitable
def collect(world: World, rep: Replica) -> int:
    """COMPLETE: hand the oldest step's tokens to their requests; returns the step's wall time [ns].

    Sets c.visible and c.n_ended for the policy's `retire`; the step stays readable in its ring place.
    """
    c, stats = rep.c, rep.stats
    at = c.first_flight
    step = rep.steps[at]
    wall = c.now - max(c.last_output, step.start)
    c.visible = c.now + world.cost.frontend_out_ns
    if world.lim.draft_tokens > 0:
        given = deliver_drafted(world, rep, rep.flight[at], rep.gains[at], step.yields)
    else:
        given = step.lane + _deliver(world, rep, rep.flight[at], step.yields)
        stats.wasted += step.yields + step.lane - given + step.dropped
    if step.lane_step > 0 or step.joined == 1:
        _lane_output(world, rep, step)
    short = wall >> 10
    weigh(stats, world.rows_time, step, wall, short, 1)
    stats.running += step.running * wall
    stats.peak_running = max(stats.peak_running, step.running)
    stats.blocks += step.blocks * short
    stats.kv_tokens += step.kv_tokens * short
    stats.gaps += step.gap * short
    stats.peak_blocks = max(stats.peak_blocks, step.blocks)
    stats.output += given
    stats.last = c.now
    c.last_output = c.now
    rep.front.outstanding -= c.n_ended
    c.first_flight = ring_place(rep, world.lim, 1)
    c.n_flight -= 1
    return wall


@jitable
def _deliver(world: World, rep: Replica, flight: Column, count: int) -> int:
    """Give the first `count` requests of `flight` a token, visible at c.visible; returns how many took it.

    A token in flight when its request was preempted is delivered too, and takes the request out of the waiting
    queue when it was its last (vLLM 0.24 vllm/v1/core/sched/scheduler.py, Scheduler.update_from_output).
    """
    req = world.req
    visible = rep.c.visible
    ended = 0
    given = 0
    same_gap = -1
    same_bin = 0
    for k in range(count):
        i = flight[k]
        if req.status[i] > RUNNING:
            continue
        given += 1
        done = req.done[i] + 1
        if world.lim.stream == 1:
            if done == 1:
                req.first[i] = visible
            else:
                gap = visible - req.last[i]
                if gap != same_gap:
                    same_gap = gap
                    same_bin = itl_bin(gap)
                world.itl[same_bin] += 1
                req.itl_max[i] = max(req.itl_max[i], gap)
            req.last[i] = visible
        req.done[i] = done
        over = done == req.output[i]
        if over or world.lim.hand_over == 1:
            if req.status[i] == WAITING:
                take_out(req, rep, world.lim, i)
            req.status[i] = FINISHED if over else FUTURE
            rep.ended[ended] = i
            rep.front.work -= req.prompt[i] + req.limit[i]
            ended += 1
    rep.c.n_ended = ended
    return given


@jitable
def _lane_output(world: World, rep: Replica, step: Column) -> None:
    """The lane's sequences get their token of this step: one gap for all of them, noted once."""
    if step.lane_step > 0:
        rep.c.lane_seen = step.lane_step
    if step.lane > 0 and world.lim.stream == 1:
        gap = rep.c.now - rep.c.lane_output
        world.itl[itl_bin(gap)] += step.lane
        note_gap(rep, step.lane_step, gap)
    rep.c.lane_output = rep.c.now


@jitable
def note_gap(rep: Replica, number: int, gap: int) -> None:
    """Put the gap before the output of lane step `number` on the stack of gaps that no later one exceeds."""
    top = rep.c.n_gaps
    while top > 0 and rep.gap_ns[top - 1] <= gap:
        top -= 1
    rep.gap_step[top] = number
    rep.gap_ns[top] = gap
    rep.c.n_gaps = top + 1

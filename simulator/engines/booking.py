"""The bookkeeping of a step, run by both engines: enqueue, commit (plan -> clocks), collect (output -> requests).

Event order at one tick: COMPLETE < ARRIVE < TIMER < SCHEDULE, then by replica or request index. A completion may
cause an arrival at the same tick, and a step sees every arrival of its tick.
"""

from typing import Final

from policies.queues import push_back, take_out
from simulator.cost.step import (
    Cost,
    decode_attention_time,
    dense_time,
    prefill_attention_time,
    table_at,
)
from simulator.jit import jitable
from simulator.kv import reservation
from simulator.state import (
    CPU_FREE,
    FINISHED,
    FIRST_FLIGHT,
    FREE_BLOCKS,
    FUTURE,
    GPU_FREE,
    HOLD,
    ITL_BITS,
    KV_TOKENS,
    LARGEST_GAP,
    LAST_OUTPUT,
    N_BATCH,
    N_ENDED,
    N_FLIGHT,
    N_RUNNING,
    N_WAITING,
    NOW,
    OUTSTANDING,
    PAD_CONTEXT,
    PAD_PAIRS,
    PAD_ROWS,
    PAD_TOKENS,
    REJECTED_BUDGET,
    REJECTED_KV,
    REJECTED_LENGTH,
    RUNNING,
    S_BLOCKS,
    S_CONTEXT,
    S_DECODE,
    S_GAP,
    S_GPU_END,
    S_GPU_NS,
    S_KV_TOKENS,
    S_PAD_ROWS,
    S_PAIRS,
    S_PLAIN,
    S_PREFILL,
    S_PREFILL_TOKENS,
    S_RUNNING,
    S_START,
    S_VERSION,
    S_WAITING,
    S_YIELD,
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
    T_PAD_TOKENS,
    T_PEAK_BLOCKS,
    T_PEAK_RUNNING,
    T_PEAK_WAITING,
    T_PREFILL,
    T_PREFILL_ATTENTION,
    T_ROWS,
    T_RUNNING,
    T_STEPS,
    T_WAITING,
    T_WALL,
    T_WALL_SHORT,
    T_WASTED,
    VERSION,
    VISIBLE,
    WAITING,
    WAKE,
    Column,
    Limits,
    Replica,
    Requests,
)
from simulator.units import NEVER

COMPLETE: Final = 0
ARRIVE: Final = 2
TIMER: Final = 3
SCHEDULE: Final = 4
"""Phases of a tick; 1 is kept for transfers between replicas."""


@jitable
def refusal(req: Requests, lim: Limits, i: int) -> int:
    """Status code that says why request i can never run here, or FUTURE when it can."""
    final = req.prompt[i] + req.limit[i]
    if final > lim.max_model_len:
        return REJECTED_LENGTH
    if lim.whole_prompt == 1 and req.prompt[i] > lim.max_num_batched_tokens:
        return REJECTED_BUDGET
    if reservation(req, lim, i, final) > lim.num_blocks:
        return REJECTED_KV
    if lim.whole_prompt == 1 and reservation(req, lim, i, req.prompt[i]) > lim.num_blocks - lim.watermark_blocks:
        return REJECTED_KV
    return FUTURE


@jitable
def enqueue(req: Requests, rep: Replica, lim: Limits, stats: Column, i: int, r: int) -> bool:
    """ARRIVE: put request i into replica r's waiting queue, or refuse it; True when it was taken."""
    req.replica[i] = r
    code = refusal(req, lim, i)
    if code != FUTURE:
        req.status[i] = code
        return False
    push_back(req, rep, i)
    rep.c[VERSION] += 1
    rep.c[OUTSTANDING] += 1
    stats[T_PEAK_WAITING] = max(stats[T_PEAK_WAITING], rep.c[N_WAITING])
    return True


@jitable
def clear_plan(rep: Replica) -> None:
    """Empty the plan before a policy fills it."""
    rep.c[N_BATCH] = 0
    rep.c[WAKE] = NEVER
    rep.c[HOLD] = NEVER
    rep.c[PAD_ROWS] = 0
    rep.c[PAD_CONTEXT] = 0
    rep.c[PAD_TOKENS] = 0
    rep.c[PAD_PAIRS] = 0


@jitable
def launch(rep: Replica, cost: Cost, step: Column, kind: int, tokens: int, rows: int, gpu: int) -> int:
    """Set the two clocks for a step of `gpu` ns scheduled now; returns 1 when it was launched eagerly.

    GPU: starts when it is free and the CPU has prepared the inputs. CPU: free when all kernels are launched.
    """
    now = rep.c[NOW]
    ready = now + table_at(cost.prep_ns, kind, tokens) + rows * cost.prep_seq_ns
    cpu_end = now + table_at(cost.cpu_ns, kind, tokens) + rows * cost.cpu_seq_ns
    gpu_end = max(rep.c[GPU_FREE], ready) + gpu
    eager = table_at(cost.eager, kind, tokens)
    if eager == 1:
        gpu_end = max(gpu_end, cpu_end)
    rep.c[GPU_FREE] = gpu_end
    rep.c[CPU_FREE] = cpu_end
    step[S_START] = now
    step[S_GPU_END] = gpu_end
    step[S_GPU_NS] = gpu
    return eager


@jitable
def ring_place(rep: Replica, lim: Limits, ahead: int) -> int:
    """Place in the ring of steps in flight, `ahead` (at most its length) behind the oldest."""
    place = rep.c[FIRST_FLIGHT] + ahead
    return place if place <= lim.schedule_ahead else place - lim.schedule_ahead - 1


@jitable
def commit(req: Requests, rep: Replica, lim: Limits, cost: Cost, stats: Column) -> None:
    """SCHEDULE: turn the plan in rep.batch into a step in flight: advance its sequences, set its clocks."""
    at = ring_place(rep, lim, rep.c[N_FLIGHT])
    flight = rep.flight[at]
    step = rep.steps[at]
    n_decode = 0
    context = 0
    n_prefill = 0
    prefill_tokens = 0
    pairs = 0
    n_yield = 0
    for k in range(rep.c[N_BATCH]):
        i = rep.batch[k]
        tokens = int(rep.tokens[k])
        before = int(req.computed[i])
        known = int(req.prompt[i]) + int(req.planned[i])
        if tokens == 1 and req.planned[i] > 0 and before + 1 == known:
            n_decode += 1
            context += known
        else:
            n_prefill += 1
            prefill_tokens += tokens
            pairs += tokens * before + ((tokens * (tokens + 1)) >> 1)
            if req.scheduled[i] == NEVER:
                req.scheduled[i] = rep.c[NOW]
        req.computed[i] = before + tokens
        if before + tokens == known:
            req.planned[i] += 1
            flight[n_yield] = i
            n_yield += 1
    rep.c[KV_TOKENS] += n_decode + prefill_tokens
    step[S_YIELD] = n_yield
    step[S_DECODE] = n_decode
    step[S_CONTEXT] = context + rep.c[PAD_CONTEXT]
    step[S_PREFILL] = n_prefill
    step[S_PREFILL_TOKENS] = prefill_tokens
    step[S_PAIRS] = pairs + rep.c[PAD_PAIRS]
    step[S_RUNNING] = rep.c[N_RUNNING]
    step[S_WAITING] = rep.c[N_WAITING]
    step[S_BLOCKS] = lim.num_blocks - rep.c[FREE_BLOCKS]
    step[S_KV_TOKENS] = rep.c[KV_TOKENS]
    step[S_VERSION] = rep.c[VERSION]
    step[S_PLAIN] = 1 if n_prefill == 0 and n_yield == n_decode else 0
    step[S_PAD_ROWS] = rep.c[PAD_ROWS]
    step[S_GAP] = rep.c[FREE_BLOCKS] - rep.c[LARGEST_GAP] if lim.contiguous == 1 else 0
    _price(rep, cost, stats, step)
    rep.c[N_FLIGHT] += 1


@jitable
def _price(rep: Replica, cost: Cost, stats: Column, step: Column) -> None:
    """Cost of the step just filled in, into its clocks and the totals."""
    rows = step[S_DECODE] + step[S_PREFILL]
    kind = 1 if step[S_PREFILL] > 0 else 0
    tokens = step[S_DECODE] + rep.c[PAD_ROWS] + step[S_PREFILL_TOKENS] + rep.c[PAD_TOKENS]
    dense = dense_time(cost, kind, tokens)
    decode = decode_attention_time(cost, step[S_DECODE] + rep.c[PAD_ROWS], step[S_CONTEXT])
    prefill = 0
    if kind == 1:
        prefill = prefill_attention_time(cost, step[S_PREFILL], step[S_PREFILL_TOKENS] + rep.c[PAD_TOKENS],
                                         step[S_PAIRS])
    stats[T_EAGER] += launch(rep, cost, step, kind, tokens, rows, dense + decode + prefill)
    stats[T_DENSE] += dense
    stats[T_DECODE_ATTENTION] += decode
    stats[T_PREFILL_ATTENTION] += prefill
    stats[T_GPU] += dense + decode + prefill
    stats[T_PREFILL] += step[S_PREFILL_TOKENS]
    stats[T_PAD_ROWS] += rep.c[PAD_ROWS]
    stats[T_PAD_TOKENS] += rep.c[PAD_TOKENS]


@jitable
def output_tick(rep: Replica) -> int:
    """[tick] when the output of the oldest step in flight can be collected."""
    return max(rep.steps[rep.c[FIRST_FLIGHT]][S_GPU_END], rep.c[CPU_FREE], rep.c[NOW])


@jitable
def itl_bin(gap: int) -> int:
    """Histogram bin of an inter-token gap [ns]; see state.log_bin_edges."""
    octave = 0
    top = gap >> ITL_BITS
    while top > 0:
        top >>= 1
        octave += 1
    if octave == 0:
        return gap
    return (octave << ITL_BITS) + ((gap >> (octave - 1)) - (1 << ITL_BITS))


@jitable
def weigh(stats: Column, rows_time: Column, step: Column, wall: int, short: int, count: int) -> None:
    """Add `count` equal steps that lasted `wall` ns together to the time-weighted totals.

    `short` is the sum of each step's wall time >> 10. KV sums and held slots are left to the caller: within a
    run of equal steps they change.
    """
    rows = step[S_DECODE] + step[S_PREFILL]
    stats[T_STEPS] += count
    stats[T_WALL] += wall
    stats[T_ROWS] += rows * wall
    stats[T_WAITING] += step[S_WAITING] * short
    stats[T_WALL_SHORT] += short
    rows_time[rows] += wall


@jitable
def collect(req: Requests, rep: Replica, lim: Limits, cost: Cost, stats: Column, itl: Column,
            rows_time: Column) -> int:
    """COMPLETE: hand the oldest step's tokens to their requests; returns the step's wall time [ns].

    A token in flight when its request was preempted is delivered too, and takes the request out of the waiting
    queue when it was its last (vLLM 0.24 vllm/v1/core/sched/scheduler.py, Scheduler.update_from_output).
    Sets VISIBLE and N_ENDED for the policy's `retire`; the step stays readable in its ring place.
    """
    at = rep.c[FIRST_FLIGHT]
    flight = rep.flight[at]
    step = rep.steps[at]
    now = rep.c[NOW]
    visible = now + cost.frontend_out_ns
    wall = now - max(rep.c[LAST_OUTPUT], step[S_START])
    rep.c[VISIBLE] = visible
    ended = 0
    given = 0
    same_gap = -1
    same_bin = 0
    for k in range(step[S_YIELD]):
        i = flight[k]
        if req.status[i] > RUNNING:
            continue
        given += 1
        done = req.done[i] + 1
        if lim.stream == 1:
            if done == 1:
                req.first[i] = visible
            else:
                gap = visible - req.last[i]
                if gap != same_gap:
                    same_gap = gap
                    same_bin = itl_bin(gap)
                itl[same_bin] += 1
                req.itl_max[i] = max(req.itl_max[i], gap)
            req.last[i] = visible
        req.done[i] = done
        if done == req.output[i]:
            if req.status[i] == WAITING:
                take_out(req, rep, i)
            req.status[i] = FINISHED
            ended += 1
    short = wall >> 10
    weigh(stats, rows_time, step, wall, short, 1)
    stats[T_RUNNING] += step[S_RUNNING] * wall
    stats[T_PEAK_RUNNING] = max(stats[T_PEAK_RUNNING], step[S_RUNNING])
    stats[T_BLOCKS] += step[S_BLOCKS] * short
    stats[T_KV_TOKENS] += step[S_KV_TOKENS] * short
    stats[T_GAPS] += step[S_GAP] * short
    stats[T_PEAK_BLOCKS] = max(stats[T_PEAK_BLOCKS], step[S_BLOCKS])
    stats[T_OUTPUT] += given
    stats[T_WASTED] += step[S_YIELD] - given
    stats[T_LAST] = now
    rep.c[LAST_OUTPUT] = now
    rep.c[N_ENDED] = ended
    rep.c[OUTSTANDING] -= ended
    rep.c[FIRST_FLIGHT] = ring_place(rep, lim, 1)
    rep.c[N_FLIGHT] -= 1
    return wall

"""Preemption by swap: the KV of a preempted sequence goes to host memory over a link and comes back later, so that
nothing is computed again.

Swapped sequences are the first of the waiting queue, in the order in which they were swapped out; `rep.c.n_swapped`
counts them. Copies run on the GPU's stream before the step that follows, which is so much longer. A sequence for which
host memory has no room is preempted by recomputation and waits behind them (the engine named below ends there).

Source: vLLM 0.6 vllm/core/scheduler.py, Scheduler._preempt_by_swap and _schedule_swapped (--preemption-mode swap,
--swap-space); vllm/worker/cache_engine.py, CacheEngine.swap_out and swap_in.
"""

from policies.queues import admit, held, leave_host, plan, preempt, take_after, wanted
from simulator.jit import jitable
from simulator.kv import grow, reservation
from simulator.state import Limits, Replica, Requests


@jitable
def swap_out(req: Requests, rep: Replica, lim: Limits, place: int, copy_ns: int) -> int:
    """Preempt the sequence at this place of `running` and return it: to host memory where there is room for it.

    The next step is longer by `copy_ns` a block. It waits at the head of the queue.
    """
    i = rep.running[place]
    blocks = req.blocks[i]
    computed = req.computed[i]
    preempt(req, rep, lim, place)
    if blocks <= lim.swap_blocks - rep.c.host_blocks:
        req.computed[i] = computed
        req.swapped[i] = blocks
        rep.c.n_swapped += 1
        rep.c.host_blocks += blocks
        rep.c.copy_ns += blocks * copy_ns
        rep.stats.swapped_out += blocks
        rep.stats.peak_host = max(rep.stats.peak_host, rep.c.host_blocks)
    return int(i)


@jitable
def back_from_host(req: Requests, rep: Replica, lim: Limits, i: int, copy_ns: int) -> None:
    """The KV of waiting request i, if it is in host memory, is copied to the blocks that it has."""
    if lim.swap_blocks > 0 and req.swapped[i] > 0:
        rep.c.copy_ns += req.swapped[i] * copy_ns
        rep.stats.swapped_in += req.swapped[i]
        leave_host(req, rep, i)


@jitable
def swap_last_out(req: Requests, rep: Replica, lim: Limits) -> None:
    """Preempt the last admitted sequence: to host memory where there is room for it."""
    first = rep.c.n_swapped
    swap_out(req, rep, lim, rep.c.n_running - 1, lim.swap_ns)
    if first > 0:
        _behind(req, rep, first)


@jitable
def _behind(req: Requests, rep: Replica, first: int) -> None:
    """The head of the queue waits behind the `first` that follow it."""
    i = take_after(req, rep, -1)
    at = rep.c.head
    for _ in range(first - 1):
        at = req.next[at]
    req.next[i] = req.next[at]
    req.next[at] = i
    if req.next[i] < 0:
        rep.c.tail = i
    rep.c.n_waiting += 1


@jitable
def swap_in(req: Requests, rep: Replica, lim: Limits) -> None:
    """Bring sequences back while slots, budget and KV blocks last; each gets its next token in this step."""
    while rep.c.n_swapped > 0 and held(rep) < lim.max_num_seqs:
        i = rep.c.head
        need = reservation(req, lim, i, req.computed[i] + 1)
        keep_free = lim.watermark_blocks
        if held(rep) == 0 and need > lim.num_blocks - keep_free:
            keep_free = 0
        if wanted(req, i) == 0 or rep.c.n_batch + rep.c.lane >= lim.max_num_batched_tokens:
            break
        if not grow(req, rep, lim, i, req.computed[i] + 1, keep_free):
            break
        take_after(req, rep, -1)
        back_from_host(req, rep, lim, i, lim.swap_ns)
        admit(req, rep, i)
        plan(rep, i, 1)

"""Prefill first, decodes stall: the default scheduler of vLLM v0.

A step is either whole prompts or decodes. As long as waiting requests can be admitted (slots, token budget,
and KV blocks with `watermark` of them kept free) the step computes their prompts and every running sequence
stands still; only otherwise does each running sequence get its next token. A decode wants one free block, whether
it will need it or not; where there is none the last admitted sequence is preempted, by recomputation or, with
`kv.swap`, by swap to host memory. While anybody is swapped out no prompt is admitted; they come back, first out first
in, in a decode step that preempts nobody and with the watermark kept free.

A prompt that leaves no watermark even when alone is refused, as one above the token budget is. A sequence that has
outgrown either by its own tokens and is to be recomputed goes alone; vLLM would end it with what it has.

Source: vLLM 0.6 vllm/core/scheduler.py, Scheduler._schedule_default (chunked prefill off), and
vllm/core/block_manager_v2.py, can_allocate and can_append_slots.
"""

from policies.queues import admit, held, must_see_all, plan, preempt_last, run_lane, take_head, wanted
from policies.swap import swap_in, swap_last_out
from simulator.jit import jitable
from simulator.kv import grow, reservation
from simulator.prefix import find
from simulator.state import Column, Limits, Replica, Requests


@jitable
def schedule(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Fill rep.batch and rep.tokens for the next step; may admit and preempt."""
    if rep.c.n_swapped == 0:
        _prefill(req, rep, lim)
    if rep.c.n_batch == 0:
        preempted = _decode(req, rep, lim)
        if rep.c.n_swapped > 0:
            if rep.c.singles == 0 and (not preempted or held(rep) == 0):
                swap_in(req, rep, lim)
        elif held(rep) == 0:  # the last one has preempted itself: the engine asks again at once
            _prefill(req, rep, lim)


@jitable
def _prefill(req: Requests, rep: Replica, lim: Limits) -> None:
    """Admit from the head of the queue while slots, budget and KV blocks last, and plan whole prompts."""
    budget = lim.max_num_batched_tokens
    while rep.c.n_waiting > 0 and held(rep) < lim.max_num_seqs:
        i = rep.c.head
        whole = req.prompt[i] + req.planned[i]
        start = find(req, rep, lim, i, whole)
        if whole - start > budget and rep.c.n_batch > 0:
            break
        keep_free = lim.watermark_blocks
        if held(rep) == 0 and reservation(req, lim, i, whole) > lim.num_blocks - keep_free:
            keep_free = 0
        if not grow(req, rep, lim, i, whole, keep_free):
            break
        take_head(req, rep)
        req.computed[i] = start
        admit(req, rep, i)
        plan(rep, i, whole - start)
        budget -= whole - start


@jitable
def _decode(req: Requests, rep: Replica, lim: Limits) -> bool:
    """One token for every running sequence, preempting from the end where no block is free; True when it did."""
    if not run_lane(rep, lim, 0 if lim.contiguous == 1 else rep.c.n_running + 1):
        return False
    k = 0
    preempted = False
    while k < rep.c.n_running:
        i = rep.running[k]
        if wanted(req, i) > 0:
            while k < rep.c.n_running and not _may_append(rep, lim):
                if must_see_all(rep):
                    return preempted
                preempted = True
                if lim.swap_blocks > 0:
                    swap_last_out(req, rep, lim)
                else:
                    preempt_last(req, rep, lim)
            if k >= rep.c.n_running:
                break
            grow(req, rep, lim, i, req.computed[i] + 1, 0)
            plan(rep, i, 1)
        k += 1
    _hold(rep, lim)
    return preempted


@jitable
def _may_append(rep: Replica, lim: Limits) -> bool:
    """True when the next token of a running sequence may be computed; a contiguous reservation holds all of them."""
    return lim.contiguous == 1 or rep.c.free_blocks > 0


@jitable
def _hold(rep: Replica, lim: Limits) -> None:
    """The decision stands while a block is sure to be free: each sequence takes one in every block_size steps."""
    rows = rep.c.n_batch + rep.c.lane
    if lim.contiguous == 0 and rows > 0:
        sure = max(rep.c.free_blocks - 1, 0) // rows * lim.block_size
        rep.c.hold = min(rep.c.hold, sure)

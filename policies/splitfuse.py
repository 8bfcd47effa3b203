"""DeepSpeed-FastGen's Dynamic SplitFuse: forward passes of one size, filled with decodes first, then parts of prompts.

Every step has `max_num_batched_tokens` tokens (max_ragged_batch_size, 768 there). Each running sequence gets its next
token first; what is left goes to prompts, first come first served, and the one that does not fit is split so that the
budget is spent exactly. A prompt goes on, or is taken in, only when KV memory for all that is left of it is free; no
more than the part's is taken. A decode that finds no free block waits and nobody is preempted for it. When nobody can
go on, all that was computed is dropped and everybody begins again with the tokens it has ("Deadlock detected" there).

Sources: Holmes et al., "DeepSpeed-FastGen: High-throughput Text Generation for LLMs via MII and DeepSpeed-Inference",
2024 (arXiv 2401.08671), section 3.2; DeepSpeed-MII mii/batching/ragged_batching.py, RaggedBatchBase.schedule_requests
and _do_schedule_requests.
"""

from policies.queues import (
    admit,
    held,
    lane_gives_back,
    must_see_all,
    plan,
    preempt_last,
    run_lane,
    take_head,
    wanted,
)
from simulator.jit import jitable
from simulator.kv import fits, grow
from simulator.prefix import find
from simulator.state import Column, Limits, Replica, Requests


@jitable
def schedule(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Fill rep.batch and rep.tokens for the next step; may admit, or drop everything."""
    if held(rep) > lim.max_num_batched_tokens and must_see_all(rep):
        return  # single decodes go without a token
    if not run_lane(rep, lim, 0):
        return  # or without a block
    _compose(req, rep, lim)
    if rep.c.n_batch == 0 and rep.c.lane == 0 and rep.c.n_flight == 0 and rep.c.n_running > 0:
        while rep.c.n_running > 0:
            preempt_last(req, rep, lim)
        _compose(req, rep, lim)


@jitable
def _compose(req: Requests, rep: Replica, lim: Limits) -> None:
    """Fill the budget: decodes, prompts begun, prompts that wait."""
    budget = lim.max_num_batched_tokens - rep.c.lane
    for k in range(rep.c.n_running):
        i = rep.running[k]
        if wanted(req, i) == 1 and budget > 0:
            if grow(req, rep, lim, i, req.computed[i] + 1, 0):
                plan(rep, i, 1)
                budget -= 1
            elif must_see_all(rep):
                return  # somebody in the lane may be behind it
            else:
                rep.c.hold = 0  # a block that somebody gives back is taken at once
    lane_gives_back(rep)
    for k in range(rep.c.n_running):
        i = rep.running[k]
        left = wanted(req, i)
        if left > 1 and budget > 0:
            if not fits(req, rep, lim, i, req.computed[i] + left, 0):
                rep.c.hold = 0
                return
            tokens = min(left, budget)
            grow(req, rep, lim, i, req.computed[i] + tokens, 0)
            plan(rep, i, tokens)
            budget -= tokens
    while rep.c.n_waiting > 0 and budget > 0 and held(rep) < lim.max_num_seqs:
        i = rep.c.head
        whole = req.prompt[i] + req.done[i]
        start = find(req, rep, lim, i, whole)
        tokens = min(whole - start, budget)
        if not fits(req, rep, lim, i, whole, 0) or not grow(req, rep, lim, i, start + tokens, 0):
            return
        take_head(req, rep)
        req.computed[i] = start
        admit(req, rep, i)
        plan(rep, i, tokens)
        budget -= tokens

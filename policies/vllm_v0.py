"""Prefill first, decodes stall: the default scheduler of vLLM v0.

A step is either whole prompts or decodes. As long as waiting requests can be admitted (slots, token budget,
and KV blocks with `watermark` of them kept free) the step computes their prompts and every running sequence
stands still; only otherwise does each running sequence get its next token. A sequence that finds no block
preempts the last admitted one by recomputation.

Source: vLLM 0.6 vllm/core/scheduler.py, Scheduler._schedule_default (chunked prefill off).
"""

from policies.queues import admit, plan, preempt_last, take_after, wanted
from simulator.jit import jitable
from simulator.kv import grow
from simulator.state import Column, Limits, Replica, Requests


@jitable
def schedule(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Fill rep.batch and rep.tokens for the next step; may admit and preempt."""
    budget = lim.max_num_batched_tokens
    while rep.c.n_waiting > 0 and rep.c.n_running < lim.max_num_seqs:
        i = rep.c.head
        whole = req.prompt[i] + req.planned[i]
        start = min(req.cached[i], whole - 1)
        keep_free = lim.watermark_blocks if rep.c.n_running > 0 else 0
        if whole - start > budget and rep.c.n_batch > 0:
            break
        if not grow(req, rep, lim, i, whole, keep_free):
            break
        take_after(req, rep, -1)
        req.computed[i] = start
        admit(req, rep, i)
        plan(rep, i, whole - start)
        budget -= whole - start
    if rep.c.n_batch == 0:
        _decode(req, rep, lim)


@jitable
def _decode(req: Requests, rep: Replica, lim: Limits) -> None:
    """One token for every running sequence, preempting from the end where blocks run out."""
    k = 0
    while k < rep.c.n_running:
        i = rep.running[k]
        if wanted(req, i) > 0:
            while k < rep.c.n_running and not grow(req, rep, lim, i, req.computed[i] + 1, 0):
                preempt_last(req, rep, lim)
            if k >= rep.c.n_running:
                break
            plan(rep, i, 1)
        k += 1

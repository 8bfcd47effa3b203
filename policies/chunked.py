"""Continuous batching with one token budget and chunked prefill, as vLLM v1 schedules.

Every step has `max_num_batched_tokens` tokens to hand out. Running sequences come first, in order of
admission: one token for a decode, the next chunk for a prompt not yet computed. What is left goes to waiting
requests, first come first served. When a running sequence finds no KV block, the last admitted one is
preempted and recomputed later; a step that preempts admits nobody. With speculative decoding a decode asks for its
drafts too, and for KV slots that those to come are written to.

Sources: Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024,
algorithm 3 (stall-free batching); vLLM 0.24 vllm/v1/core/sched/scheduler.py, Scheduler.schedule.
"""

from collections.abc import Callable
from typing import Final

from policies.queues import (
    admit,
    held,
    lane_gives_back,
    last_admitted,
    must_see_all,
    plan,
    preempt,
    run_lane,
    slots_for,
    take_after,
    take_head,
    unplan,
    wanted,
    wanted_in_turn,
    wanted_with_drafts,
)
from simulator.jit import jitable
from simulator.kv import fits, grow
from simulator.offload import wait_until
from simulator.prefix import borrowed, find, make_room, remember, to_load
from simulator.state import Column, Limits, Replica, Requests

Victim = Callable[[Requests, Replica, Limits], int]
Admit = Callable[[Requests, Replica, Limits, Column, int], None]
NO_ROOM: Final = -1


@jitable
def _chunk(lim: Limits, tokens: int, budget: int) -> int:
    """[tokens] of `tokens` that may run in one step."""
    if lim.long_prefill_token_threshold > 0 and tokens > lim.long_prefill_token_threshold:
        tokens = lim.long_prefill_token_threshold
    return min(tokens, budget)


@jitable
def admit_one(req: Requests, rep: Replica, lim: Limits, i: int, before: int, budget: int) -> int:
    """Admit waiting request i, behind `before` in the queue (-1: its head), with its first chunk.

    Returns the tokens planned, none while its blocks come from host memory, or NO_ROOM.
    """
    keep_free = lim.watermark_blocks if held(rep) > 0 else 0
    whole = req.prompt[i] + req.done[i]  # a token still in flight since a preemption is not counted yet
    start = find(req, rep, lim, i, whole)
    loads = to_load(rep, lim)
    if loads < 0:
        return NO_ROOM
    tokens = _chunk(lim, whole - start, budget) if loads == 0 else 0
    spared = borrowed(req, rep, lim, i, start)
    if lim.reserve_prompt == 1 and not fits(req, rep, lim, i, whole, keep_free - spared):
        return NO_ROOM
    if not make_room(req, rep, lim, i, start, slots_for(lim, start + tokens), keep_free):
        return NO_ROOM
    if before < 0:
        take_head(req, rep)
    else:
        take_after(req, rep, before)
    req.computed[i] = start
    admit(req, rep, i)
    if loads == 0:
        plan(rep, i, tokens)
        remember(req, rep, lim, i, start + tokens)
    return int(tokens)


@jitable
def admit_waiting(req: Requests, rep: Replica, lim: Limits, aux: Column, budget: int) -> None:
    """Admit from the head of the queue while slots, budget and KV blocks last."""
    while rep.c.n_waiting > 0 and budget > 0 and held(rep) < lim.max_num_seqs:
        tokens = admit_one(req, rep, lim, rep.c.head, -1, budget)
        if tokens == NO_ROOM:
            break
        budget -= tokens


def scheduler(victim: Victim, admission: Admit = admit_waiting) -> Callable[[Requests, Replica, Limits, Column], None]:
    """A policy's `schedule`; `victim` says who is preempted when KV memory is out, by the place in rep.running, and
    `admission` admits with what is left of the token budget."""

    @jitable
    def schedule(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
        """Fill rep.batch and rep.tokens for the next step; may admit and preempt."""
        if held(rep) > lim.max_num_batched_tokens and must_see_all(rep):
            return  # single decodes go without a token
        if not run_lane(rep, lim, 0):
            return
        again = True
        while again:
            budget, preempted = continue_running(req, rep, lim, lim.max_num_batched_tokens - rep.c.lane)
            if not preempted:
                lane_gives_back(rep)
                admission(req, rep, lim, aux, budget)
            # who has preempted itself ends the plan: with nothing in flight the engine asks again at once
            again = preempted and rep.c.n_batch == 0 and rep.c.n_flight == 0 and rep.c.singles == 0
            if again and lim.stages > 1:
                rep.c.rounds += 1

    @jitable
    def continue_running(req: Requests, rep: Replica, lim: Limits, budget: int) -> tuple[int, bool]:
        """Plan running sequences in order; returns what is left of the budget and whether any was preempted.

        Who is preempted may have been planned before: its tokens go back to the budget.
        """
        k = 0
        preempted = False
        while k < rep.c.n_running and budget > 0:
            i = rep.running[k]
            if lim.offload_blocks > 0 and req.ready[i] > rep.c.now:
                wait_until(rep, req.ready[i])
                k += 1
                continue
            if lim.stages > 1:
                ready = wanted_in_turn(req, rep, lim, i)
            elif lim.draft_tokens > 0:
                ready = wanted_with_drafts(req, lim, i)
            else:
                ready = int(wanted(req, i))
            tokens = _chunk(lim, ready, budget)
            if tokens > 0:
                gone = False
                slots = slots_for(lim, req.computed[i] + tokens)
                while not gone and not grow(req, rep, lim, i, slots, 0):
                    if must_see_all(rep):
                        return budget, True
                    place = victim(req, rep, lim)
                    back = unplan(rep, rep.running[place])
                    budget += back
                    if back > 0:
                        k -= 1
                    gone = preempt(req, rep, lim, place) == i
                    preempted = True
                if gone:
                    break
                plan(rep, i, tokens)
                remember(req, rep, lim, i, req.computed[i] + tokens)
                budget -= tokens
            k += 1
        return budget, preempted

    return schedule


schedule = scheduler(last_admitted)

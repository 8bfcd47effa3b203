"""FastServe: a multi-level feedback queue that requests join at the level of their prompt, with swap to host memory.

A level's quantum is twice that of the one above. A request joins the first level whose quantum its prompt's time does
not exceed (skip-join), and goes down one when it has run for longer than its level's. Who has not run for
`starvation_s` goes up to the first. Every step takes up to `max_batch_size` requests by level, in a level first come,
first served: whole prompts of up to `max_num_batched_tokens` together, and tokens of answers. Who is not chosen keeps
slot and KV memory while nobody above needs them; else the lowest are swapped out (`kv.swap`; without room on the host
they are computed again). Beside a step, while less than a block for each of the batch is free, the lowest that do not
run in it are swapped out, and else the highest brought back, if that much stays free; these copies delay nobody.

How long a request has run is the time between two decisions; the paper predicts it from profiles. Where the paper
leaves it open, the numbers and the order of steps are those of its code.

Sources: Wu et al., "Fast Distributed Inference Serving for Large Language Models", arXiv 2305.05920 (FastServe, NSDI
2026); LLMServe/FastServe fastserve/scheduler.py, MLFQ.get_next_batch, pop_finished_requests,
reserve_free_blocks and prevent_starvation.
"""

from typing import Final

from policies.queues import admit, held, plan, push_front, take_after, wanted
from policies.swap import back_from_host, swap_out
from simulator.jit import jitable
from simulator.kv import grow, reservation
from simulator.prefix import find
from simulator.state import Column, Limits, Replica, Requests

PLANNED: Final = 0
"""aux: 1 + tick of the step planned last, 0 = it has been charged."""
NUMBERS: Final = 1
DEEPEST: Final = 30
"""The last level."""
QUANTUM_S: Final = 0.01
"""[s] of the first level, and ..."""
STARVATION_S: Final = 3.0
"""... without a step: what its code has."""
NOBODY: Final = -1


@jitable
def arrived(req: Requests, rep: Replica, lim: Limits, aux: Column, i: int) -> None:
    """Request i joins its level."""
    req.level[i] = req.joins[i]
    req.used[i] = 0
    req.ran[i] = req.queued[i]


@jitable
def goes_before(req: Requests, i: int, j: int) -> bool:
    """True when request i is served before request j."""
    return req.level[i] < req.level[j] or (req.level[i] == req.level[j] and i < j)


@jitable
def schedule(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Fill rep.batch and rep.tokens for the next step; may admit, swap out and bring back."""
    _charge(req, rep, lim, aux)
    _sort(req, rep)
    served, out = _compose(req, rep, lim)
    if rep.c.n_batch > 0:
        aux[PLANNED] = rep.c.now + 1
        for k in range(rep.c.n_batch):
            req.ran[rep.batch[k]] = rep.c.now
        _look_ahead(req, rep, lim, served, out)


@jitable
def _charge(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Who was in the last step has run since; who has waited for too long goes up."""
    since = aux[PLANNED] - 1
    aux[PLANNED] = 0
    for k in range(rep.c.n_running):
        i = rep.running[k]
        if since >= 0 and req.ran[i] == since:
            req.used[i] += rep.c.now - since
            if req.used[i] > lim.quantum << req.level[i] and req.level[i] < DEEPEST:
                req.level[i] += 1
                req.used[i] = 0
        else:
            _promote(req, rep, lim, i)
    i = rep.c.head
    while i >= 0:
        _promote(req, rep, lim, i)
        i = req.next[i]


@jitable
def _promote(req: Requests, rep: Replica, lim: Limits, i: int) -> None:
    """Request i, which is not running, goes up when it has not run for long."""
    if req.level[i] > 0 and rep.c.now - req.ran[i] >= lim.starvation:
        req.level[i] = 0
        req.used[i] = 0


@jitable
def _sort(req: Requests, rep: Replica) -> None:
    """Put `running` in the order of service; most of it is."""
    for k in range(1, rep.c.n_running):
        _sink(req, rep, k, 0)


@jitable
def _sink(req: Requests, rep: Replica, place: int, first: int) -> None:
    """Move the sequence at this place of `running` forward to its own, not before `first`."""
    i = rep.running[place]
    while place > first and goes_before(req, i, rep.running[place - 1]):
        rep.running[place] = rep.running[place - 1]
        place -= 1
    rep.running[place] = i


@jitable
def _first_waiting(req: Requests, rep: Replica, out: int, on_host: bool) -> tuple[int, int]:
    """(request, the one in front of it in the queue) to be served first of those that wait, -1 where nobody is.

    Those after `out`, who was swapped out in this step, are left out; `on_host`: so are those not swapped out.
    """
    first = NOBODY
    in_front = -1
    before = -1
    i = rep.c.head
    while i >= 0:
        asks = wanted(req, i) > 0 and not (on_host and req.swapped[i] == 0)
        if asks and (first < 0 or goes_before(req, i, first)) and (out < 0 or goes_before(req, i, out)):
            first = int(i)
            in_front = before
        before = int(i)
        i = req.next[i]
    return first, in_front


@jitable
def _batch(lim: Limits) -> int:
    """Most requests of a step."""
    return lim.max_batch if lim.max_batch > 0 else lim.max_num_seqs


@jitable
def _compose(req: Requests, rep: Replica, lim: Limits) -> tuple[int, int]:
    """Plan the first by level; returns how many of `running` were looked at, and the highest of those swapped out."""
    place = 0
    out = NOBODY
    budget = lim.max_num_batched_tokens
    first, in_front = _first_waiting(req, rep, out, False)
    while rep.c.n_batch < _batch(lim):
        i = first
        out_before = out
        waits = place == rep.c.n_running or (i >= 0 and goes_before(req, i, rep.running[place]))
        if waits and i < 0:
            break
        if not waits:
            i = int(rep.running[place])
            place += 1
            if wanted(req, i) == 0:
                continue
        start = find(req, rep, lim, i, wanted(req, i)) if req.computed[i] == 0 else int(req.computed[i])
        tokens = int(req.prompt[i] + req.planned[i]) - start
        if req.computed[i] == 0:
            if tokens > budget and rep.c.n_batch > 0:
                break
            budget -= tokens
        if (waits and place == lim.max_num_seqs) or not _could(req, rep, lim, i, start + tokens, place):
            break
        if waits:
            take_after(req, rep, in_front)
        fits = False
        while not fits:
            fits = (held(rep) < lim.max_num_seqs or not waits) and grow(req, rep, lim, i, start + tokens, 0)
            if not fits:
                if place == rep.c.n_running:
                    break
                out = swap_out(req, rep, lim, rep.c.n_running - 1, lim.swap_ns)
        if not fits:  # a contiguous run that free blocks are too scattered for
            if waits:
                push_front(req, rep, i)
            break
        if waits:
            _enter(req, rep, lim, i, start, place, lim.swap_ns)
            place += 1
        plan(rep, i, tokens)
        if waits or out != out_before:
            first, in_front = _first_waiting(req, rep, out, False)
    return place, out


@jitable
def _could(req: Requests, rep: Replica, lim: Limits, i: int, tokens: int, place: int) -> bool:
    """True when blocks for `tokens` tokens of request i are there once all from this place of `running` on are out."""
    need = reservation(req, lim, i, tokens) - req.blocks[i]
    free = rep.c.free_blocks
    k = place
    while need > free and k < rep.c.n_running:
        free += req.blocks[rep.running[k]]
        k += 1
    return bool(need <= free)


@jitable
def _enter(req: Requests, rep: Replica, lim: Limits, i: int, start: int, place: int, copy_ns: int) -> None:
    """Request i, out of the queue and with its blocks, of whose tokens `start` are there, takes a slot."""
    req.computed[i] = start
    back_from_host(req, rep, lim, i, copy_ns)
    admit(req, rep, i)
    _sink(req, rep, rep.c.n_running - 1, place)


@jitable
def _look_ahead(req: Requests, rep: Replica, lim: Limits, served: int, out: int) -> None:
    """Beside the step: keep a block for each of the next batch free, or bring back who has room beside that."""
    if rep.c.free_blocks < _batch(lim):
        while rep.c.free_blocks < _batch(lim) and rep.c.n_running > served:
            if req.blocks[rep.running[rep.c.n_running - 1]] > lim.swap_blocks - rep.c.host_blocks:
                break
            swap_out(req, rep, lim, rep.c.n_running - 1, 0)
        return
    while out < 0 and rep.c.n_swapped > 0 and held(rep) < lim.max_num_seqs:
        i, in_front = _first_waiting(req, rep, NOBODY, True)
        if i < 0 or not grow(req, rep, lim, i, req.computed[i], _batch(lim)):
            break
        take_after(req, rep, in_front)
        _enter(req, rep, lim, i, req.computed[i], served, 0)

"""Admission: which requests a replica takes into its waiting queue, and which it refuses at once.

Some can never run there. Under overload the engine may refuse others so that those it takes are answered in time: when
as many wait as may (SGLang v0.5 --max-queued-requests; TGI's --max-concurrent-requests counts the running too), or
when the first token would come too late (early rejection: Qin et al., "Mooncake", FAST 2025, section 5), or only the
less urgent, sooner (Gateway API inference extension, pkg/epp/requestcontrol/admission.go: what is sheddable is refused
when the pool is saturated; pkg/epp/saturationdetector/config.go: a replica is from 5 waiting requests on).
"""

from policies.queues import push, wanted
from simulator.cost.step import Cost, dense_time
from simulator.engines.world import World
from simulator.jit import jitable
from simulator.kv import reservation
from simulator.state import (
    FUTURE,
    REJECTED_BUDGET,
    REJECTED_KV,
    REJECTED_LENGTH,
    REJECTED_QUEUE,
    REJECTED_SLOW,
    Limits,
    Replica,
    Requests,
)


@jitable
def enqueue(world: World, rep: Replica, i: int, r: int) -> bool:
    """ARRIVE: put request i into replica r's waiting queue, or refuse it; True when it was taken."""
    req, lim = world.req, world.lim
    req.replica[i] = r
    code = refusal(req, lim, i)
    if code == FUTURE and req.planned[i] == 0:  # one that has its first token from another replica goes on
        if is_full(req, rep, lim, i):
            code = REJECTED_QUEUE
        elif lim.predicted_ttft > 0 and predicted_ttft(req, rep, lim, world.cost, i) > lim.predicted_ttft:
            code = REJECTED_SLOW
    if code != FUTURE:
        req.status[i] = code
        return False
    if lim.hand_over == 1:
        req.limit[i] = 1
    push(req, rep, i)
    rep.c.version += 1
    rep.front.outstanding += 1
    rep.front.work += req.prompt[i] + req.limit[i]
    rep.stats.peak_waiting = max(rep.stats.peak_waiting, rep.c.n_waiting)
    return True


@jitable
def is_full(req: Requests, rep: Replica, lim: Limits, i: int) -> bool:
    """Whether as many wait as may, or as may for request i to join them."""
    if lim.max_waiting > 0 and rep.c.n_waiting >= lim.max_waiting:
        return True
    return bool(lim.shed_waiting > 0 and rep.c.n_waiting >= lim.shed_waiting and req.priority[i] >= lim.shed_priority)


@jitable
def refusal(req: Requests, lim: Limits, i: int) -> int:
    """Status code that says why request i can never run here, or FUTURE when it can."""
    final = req.prompt[i] + req.limit[i]
    if final > lim.max_model_len:
        return REJECTED_LENGTH
    if lim.draft_tokens > 0:  # drafts of the steps in flight and of the next have a place, right or not
        final = min(final + lim.draft_tokens * (1 + lim.schedule_ahead) + lim.lookahead, lim.max_model_len)
    if lim.whole_prompt == 1 and req.prompt[i] > lim.max_num_batched_tokens:
        return REJECTED_BUDGET
    if reservation(req, lim, i, req.prompt[i] if lim.hand_over == 1 else final) > lim.num_blocks:
        return REJECTED_KV
    if lim.whole_prompt == 1 and reservation(req, lim, i, req.prompt[i]) > lim.num_blocks - lim.watermark_blocks:
        return REJECTED_KV
    return FUTURE


@jitable
def predicted_ttft(req: Requests, rep: Replica, lim: Limits, cost: Cost, i: int) -> int:
    """[ns] until request i has its first token, as an engine could guess it that knows its own speed.

    The prompt tokens to be computed before, of those that wait or are in prefill, and its own, in steps of a full token
    budget, at the time of their products. Left out: attention, decodes beside it, slots and memory that are not free,
    and what a prefix cache would find. The queue is first come, first served.
    """
    tokens = int(req.prompt[i])
    at = rep.c.head
    while at >= 0:
        tokens += wanted(req, at)
        at = req.next[at]
    for k in range(rep.c.n_running):
        j = rep.running[k]
        if req.planned[j] == 0 or wanted(req, j) > 1:  # the lane holds neither
            tokens += wanted(req, j)
    steps = tokens // lim.max_num_batched_tokens
    rest = tokens - steps * lim.max_num_batched_tokens
    whole = steps * dense_time(cost, 1, lim.max_num_batched_tokens) if steps > 0 else 0
    return whole + (dense_time(cost, 1, rest) if rest > 0 else 0)

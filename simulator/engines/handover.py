"""Hand-over: a request gets its first token from a replica that only computes prompts, the others from another one.

The KV of the prompt is sent over the link out of the first replica, one request at a time, first come first served:
whole, when the prompt is computed, or layer by layer while the step runs that computes the last of it. When it has
come the router chooses a replica for the second half; the first keeps the blocks until that one admits the request,
which then goes on as if it had computed the prompt itself. Preempted there, it computes the prompt again. When the
first replica crashes, what waits there to be fetched is gone: the second half computes its prompt itself. A request
that ends or begins anew before it was admitted lets its KV go at once.

Sources: Zhong et al., "DistServe", OSDI 2024, sections 3 and 4.3 (memory of the prefill instance is the queue of the
decode instance); Patel et al., "Splitwise", ISCA 2024, section IV; vLLM 0.24 vllm/v1/core/sched/scheduler.py,
Scheduler._connector_finished (blocks of a finished prefill are freed when their KV has been taken); vllm/distributed/
kv_transfer/kv_connector/v1/nixl (request_finished: of one aborted before, the prefill side is told and frees them).
Layer by layer: Splitwise, section IV-C; vLLM 02dc4a1 kv_connector/v1/p2p/p2p_nccl_connector.py (save_kv_layer: a layer
of all prompts that end in the step; build_connector_meta: the chunks before go with the last one).
"""

from typing import Final

from simulator.engines.clients import Clients, on_ended
from simulator.engines.future import event_code, index_of, phase_of, push, what_of, withdraw
from simulator.engines.world import LINK_BITS, World
from simulator.jit import jitable
from simulator.records import TRANSFER
from simulator.state import FUTURE, SENT, TAKEN, Column, Replica, Requests
from simulator.units import NEVER

LAND: Final = 6
LET_GO: Final = 7
"""What a TRANSFER event is: the KV of request `index` has come, and it enters the queue of a replica for its second
half; it was admitted there, and the blocks it holds at the first are free."""


@jitable
def keep_kv(req: Requests, rep: Replica) -> None:
    """Blocks of those that set out stay held, whatever the policy's `retire` does with their slots.

    One that was preempted with its first token in flight has no KV, or not all of it: it sets out without.
    """
    for k in range(rep.c.n_ended):
        i = rep.ended[k]
        if req.status[i] == FUTURE and req.computed[i] >= req.prompt[i]:
            req.carried[i] = SENT
            req.held[i] = req.blocks[i]
            req.blocks[i] = 0
            rep.c.kv_tokens += req.computed[i]  # vacate subtracts it


@jitable
def pass_on(world: World, rep: Replica, step: Column, r: int) -> None:
    """Those that ended in `step`, just collected, are over for their clients, or set out for another replica."""
    req, links, now = world.req, world.links, rep.c.now
    rest = 0  # [ns] in which the link sends the KV of those that follow
    if links.layers > 0:
        for k in range(rep.c.n_ended):
            if req.status[rep.ended[k]] == FUTURE:
                rest += _sending(world, r, rep.ended[k])
        links.free[r] = sent_by_layers(links.free[r], rest, step.gpu_end - step.gpu_ns, step.gpu_end, links.layers)
    for k in range(rep.c.n_ended):
        i = rep.ended[k]
        if req.status[i] != FUTURE:
            on_ended(req, world.clients, i, rep.c.visible)
            continue
        own = _sending(world, r, i)
        if links.layers > 0:
            rest -= own
            sent = max(links.free[r] - rest // links.layers, now)
        else:
            sent = max(links.free[r], now) + own
            links.free[r] = sent
        _set_out(world, r, i, sent + links.latency)


@jitable
def sent_by_layers(free: int, whole: int, begin: int, end: int, layers: int) -> int:
    """[tick] when a link that is free from `free` on has sent KV that takes it `whole` ns, each layer of it once that
    is computed, first come first served; layers are alike, and computed from `begin` to `end`.

    The last layer is gone at the latest of free + whole and, over all layers l, its time + (layers - l + 1) / layers of
    `whole`: that is linear in l, so the first or the last layer decides. At least the last one's share comes after
    `end`.
    """
    first = begin + (end - begin) // layers
    return max(max(free, first) + whole, end + (whole + layers - 1) // layers)


@jitable
def _sending(world: World, r: int, i: int) -> int:
    """[ns] in which the link of replica r sends the KV of request i, which it has or not."""
    if world.req.carried[i] != SENT:
        return 0
    return (int(world.req.prompt[i]) * int(world.links.token_fp[r])) >> LINK_BITS


@jitable
def _set_out(world: World, r: int, i: int, landed: int) -> None:
    """Request i is on its way from replica r until `landed`."""
    req = world.req
    req.limit[i] = req.whole[i]
    req.group[i] += world.links.groups
    req.source[i] = r
    if req.carried[i] != SENT:
        req.computed[i] = 0
    req.landed[i] = landed
    push(world.clients.future, world.clients.ctl, landed, event_code(TRANSFER, i, LAND))


@jitable
def take_over(req: Requests, rep: Replica, clients: Clients) -> bool:
    """Those admitted with the step just planned have their KV now: the blocks at the other end are let go.

    True when there were any.
    """
    waiting = clients.ctl.n_future
    for k in range(rep.c.n_batch):
        i = rep.batch[k]
        if req.carried[i] == SENT:
            req.carried[i] = TAKEN
            push(clients.future, clients.ctl, rep.c.now, event_code(TRANSFER, i, LET_GO))
    return bool(clients.ctl.n_future > waiting)


@jitable
def let_go(req: Requests, rep: Replica, i: int) -> None:
    """Blocks that request i still held at the replica of its first half are free."""
    rep.c.free_blocks += req.held[i]
    rep.c.kv_tokens -= req.prompt[i]
    rep.c.version += 1
    req.held[i] = 0
    if req.landed[i] == NEVER:  # it begins anew
        req.source[i] = -1


@jitable
def let_go_of(world: World, i: int, tick: int) -> None:
    """Nobody will fetch the KV of request i: where it waits, if it does, it is let go."""
    req = world.req
    if len(req.carried) > 0 and req.carried[i] == SENT:
        req.carried[i] = 0
        push(world.clients.future, world.clients.ctl, tick, event_code(TRANSFER, i, LET_GO))


@jitable
def lose_kv(world: World, rep: Replica, r: int, counters: Column, tick: int) -> None:
    """Replica r is gone, and with it the KV that waited there to be fetched or was on its link. Whose it was has not
    computed its prompt then; those on the link land at once, without."""
    req, ctl, future = world.req, world.clients.ctl, world.clients.future
    world.links.free[r] = tick
    k = 0
    while k < ctl.n_future:
        code = int(future.code[k])
        i = index_of(code)
        k += 1
        if phase_of(code) == TRANSFER and what_of(code) == LAND and _forgotten(req, rep, r, i):
            withdraw(future, ctl, code)
            push(future, ctl, tick, code)
            req.landed[i] = tick
            k = 0
    i = ctl.parked
    while i >= 0:
        _forgotten(req, rep, r, i)
        i = req.next[i]
    for d in range(len(counters)):
        i = counters[d].head
        while i >= 0:
            if _forgotten(req, rep, r, i):
                counters[d].version += 1
            i = req.next[i]


@jitable
def _forgotten(req: Requests, rep: Replica, r: int, i: int) -> bool:
    """Forget the KV of request i if it is at replica r; True when it was."""
    if req.carried[i] != SENT or req.source[i] != r:
        return False
    let_go(req, rep, i)
    req.carried[i] = 0
    req.computed[i] = 0
    return True

"""Prefix cache of a replica: which KV blocks of earlier requests can be used again, as vLLM keeps them.

A full block is known by the tokens up to its end. What those tokens are is settled when the trace is built: blocks
that several requests share have a number (`rep.prefix.chain`), a request's shared blocks come before its private
ones, and private ones are only counted. So a run in which nothing is shared costs a few comparisons a request.

Rules (vLLM 0.24, vllm/v1/core): a request that is admitted finds its longest run of known whole blocks, but computes
at least its last token (kv_cache_manager.get_computed_blocks); a block is known as soon as the step that fills it is
planned (allocate_slots, cache_blocks); when it ends or is preempted its blocks are freed from the last to the first,
those never filled go to the front of the free queue, the others to its end, and stay known until they are taken
again from the front (block_pool.free_blocks, get_new_blocks). Of two blocks with the same tokens the older is found.

The free queue here is a linked list of nodes, oldest first. A node is one shared block, or a run of private blocks:
`dead` ones that nobody will ask for, or those of a preempted request, which may find them again. Blocks never
filled are not in it: they are what `free_blocks` exceeds `kept`. Taking a block only lowers `free_blocks`; `settle`
drops as many nodes from the front before anything looks at the list or adds to it, which is the same.

Behind it may be host memory (simulator/offload.py). One thing is approximate: a preempted request whose known tokens
end with a block computes that block again, and of the two blocks that then hold it the newer is taken for its own, not
the older.
"""

from simulator.free_queue import append, drop, forget, link, take_node, unlink
from simulator.jit import jitable
from simulator.kv import fits, grow, grow_in_window, release
from simulator.offload import empty_host, keep, keep_private, load, look
from simulator.state import FINISHED, RUNNING, SENT, Limits, Replica, Requests
from simulator.windows import full_blocks

DEAD = -1
"""Owner of a run of private blocks that nobody will ask for."""
SHARED = -2
"""Owner of a node that is one shared block."""


@jitable
def find(req: Requests, rep: Replica, lim: Limits, i: int, whole: int) -> int:
    """[tokens] that waiting request i, of `whole` known tokens, finds in the prefix cache now.

    Whole blocks only, and the last token is always computed: its logits are needed (vLLM 0.24
    vllm/v1/core/kv_cache_manager.py, KVCacheManager.get_computed_blocks). Without the cache it is what the trace says.
    """
    if len(req.carried) > 0 and req.carried[i] == SENT:
        return int(req.prompt[i])  # its KV came with it (engines/handover.py)
    if lim.prefix == 0:
        return full_blocks(lim, min(req.cached[i], whole - 1)) * lim.block_size
    settle(req, rep)
    hits = match(req, rep, lim, i, whole)
    if lim.offload_blocks > 0:
        end = min(shared_blocks(req, i), full_blocks(lim, whole - 1))
        rep.c.on_host = look(rep, chain_at(req, i), hits, end)
        hits += max(rep.c.on_host, 0)
    return hits * lim.block_size


@jitable
def to_load(rep: Replica, lim: Limits) -> int:
    """[blocks] of those that `find` has just found that must be copied from host memory first; -1 = ask again later."""
    return int(rep.c.on_host) if lim.offload_blocks > 0 else 0


@jitable
def _in_memory(rep: Replica, lim: Limits, start: int) -> int:
    """[blocks] of the `start` tokens found that are in KV memory."""
    return full_blocks(lim, start) - max(to_load(rep, lim), 0)


@jitable
def borrowed(req: Requests, rep: Replica, lim: Limits, i: int, start: int) -> int:
    """[blocks] of the `start` tokens found that running requests hold: using them takes nothing from the free ones."""
    if lim.prefix == 0 or start == 0:
        return 0
    hits = _in_memory(rep, lim, start)
    return hits - idle_blocks(req, rep, i, hits)


@jitable
def make_room(req: Requests, rep: Replica, lim: Limits, i: int, start: int, tokens: int, keep_free: int) -> bool:
    """KV blocks for the first `tokens` tokens of waiting request i, of which `start` were found; False, and nothing
    taken, when `keep_free` would not be left."""
    if lim.window > 0:
        return grow_in_window(req, rep, lim, i, start, tokens, keep_free)
    if lim.prefix == 0:
        return grow(req, rep, lim, i, tokens, keep_free)
    if not fits(req, rep, lim, i, tokens, keep_free - borrowed(req, rep, lim, i, start)):
        return False
    claim(req, rep, i, _in_memory(rep, lim, start))
    if req.preempted[i] == 0:
        req.found[i] = start
    if lim.offload_blocks > 0:
        _fetch(req, rep, lim, i)
    return grow(req, rep, lim, i, tokens, 0)


@jitable
def _fetch(req: Requests, rep: Replica, lim: Limits, i: int) -> None:
    """Request i, being admitted, has what it found used in host memory too, and copied from there what it lacks."""
    hits = req.blocks[i]
    first = chain_at(req, i)
    count = rep.c.on_host
    req.settled[i] = hits * lim.block_size
    req.ready[i] = 0
    keep(rep, lim, first, min(hits, shared_blocks(req, i)) + count)
    if count > 0:
        req.ready[i] = load(rep, lim, first, hits, count)
        if req.preempted[i] == 0:
            req.fetched[i] = count * lim.block_size


@jitable
def remember(req: Requests, rep: Replica, lim: Limits, i: int, tokens: int) -> None:
    """The step being planned computes the first `tokens` tokens of request i: the blocks its prompt fills are known.

    Outputs still in flight do not count (allocate_slots: min(computed + new, request.num_tokens)). Blocks of the answer
    become known when the request gives them up: who asks for them comes after it has answered.
    """
    if lim.prefix == 1:
        req.settled[i] = min(tokens, req.prompt[i] + req.done[i])
        learn(req, rep, lim, i, min(tokens, req.prompt[i]))


@jitable
def give_up(req: Requests, rep: Replica, lim: Limits, i: int) -> None:
    """Request i, running or just ended, returns its KV blocks.

    One that has ended was also known up to its last output but one: vLLM notes that when the output comes
    (v1/core/sched/async_scheduler.py, _update_request_with_output, cache_blocks).
    """
    if lim.prefix == 0:
        release(req, rep, lim, i)
        return
    known = req.settled[i]  # of one preempted, or aborted amid its prompt
    if req.status[i] == FINISHED:
        known = req.prompt[i] + req.done[i] - 1
    put_back(req, rep, lim, i, known, req.status[i] == RUNNING)


@jitable
def disown(req: Requests, rep: Replica, lim: Limits, i: int) -> None:
    """Request i ended while it waited: nobody will ask for its private blocks."""
    if lim.prefix == 1 and req.own[i] >= 0:
        rep.prefix.nodes[req.own[i]].owner = DEAD
        req.own[i] = -1


@jitable
def forget_all(rep: Replica) -> None:
    """The replica begins with an empty cache. Nobody runs or waits there."""
    for k in range(len(rep.prefix.found)):
        if rep.prefix.found[k] > 0:  # what was never written takes no memory
            rep.prefix.found[k] = 0
    rep.c.kept = 0
    rep.c.oldest = -1
    rep.c.newest = -1
    rep.c.spare = -1
    rep.c.n_nodes = 1
    empty_host(rep)


@jitable
def chain_at(req: Requests, i: int) -> int:
    """First of request i's shared leading blocks in prefix.chain."""
    return int(req.chain_end[i - 1]) if i > 0 else 0


@jitable
def shared_blocks(req: Requests, i: int) -> int:
    """[blocks] at the front of request i that other requests have too."""
    return req.chain_end[i] - chain_at(req, i)


@jitable
def settle(req: Requests, rep: Replica) -> None:
    """Forget the oldest blocks that have been taken since the last call."""
    while rep.c.kept > rep.c.free_blocks:
        at = rep.c.oldest
        node = rep.prefix.nodes[at]
        if node.owner == SHARED:
            forget(rep, at)
            unlink(rep, at)
            drop(rep, at)
            rep.c.kept -= 1
        else:
            taken = min(node.count, rep.c.kept - rep.c.free_blocks)
            node.count -= taken
            rep.c.kept -= taken
            if node.count == 0:
                if node.owner >= 0:
                    req.own[node.owner] = -1
                unlink(rep, at)
                drop(rep, at)


@jitable
def match(req: Requests, rep: Replica, lim: Limits, i: int, whole: int) -> int:
    """[blocks] of waiting request i that are known, from its first on; of `whole` tokens one is left to compute."""
    most = full_blocks(lim, whole - 1)
    start = chain_at(req, i)
    shared = min(shared_blocks(req, i), most)
    hits = 0
    while hits < shared and rep.prefix.found[rep.prefix.chain[start + hits]] > 0:
        hits += 1
    if hits == shared_blocks(req, i) and req.own[i] >= 0:
        hits = min(hits + rep.prefix.nodes[req.own[i]].count, most)
    if lim.rehearse == 1 and hits > 0:  # vLLM 0.24 single_type_kv_cache_manager.py, drop_eagle_block
        hits -= 1
    return hits


@jitable
def idle_blocks(req: Requests, rep: Replica, i: int, hits: int) -> int:
    """[blocks] of `hits` known ones that nobody holds: using them takes them from the free ones."""
    start = chain_at(req, i)
    shared = min(hits, shared_blocks(req, i))
    idle = hits - shared
    for j in range(shared):
        if rep.prefix.nodes[rep.prefix.found[rep.prefix.chain[start + j]]].refs == 0:
            idle += 1
    return idle


@jitable
def claim(req: Requests, rep: Replica, i: int, hits: int) -> None:
    """Request i, which holds nothing, takes its `hits` known blocks."""
    start = chain_at(req, i)
    shared = min(hits, shared_blocks(req, i))
    for j in range(shared):
        at = rep.prefix.found[rep.prefix.chain[start + j]]
        node = rep.prefix.nodes[at]
        if node.refs == 0:
            unlink(rep, at)
            rep.c.kept -= 1
            rep.c.free_blocks -= 1
        else:
            rep.c.spared += 1
        node.refs += 1
        rep.prefix.held[start + j] = at
    rep.stats.peak_spared = max(rep.stats.peak_spared, rep.c.spared)
    at = req.own[i]
    if at >= 0:
        if hits > shared:
            taken = hits - shared
            rep.prefix.nodes[at].count -= taken
            rep.c.kept -= taken
            rep.c.free_blocks -= taken
        if rep.prefix.nodes[at].count == 0:
            unlink(rep, at)
            drop(rep, at)
        else:
            rep.prefix.nodes[at].owner = DEAD
        req.own[i] = -1
    req.blocks[i] = hits
    req.known[i] = shared


@jitable
def learn(req: Requests, rep: Replica, lim: Limits, i: int, tokens: int) -> None:
    """The blocks of request i that `tokens` tokens fill are known from now on."""
    start = chain_at(req, i)
    full = min(full_blocks(lim, tokens), shared_blocks(req, i))
    if full <= req.known[i]:
        return
    settle(req, rep)  # the nodes of blocks taken are free again: there are never more nodes than blocks
    for j in range(req.known[i], full):
        at = take_node(rep)
        node = rep.prefix.nodes[at]
        number = rep.prefix.chain[start + j]
        node.owner = SHARED
        node.count = 1
        node.refs = 1
        node.chain = number
        node.twin = 0
        first = rep.prefix.found[number]
        if first == 0:
            rep.prefix.found[number] = at
        else:
            while rep.prefix.nodes[first].twin > 0:
                first = rep.prefix.nodes[first].twin
            rep.prefix.nodes[first].twin = at
        rep.prefix.held[start + j] = at
    req.known[i] = full
    if lim.offload_blocks > 0:
        keep(rep, lim, start, full)


@jitable
def put_back(req: Requests, rep: Replica, lim: Limits, i: int, tokens: int, comes_back: bool) -> None:
    """Request i, whose first `tokens` tokens filled blocks, returns all it holds; it may `come back` for them."""
    settle(req, rep)
    learn(req, rep, lim, i, tokens)
    full = min(full_blocks(lim, tokens), req.blocks[i])
    start = chain_at(req, i)
    shared = min(full, shared_blocks(req, i))
    rep.c.free_blocks += req.blocks[i] - shared
    private = full - shared
    if lim.offload_blocks > 0:
        if not comes_back:
            keep_private(rep, lim, private)
        keep(rep, lim, start, shared)
    if private > 0:
        rep.c.kept += private
        last = rep.c.newest
        if comes_back:
            at = append(rep, i, private)
            req.own[i] = at
        elif last >= 0 and rep.prefix.nodes[last].owner == DEAD:
            rep.prefix.nodes[last].count += private
        else:
            append(rep, DEAD, private)
    for j in range(shared - 1, -1, -1):
        at = rep.prefix.held[start + j]
        node = rep.prefix.nodes[at]
        node.refs -= 1
        if node.refs == 0:
            link(rep, at)
            rep.c.kept += 1
            rep.c.free_blocks += 1
        else:
            rep.c.spared -= 1
    req.blocks[i] = 0
    req.known[i] = 0

"""KV memory of a replica: paged blocks on demand, or one contiguous reservation a request.

Paged: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023
(doi 10.1145/3600006.3613165), section 4: blocks of `block_size` tokens are taken when a sequence needs them
and all returned when it ends; waste is under one block a sequence.
Contiguous: what the same paper measures in earlier systems (section 2.2, figure 3): a run of blocks for the
longest the request may become, found first-fit; internal fragmentation is what stays unused in it, external
fragmentation what is free but too scattered.
"""

from simulator.jit import jitable
from simulator.state import Limits, Replica, Requests
from simulator.windows import admission_blocks, blocks_of, held_blocks


@jitable
def reservation(req: Requests, lim: Limits, i: int, tokens: int) -> int:
    """[blocks] that request i must hold so that `tokens` tokens fit, under the layout in force."""
    if lim.window > 0:
        return admission_blocks(lim, tokens)
    if lim.contiguous == 0:
        return blocks_of(lim, tokens)
    whole = req.prompt[i] + req.limit[i]
    return blocks_of(lim, whole if whole > lim.reserve_tokens else lim.reserve_tokens)


@jitable
def fits(req: Requests, rep: Replica, lim: Limits, i: int, tokens: int, keep_free: int) -> bool:
    """True when the blocks for `tokens` tokens of request i are free and `keep_free` would be left."""
    return reservation(req, lim, i, tokens) - req.blocks[i] <= rep.c.free_blocks - keep_free


@jitable
def grow(req: Requests, rep: Replica, lim: Limits, i: int, tokens: int, keep_free: int) -> bool:
    """Make room for `tokens` tokens of request i, leaving `keep_free` blocks free; False when there is none."""
    if lim.window > 0:
        return grow_in_window(req, rep, lim, i, int(req.computed[i]), tokens, keep_free)
    if tokens <= req.blocks[i] * lim.block_size:
        return True
    more = reservation(req, lim, i, tokens) - req.blocks[i]
    if more <= 0:
        return True
    if more > rep.c.free_blocks - keep_free:
        return False
    if lim.contiguous == 1 and not _place(req, rep, lim, i, more):
        if rep.c.scattered_for != i:  # once a request, however often it is tried
            rep.c.scattered_for = i
            rep.c.scattered += 1
        return False
    req.blocks[i] += more
    rep.c.free_blocks -= more
    return True


@jitable
def grow_in_window(req: Requests, rep: Replica, lim: Limits, i: int, computed: int, tokens: int,
                   keep_free: int) -> bool:
    """`grow` where layers have windows, `computed` tokens being there: blocks no longer seen are free first, whether
    new ones can be had or not."""
    if req.blocks[i] > 0:
        kept = held_blocks(lim, computed, computed)
        rep.c.free_blocks += req.blocks[i] - kept
        req.blocks[i] = kept
    more = held_blocks(lim, tokens, computed) - req.blocks[i]
    if more > rep.c.free_blocks - keep_free:
        return False
    req.blocks[i] += more
    rep.c.free_blocks -= more
    return True


@jitable
def release(req: Requests, rep: Replica, lim: Limits, i: int) -> None:
    """Return every block of request i."""
    rep.c.free_blocks += req.blocks[i]
    req.blocks[i] = 0
    if lim.contiguous == 1:
        kept = 0
        for k in range(rep.c.n_extents):
            if rep.extents[k] != i:
                rep.extents[kept] = rep.extents[k]
                kept += 1
        rep.c.n_extents = kept
        _measure_gaps(req, rep, lim)


@jitable
def _place(req: Requests, rep: Replica, lim: Limits, i: int, size: int) -> bool:
    """First fit: the lowest free run of `size` blocks becomes request i's extent."""
    start = 0
    at = 0
    count = rep.c.n_extents
    while at < count:
        other = rep.extents[at]
        if req.extent[other] - start >= size:
            break
        start = req.extent[other] + req.blocks[other]
        at += 1
    if at == count and lim.num_blocks - start < size:
        return False
    for k in range(count, at, -1):
        rep.extents[k] = rep.extents[k - 1]
    rep.extents[at] = i
    rep.c.n_extents = count + 1
    req.extent[i] = start
    req.blocks[i] = size
    _measure_gaps(req, rep, lim)
    req.blocks[i] = 0
    return True


@jitable
def _measure_gaps(req: Requests, rep: Replica, lim: Limits) -> None:
    """Write the longest free run of blocks to LARGEST_GAP."""
    start = 0
    largest = 0
    for k in range(rep.c.n_extents):
        other = rep.extents[k]
        gap = req.extent[other] - start
        if gap > largest:
            largest = gap
        start = req.extent[other] + req.blocks[other]
    tail = lim.num_blocks - start
    rep.c.largest_gap = tail if tail > largest else largest

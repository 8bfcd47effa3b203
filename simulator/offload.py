"""Host memory behind the prefix cache: KV blocks that are copied back to the GPU instead of being computed again.

Rules (vLLM 0.24, OffloadingConnector with its cache in host memory): every full block is copied to host memory when it
is computed, not when the GPU drops it; the block used least recently goes when there is no room for the next
(vllm/v1/kv_offload/cpu/policies/lru.py; of one request the last blocks go first). A waiting request looks there for
the blocks that follow those it found in the prefix cache; they are copied into KV blocks of its own, one request after
the other over the link, while the other requests go on; it computes the rest when they have come. Nobody else can load
a block that is being copied: who wants it waits for it (vllm/distributed/kv_transfer/kv_connector/v1/offloading/
scheduler.py, OffloadingConnectorScheduler.get_num_new_matched_tokens, update_state_after_alloc).

Simpler than there: a request that loads holds a slot already; who waits for a block on its way is waited for by those
behind it; copies to the host take no time of anybody; blocks that no other request has are counted there when their
request ends, and one that was preempted looks for its shared blocks only.

The order of use is a linked list, oldest first: a record for each shared block, by its number, and after them records
for runs of blocks that nobody will ask for. Of those no two are neighbours, so there are never more than one more.
"""

from simulator.jit import jitable
from simulator.state import Limits, Replica


@jitable
def look(rep: Replica, first: int, hits: int, end: int) -> int:
    """[blocks] of a waiting request that are in host memory, behind its `hits` known ones and before its `end`th.

    Its shared blocks begin at `first` in prefix.chain. -1: the policy is to ask again, for one of them is on its way to
    the GPU for somebody else; the wake-up is set.
    """
    n = hits
    while n < end and rep.prefix.host[rep.prefix.chain[first + n]].count > 0:
        lands = rep.prefix.host[rep.prefix.chain[first + n]].lands
        if lands > rep.c.now:
            wait_until(rep, lands)
            return -1
        n += 1
    return n - hits


@jitable
def load(rep: Replica, lim: Limits, first: int, hits: int, count: int) -> int:
    """Copy the `count` blocks behind the first `hits` back; returns when they have come [tick]."""
    lasts = count * lim.offload_ns
    rep.c.link_free = max(rep.c.now, rep.c.link_free) + lasts
    for j in range(hits, hits + count):
        rep.prefix.host[rep.prefix.chain[first + j]].lands = rep.c.link_free
    rep.stats.loaded += count
    rep.stats.loading += lasts
    wait_until(rep, rep.c.link_free)
    return int(rep.c.link_free)


@jitable
def wait_until(rep: Replica, tick: int) -> None:
    """The decision can change at `tick`: no step is repeated before without asking, and a replica at rest wakes up."""
    rep.c.hold = 0
    rep.c.wake = min(rep.c.wake, tick)


@jitable
def keep(rep: Replica, lim: Limits, first: int, count: int) -> None:
    """The `count` blocks from `first` on in prefix.chain are in host memory, the most recent ones, the first of all."""
    for j in range(count - 1, -1, -1):
        number = rep.prefix.chain[first + j]
        if rep.prefix.host[number].count > 0:
            _unlink(rep, number)
        else:
            rep.prefix.host[number].count = 1
            rep.prefix.host[number].lands = 0
            rep.c.hosted += 1
        _append(rep, number)
    _drop_oldest(rep, lim)


@jitable
def keep_private(rep: Replica, lim: Limits, count: int) -> None:
    """`count` blocks that nobody will ask for are in host memory too, the most recent ones."""
    if count > 0:
        if rep.c.host_newest < len(rep.prefix.found):
            _append(rep, _take_run(rep))
        rep.prefix.host[rep.c.host_newest].count += count
        rep.c.hosted += count
        _drop_oldest(rep, lim)


@jitable
def empty_host(rep: Replica) -> None:
    """Host memory holds nothing, and is used no more until something comes."""
    for k in range(len(rep.prefix.host)):
        if rep.prefix.host[k].count > 0:
            rep.prefix.host[k].count = 0
    rep.c.hosted = 0
    rep.c.host_oldest = -1
    rep.c.host_newest = -1
    rep.c.host_spare = -1
    rep.c.n_host_runs = 0


@jitable
def _drop_oldest(rep: Replica, lim: Limits) -> None:
    """Until no more blocks are there than have room."""
    while rep.c.hosted > lim.offload_blocks:
        at = rep.c.host_oldest
        gone = min(rep.prefix.host[at].count, rep.c.hosted - lim.offload_blocks)
        rep.prefix.host[at].count -= gone
        rep.c.hosted -= gone
        if rep.prefix.host[at].count == 0:
            _unlink(rep, at)
            if at >= len(rep.prefix.found):
                _give_run(rep, at)
    rep.stats.peak_host = max(rep.stats.peak_host, rep.c.hosted)


@jitable
def _append(rep: Replica, at: int) -> None:
    """Record `at` becomes the newest."""
    last = rep.c.host_newest
    rep.prefix.host[at].before = last
    rep.prefix.host[at].after = -1
    if last < 0:
        rep.c.host_oldest = at
    else:
        rep.prefix.host[last].after = at
    rep.c.host_newest = at


@jitable
def _unlink(rep: Replica, at: int) -> None:
    """Take record `at` out of the order; runs that it lay between become one."""
    before = rep.prefix.host[at].before
    after = rep.prefix.host[at].after
    runs = len(rep.prefix.found)
    if before >= runs and after >= runs:
        rep.prefix.host[before].count += rep.prefix.host[after].count
        rep.prefix.host[after].count = 0
        _give_run(rep, after)
        after = rep.prefix.host[after].after
    if before < 0:
        rep.c.host_oldest = after
    else:
        rep.prefix.host[before].after = after
    if after < 0:
        rep.c.host_newest = before
    else:
        rep.prefix.host[after].before = before


@jitable
def _take_run(rep: Replica) -> int:
    """An empty record for a run: one given back, or the next never used."""
    at = rep.c.host_spare
    if at >= 0:
        rep.c.host_spare = rep.prefix.host[at].before
    else:
        at = len(rep.prefix.found) + rep.c.n_host_runs
        rep.c.n_host_runs += 1
    return int(at)


@jitable
def _give_run(rep: Replica, at: int) -> None:
    """Record `at` of a run is free; where it pointed to is kept until it is taken."""
    rep.prefix.host[at].before = rep.c.host_spare
    rep.c.host_spare = at

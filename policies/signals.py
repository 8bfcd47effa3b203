"""What a router knows: the load of replicas as it saw it last, and which prefixes it thinks that they hold.

A gateway that scrapes metrics decides by what they were a while ago; between two looks all it sends goes by the same
picture (Mitzenmacher, "How Useful Is Old Information?", IEEE TPDS 11(1), 2000, periodic update). Here it looks again
with the first request after `stale` ns.

prefix_aware is the rule of SGLang's experimental/sgl-router, policy cache_aware_zmq: where the requests in flight
differ by more than `most_apart` and by more than a factor, the least loaded replica; else, of those that hold most of
the prompt's leading blocks, if that is over a share of them, the least loaded; else the least loaded of all. What is
held it knows from the caches' own events, or guesses from what it sent where: an index of `capacity` blocks a replica,
the latest sent (approx-prefix-cache-producer of the Gateway API inference extension, in llm-d, has 31,250). A block
sent again takes a place again here, there the old one is moved; a replica that was restarted is thought to hold what
it held. Of a cache the router sees a block until the replica looks for the room it takes.
"""

from typing import NamedTuple

from policies.routers import COUNT, LOOKED, START, fewest, group_at
from simulator.jit import jitable
from simulator.prefix import chain_at, shared_blocks
from simulator.state import Column, Requests

MILLI = 1000


class Signals(NamedTuple):
    """R replicas, K different shared blocks; the last columns are empty unless the router looks at prefixes."""

    seen: Column             # (R,) records.Front as the router saw them last; the replicas' own where it sees all
    stale: int = 0           # [ns] for which it goes by what it saw, 0 = it sees all
    chain: Column = ()       # Prefix.chain
    held: Column = ()        # (R, K) Prefix.found of each replica, or `clock` when the router sent it that block last
    clock: Column = ()       # (R,) [blocks] sent to each
    capacity: int = 0        # [blocks] of the index a replica, 0 = the router knows the caches
    block: int = 1           # [tokens]
    share: int = 500         # [1/1000] of a prompt's blocks that must be held
    most_apart: int = 32     # requests in flight
    factor: int = 1100       # [1/1000]


@jitable
def look(signals: Signals, fronts: Column, routing: Column, tick: int) -> None:
    """The router looks at the replicas if it last did so long enough ago."""
    if signals.stale == 0 or tick - routing[LOOKED] < signals.stale:
        return
    routing[LOOKED] = tick
    for r in range(len(fronts)):
        signals.seen[r].outstanding = fronts[r].outstanding
        signals.seen[r].work = fronts[r].work
        signals.seen[r].used_blocks = fronts[r].used_blocks


@jitable
def route_by_prefix(req: Requests, signals: Signals, i: int, aux: Column) -> int:
    """Replica for request i."""
    at = group_at(req, i)
    start, end = aux[at + START], aux[at + START] + aux[at + COUNT]
    least = fewest(signals.seen, start, aux[at + COUNT], aux)
    low = signals.seen[least].outstanding
    high = low
    for k in range(start, end):
        high = max(high, signals.seen[aux[k]].outstanding)
    if len(signals.held) == 0 or (high - low > signals.most_apart and MILLI * high > signals.factor * low):
        return least
    first, blocks = chain_at(req, i), _prompt_blocks(req, signals, i)
    shared = min(blocks, shared_blocks(req, i))
    best, hits = least, 0
    for k in range(start, end):
        found = _held_blocks(signals, aux[k], first, shared)
        fewer = signals.seen[aux[k]].outstanding < signals.seen[best].outstanding
        if found > hits or (found == hits and found > 0 and fewer):
            best, hits = aux[k], found
    return best if MILLI * hits > signals.share * blocks else least


@jitable
def note_sent(req: Requests, signals: Signals, i: int, r: int) -> None:
    """Request i goes to replica r, and the blocks of its prompt to the front of that index."""
    if signals.capacity == 0 or len(req.chain_end) == 0:
        return
    start, blocks = chain_at(req, i), _prompt_blocks(req, signals, i)
    signals.clock[r] += blocks
    for j in range(start, start + min(blocks, shared_blocks(req, i))):
        signals.held[r][signals.chain[j]] = signals.clock[r]


@jitable
def _prompt_blocks(req: Requests, signals: Signals, i: int) -> int:
    return max(1, int(req.prompt[i]) // signals.block)


@jitable
def _held_blocks(signals: Signals, r: int, first: int, count: int) -> int:
    """[blocks] of the `count` from `first` on in Signals.chain that the router thinks replica r holds, in a row."""
    found = 0
    while found < count:
        value = signals.held[r][signals.chain[first + found]]
        if value == 0 or (signals.capacity > 0 and signals.clock[r] - value >= signals.capacity):
            break
        found += 1
    return found

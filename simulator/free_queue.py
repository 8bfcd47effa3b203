"""The free queue of the prefix cache (simulator/prefix.py): a linked list of nodes, oldest first (prefix.nodes)."""

from simulator.jit import jitable
from simulator.state import Replica


@jitable
def append(rep: Replica, owner: int, count: int) -> int:
    """A new run of private blocks at the end of the free queue."""
    at = take_node(rep)
    rep.prefix.nodes[at].owner = owner
    rep.prefix.nodes[at].count = count
    link(rep, at)
    return at


@jitable
def link(rep: Replica, at: int) -> None:
    """Node `at` becomes the newest of the free queue."""
    last = rep.c.newest
    rep.prefix.nodes[at].before = last
    rep.prefix.nodes[at].after = -1
    if last < 0:
        rep.c.oldest = at
    else:
        rep.prefix.nodes[last].after = at
    rep.c.newest = at


@jitable
def unlink(rep: Replica, at: int) -> None:
    """Take node `at` out of the free queue."""
    before = rep.prefix.nodes[at].before
    after = rep.prefix.nodes[at].after
    if before < 0:
        rep.c.oldest = after
    else:
        rep.prefix.nodes[before].after = after
    if after < 0:
        rep.c.newest = before
    else:
        rep.prefix.nodes[after].before = before


@jitable
def forget(rep: Replica, at: int) -> None:
    """The tokens of shared node `at` lead to it no more; a twin may stand in."""
    number = rep.prefix.nodes[at].chain
    twin = rep.prefix.nodes[at].twin
    first = rep.prefix.found[number]
    if first == at:
        rep.prefix.found[number] = twin
    else:
        while rep.prefix.nodes[first].twin != at:
            first = rep.prefix.nodes[first].twin
        rep.prefix.nodes[first].twin = twin


@jitable
def take_node(rep: Replica) -> int:
    """A node nobody uses: one given back, or the next never used."""
    at = rep.c.spare
    if at >= 0:
        rep.c.spare = rep.prefix.nodes[at].after
    else:
        at = rep.c.n_nodes
        rep.c.n_nodes += 1
    return at


@jitable
def drop(rep: Replica, at: int) -> None:
    """Give node `at` back."""
    rep.prefix.nodes[at].after = rep.c.spare
    rep.c.spare = at

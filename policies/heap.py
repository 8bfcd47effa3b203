"""The waiting queue in order of a key: a pairing heap in the columns `child` and `next` of the requests.

`rep.c.head` is the request with the smallest key, as in the list; of equal keys the lower index goes first. Pushing
costs a comparison, taking the head O(log n) amortised; one that leaves from the middle (its last token came while it
waited, or its client gave up) costs a walk over the others, as in the list.

Source: Fredman, Sedgewick, Sleator, Tarjan, "The pairing heap: a new form of self-adjusting heap", Algorithmica 1
(1986), doi 10.1007/BF01840439, the two-pass variant.
"""

from simulator.jit import jitable
from simulator.state import FINISHED, WAITING, Replica, Requests


@jitable
def before(req: Requests, i: int, j: int) -> bool:
    """True when request i goes before request j."""
    return req.key[i] < req.key[j] or (req.key[i] == req.key[j] and i < j)


@jitable
def push(req: Requests, rep: Replica, i: int) -> None:
    """Request i joins the heap with the key it has."""
    req.child[i] = -1
    req.next[i] = -1
    rep.c.head = i if rep.c.head < 0 else _meld(req, rep.c.head, i)
    rep.c.n_waiting += 1
    req.status[i] = WAITING


@jitable
def pop(req: Requests, rep: Replica) -> int:
    """Take the head out of the heap and return it."""
    i = rep.c.head
    _drop_head(req, rep)
    rep.c.n_waiting -= 1
    return i


@jitable
def leave(req: Requests, rep: Replica, i: int) -> None:
    """Request i waits no more: the others are pushed again, one tree after the other."""
    left = rep.c.head
    rep.c.head = -1
    rep.c.n_waiting = 0
    while left >= 0:
        j = left
        left = req.next[j]
        child = req.child[j]
        while child >= 0:
            following = req.next[child]
            req.next[child] = left
            left = child
            child = following
        if j != i:
            push(req, rep, j)
    req.status[i] = FINISHED


@jitable
def _meld(req: Requests, i: int, j: int) -> int:
    """Make one tree of two; returns its root, whose siblings are the caller's business."""
    if before(req, j, i):
        i, j = j, i
    req.next[j] = req.child[i]
    req.child[i] = j
    return i


@jitable
def _drop_head(req: Requests, rep: Replica) -> None:
    """The head's children, melded in pairs and then from the last pair to the first, are the heap."""
    left = req.child[rep.c.head]
    req.child[rep.c.head] = -1
    pairs = -1
    while left >= 0:
        tree = left
        other = req.next[tree]
        left = -1
        if other >= 0:
            left = req.next[other]
            tree = _meld(req, tree, other)
        req.next[tree] = pairs
        pairs = tree
    root = -1
    while pairs >= 0:
        following = req.next[pairs]
        req.next[pairs] = -1
        root = pairs if root < 0 else _meld(req, root, pairs)
        pairs = following
    rep.c.head = root

"""Fair shares for tenants: the virtual token counter. Who has been served least goes first.

Each tenant has a counter of what it was served: 1 a prompt token when a request is admitted, 2 an output token when it
is planned, divided by the tenant's weight. The first request of the tenant with the smallest counter is admitted next,
within a tenant first come, first served. A tenant that comes back after none of its requests waited starts no lower
than the smallest counter of those that wait (or than who left the queue last, where nobody waits): what it did not
ask for is not owed. All else is `chunked`; what is recomputed after a preemption is not charged again.

Finding the next tenant walks the waiting queue, so long queues cost time.

Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, algorithm 2 (with its counter
lift) and the weighted form of it; prices of an input and an output token as there, 1 and 2.
"""

from policies.chunked import NO_ROOM, admit_one, scheduler
from policies.queues import held, last_admitted
from simulator.jit import jitable
from simulator.state import Column, Limits, Replica, Requests
from simulator.units import NEVER

INPUT = 1
OUTPUT = 2
"""Price of a token."""
UNIT = 2**16
"""One token of price 1 and weight 1, in the counters."""
LAST = 0
"""aux: 1 + the tenant of the request that left the queue last, 0 = none."""
FIRST = 1
"""aux: from here on two numbers a tenant: its counter, and UNIT / its weight (0 stands for weight 1)."""


@jitable
def counter_of(req: Requests, i: int) -> int:
    """Where the counter of request i's tenant is in aux."""
    return FIRST + 2 * int(req.tenant[i])


@jitable
def charge(req: Requests, aux: Column, i: int, price: int) -> None:
    """The tenant of request i was served for `price`."""
    at = counter_of(req, i)
    unit = aux[at + 1] if aux[at + 1] > 0 else UNIT
    aux[at] += price * unit


@jitable
def arrived(req: Requests, rep: Replica, lim: Limits, aux: Column, i: int) -> None:
    """Counter lift for a tenant none of whose requests waited before request i, the last of the queue."""
    lowest = NEVER
    j = rep.c.head
    while j != i:
        if req.tenant[j] == req.tenant[i]:
            return
        lowest = min(lowest, aux[counter_of(req, j)])
        j = req.next[j]
    if lowest == NEVER and aux[LAST] > 0:
        lowest = aux[FIRST + 2 * (aux[LAST] - 1)]
    if lowest < NEVER:
        aux[counter_of(req, i)] = max(aux[counter_of(req, i)], lowest)


@jitable
def before_the_next(req: Requests, rep: Replica, aux: Column) -> int:
    """The request in front of the first one of the tenant with the smallest counter, -1 where that is the head."""
    lowest = NEVER
    chosen = -1
    before = -1
    i = rep.c.head
    while i >= 0:
        if aux[counter_of(req, i)] < lowest:
            lowest = aux[counter_of(req, i)]
            chosen = before
        before = i
        i = req.next[i]
    return int(chosen)


@jitable
def admit_fairly(req: Requests, rep: Replica, lim: Limits, aux: Column, budget: int) -> None:
    """Admit the first request of the tenant served least while slots, budget and KV blocks last."""
    while rep.c.n_waiting > 0 and budget > 0 and held(rep) < lim.max_num_seqs:
        before = before_the_next(req, rep, aux)
        i = rep.c.head if before < 0 else req.next[before]
        tokens = admit_one(req, rep, lim, i, before, budget)
        if tokens == NO_ROOM:
            break
        budget -= tokens
        aux[LAST] = req.tenant[i] + 1
        if req.preempted[i] == 0:
            charge(req, aux, i, INPUT * req.prompt[i])


_step = scheduler(last_admitted, admit_fairly)


@jitable
def schedule(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Fill rep.batch and rep.tokens for the next step, and charge the outputs that come of it."""
    _step(req, rep, lim, aux)
    for k in range(rep.c.n_batch):
        i = rep.batch[k]
        if req.computed[i] + rep.tokens[k] == req.prompt[i] + req.planned[i]:
            charge(req, aux, i, OUTPUT)

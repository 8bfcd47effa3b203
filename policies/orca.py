"""Iteration-level scheduling with reservation of the longest possible output, as Orca.

Every iteration runs every admitted sequence: whole prompts of new ones, one token of the others. A request is
admitted, first come first served, when a slot is free and KV memory for prompt + max_tokens can be set aside;
nothing is ever preempted. There is no token budget.

Source: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022,
algorithm 1 (`max_tokens` reserved in n_rsrv, section 4.2).
"""

from policies.queues import admit, held, plan, run_lane, take_head, wanted
from simulator.jit import jitable
from simulator.kv import grow
from simulator.prefix import find
from simulator.state import Column, Limits, Replica, Requests


@jitable
def schedule(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Fill rep.batch and rep.tokens for the next iteration; may admit."""
    while rep.c.n_waiting > 0 and held(rep) < lim.max_num_seqs:
        i = rep.c.head
        if not grow(req, rep, lim, i, req.prompt[i] + req.limit[i], 0):
            break
        take_head(req, rep)
        req.computed[i] = find(req, rep, lim, i, req.prompt[i])
        admit(req, rep, i)
    run_lane(rep, lim, 0)
    for k in range(rep.c.n_running):
        i = rep.running[k]
        tokens = wanted(req, i)
        if tokens > 0:
            plan(rep, i, tokens)

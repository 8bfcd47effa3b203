"""Text Generation Inference: new prompts interrupt the running batch when enough of them wait, or for long enough.

A step is either whole prompts of new requests or a token for everybody who runs. New requests are taken in, first come
first served, when as many fit as `waiting_served_ratio` of those that run, or any once `max_waiting_tokens` steps have
passed since the last were; a decode step always follows before the next are. A request fits when the prompt tokens
of the step stay within max_num_batched_tokens (--max-batch-prefill-tokens) and KV memory (--max-batch-total-tokens) for
its prompt and max_tokens is free; that memory is kept for it, so nobody is ever preempted.

Source: huggingface/text-generation-inference v3, backends/v3/src/backend.rs, batching_task, and
backends/v3/src/queue.rs, State::next_batch.
"""

from typing import Final

from policies.queues import admit, plan, take_head, wanted
from simulator.jit import jitable
from simulator.kv import grow, reservation
from simulator.prefix import find
from simulator.state import Column, Limits, Replica, Requests

WAITED: Final = 0
"""aux: decode steps since requests were last taken in, and 1."""
DECODES_NEXT: Final = 1
"""aux: 1 = the next step is a decode step."""
NUMBERS: Final = 2
ONE: Final = 2**16
"""A waiting_served_ratio of 1 in the limits."""


@jitable
def schedule(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Take new requests in, or plan the next token of all that run."""
    running = rep.c.n_running
    if rep.c.n_waiting > 0 and (aux[DECODES_NEXT] == 0 or running == 0):
        least = 1
        if running > 0 and aux[WAITED] < lim.max_waiting_tokens:
            least = max(1, running * lim.served_ratio // ONE)
        count = fitting(req, rep, lim)
        if count >= least:
            take_in(req, rep, lim, count)
        if rep.c.n_batch > 0:
            aux[WAITED] = 1
            aux[DECODES_NEXT] = 1 if running > 0 else 0
            return
    for k in range(rep.c.n_running):
        i = rep.running[k]
        if wanted(req, i) > 0:
            plan(rep, i, 1)
    if rep.c.n_batch > 0:
        aux[WAITED] += 1
        aux[DECODES_NEXT] = 0


@jitable
def fitting(req: Requests, rep: Replica, lim: Limits) -> int:
    """Requests from the head of the queue that fit slots, prompt tokens and KV memory together."""
    budget = (lim.max_num_batched_tokens + lim.block_size - 1) // lim.block_size * lim.block_size
    free = rep.c.free_blocks
    count = 0
    i = rep.c.head
    while i >= 0 and rep.c.n_running + count < lim.max_num_seqs:
        budget -= req.prompt[i]
        free -= reservation(req, lim, i, longest(req, i))
        if budget < 0 or free < 0:
            break
        count += 1
        i = req.next[i]
    return count


@jitable
def longest(req: Requests, i: int) -> int:
    """[tokens] whose KV request i may need: that of its last output is never computed."""
    return int(req.prompt[i] + req.limit[i] - 1)


@jitable
def take_in(req: Requests, rep: Replica, lim: Limits, count: int) -> None:
    """Admit the first `count` of the queue with their whole prompts."""
    for _ in range(count):
        i = rep.c.head
        if not grow(req, rep, lim, i, longest(req, i), 0):
            break  # a contiguous reservation that free blocks are too scattered for
        take_head(req, rep)
        start = find(req, rep, lim, i, req.prompt[i])
        req.computed[i] = start
        admit(req, rep, i)
        plan(rep, i, req.prompt[i] - start)

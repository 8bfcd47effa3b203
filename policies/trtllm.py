"""Inflight batching of whole prompts with a token budget: the step that both capacity policies of TensorRT-LLM share.

Running sequences get their token first; waiting requests follow, first come first served, while slots, tokens
(max_num_tokens) and KV blocks last, each with its whole prompt (chunked context off, the default). The policies,
`max_utilization` and `guaranteed_no_evict`, differ in what must be free for it; which one is chosen by code, so that
one compiled engine serves both. A sequence that has outgrown the token budget and is to be computed again goes alone.

Source: TensorRT-LLM (2025) cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp and microBatchScheduler.cpp,
MicroBatchScheduler::operator() without ContextChunkingConfig.
"""

from typing import Final

from policies.chunked import scheduler
from policies.queues import admit, held, last_admitted, plan, take_head
from simulator.jit import jitable
from simulator.kv import grow
from simulator.prefix import find
from simulator.state import Column, Limits, Replica, Requests

MAX_UTILIZATION: Final = 0
GUARANTEED_NO_EVICT: Final = 1
MODES: Final = {"max_utilization": MAX_UTILIZATION, "guaranteed_no_evict": GUARANTEED_NO_EVICT}
"""Limits.order of each policy."""


@jitable
def admit_whole(req: Requests, rep: Replica, lim: Limits, aux: Column, budget: int) -> None:
    """Admit whole prompts from the head of the queue."""
    while rep.c.n_waiting > 0 and held(rep) < lim.max_num_seqs:
        i = rep.c.head
        whole = req.prompt[i] + req.done[i]
        start = find(req, rep, lim, i, whole)
        tokens = whole - start
        if tokens > budget and (rep.c.n_batch > 0 or rep.c.lane > 0):
            break
        needed = req.prompt[i] + req.limit[i] if lim.order == GUARANTEED_NO_EVICT else whole
        if not grow(req, rep, lim, i, needed, 0):
            break
        take_head(req, rep)
        req.computed[i] = start
        admit(req, rep, i)
        plan(rep, i, tokens)
        budget -= tokens


schedule = scheduler(last_admitted, admit_whole)

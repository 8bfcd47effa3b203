"""Continuous batching as `chunked`, with the waiting queue in order of a key instead of first come, first served.

When KV memory is out, the running sequence that would be last in the queue is preempted, and goes back to where its
key puts it. Which key is a policy of its own, chosen by code so that one compiled engine serves them all.

Source: vLLM 0.24 vllm/v1/core/sched/scheduler.py, Scheduler.schedule under SchedulingPolicy.PRIORITY, and
request_queue.py, PriorityRequestQueue.
"""

from typing import Final

from policies import earliest_deadline, oracle_sjf, priority, shortest_predicted, shortest_prompt
from policies.chunked import scheduler
from policies.queues import largest_key
from simulator.jit import jitable
from simulator.state import Limits, Requests

PRIORITY: Final = 0
SHORTEST_PROMPT: Final = 1
SHORTEST_PREDICTED: Final = 2
EARLIEST_DEADLINE: Final = 3
ORACLE_SJF: Final = 4
KEYS: Final = {"priority": PRIORITY, "shortest_prompt": SHORTEST_PROMPT, "shortest_predicted": SHORTEST_PREDICTED,
               "earliest_deadline": EARLIEST_DEADLINE, "oracle_sjf": ORACLE_SJF}
"""Limits.order of each policy."""


@jitable
def key(req: Requests, lim: Limits, i: int) -> int:
    """Key of request i under the policy that lim.order names."""
    if lim.order == PRIORITY:
        return priority.key(req, lim, i)
    if lim.order == SHORTEST_PROMPT:
        return shortest_prompt.key(req, lim, i)
    if lim.order == SHORTEST_PREDICTED:
        return shortest_predicted.key(req, lim, i)
    if lim.order == EARLIEST_DEADLINE:
        return earliest_deadline.key(req, lim, i)
    return oracle_sjf.key(req, lim, i)


schedule = scheduler(largest_key)

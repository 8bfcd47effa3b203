"""Lowest priority number first, as vLLM with `--scheduling-policy priority`, with optional aging.

Requests of equal priority go first come, first served. Nobody is preempted for a slot: a waiting request of higher
priority passes others in the queue only. When KV memory is out, the running sequence with the largest number, of
those the one that came last, is preempted and recomputed later.

With `aging_s`, waiting that long counts as one priority: the order is that of priority x aging_s + time of entry. A
request then waits at most for those that came up to (difference in priority) x aging_s after it, so nobody starves.
vLLM has no aging; without it the key is the priority alone.

Source: vLLM 0.24 vllm/v1/core/sched/scheduler.py, Scheduler.schedule under SchedulingPolicy.PRIORITY, and
request_queue.py, PriorityRequestQueue; aging as in Silberschatz, Galvin, Gagne, "Operating System Concepts", 10th
ed., section 5.3.4.
"""

from simulator.jit import jitable
from simulator.state import Limits, Requests


@jitable
def key(req: Requests, lim: Limits, i: int) -> int:
    """Smaller goes first."""
    if lim.aging == 0:
        return int(req.priority[i])
    return int(req.priority[i] * lim.aging + req.queued[i])

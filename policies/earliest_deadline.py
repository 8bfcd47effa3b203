"""Earliest deadline first: who must have the first token soonest goes first.

The deadline of a request is its arrival plus the time to first token that its client wants (`ttft_target_s` of the
request or its class, else `slo.ttft_s`). Deadlines already missed are not given up. Preempts as `priority` does, latest
deadline first.

Source: Liu, Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment", Journal of the ACM
20 (1973), section 7; Horn, Naval Research Logistics Quarterly 21 (1974): on one machine it meets all deadlines if any
order of jobs released together does.
"""

from simulator.jit import jitable
from simulator.state import Limits, Requests


@jitable
def key(req: Requests, lim: Limits, i: int) -> int:
    """[tick] by which the first token is wanted."""
    return int(req.arrival[i] + req.target[i])

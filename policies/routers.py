"""Routers: which replica gets the next request. Chosen by code, so that one compiled engine serves them all.

`route` reads only the scalars of the replicas and the request's pre-drawn number; ties go to the lower index.
"""

from typing import Final

from simulator.jit import jitable
from simulator.state import Column

ROUND_ROBIN: Final = 0
RANDOM: Final = 1
LEAST_OUTSTANDING: Final = 2

ROUTERS: Final = {
    "round_robin": ROUND_ROBIN,
    "random": RANDOM,
    "least_outstanding": LEAST_OUTSTANDING,
}


@jitable
def route(code: int, i: int, pick: Column, fronts: Column, replicas: int) -> int:
    """Replica for request i; fronts[r] is the state.Front of replica r, pick[i] a non-negative random number."""
    if code == ROUND_ROBIN:
        return i % replicas
    if code == RANDOM:
        return pick[i] % replicas
    best = 0
    for r in range(1, replicas):
        if fronts[r].outstanding < fronts[best].outstanding:
            best = r
    return best

"""Routers: which replica gets the next request. Chosen by code, so that one compiled engine serves them all.

`route` changes nothing: it reads the requests' inputs, what replicas show of themselves (state.Front) and the router's
own numbers, which the engine keeps up to date; ties go to the lower index.
"""

from typing import Final

from simulator.jit import jitable
from simulator.state import Column, Requests

ROUND_ROBIN: Final = 0
RANDOM: Final = 1
LEAST_OUTSTANDING: Final = 2

ROUTERS: Final = {
    "round_robin": ROUND_ROBIN,
    "random": RANDOM,
    "least_outstanding": LEAST_OUTSTANDING,
}


ROUTED: Final = 0
"""aux: requests routed so far."""
AUX_SIZE: Final = 1
"""Numbers of a router."""


@jitable
def route(code: int, req: Requests, fronts: Column, i: int, aux: Column) -> int:
    """Replica for request i; fronts[r] is the state.Front of replica r, req.pick[i] a non-negative random number."""
    replicas = len(fronts)
    if code == ROUND_ROBIN:
        return aux[ROUTED] % replicas
    if code == RANDOM:
        return req.pick[i] % replicas
    best = 0
    for r in range(1, replicas):
        if fronts[r].outstanding < fronts[best].outstanding:
            best = r
    return best

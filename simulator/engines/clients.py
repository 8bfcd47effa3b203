"""Clients: when requests are submitted, and how they pass the front end into the engine's queue."""

from typing import Final

from simulator.cost.step import Cost
from simulator.jit import jitable
from simulator.state import Column, Requests

# Scalars of a whole run, ctl[NAME].
NEXT: Final = 0            # next request to arrive
RELEASED: Final = 1        # requests whose arrival tick is known
GROUP_LEFT: Final = 2      # grouped load: requests of the current group not ended
LOG_ROWS: Final = 3
FRONTEND_FREE: Final = 4   # [tick] when the first front end can take a request; one more place per further replica

OPEN: Final = 0
CLOSED: Final = 1
GROUPED: Final = 2
"""Kinds of load: arrivals as given; `width` requests in flight; groups of `width`, the next when one has ended."""


@jitable
def submit(req: Requests, cost: Cost, ctl: Column, tick: int) -> None:
    """Release the next request at `tick`: through a front end into the engine's queue.

    There are as many front ends as replicas, used in turn; each takes one request at a time.
    """
    i = ctl[RELEASED]
    at = FRONTEND_FREE + i % (len(ctl) - FRONTEND_FREE)
    req.arrival[i] = tick
    ctl[at] = max(ctl[at], tick) + cost.frontend_each_ns
    req.queued[i] = ctl[at] + cost.frontend_in_ns
    ctl[RELEASED] = i + 1


@jitable
def start_load(req: Requests, cost: Cost, ctl: Column, load: int, width: int) -> None:
    """Release what is there at the start: everything (open), or the first `width` requests."""
    total = len(req.arrival)
    count = total if load == OPEN else min(width, total)
    for i in range(count):
        submit(req, cost, ctl, req.arrival[i] if load == OPEN else req.arrival[0])
    ctl[GROUP_LEFT] = count


@jitable
def on_ended(req: Requests, cost: Cost, ctl: Column, load: int, width: int, ended: int, tick: int) -> None:
    """`ended` clients have their answer or refusal at `tick`; closed and grouped ones submit their next requests.

    Both take frontend_out_ns to arrive: ticks never go back, so requests enter in the order of submission.
    """
    total = len(req.arrival)
    count = 0
    if load == CLOSED:
        count = ended
    elif load == GROUPED:
        ctl[GROUP_LEFT] -= ended
        if ctl[GROUP_LEFT] == 0:
            count = width
            ctl[GROUP_LEFT] = min(width, total - ctl[RELEASED])
    for _ in range(count):
        if ctl[RELEASED] < total:
            submit(req, cost, ctl, tick)

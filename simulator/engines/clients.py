"""Clients: when requests are submitted, and how they pass the front end into the engine's queue."""

from typing import Final, NamedTuple

from simulator.cost.step import Cost
from simulator.jit import jitable
from simulator.state import Column, Control, Requests

OPEN: Final = 0
CLOSED: Final = 1
GROUPED: Final = 2
"""Kinds of load: arrivals as given; `width` requests in flight; groups of `width`, the next when one has ended."""


class Clients(NamedTuple):
    """Who submits requests, and the front ends they pass."""

    ctl: Control
    free: Column    # [tick] when each front end can take a request, one a replica
    load: int
    width: int      # requests in flight (closed), or in a group (grouped)


@jitable
def submit(req: Requests, cost: Cost, clients: Clients, tick: int) -> None:
    """Release the next request at `tick`: through a front end into the engine's queue.

    There are as many front ends as replicas, used in turn; each takes one request at a time.
    """
    i = clients.ctl.released
    at = i % len(clients.free)
    req.arrival[i] = tick
    clients.free[at] = max(clients.free[at], tick) + cost.frontend_each_ns
    req.queued[i] = clients.free[at] + cost.frontend_in_ns
    clients.ctl.released = i + 1


@jitable
def start_load(req: Requests, cost: Cost, clients: Clients) -> None:
    """Release what is there at the start: everything (open), or the first `width` requests."""
    total = len(req.arrival)
    count = total if clients.load == OPEN else min(clients.width, total)
    for i in range(count):
        submit(req, cost, clients, req.arrival[i] if clients.load == OPEN else req.arrival[0])
    clients.ctl.group_left = count


@jitable
def on_ended(req: Requests, cost: Cost, clients: Clients, ended: int, tick: int) -> None:
    """`ended` clients have their answer or refusal at `tick`; closed and grouped ones submit their next requests.

    Both take frontend_out_ns to arrive: ticks never go back, so requests enter in the order of submission.
    """
    ctl = clients.ctl
    total = len(req.arrival)
    count = 0
    if clients.load == CLOSED:
        count = ended
    elif clients.load == GROUPED:
        ctl.group_left -= ended
        if ctl.group_left == 0:
            count = clients.width
            ctl.group_left = min(clients.width, total - ctl.released)
    for _ in range(count):
        if ctl.released < total:
            submit(req, cost, clients, tick)

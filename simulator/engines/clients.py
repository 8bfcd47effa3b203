"""Clients: when requests are submitted, and how they pass the front end into the engine's queue.

Open loads submit at the trace's times: every arrival is known before the run, in order, and needs no heap. What
depends on the run, the next request of a client who waited for an answer, is an event of the heap (`future`).
"""

from typing import Final, NamedTuple

from simulator.cost.step import Cost
from simulator.engines.future import Future, event_code, index_of, pop, push, what_of
from simulator.jit import jitable
from simulator.state import ARRIVE, Column, Control, Requests
from simulator.units import NEVER

OPEN: Final = 0
CLOSED: Final = 1
GROUPED: Final = 2
"""Kinds of load: arrivals as given; `width` requests in flight; groups of `width`, the next when one has ended."""

TAKE: Final = 0
SEND: Final = 1
ENTER: Final = 2
"""What an ARRIVE event is: a client takes the next request from the list and submits it (index: whoever ended); request
`index` is submitted; it leaves the front end and enters a replica's queue."""


class Clients(NamedTuple):
    """Who submits requests, and the front ends they pass."""

    ctl: Control
    free: Column    # [tick] when each front end can take a request, one a replica
    future: Future
    load: int
    width: int      # requests in flight (closed), or in a group (grouped)
    coupled: int    # 1 = what ends at one replica may cause an arrival at another


@jitable
def submit(req: Requests, cost: Cost, clients: Clients, i: int, tick: int) -> None:
    """Request i is submitted at `tick`: it passes a front end and can be in the engine's queue at req.queued[i].

    There are as many front ends as replicas, used in turn; each takes one request at a time. Submissions come in
    order of time, so requests leave in that order too.
    """
    at = clients.ctl.submitted % len(clients.free)
    clients.ctl.submitted += 1
    req.arrival[i] = tick
    clients.free[at] = max(clients.free[at], tick) + cost.frontend_each_ns
    req.queued[i] = clients.free[at] + cost.frontend_in_ns


@jitable
def start_load(req: Requests, cost: Cost, clients: Clients) -> None:
    """What is known at the start: every arrival (open), or the first `width` requests."""
    ctl, total = clients.ctl, len(req.arrival)
    ctl.started = 1
    if clients.load == OPEN:
        for i in range(total):
            submit(req, cost, clients, i, req.arrival[i])
        return
    for client in range(min(clients.width, total)):
        push(clients.future, ctl, req.arrival[0], event_code(ARRIVE, client, TAKE))
    ctl.group_left = min(clients.width, total)


@jitable
def upcoming(req: Requests, clients: Clients, until: int) -> tuple[int, int]:
    """(tick, code) of the clients' next event, from the stream of arrivals or the heap; NEVER: none up to `until`."""
    ctl = clients.ctl
    tick = NEVER
    code = 0
    if clients.load == OPEN and ctl.next < len(req.arrival):
        tick = req.queued[ctl.next]
        code = event_code(ARRIVE, ctl.next, ENTER)
    if ctl.n_future > 0:
        first = clients.future.tick[0]
        if first < tick or (first == tick and clients.future.code[0] < code):
            tick = first
            code = clients.future.code[0]
    return (tick if tick <= until else NEVER), code


@jitable
def drop(clients: Clients, tick: int, code: int) -> None:
    """The event that `upcoming` told of is being done."""
    ctl = clients.ctl
    if ctl.n_future > 0 and clients.future.tick[0] == tick and clients.future.code[0] == code:
        pop(clients.future, ctl)
    else:
        ctl.next += 1


@jitable
def act(req: Requests, cost: Cost, clients: Clients, tick: int, code: int) -> None:
    """Do an event in which no replica takes part."""
    ctl = clients.ctl
    i = index_of(code)
    if what_of(code) == TAKE:
        i = ctl.next
        if i == len(req.arrival):
            return
        ctl.next = i + 1
    submit(req, cost, clients, i, tick)
    push(clients.future, ctl, req.queued[i], event_code(ARRIVE, i, ENTER))


@jitable
def on_ended(req: Requests, clients: Clients, i: int, tick: int) -> None:
    """The client of request i has the answer or the refusal at `tick`; closed and grouped ones go on.

    Both take frontend_out_ns to arrive: ticks never go back, so requests enter in the order of submission.
    """
    ctl = clients.ctl
    if clients.load == CLOSED:
        push(clients.future, ctl, tick, event_code(ARRIVE, i, TAKE))
    elif clients.load == GROUPED:
        ctl.group_left -= 1
        if ctl.group_left == 0:
            left = len(req.arrival) - ctl.next
            ctl.group_left = min(clients.width, left)
            for client in range(ctl.group_left):
                push(clients.future, ctl, tick, event_code(ARRIVE, client, TAKE))

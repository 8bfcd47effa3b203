"""Clients: when requests are submitted, and how they pass the front end into the engine's queue.

Open loads submit at the trace's times: every arrival is known before the run, in order, and needs no heap. What
depends on the run is an event of the heap (`future`): the next request of a client who waited for an answer, the next
turn of a conversation, another attempt.
"""

from typing import Final, NamedTuple

from simulator.cost.step import Cost
from simulator.engines.future import Future, before, event_code, index_of, pop, push, what_of
from simulator.engines.gateway import take_first
from simulator.jit import jitable
from simulator.records import ARRIVE, Control
from simulator.state import FINISHED, NOT_SENT, Column, Requests
from simulator.units import NEVER

OPEN: Final = 0
CLOSED: Final = 1
GROUPED: Final = 2
"""Kinds of load: arrivals as given; `width` clients, each with one request or conversation; groups of `width`, the
next when one has ended."""

TAKE: Final = 0
SEND: Final = 1
GO: Final = 2
ENTER: Final = 3
FREE: Final = 4
"""What an ARRIVE event is: a client takes the next request from the list and submits it (index: whoever ended); request
`index` is to be submitted; it is submitted again and still holds its place in flight; it leaves the front end and
enters a replica's queue; it gives its place in flight to the first that waits for one."""


class Talks(NamedTuple):
    """Conversations whose turns follow answers; all empty when every request stands alone."""

    follows: Column = ()    # (N,) 1 = submitted only after another's answer
    after: Column = ()      # (N,) request submitted after the answer to this one, -1 = none
    pause: Column = ()      # (N,) [ns] that the client lets pass between the answer and what it submits next


class Habits(NamedTuple):
    """What clients do beside waiting for answers."""

    ramp_ns: int = 0         # closed: from the first client's start to the last one's
    max_in_flight: int = 0   # requests in flight at a time, 0 = any number
    ttft_ns: int = 0         # gives up when no token has come so long after a submission, 0 = never
    total_ns: int = 0        # gives up when the answer is not complete by then
    attempts: int = 1        # submissions of a request in all: it comes again after a time-out or refused for overload
    backoff_ns: int = 0      # wait before the second one, doubled each time
    longest_ns: int = 0      # up to this


class Clients(NamedTuple):
    """Who submits requests, and the front ends they pass."""

    ctl: Control
    free: Column    # [tick] when each front end can take a request, one a replica
    future: Future
    talks: Talks
    habits: Habits
    load: int
    width: int      # clients (closed), or requests in a group (grouped)
    live: int       # 1 = an open load whose submissions must be made one by one, as events add others
    coupled: int    # 1 = what ends at one replica may cause an arrival at another


@jitable
def submit(req: Requests, cost: Cost, clients: Clients, i: int, tick: int) -> None:
    """Request i is submitted at `tick`: it passes a front end and can be in the engine's queue at req.queued[i].

    There are as many front ends as replicas, used in turn; each takes one request at a time. Submissions come in
    order of time, so requests leave in that order too.
    """
    at = clients.ctl.submitted % len(clients.free)
    clients.ctl.submitted += 1
    if len(req.attempts) > 0:
        req.sent[i] = tick
        req.attempts[i] += 1
    if len(req.attempts) == 0 or req.attempts[i] == 1:
        req.arrival[i] = tick
    clients.free[at] = max(clients.free[at], tick) + cost.frontend_each_ns
    req.queued[i] = clients.free[at] + cost.frontend_in_ns


@jitable
def start_load(req: Requests, cost: Cost, clients: Clients) -> None:
    """What is known at the start: every arrival (open), or when the clients begin."""
    ctl, total = clients.ctl, len(req.arrival)
    ctl.started = 1
    ctl.held_head = -1
    ctl.held_tail = -1
    if clients.load == OPEN:
        if clients.live == 0:
            for i in range(total):
                submit(req, cost, clients, i, req.arrival[i])
        _skip_turns(req, clients)
        return
    begin = req.arrival[0]
    for client in range(min(clients.width, total)):
        late = clients.habits.ramp_ns * client // max(1, clients.width - 1)
        push(clients.future, ctl, begin + late, event_code(ARRIVE, client, TAKE))
    ctl.group_left = min(clients.width, total)


@jitable
def _skip_turns(req: Requests, clients: Clients) -> None:
    """Move ctl.next to the next request that nobody has to be answered for."""
    if len(clients.talks.follows) > 0:
        while clients.ctl.next < len(req.arrival) and clients.talks.follows[clients.ctl.next] == 1:
            clients.ctl.next += 1


@jitable
def upcoming(req: Requests, clients: Clients, until: int) -> tuple[int, int]:
    """(tick, code) of the clients' next event, from the queue at the gateway when that may enter, the stream of
    arrivals or the heap; NEVER: none up to `until`."""
    ctl = clients.ctl
    if ctl.entering > 0:
        return ctl.entering_at, event_code(ARRIVE, ctl.parked, ENTER)
    tick = NEVER
    code = 0
    if clients.load == OPEN and ctl.next < len(req.arrival):
        if clients.live == 1:
            tick = req.arrival[ctl.next]
            code = event_code(ARRIVE, ctl.next, SEND)
        else:
            tick = req.queued[ctl.next]
            code = event_code(ARRIVE, ctl.next, ENTER)
    if ctl.n_future > 0:
        first = clients.future.tick[0]
        if before(first, clients.future.code[0], tick, code):
            tick = first
            code = clients.future.code[0]
    return (tick if tick <= until else NEVER), code


@jitable
def drop(req: Requests, clients: Clients, tick: int, code: int) -> None:
    """The event that `upcoming` told of is being done."""
    ctl = clients.ctl
    if ctl.entering > 0:
        take_first(req, ctl)
    elif ctl.n_future > 0 and clients.future.tick[0] == tick and clients.future.code[0] == code:
        pop(clients.future, ctl)
    else:
        ctl.next += 1
        _skip_turns(req, clients)


@jitable
def act(req: Requests, cost: Cost, clients: Clients, tick: int, code: int) -> None:
    """Do an event in which no replica takes part: a request is submitted, or waits at its client for a place."""
    ctl, most, what = clients.ctl, clients.habits.max_in_flight, what_of(code)
    i = index_of(code)
    if what == TAKE:
        _skip_turns(req, clients)
        i = ctl.next
        if i == len(req.arrival):
            return
        ctl.next = i + 1
    elif what == FREE:
        i = _next_held(req, ctl)
        if i < 0:
            ctl.in_flight -= 1
            return
    elif most > 0 and what == SEND:
        if ctl.in_flight == most:
            _hold(req, ctl, i)
            return
        ctl.in_flight += 1
    submit(req, cost, clients, i, tick)
    push(clients.future, ctl, req.queued[i], event_code(ARRIVE, i, ENTER))


@jitable
def _hold(req: Requests, ctl: Control, i: int) -> None:
    """Request i waits at its client behind those that do: a list through req.next."""
    req.next[i] = -1
    if ctl.held_tail < 0:
        ctl.held_head = i
    else:
        req.next[ctl.held_tail] = i
    ctl.held_tail = i


@jitable
def _next_held(req: Requests, ctl: Control) -> int:
    """Take the first request that waits at its client, -1 when none does."""
    i = ctl.held_head
    if i >= 0:
        ctl.held_head = req.next[i]
        if ctl.held_head < 0:
            ctl.held_tail = -1
        req.next[i] = -1
    return i


@jitable
def on_ended(req: Requests, clients: Clients, i: int, tick: int) -> None:
    """Request i is over for its client at `tick`: answered, refused or given up. Who waited for that goes on.

    Answers and refusals take frontend_out_ns to arrive.
    """
    ctl = clients.ctl
    if clients.habits.max_in_flight > 0:
        push(clients.future, ctl, tick, event_code(ARRIVE, i, FREE))
    if len(clients.talks.after) > 0 and clients.talks.after[i] >= 0:
        if req.status[i] == FINISHED:
            push(clients.future, ctl, tick + clients.talks.pause[i], event_code(ARRIVE, clients.talks.after[i], SEND))
            return
        _break_off(req, clients, i)
    if clients.load == CLOSED:
        wait = clients.talks.pause[i] if len(clients.talks.pause) > 0 else 0
        push(clients.future, ctl, tick + wait, event_code(ARRIVE, i, TAKE))
    elif clients.load == GROUPED:
        ctl.group_left -= 1
        if ctl.group_left == 0:
            ctl.group_left = min(clients.width, len(req.arrival) - ctl.next)
            for client in range(ctl.group_left):
                push(clients.future, ctl, tick, event_code(ARRIVE, client, TAKE))


@jitable
def _break_off(req: Requests, clients: Clients, i: int) -> None:
    """Request i has no answer: the turns of its conversation after it are never submitted."""
    i = clients.talks.after[i]
    while i >= 0:
        req.status[i] = NOT_SENT
        i = clients.talks.after[i]

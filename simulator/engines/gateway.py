"""Requests that wait at the gateway while no replica they may go to is in service: first come, first served.

When a replica has come into service all that wait try again, in the order in which they came, before anything else of
that tick; who still finds nobody stays where it is in the queue. Who was lost with a replica comes again as a new one.
"""

from simulator.jit import jitable
from simulator.records import Control
from simulator.state import Requests


@jitable
def park(req: Requests, ctl: Control, i: int) -> None:
    """Request i waits behind those that do: a list through req.next."""
    req.next[i] = -1
    if ctl.parked < 0:
        ctl.parked = i
    else:
        req.next[ctl.parked_last] = i
    ctl.parked_last = i
    ctl.n_parked += 1


@jitable
def let_in(req: Requests, ctl: Control, tick: int) -> None:
    """Those that wait try to enter at `tick`, one event each (clients.upcoming)."""
    ctl.entering_at = tick
    ctl.entering = 0
    i = ctl.parked
    while i >= 0:
        ctl.entering += 1
        i = req.next[i]


@jitable
def take_first(req: Requests, ctl: Control) -> None:
    """The first that waits tries to enter; it comes back to the end of the queue (`park`) if it finds nobody, and all
    before it are then gone or behind it in their order."""
    ctl.entering -= 1
    ctl.parked = req.next[ctl.parked]


@jitable
def leave(req: Requests, ctl: Control, i: int) -> None:
    """Request i, one of those that wait, waits no more."""
    after, at = req.next[i], ctl.parked
    if at == i:
        ctl.parked = after
    else:
        while req.next[at] != i:
            at = req.next[at]
        req.next[at] = after
        if after < 0:
            ctl.parked_last = at
    req.next[i] = -1

"""Events not known in advance: one binary heap, keyed (tick, phase, index, what), in two columns.

What the trace says of arrivals is in order already and stays a stream beside it (`clients.upcoming` takes the
earlier of the two). The columns hold every event that can be pending at a time; the engines allocate nothing.
"""

from typing import Final, NamedTuple

from simulator.jit import jitable
from simulator.records import Control
from simulator.state import Column

_WHAT_BITS: Final = 3
_INDEX_BITS: Final = 40


class Future(NamedTuple):
    """A heap of ctl.n_future events, the earliest at 0."""

    tick: Column
    code: Column     # phase, index and what as one number that sorts like them


@jitable
def event_code(phase: int, index: int, what: int) -> int:
    """Phase (records.ARRIVE, ...), index within it (a request, ...) and what happens to it, as one number."""
    return (((phase << _INDEX_BITS) + index) << _WHAT_BITS) + what


@jitable
def phase_of(code: int) -> int:
    """Phase of an event."""
    return code >> (_INDEX_BITS + _WHAT_BITS)


@jitable
def index_of(code: int) -> int:
    """Index of an event within its phase."""
    return (code >> _WHAT_BITS) & ((1 << _INDEX_BITS) - 1)


@jitable
def what_of(code: int) -> int:
    """What happens."""
    return code & ((1 << _WHAT_BITS) - 1)


@jitable
def push(future: Future, ctl: Control, tick: int, code: int) -> None:
    """Add an event."""
    at = ctl.n_future
    ctl.n_future = at + 1
    while at > 0:
        above = (at - 1) >> 1
        if not before(tick, code, future.tick[above], future.code[above]):
            break
        future.tick[at] = future.tick[above]
        future.code[at] = future.code[above]
        at = above
    future.tick[at] = tick
    future.code[at] = code


@jitable
def pop(future: Future, ctl: Control) -> None:
    """Drop the earliest event."""
    n = ctl.n_future - 1
    ctl.n_future = n
    tick, code = future.tick[n], future.code[n]
    at = 0
    while 2 * at + 1 < n:
        child = 2 * at + 1
        if child + 1 < n and before(future.tick[child + 1], future.code[child + 1], future.tick[child],
                                     future.code[child]):
            child += 1
        if before(tick, code, future.tick[child], future.code[child]):
            break
        future.tick[at] = future.tick[child]
        future.code[at] = future.code[child]
        at = child
    future.tick[at] = tick
    future.code[at] = code


@jitable
def withdraw(future: Future, ctl: Control, code: int) -> bool:
    """Take the one event with this code out; False when there is none."""
    at = 0
    while at < ctl.n_future and future.code[at] != code:
        at += 1
    if at == ctl.n_future:
        return False
    while at > 0:  # those above it move down, and the first, twice there now, is dropped
        above = (at - 1) >> 1
        future.tick[at] = future.tick[above]
        future.code[at] = future.code[above]
        at = above
    pop(future, ctl)
    return True


@jitable
def before(tick: int, code: int, other_tick: int, other_code: int) -> bool:
    """True when the first of two events comes first."""
    return tick < other_tick or (tick == other_tick and code < other_code)

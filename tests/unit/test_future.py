"""The heap of future events against Python's heapq, on the columns of both engines."""

import heapq
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engines.future import Future, event_code, index_of, phase_of, pop, push, what_of
from simulator.records import ARRIVE, COMPLETE, CONTROL, SCHEDULE, TIMER, TRANSFER, Control

EVENTS = st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from([0, 1, 2**40 - 1]), st.integers(0, 7))
"""(tick, phase, index, what), full of ties."""


@pytest.mark.parametrize("columns", [list, np.array])
@given(todo=st.lists(st.one_of(st.none(), EVENTS), max_size=60))
def test_events_come_out_in_order(columns: Any, todo: list[tuple[int, int, int, int] | None]) -> None:
    """None drops the earliest event, anything else adds one."""
    future, ctl = Future(columns([0] * 60), columns([0] * 60)), Control()
    wanted: list[tuple[int, int, int, int]] = []
    for event in todo:
        if event is not None:
            heapq.heappush(wanted, event)
            push(future, ctl, event[0], event_code(*event[1:]))
        elif wanted:
            heapq.heappop(wanted)
            pop(future, ctl)
        assert ctl.n_future == len(wanted)
        if wanted:
            code = int(future.code[0])
            assert (future.tick[0], phase_of(code), index_of(code), what_of(code)) == wanted[0]


def test_order_of_a_tick() -> None:
    """An output may cause an arrival in its own tick, and a step sees every arrival of its tick."""
    assert COMPLETE < TRANSFER < ARRIVE < CONTROL < TIMER < SCHEDULE

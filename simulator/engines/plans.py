"""What is to happen to the fleet of a job, and the columns of it."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from simulator.engines.scaler import Decision, Scaler, Shift
from simulator.engines.world import Changes, Scaling
from simulator.errors import ConfigError
from simulator.records import FleetRow, dtype_of
from simulator.state import Column

MOST_PAST: Final = 100_000
"""Decisions that an autoscaler can look back on."""


class Plans(NamedTuple):
    """What is to happen to the replicas of a job."""

    rows: Sequence[tuple[int, int, int, int]] = ()   # (tick, kind, replica, [ns] it lasts)
    found_after: int = 0
    retry: int = 1
    notice: int = 0
    scalers: Sequence[Scaler] = ()
    shifts: Sequence[Shift] = ()
    retries: int | None = None   # times a lost request is submitted again, None = any number


def changes_of(plans: Plans, routing: Column = (), groups: int = 0, arrays: bool = True) -> Changes:
    """The columns; lists for the SimPy engine."""
    given = np.array(plans.rows, dtype=np.int64).reshape(-1, 4).T.copy()
    roster = np.array(routing, dtype=np.int64)
    ring = _ring(plans.scalers)
    past = [Decision() for _ in range(ring * len(plans.scalers))]
    if arrays:
        scaling = Scaling(records_of(plans.scalers, Scaler), records_of(plans.shifts, Shift),
                          records_of(past, Decision), ring)
        return Changes(given[0], given[1], given[2], given[3], roster, records_of((), FleetRow), scaling, groups,
                       plans.found_after, plans.notice, plans.retry, plans.retries or 0)
    copies = [Scaler(*(getattr(each, name) for name in dtype_of(Scaler).names or ())) for each in plans.scalers]
    tick, kind, replica, lasts = given.tolist()
    return Changes(tick, kind, replica, lasts, roster.tolist(), [], Scaling(copies, list(plans.shifts), past, ring),
                   groups, plans.found_after, plans.notice, plans.retry, plans.retries or 0)


def _ring(scalers: Sequence[Scaler]) -> int:
    """Decisions that an autoscaler must remember."""
    most = max((max(max(each.up_window, each.down_window, each.up_period, each.down_period) // each.sync + 2,
                    each.history) for each in scalers), default=1)
    if most > MOST_PAST:
        raise ConfigError(f"cluster.autoscale: windows and periods must be <= {MOST_PAST} times sync_s, got {most}")
    return most


def records_of(objects: Sequence[Any], kind: type, count: int = 0) -> Any:
    """Objects of a record class as one structured array, or `count` empty ones."""
    dtype = dtype_of(kind)
    if not objects:
        return np.zeros(count, dtype=dtype)
    return np.array([tuple(getattr(o, name) for name in dtype.names or ()) for o in objects], dtype=dtype)

"""Units: int64 nanoseconds (ticks) inside, seconds at the edges; bytes inside, GiB and MiB at the edges.

`to_ticks` is the one place where a time is rounded (half to even, as numpy.rint does).
"""

from typing import Final

import numpy as np
import numpy.typing as npt

NS_PER_S: Final = 1_000_000_000
NEVER: Final = 2**63 - 1
"""A tick that is never reached: an unset wake-up, an unfinished request."""
MAX_TICKS: Final = 2**60
"""Longest accepted horizon, 36 years: sums of two accepted times cannot overflow."""
LONGEST_S: Final = MAX_TICKS / NS_PER_S
"""[s] of MAX_TICKS."""

GIB: Final = 2**30
MIB: Final = 2**20


def to_ticks(seconds: float) -> int:
    """Seconds -> nanoseconds, rounded half to even. Raises OverflowError beyond MAX_TICKS."""
    ticks = int(np.rint(seconds * NS_PER_S))
    if abs(ticks) > MAX_TICKS:
        raise OverflowError(f"time {seconds} s is beyond {LONGEST_S:.0f} s")
    return ticks


def column_to_ticks(seconds: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Seconds, shape (N,) -> nanoseconds int64, shape (N,). Raises OverflowError beyond MAX_TICKS."""
    ticks = np.rint(np.asarray(seconds, dtype=np.float64) * NS_PER_S)
    if ticks.size and not np.all(np.abs(ticks) <= MAX_TICKS):
        raise OverflowError(f"a time is beyond {LONGEST_S:.0f} s or not a number")
    return ticks.astype(np.int64)


def to_seconds(ticks: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Nanoseconds -> seconds as float64; NEVER becomes +infinity."""
    array = np.asarray(ticks, dtype=np.int64)
    return np.where(array == NEVER, np.inf, array / NS_PER_S)

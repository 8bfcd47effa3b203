"""Integer checks on a filled `Cost`: nothing negative, nothing too large for any run."""

from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.cost.step import TABLES, Cost
from simulator.errors import ConfigError

Table = npt.NDArray[np.int64]

MAX_TABLE_NS: Final = 2**50
"""[ns] 13 days: the longest step accepted; thousands of them still sum below 2^63."""
LARGEST_COEFFICIENT: Final = 2**62
"""[2^-32 ns] 1 s a unit; what a run makes of it is checked with its counts (`cost.reach`)."""
MOST_LAYERS: Final = 2**12
MOST_CROWDED: Final = 10_000
"""What parts of a step's time are multiplied with in a pipeline."""
_COEFFICIENTS: Final = ("slope_fp", "decode_context_fp", "decode_seq_fp", "prefill_pair_fp", "prefill_token_fp",
                        "prefill_seq_fp", "seen_context_fp", "seen_pair_fp", "hop_fp", "beside_context_fp")
_TIMES: Final = ("cpu_seq_ns", "prep_seq_ns", "frontend_in_ns", "frontend_each_ns", "frontend_out_ns",
                   "plan_ns", "plan_seq_ns", "pause_ns", "hop_ns")


def check_cost(cost: Cost) -> Cost:
    """Return `cost` if the engines can use it, else raise ConfigError naming the term."""
    for name in TABLES:
        _check_table(name, getattr(cost, name))
    if cost.eager.max() > 1:
        raise ConfigError(f"cost.eager must hold 0 and 1 only, got {cost.eager.max()}")
    for name in _COEFFICIENTS:
        _check_range(name, int(getattr(cost, name)), LARGEST_COEFFICIENT)
    for name in _TIMES:
        _check_range(name, int(getattr(cost, name)), MAX_TABLE_NS)
    if not 1000 <= cost.crowded <= MOST_CROWDED:
        raise ConfigError(f"cost.crowded must be between 1000 and {MOST_CROWDED}, got {cost.crowded}")
    if not 1 <= cost.layers <= MOST_LAYERS:
        raise ConfigError(f"cost.layers must be between 1 and {MOST_LAYERS}, got {cost.layers}")
    if np.any(_exceeds(cost.prep_ns, cost.cpu_ns)) or cost.prep_seq_ns > cost.cpu_seq_ns:
        raise ConfigError("cost.prep_ns must not exceed cost.cpu_ns: preparation is a part of the CPU time")
    return cost


def _exceeds(part: Table, whole: Table) -> npt.NDArray[np.bool_]:
    """True where part > whole, the last column of the shorter table extended."""
    width = max(part.shape[1], whole.shape[1])
    columns = np.arange(width)
    left = part[:, np.minimum(columns, part.shape[1] - 1)]
    right = whole[:, np.minimum(columns, whole.shape[1] - 1)]
    return left > right


def _check_table(name: str, table: Table) -> None:
    if table.ndim != 2 or table.shape[0] != 2 or table.shape[1] < 1 or table.dtype != np.int64:
        raise ConfigError(f"cost.{name} must be int64 of shape (2, T+1), got {table.dtype} {table.shape}")
    _check_range(name, int(table.min()), MAX_TABLE_NS)
    _check_range(name, int(table.max()), MAX_TABLE_NS)


def _check_range(name: str, value: int, limit: int) -> None:
    if not 0 <= value <= limit:
        raise ConfigError(f"cost.{name} must be between 0 and {limit}, got {value}")

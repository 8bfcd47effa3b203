"""Integer checks on a filled `Cost`: nothing negative, nothing that could overflow int64 in `scaled`."""

from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.cost.step import Cost
from simulator.errors import ConfigError

Table = npt.NDArray[np.int64]

MAX_TABLE_NS: Final = 2**50
"""[ns] 13 days: the longest step accepted; thousands of them still sum below 2^63."""
LARGEST_FACTOR: Final = {"decode_context_fp": 2**20, "prefill_pair_fp": 2**20, "prefill_token_fp": 2**18,
                         "decode_seq_fp": 2**16, "prefill_seq_fp": 2**16}
"""What `scaled` may multiply a coefficient by: the low 20 bits of a count, or the whole of a count that stays
below it (sequences and prefill tokens of one step). The product must stay below 2^63: at 2^20 this admits
2,048 ns per context token, at 2^16 32,768 ns per sequence."""

_TABLES: Final = ("dense_ns", "cpu_ns", "prep_ns", "eager")
_TIMES: Final = ("cpu_seq_ns", "prep_seq_ns", "frontend_in_ns", "frontend_each_ns", "frontend_out_ns")


def check_cost(cost: Cost, max_tokens: int | None = None) -> Cost:
    """Return `cost` if the engines can use it, else raise ConfigError naming the term.

    `max_tokens`: largest batch the extension beyond the tables must bear (default: twice the table).
    """
    for name in _TABLES:
        _check_table(name, getattr(cost, name))
    if cost.eager.max() > 1:
        raise ConfigError(f"cost.eager must hold 0 and 1 only, got {cost.eager.max()}")
    for name, factor in LARGEST_FACTOR.items():
        _check_range(name, int(getattr(cost, name)), 2**63 // factor - 1)
    for name in _TIMES:
        _check_range(name, int(getattr(cost, name)), MAX_TABLE_NS)
    if np.any(_exceeds(cost.prep_ns, cost.cpu_ns)) or cost.prep_seq_ns > cost.cpu_seq_ns:
        raise ConfigError("cost.prep_ns must not exceed cost.cpu_ns: preparation is a part of the CPU time")
    last = cost.dense_ns.shape[1] - 1
    beyond = max(1, (2 * last if max_tokens is None else max_tokens) - last)
    _check_range("slope_fp", int(cost.slope_fp), (2**63 - 1) // beyond)
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

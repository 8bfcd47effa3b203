"""What requests ask of the scheduler: priority, tenant, time to first token; and a guess of how long they run."""

from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

MOST_PRIORITY: Final = 2**31 - 1
"""Largest priority, either way."""


@dataclass(frozen=True, eq=False)
class Asks:
    """Columns beside those of a Trace of N requests; None where the workload says nothing of it.

    priority    int64 (N,)   smaller goes first
    tenant      int64 (N,)   index into `tenants`
    predicted   int64 (N,)   [tokens] predicted output length, >= 1
    target_ns   int64 (N,)   [ns] time to first token that the client wants, -1 = no wish
    """

    priority: Int64s | None = None
    tenant: Int64s | None = None
    predicted: Int64s | None = None
    target_ns: Int64s | None = None
    tenants: tuple[str, ...] = ()

    def columns(self) -> list[tuple[str, Int64s]]:
        """(name, column) of those that are there."""
        named = ((each.name, getattr(self, each.name)) for each in fields(self) if each.name != "tenants")
        return [(name, column) for name, column in named if column is not None]

    def take(self, rows: Int64s | slice) -> "Asks":
        """The rows asked for, in that order."""
        chosen: dict[str, Any] = {name: np.ascontiguousarray(column[rows]) for name, column in self.columns()}
        return replace(self, **chosen)

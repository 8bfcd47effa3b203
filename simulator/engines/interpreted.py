"""The compiled engine without a compiler: its functions run by the interpreter, on plain Python numbers.

With numba's own switch NUMBA_DISABLE_JIT=1 nothing is compiled, so that a debugger steps into every line and a small
run costs no minute of compiling; a step then takes hundreds of times as long. numpy's whole numbers behave unlike
Python's, so columns become lists for the call and are written back after it.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from simulator.cost.step import Cost
from simulator.engines.pools import PoolRows
from simulator.state import Limits


def on_lists(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called with lists in place of the arrays of its arguments; the arrays get what it writes there."""

    def call(*arguments: Any) -> Any:
        twins: dict[int, tuple[Any, Any]] = {}
        found = function(*(_as_lists(each, twins) for each in arguments))
        for array, rows in twins.values():
            if array.size:
                array[...] = _rows_of(array, rows)
        return found

    return call


class Records(list[Any]):
    """Rows of an array of records: one that is assigned is copied, as numpy does it."""

    def __setitem__(self, at: Any, row: Any) -> None:
        vars(self[at]).update(vars(row))


class Table:
    """A table of a Cost, as far as the engines read it: plain numbers by [row, column], and its shape."""

    def __init__(self, flat: Any) -> None:
        self.rows = flat.reshape(2, -1).tolist()
        self.shape = 2, len(self.rows[0])

    def __getitem__(self, at: tuple[int, int]) -> int:
        number: int = self.rows[at[0]][at[1]]
        return number


def limits_at(rows: PoolRows, p: int) -> Limits:
    """Limits of pool p."""
    return Limits(*rows.limits[p].tolist())


def cost_at(rows: PoolRows, p: int) -> Cost:
    """Step times of pool p."""
    tables: Any = (Table(flat[2 * at[p] : 2 * at[p + 1]]) for flat, at in zip(rows[3:], rows.at, strict=True))
    return Cost(*tables, *rows.numbers[p].tolist())


def _as_lists(value: Any, twins: dict[int, tuple[Any, Any]]) -> Any:
    """The value with lists for arrays, those of step times excepted; `twins` remembers (array, its list)."""
    if isinstance(value, np.ndarray):
        if id(value) not in twins:
            twins[id(value)] = value, _list_of(value)
        return twins[id(value)][1]
    if isinstance(value, tuple) and not isinstance(value, (Cost, PoolRows)):
        return type(value)(*(_as_lists(each, twins) for each in value))
    return value.item() if isinstance(value, np.generic) else value


def _list_of(array: Any) -> Any:
    names = array.dtype.names
    if names is None:
        return array.tolist()
    if array.ndim > 1:
        return [_list_of(row) for row in array]
    return Records(SimpleNamespace(**dict(zip(names, row, strict=True))) for row in array.tolist())


def _rows_of(array: Any, rows: Any) -> Any:
    """What is assigned to the array so that it holds what its list holds."""
    names = array.dtype.names
    if names is None:
        return rows
    if array.ndim > 1:
        return [_rows_of(each, row) for each, row in zip(array, rows, strict=True)]
    return [tuple(getattr(row, name) for name in names) for row in rows]

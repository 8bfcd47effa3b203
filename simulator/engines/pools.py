"""Pools: replicas that are alike. What differs between pools, limits and step times, is a row a pool.

The compiled engine gets the rows as arrays, so that its machine code does not depend on how many pools there are;
it makes Limits and Cost of a row again when it turns to a replica of another pool. The SimPy engine keeps the
objects themselves.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from policies.routers import GROUPS, WIDTH
from simulator.cost.step import TABLES, Cost
from simulator.state import Column, Limits

NUMBERS: Final = tuple(name for name in Cost._fields if name not in TABLES)
if Cost._fields[: len(TABLES)] != TABLES:
    raise AssertionError("the compiled engine makes a Cost of its tables first, then its numbers")


class Pool(NamedTuple):
    """Replicas with the same limits and step times; those of one pool follow each other."""

    lim: Limits
    cost: Cost
    replicas: int
    speed: int = 1   # relative to the other pools


class PoolRows(NamedTuple):
    """P pools as arrays."""

    limits: Column     # (P, fields of Limits)
    numbers: Column    # (P, NUMBERS)
    at: Column         # (TABLES, P + 1) where the table of each begins, in columns
    dense_ns: Column   # (2 x columns of all pools,) their tables, one after the other
    cpu_ns: Column
    prep_ns: Column
    eager: Column
    head_ns: Column


def pool_rows(pools: Sequence[Pool]) -> PoolRows:
    """The pools as the compiled engine reads them."""
    def flat(name: str) -> Any:
        return np.concatenate([np.ascontiguousarray(getattr(pool.cost, name), dtype=np.int64).ravel()
                               for pool in pools])

    widths = [[getattr(pool.cost, name).shape[1] for pool in pools] for name in TABLES]
    return PoolRows(
        np.array([pool.lim for pool in pools], dtype=np.int64),
        np.array([[int(getattr(pool.cost, name)) for name in NUMBERS] for pool in pools], dtype=np.int64),
        np.array([np.cumsum([0, *each]) for each in widths]), *(flat(name) for name in TABLES))


def routing_of(pools: Sequence[Pool], groups: Sequence[Sequence[int]] = ()) -> Any:
    """The router's numbers (policies.routers): who belongs to each group, given as the pools it may use."""
    of = np.array(pool_of(pools))
    members = [np.flatnonzero(np.isin(of, list(group))) for group in groups or [range(len(pools))]]
    starts = GROUPS + WIDTH * len(members) + np.cumsum([0, *(len(each) for each in members)])
    heads = np.array([(start, len(each), 0) for start, each in zip(starts, members, strict=False)], dtype=np.int64)
    return np.concatenate([np.zeros(GROUPS, dtype=np.int64), heads.ravel(), *members])


def pool_of(pools: Sequence[Pool]) -> list[int]:
    """Pool of each replica, length R."""
    return [p for p, pool in enumerate(pools) for _ in range(pool.replicas)]

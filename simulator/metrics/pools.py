"""Pools of a run apart: the result of each, as if the others were not there."""

from dataclasses import replace

import numpy as np

from simulator.result import Result
from simulator.state import Requests


def parts(result: Result) -> dict[str, Result]:
    """The result of each pool by name; {} for a fleet of one kind.

    Requests are those routed to the pool; gaps between tokens (ITL) are counted over all pools only, and empty here.
    """
    found: dict[str, Result] = {}
    first = 0
    for k, (name, setup) in enumerate(result.setup.pools.items()):
        end = first + setup.scenario.cluster.replicas
        rows = np.flatnonzero((result.requests.replica >= first) & (result.requests.replica < end))
        n = len(result.requests.arrival)
        columns = Requests(*(column[rows] if len(column) == n else column for column in result.requests))
        log = result.log
        if log is not None:
            log = log[(log["replica"] >= first) & (log["replica"] < end)]
        times = result.rows_time if result.pool_rows is None else result.pool_rows[k]
        found[name] = replace(result, setup=setup, trace=result.trace.take(rows), requests=columns,
                              totals=result.totals[first:end], itl=np.zeros_like(result.itl), rows_time=times, log=log,
                              pool_rows=None)
        first = end
    return found

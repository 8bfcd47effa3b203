"""Pools of a run apart: the result of each, as if the others were not there."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.result import Result
from simulator.state import Requests
from simulator.units import NS_PER_S


def routed_to(result: Result, replicas: range) -> npt.NDArray[np.bool_]:
    """Requests that some neighbouring replicas had, bool (N,): also those that they handed over."""
    req, first, end = result.requests, replicas.start, replicas.stop
    found: npt.NDArray[np.bool_] = (req.replica >= first) & (req.replica < end)
    if len(req.source):
        found |= (req.source >= first) & (req.source < end)
    return found


def changes(result: Result) -> dict[str, Any]:
    """What crashes and restarts did: requests lost and submitted again, tokens of theirs that clients had seen, time
    that replicas were out of service, up to their last return."""
    totals = result.totals
    return {"requests_failed": int(totals["failed"].sum()), "tokens_lost": int(totals["failed_tokens"].sum()),
            "down_s": float(totals["down"].sum() / NS_PER_S)}


def transfers(result: Result) -> dict[str, Any]:
    """Requests handed over from prefill to decode pools, and how long from first token to the arrival of the KV."""
    req, setup = result.requests, result.setup
    sent = np.flatnonzero((req.source >= 0) & (req.held == 0) & (req.replica != req.source))
    took = (req.landed[sent] - req.first[sent] + int(setup.cost.frontend_out_ns)) / NS_PER_S
    own = next(iter(setup.pools.values())).scenario.hardware
    each = setup.model.kv_bytes_per_token(own.kv_dtype)
    return {"requests": len(sent), "gb": int(req.prompt[sent][req.carried[sent] > 0].sum()) * each / 1e9,
            "mean_s": float(took.mean()) if len(sent) else None,
            "p99_s": float(np.quantile(took, 0.99)) if len(sent) else None}


def parts(result: Result) -> dict[str, Result]:
    """The result of each pool by name; {} for a fleet of one kind.

    Requests are those routed to the pool, for their first half too; gaps between tokens (ITL) are counted over all
    pools only, and empty here.
    """
    found: dict[str, Result] = {}
    for k, (name, setup) in enumerate(result.setup.pools.items()):
        own = result.scenario.cluster.ranges[name]
        rows = np.flatnonzero(routed_to(result, own))
        n = len(result.requests.arrival)
        columns = Requests(*(column[rows] if len(column) == n else column for column in result.requests))
        log = result.log
        if log is not None:
            log = log[(log["replica"] >= own.start) & (log["replica"] < own.stop)]
        fleet = result.fleet
        if fleet is not None:
            fleet = fleet[fleet["pool"] == k].copy()
            fleet["replica"] -= np.where(fleet["replica"] >= 0, own.start, 0)
        times = result.rows_time if result.pool_rows is None else result.pool_rows[k]
        found[name] = replace(result, setup=setup, trace=result.trace.take(rows), requests=columns,
                              totals=result.totals[own.start:own.stop], itl=np.zeros_like(result.itl),
                              rows_time=times, log=log, pool_rows=None, fleet=fleet)
    return found

"""A simulation ready to run: columns, limits, cost, load and the accumulators an engine fills."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.cost.step import Cost
from simulator.engines.clients import FRONTEND_FREE, OPEN
from simulator.errors import ConfigError, TraceError
from simulator.state import (
    COUNT_FIELDS,
    ITL_BINS,
    LARGEST_COUNT,
    NOBODY,
    STEP_FIELDS,
    T_PEAK_BLOCKS,
    T_PEAK_RUNNING,
    T_PEAK_WAITING,
    T_WALL,
    TOTALS,
    Column,
    Limits,
    Replica,
    Requests,
    empty_replica_counters,
)
from simulator.units import NEVER, NS_PER_S

AUX_SIZE = 8
"""int64 numbers that a policy may keep per replica."""


@dataclass
class Job:
    """Everything an engine reads and writes. `reps` is a list of Replica (SimPy) or one Replica whose columns
    have a leading replica axis (compiled engine); likewise stats, aux."""

    req: Requests
    reps: Any
    lim: Limits
    cost: Cost
    stats: Any
    itl: Any
    rows_time: Any
    aux: Any
    ctl: Any
    log: Any
    replicas: int = 1
    router: int = 0
    load: int = OPEN
    width: int = 0
    until: int = NEVER


def request_columns(arrival: Column, prompt: Column, output: Column, limit: Column, cached: Column,
                    pick: Column) -> Requests:
    """Requests as numpy columns, shape (N,); inputs are copied, counts become int32. Raises TraceError beyond it."""
    n = len(arrival)
    given = {"arrival": arrival, "prompt": prompt, "output": output, "limit": limit, "cached": cached}
    for name in COUNT_FIELDS:
        if name in given and n and not 0 <= np.min(given[name]) <= np.max(given[name]) <= LARGEST_COUNT:
            raise TraceError(f"{name} must be 0..{LARGEST_COUNT} tokens, got {np.min(given[name])} to "
                             f"{np.max(given[name])}")
    columns: dict[str, Any] = {}
    for name in Requests._fields:
        dtype = np.int32 if name in COUNT_FIELDS else np.int64
        if name in given:
            columns[name] = np.array(given[name], dtype=dtype)
        elif name == "pick":
            columns[name] = np.asarray(pick, dtype=np.int64)
        else:
            start = {"queued": NEVER, "scheduled": NEVER, "first": NEVER, "last": NEVER, "slot": -1, "replica": -1,
                     "next": -1}.get(name, 0)
            columns[name] = np.full(n, start, dtype=dtype)
    return Requests(**columns)


def array_job(req: Requests, lim: Limits, cost: Cost, replicas: int, log: bool) -> Job:
    """A job on numpy columns, for the compiled engine."""
    s, depth = lim.max_num_seqs, lim.schedule_ahead + 1

    def table(*shape: int, fill: int = 0) -> Any:
        return np.full(shape, fill, dtype=np.int64)

    def ids(*shape: int) -> Any:  # unsigned: numba then skips the test for a negative index
        return np.full(shape, NOBODY, dtype=np.uint32)

    counters = np.tile(np.array(empty_replica_counters(lim.num_blocks), dtype=np.int64), (replicas, 1))
    reps = Replica(ids(replicas, s), table(replicas, s, fill=-1), ids(replicas, s), ids(replicas, s),
                   table(replicas, s), ids(replicas, depth, s), table(replicas, depth, STEP_FIELDS), counters)
    return Job(req, reps, lim, cost, table(replicas, TOTALS), table(ITL_BINS), table(s + 1),
               table(replicas, AUX_SIZE), table(FRONTEND_FREE + replicas), table(4096 if log else 0, 16), replicas)


def check_sums(job: Job) -> None:
    """Raise ConfigError when a sum over the whole run could have left int64; called when a run is over.

    Steps are times of at most `reach.LAST_TICK` in all, so T_WALL itself is right; what it is multiplied with in the
    other sums was never more than the peaks.
    """
    walls = [int(totals[T_WALL]) for totals in job.stats]
    for wall, totals in zip(walls, job.stats, strict=True):
        gaps = job.lim.num_blocks if job.lim.contiguous else 0
        by_1024 = max(int(totals[T_PEAK_WAITING]), int(totals[T_PEAK_BLOCKS]) * job.lim.block_size, gaps)
        if max(int(totals[T_PEAK_RUNNING]) * wall, by_1024 * (wall >> 10), sum(walls)) >= 2**63:
            raise ConfigError(
                f"a replica is busy for {wall / NS_PER_S / 86400:.3g} days with up to {totals[T_PEAK_RUNNING]} running "
                f"and {totals[T_PEAK_WAITING]} waiting requests: sums over time exceed 2^63; set a shorter horizon_s")


def list_job(req: Requests, lim: Limits, cost: Cost, replicas: int, log: bool) -> Job:
    """The same job on plain lists of Python integers, for the SimPy engine."""
    job = array_job(req, lim, cost, replicas, log)
    columns = Requests(*(column.tolist() for column in req))
    reps = [Replica(*(column[r].tolist() for column in job.reps)) for r in range(replicas)]
    fields: Any = (f if isinstance(f, np.ndarray) else int(f) for f in cost)
    plain = Cost(*fields)
    return Job(columns, reps, lim, plain, job.stats.tolist(), job.itl.tolist(), job.rows_time.tolist(),
               job.aux.tolist(), job.ctl.tolist(), [] if log else None, replicas)


def as_arrays(job: Job) -> Job:
    """A list job with its results as numpy columns (dtypes as in an array job)."""
    req = Requests(*(np.array(column, dtype=np.int32 if name in COUNT_FIELDS else np.int64)
                     for name, column in zip(Requests._fields, job.req, strict=True)))
    reps = Replica(*(np.array([getattr(rep, name) for rep in job.reps], dtype=np.int64) for name in Replica._fields))
    numbers: dict[str, Any] = {
        name: np.array(getattr(job, name), dtype=np.int64) for name in ("stats", "itl", "rows_time", "aux", "ctl")
    }
    return replace(job, req=req, reps=reps, **numbers)

"""simulate(scenario) -> Result: build the trace, run one of the two engines, return columns and totals."""

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from simulator.cost.step import Cost
from simulator.engines.job import Job
from simulator.errors import NoProgressError
from simulator.scenario.setup import Setup, build_job, in_submission_order, prepare
from simulator.scenario.spec import Scenario
from simulator.state import (
    FREE_BLOCKS,
    HEAD,
    LOG_FIELDS,
    N_FLIGHT,
    N_RUNNING,
    N_WAITING,
    SCATTERED,
    T_FRAGMENTED,
    T_PREEMPTIONS,
    WAKE,
    Requests,
)
from simulator.units import NEVER
from simulator.workload.build import build_trace
from simulator.workload.trace import Trace

Engine = Literal["auto", "fast", "reference"]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Result:
    """What a simulation leaves: request columns (N,), totals per replica, ITL histogram, optional step log.

    `totals` (R, state.TOTALS), `itl` (state.ITL_BINS,), `rows_time` (S+1,) wall ns by number of scheduled
    sequences, `log` (rows, len(state.LOG_FIELDS)) sorted by (end, replica, start) or None. All int64.
    """

    setup: Setup
    trace: Trace
    requests: Requests
    totals: Int64s
    itl: Int64s
    rows_time: Int64s
    log: Int64s | None
    replication: int = 0

    @property
    def scenario(self) -> Scenario:
        """The scenario that was run."""
        return self.setup.scenario

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Metrics as plain data (simulator.metrics.summary.summarize)."""
        from simulator.metrics.summary import summarize

        return summarize(self)

    def provenance(self) -> dict[str, Any]:
        """Which versions, profiles, trace and seed stand behind the numbers. No wall-clock time, no paths."""
        from simulator import __version__

        setup = self.setup
        return {
            "servecast": __version__, "python": platform.python_version(), "numpy": np.__version__,
            "seed": self.scenario.seed, "replication": self.replication,
            "trace": {"source": self.trace.meta.source, "sha256": self.trace.meta.sha256,
                      "rows_read": self.trace.meta.rows_read, "rows_dropped": dict(self.trace.meta.rows_dropped)},
            "gpu": {"name": setup.gpu.name, "mark": setup.gpu.mark},
            "engine": {"name": setup.engine.name, "version": setup.engine.version, "mark": setup.engine.mark},
            "cost_model": "unit" if setup.gpu.name == "unit" else self.scenario.cost_model,
            "policy": setup.policy.name, "policy_reference": setup.policy.reference,
        }


def simulate(scenario: Scenario, engine: Engine = "fast", *, trace: Trace | None = None, cost: Cost | None = None,
             setup: Setup | None = None, log: bool = False, leaps: bool = True, replication: int = 0,
             progress: Callable[[int], None] | None = None) -> Result:
    """Run a scenario to its end (or horizon).

    `engine`: "fast" (numba) or "reference" (SimPy); their results are equal bit by bit. "auto" takes SimPy for a
    small job while the fast one is not compiled yet (simulator.engine_choice). `trace`, `cost`, `setup` replace
    what the scenario would build. `log` keeps the step log. `progress` (fast engine) is called with the number of
    requests that have arrived. Raises ServecastError subclasses; NoProgressError when it stands still.
    """
    ready = setup or prepare(scenario)
    if cost is not None:
        ready = replace(ready, cost=cost)
    if trace is None:
        trace = build_trace(scenario.parsed_workload(), scenario.seed, replication, scenario.base)
    trace = in_submission_order(trace, scenario.load.kind)
    if engine == "auto":
        from simulator.engine_choice import choose

        engine = choose(ready, trace)
    job = build_job(ready, trace, engine == "fast", log, replication)
    if engine == "fast":
        from simulator.engines.fast import run_fast

        run_fast(job, ready.policy, leaps, progress)
    else:
        from simulator.engines.reference import run_reference

        job = run_reference(job, ready.policy)
    _check_progress(job)
    job.stats[:, T_FRAGMENTED] = np.asarray(job.reps.c)[:, SCATTERED]
    job.stats[:, T_PREEMPTIONS] = np.bincount(np.maximum(job.req.replica, 0), weights=job.req.preempted,
                                              minlength=job.replicas)
    return Result(ready, trace, job.req, job.stats, job.itl, job.rows_time, _sorted_log(job) if log else None,
                  replication)


def _check_progress(job: Job) -> None:
    """Raise NoProgressError when, with no horizon, something waits and nothing will ever move it."""
    if job.until != NEVER:
        return
    for r, c in enumerate(job.reps.c):
        if c[N_WAITING] > 0 and c[N_FLIGHT] == 0 and c[WAKE] == NEVER:
            head = int(c[HEAD])
            raise NoProgressError(
                f"replica {r} stands still: {c[N_WAITING]} requests wait, {c[N_RUNNING]} hold slots, nothing runs; "
                f"the first waiting has prompt {job.req.prompt[head]}, max_tokens {job.req.limit[head]}; "
                f"{c[FREE_BLOCKS]} of {job.lim.num_blocks} KV blocks free, {job.lim.max_num_seqs} slots")


def _sorted_log(job: Job) -> Int64s:
    from simulator.engines.clients import LOG_ROWS

    rows = np.asarray(job.log[: job.ctl[LOG_ROWS]], dtype=np.int64).reshape(-1, len(LOG_FIELDS))
    return rows[np.lexsort((rows[:, 1], rows[:, 0], rows[:, 2]))]

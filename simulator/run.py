"""simulate(scenario) -> Result: build the trace, run one of the two engines, return columns and totals."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from simulator import result
from simulator.cost.reach import LAST_TICK
from simulator.cost.step import Cost
from simulator.engines.job import Job
from simulator.errors import ConfigError, NoProgressError
from simulator.scenario.guard import TRIAL, guarded
from simulator.scenario.job import build_job, in_submission_order
from simulator.scenario.own import is_own
from simulator.scenario.setup import Setup, prepare
from simulator.scenario.spec import Scenario
from simulator.state import RUNNING, Requests
from simulator.text import several, verb
from simulator.units import NEVER, NS_PER_S
from simulator.workload.build import build_trace
from simulator.workload.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

    from simulator.metrics.reuse import Curve

Engine = Literal["auto", "fast", "reference"]
Int64s = npt.NDArray[np.int64]
Records = npt.NDArray[np.void]


class Result(result.Result):
    """A result with its metrics."""

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Metrics as plain data (simulator.metrics.summary.summarize)."""
        from simulator.metrics.summary import summarize

        return summarize(self)

    def to_pandas(self) -> "pd.DataFrame":
        """One row a request, in order of submission (simulator.metrics.summary.request_columns); NaN = no such time."""
        from simulator.metrics.summary import request_table

        return request_table(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from simulator.metrics.notebook import html_table

        return html_table(self.summary)

    @cached_property
    def reuse_curve(self) -> "tuple[Curve, int] | None":
        """Prefix hits against KV memory, and the prompt tokens asked for (simulator.metrics.reuse)."""
        from simulator.metrics.reuse import curve

        return curve(self)

    @cached_property
    def prefix_reuse(self) -> dict[str, Any] | None:
        """What more or less KV memory would find, in numbers (simulator.metrics.reuse.reuse)."""
        from simulator.metrics.reuse import reuse

        return reuse(self, self.reuse_curve)

    @cached_property
    def beside_summary(self) -> dict[str, Any]:
        """What takes more than counting, beside the summary: other hosts, the prefix cache with more memory."""
        found = {"host_sensitivity": self.host_sensitivity, "prefix_reuse": self.prefix_reuse}
        return {key: value for key, value in found.items() if value}

    @cached_property
    def host_sensitivity(self) -> list[dict[str, Any]]:
        """The run on other hosts, where that matters (simulator.metrics.hosts)."""
        from simulator.metrics.hosts import host_sensitivity

        return host_sensitivity(self, simulate)


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
    if is_own(ready.policy):
        ready = _watched(ready, engine, trace, replication)
    job = build_job(ready, trace, engine == "fast", log, replication)
    if engine == "fast":
        from simulator.engines.fast import run_fast

        try:
            run_fast(job, ready.policy, leaps, progress)
        except Exception as error:
            if not is_own(ready.policy) or not type(error).__module__.startswith("numba"):
                raise
            raise ConfigError(f"{ready.policy.module.__file__}: cannot be compiled, --engine reference runs it: "
                              f"{' '.join(str(error).split())[:300]}") from error
    else:
        from simulator.engines.reference import run_reference

        job = run_reference(job, ready.policy)
    _check_progress(job)
    job.stats["fragmented"] = job.reps.c["scattered"]
    job.stats["preemptions"] = np.bincount(np.maximum(job.req.replica, 0), weights=job.req.preempted,
                                              minlength=job.replicas)
    trace, req = _as_submitted(trace, job)
    return Result(ready, trace, req, job.stats, job.itl, job.rows_time.sum(axis=0), _sorted_log(job) if log else None,
                  replication, job.rows_time if ready.pools else None, int(job.ctl["again_ns"][0]),
                  job.fleet if len(job.changes.roster) else None)


def _as_submitted(trace: Trace, job: Job) -> tuple[Trace, Requests]:
    """Trace and requests in the order of submission, which conversations know only now; never submitted ones last."""
    req = job.req
    if not len(job.talks.after):
        return trace, req
    arrival = np.where(req.queued == NEVER, NEVER, req.arrival)
    order = np.argsort(arrival, kind="stable")
    # what prefixes are shared is told by place in the trace: the cache's own columns lose their meaning
    req = Requests(*(column[order] if column.size else column for column in req._replace(arrival=arrival)))
    trace = trace.take(order)
    used = tuple(name for name in trace.meta.not_used if name != "think times")
    return replace(trace, meta=replace(trace.meta, not_used=used)), req


def _watched(ready: Setup, engine: Engine, trace: Trace, replication: int) -> Setup:
    """A user's own policy is watched on SimPy, for a while before it runs compiled.

    Raises ConfigError for what it does wrong, NoProgressError when it stands still.
    """
    from simulator.engines.reference import run_reference

    careful = replace(ready, policy=guarded(ready.policy))
    if engine != "fast":
        return careful
    first = trace.take(slice(0, TRIAL))
    _check_progress(run_reference(build_job(careful, first, False, False, replication), careful.policy))
    return ready


def _check_progress(job: Job) -> None:
    """Raise NoProgressError when, with no horizon, something waits and nothing will ever move it."""
    if job.until < LAST_TICK:
        return
    for r, c in enumerate(job.reps.c):
        if c["n_waiting"] > 0 and c["n_flight"] == 0 and c["wake"] == NEVER:
            head, count = int(c["head"]), int(c["n_waiting"])
            raise NoProgressError(
                f"replica {r} stands still: {several(count, 'request')} {verb(count, 'waits', 'wait')}, "
                f"{c['n_running']} hold slots, nothing runs; the first waiting has prompt {job.req.prompt[head]}, "
                f"max_tokens {job.req.limit[head]}; "
                f"{c['free_blocks']} of {job.lim.num_blocks} KV blocks free, {job.lim.max_num_seqs} slots")
    unfinished = int((np.asarray(job.req.status) <= RUNNING).sum())
    if unfinished:
        raise ConfigError(f"{several(unfinished, 'request')} {verb(unfinished, 'is', 'are')} not finished after "
                          f"{LAST_TICK / NS_PER_S / 86400 / 365:.0f} simulated years; set horizon_s")


def _sorted_log(job: Job) -> Records:
    rows = job.logged
    return rows[np.lexsort((rows["start"], rows["replica"], rows["end"]))]

"""The compiled engine: the reference engine's events, replica by replica, in one numba function per policy.

Replicas touch each other only through the router and through closed or grouped clients, so each is advanced
on its own up to the tick that matters: the next arrival. `leap` jumps over steps that repeat a decision.
"""

import functools
from collections.abc import Callable

import numpy as np

from policies.registry import Policy
from policies.routers import LEAST_OUTSTANDING, route
from simulator.cost.step import Cost
from simulator.engines.booking import (
    ARRIVE,
    COMPLETE,
    SCHEDULE,
    TIMER,
    clear_plan,
    collect,
    commit,
    enqueue,
    output_tick,
)
from simulator.engines.clients import LOG_ROWS, NEXT, OPEN, RELEASED, on_ended, start_load
from simulator.engines.job import Job
from simulator.engines.leap import leap, leap_rows
from simulator.engines.steplog import log_step
from simulator.jit import compiled, jitable
from simulator.state import (
    BOUND,
    CPU_FREE,
    EVENT_PHASE,
    EVENT_TICK,
    FIRST_FLIGHT,
    N_BATCH,
    N_ENDED,
    N_FLIGHT,
    NOW,
    S_BLOCKS,
    S_GPU_NS,
    S_KV_TOKENS,
    VISIBLE,
    WAKE,
    Column,
    Limits,
    Replica,
    Requests,
)
from simulator.units import NEVER

DONE = 0
PAUSED = 1
LOG_FULL = 2
"""Why the compiled loop came back: all done, `stop_at` requests have arrived, the step log must grow."""


@jitable
def replica_view(reps: Replica, r: int) -> Replica:
    """Replica r of columns that have a leading replica axis."""
    return Replica(reps.running[r], reps.slots[r], reps.extents[r], reps.batch[r], reps.tokens[r], reps.flight[r],
                   reps.steps[r], reps.c[r])


@jitable
def next_arrival(req: Requests, ctl: Column, until: int) -> int:
    """[tick] of the next arrival known so far, NEVER when there is none up to `until`."""
    i = ctl[NEXT]
    if i < len(req.arrival) and i < ctl[RELEASED] and req.queued[i] <= until:
        return req.queued[i]
    return NEVER


@jitable
def behind(c: Column, arrival: int, until: int) -> bool:
    """True when the replica with scalars c has an event before (arrival, ARRIVE)."""
    tick = c[EVENT_TICK]
    return tick <= until and tick < NEVER and (tick < arrival or (tick == arrival and c[EVENT_PHASE] < ARRIVE))


@jitable
def earliest(counters: Column, replicas: int) -> int:
    """Replica with the first event by (tick, phase, index)."""
    best = 0
    for r in range(1, replicas):
        tick = counters[r][EVENT_TICK]
        first = counters[best][EVENT_TICK]
        if tick < first or (tick == first and counters[r][EVENT_PHASE] < counters[best][EVENT_PHASE]):
            best = r
    return best


@jitable
def next_replica(req: Requests, counters: Column, ctl: Column, replicas: int, router: int, load: int, arrival: int,
                 until: int, start: int) -> int:
    """Replica to advance before the next arrival is routed, -1 when that can be done now.

    Open loads: whoever the router's choice depends on, and the chosen one. Replicas below `start` are done.
    """
    if load != OPEN:
        r = earliest(counters, replicas)
        return r if behind(counters[r], arrival, until) else -1
    if arrival == NEVER or router == LEAST_OUTSTANDING:
        for r in range(start, replicas):
            if counters[r][BOUND] <= arrival and behind(counters[r], arrival, until):
                return r
    if arrival == NEVER:
        return -1
    r = route(router, ctl[NEXT], req.pick, counters, replicas)
    return r if behind(counters[r], arrival, until) else -1


def _build(name: str, schedule: Callable[..., None], retire: Callable[..., None]) -> Callable[..., int]:
    """Compile the engine around one policy; the policy is captured, so the cache on disk knows it."""

    @jitable
    def complete(req: Requests, rep: Replica, lim: Limits, cost: Cost, stats: Column, itl: Column,
                 rows_time: Column, aux: Column, ctl: Column, log: Column, r: int, load: int, width: int) -> None:
        """COMPLETE of replica r."""
        step = rep.steps[rep.c[FIRST_FLIGHT]]
        wall = collect(req, rep, lim, cost, stats, itl, rows_time)
        if len(log) > 0:
            log_step(log, ctl, rep, r, step, wall, 1, step[S_BLOCKS], step[S_KV_TOKENS], step[S_GPU_NS])
        if rep.c[N_ENDED] > 0:
            retire(req, rep, lim, aux)
            on_ended(req, cost, ctl, load, width, rep.c[N_ENDED], rep.c[VISIBLE])

    @jitable
    def plan(req: Requests, rep: Replica, lim: Limits, cost: Cost, stats: Column, aux: Column) -> None:
        """SCHEDULE of a replica: ask the policy, launch, and set the next event."""
        planned = False
        if rep.c[N_FLIGHT] <= lim.schedule_ahead:
            clear_plan(rep)
            schedule(req, rep, lim, aux)
            if rep.c[N_BATCH] > 0:
                commit(req, rep, lim, cost, stats)
                planned = True
        if planned and rep.c[N_FLIGHT] <= lim.schedule_ahead:
            rep.c[EVENT_TICK] = rep.c[CPU_FREE]
            rep.c[EVENT_PHASE] = SCHEDULE
        elif rep.c[N_FLIGHT] == 0:
            rep.c[EVENT_TICK] = rep.c[WAKE]
            rep.c[EVENT_PHASE] = TIMER
        else:
            rep.c[EVENT_TICK] = output_tick(rep)
            rep.c[EVENT_PHASE] = COMPLETE

    @jitable
    def advance(req: Requests, rep: Replica, lim: Limits, cost: Cost, stats: Column, itl: Column,
                rows_time: Column, aux: Column, ctl: Column, log: Column, crossings: Column, r: int, load: int,
                width: int, limit: int, until: int, leaps: bool) -> int:
        """Do replica r's events before (limit, ARRIVE); only the first when clients wait for answers."""
        c = rep.c
        while behind(c, limit, until):
            tick = c[EVENT_TICK]
            if len(log) > 0 and ctl[LOG_ROWS] + lim.schedule_ahead + 2 > len(log):
                return LOG_FULL
            c[NOW] = tick
            c[BOUND] = 0
            if c[EVENT_PHASE] == COMPLETE:
                complete(req, rep, lim, cost, stats, itl, rows_time, aux, ctl, log, r, load, width)
                c[EVENT_PHASE] = SCHEDULE
            else:
                rows = leap_rows(rep, lim) if leaps else 0
                if rows == 0 or not leap(req, rep, lim, cost, stats, itl, rows_time, ctl, log, crossings, r, rows,
                                         limit, until):
                    plan(req, rep, lim, cost, stats, aux)
            if load != OPEN:
                return DONE
        return DONE

    def run(req: Requests, reps: Replica, lim: Limits, cost: Cost, stats: Column, itl: Column, rows_time: Column,
            aux: Column, ctl: Column, log: Column, replicas: int, router: int, load: int, width: int, until: int,
            leaps: bool, stop_at: int, crossings: Column) -> int:
        if ctl[RELEASED] == 0:
            start_load(req, cost, ctl, load, width)
        alone = load == OPEN or replicas == 1  # no other replica's event can cause an arrival here
        start = 0
        while True:
            arrival = next_arrival(req, ctl, until)
            r = next_replica(req, reps.c, ctl, replicas, router, load, arrival, until, start)
            if r >= 0:
                code = advance(req, replica_view(reps, r), lim, cost, stats[r], itl, rows_time, aux[r], ctl, log,
                               crossings, r, load, width, arrival if alone else NEVER, until, leaps and alone)
                if code != DONE:
                    return code
                start = r + 1
                continue
            start = 0
            i = ctl[NEXT]
            if arrival == NEVER:
                return DONE
            if i >= stop_at:
                return PAUSED
            r = route(router, i, req.pick, reps.c, replicas)
            rep = replica_view(reps, r)
            ctl[NEXT] = i + 1
            if enqueue(req, rep, lim, stats[r], i, r):
                rep.c[BOUND] = 0
                if rep.c[EVENT_PHASE] == TIMER:
                    rep.c[EVENT_TICK] = arrival
                    rep.c[EVENT_PHASE] = SCHEDULE
            else:
                on_ended(req, cost, ctl, load, width, 1, arrival + cost.frontend_out_ns)

    return compiled(run, name)


def code_name(policy: str) -> str:
    """What the compiled engine of a policy is called in the code cache."""
    return f"engine-{policy}"


@functools.cache
def _engine(policy: Policy) -> Callable[..., int]:
    return _build(code_name(policy.name), policy.schedule, policy.retire)


def run_fast(job: Job, policy: Policy, leaps: bool = True, progress: Callable[[int], None] | None = None) -> None:
    """Run an array job to its end. `progress` is called with the number of requests that have arrived."""
    engine = _engine(policy)
    total = len(job.req.arrival)
    slice_size = max(10_000, total // 100) if progress else total
    stop_at = slice_size
    crossings = np.zeros(job.lim.block_size, dtype=np.int64)
    while True:
        code = engine(job.req, job.reps, job.lim, job.cost, job.stats, job.itl, job.rows_time, job.aux, job.ctl,
                      job.log, job.replicas, job.router, job.load, job.width, job.until, leaps, stop_at, crossings)
        if code == DONE:
            return
        if code == LOG_FULL:
            job.log = np.vstack([job.log, np.zeros_like(job.log)])
        else:
            stop_at += slice_size
            if progress:
                progress(int(job.ctl[NEXT]))


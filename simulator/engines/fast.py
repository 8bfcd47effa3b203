"""The compiled engine: the reference engine's events, replica by replica, in one numba function per policy.

Replicas touch each other only through the router and through closed or grouped clients, so each is advanced
on its own up to the tick that matters: the next arrival. `leap` jumps over steps that repeat a decision.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from policies.registry import Policy
from policies.routers import LEAST_OUTSTANDING, route
from simulator.engines.booking import (
    ARRIVE,
    COMPLETE,
    LOG_ROWS,
    NEXT,
    OPEN,
    RELEASED,
    SCHEDULE,
    TIMER,
    clear_plan,
    collect,
    commit,
    enqueue,
    log_step,
    on_ended,
    output_tick,
    start_load,
)
from simulator.cost.step import Cost
from simulator.engines.job import Job
from simulator.engines.leap import leap, leap_rows
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
def next_arrival(req: Requests, ctl: Column, until: int) -> int:
    """[tick] of the next arrival known so far, NEVER when there is none up to `until`."""
    i = ctl[NEXT]
    if i < len(req.arrival) and i < ctl[RELEASED] and req.queued[i] <= until:
        return req.queued[i]
    return NEVER


def _build(schedule: Callable[..., None], retire: Callable[..., None]) -> Callable[..., int]:
    """Compile the engine around one policy; the policy is captured, so the disk cache knows it."""

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
                width: int, limit: int, until: int, leaps: bool, once: bool) -> int:
        """Do replica r's events before (limit, ARRIVE), or only the first of them."""
        c = rep.c
        while True:
            tick = c[EVENT_TICK]
            if tick > limit or tick > until or tick == NEVER or (tick == limit and c[EVENT_PHASE] > ARRIVE):
                return DONE
            if len(log) > 0 and ctl[LOG_ROWS] + 2 > len(log):
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
            if once:
                return DONE

    @jitable
    def reach_open(req: Requests, reps: Replica, lim: Limits, cost: Cost, stats: Column, itl: Column,
                   rows_time: Column, aux: Column, ctl: Column, log: Column, crossings: Column, replicas: int,
                   arrival: int, until: int, leaps: bool) -> int:
        """Bring every replica whose load may have changed by then to the tick of the next arrival."""
        for r in range(replicas):
            if arrival == NEVER or reps.c[r][BOUND] <= arrival:
                code = advance(req, replica_view(reps, r), lim, cost, stats[r], itl, rows_time, aux[r], ctl, log,
                               crossings, r, OPEN, 0, arrival, until, leaps, False)
                if code != DONE:
                    return code
        return DONE

    @jitable
    def reach_closed(req: Requests, reps: Replica, lim: Limits, cost: Cost, stats: Column, itl: Column,
                     rows_time: Column, aux: Column, ctl: Column, log: Column, crossings: Column, replicas: int,
                     load: int, width: int, until: int, leaps: bool) -> int:
        """Do events in their order over all replicas until the next one is an arrival, or none is left."""
        while True:
            r = earliest(reps.c, replicas)
            tick = reps.c[r][EVENT_TICK]
            arrival = next_arrival(req, ctl, until)
            if tick > until or tick == NEVER or tick > arrival:
                return DONE
            if tick == arrival and reps.c[r][EVENT_PHASE] > ARRIVE:
                return DONE
            code = advance(req, replica_view(reps, r), lim, cost, stats[r], itl, rows_time, aux[r], ctl, log,
                           crossings, r, load, width, arrival if replicas == 1 else NEVER, until,
                           leaps and replicas == 1, True)
            if code != DONE:
                return code

    def run(req: Requests, reps: Replica, lim: Limits, cost: Cost, stats: Column, itl: Column, rows_time: Column,
            aux: Column, ctl: Column, log: Column, replicas: int, router: int, load: int, width: int, until: int,
            leaps: bool, stop_at: int, crossings: Column) -> int:
        while True:
            arrival = next_arrival(req, ctl, until)
            code = DONE
            if load != OPEN:
                code = reach_closed(req, reps, lim, cost, stats, itl, rows_time, aux, ctl, log, crossings, replicas,
                                    load, width, until, leaps)
            elif arrival == NEVER or router == LEAST_OUTSTANDING:
                code = reach_open(req, reps, lim, cost, stats, itl, rows_time, aux, ctl, log, crossings, replicas,
                                  arrival, until, leaps)
            if code != DONE:
                return code
            arrival = next_arrival(req, ctl, until)
            if arrival == NEVER:
                return DONE
            i = ctl[NEXT]
            if i >= stop_at:
                return PAUSED
            r = route(router, i, req.pick, reps.c, replicas)
            rep = replica_view(reps, r)
            if load == OPEN:
                code = advance(req, rep, lim, cost, stats[r], itl, rows_time, aux[r], ctl, log, crossings, r, load,
                               width, arrival, until, leaps, False)
                if code != DONE:
                    return code
            ctl[NEXT] = i + 1
            if enqueue(req, rep, lim, stats[r], i, r):
                rep.c[BOUND] = 0
                if rep.c[EVENT_PHASE] == TIMER:
                    rep.c[EVENT_TICK] = arrival
                    rep.c[EVENT_PHASE] = SCHEDULE
            else:
                on_ended(req, cost, ctl, load, width, 1, arrival)

    return compiled(run)


@functools.cache
def _engine(policy: Policy) -> Callable[..., int]:
    return _build(policy.schedule, policy.retire)


def run_fast(job: Job, policy: Policy, leaps: bool = True, progress: Callable[[int], None] | None = None) -> None:
    """Run an array job to its end. `progress` is called with the number of requests that have arrived."""
    engine = _engine(policy)
    _start(job.req, job.cost, job.ctl, job.load, job.width)
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


_start = compiled(start_load)

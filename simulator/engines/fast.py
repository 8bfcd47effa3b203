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
    clear_plan,
    collect,
    commit,
    enqueue,
    output_tick,
)
from simulator.engines.clients import OPEN, Clients, on_ended, start_load
from simulator.engines.job import Job, check_sums
from simulator.engines.leap import leap, leap_rows
from simulator.engines.steplog import log_step
from simulator.jit import compiled, jitable
from simulator.state import ARRIVE, COMPLETE, SCHEDULE, TIMER, Column, Limits, Prefix, Replica, Requests
from simulator.units import NEVER

DONE = 0
PAUSED = 1
LOG_FULL = 2
"""Why the compiled loop came back: all done, `stop_at` requests have arrived, the step log must grow."""


@jitable
def next_arrival(req: Requests, ctl: Column, until: int) -> int:
    """[tick] of the next arrival known so far, NEVER when there is none up to `until`."""
    i = ctl.next
    if i < len(req.arrival) and i < ctl.released and req.queued[i] <= until:
        return req.queued[i]
    return NEVER


@jitable
def behind(c: Column, arrival: int, until: int) -> bool:
    """True when the replica with scalars c has an event before (arrival, ARRIVE)."""
    tick = c.event_tick
    return tick <= until and tick < NEVER and (tick < arrival or (tick == arrival and c.event_phase < ARRIVE))


@jitable
def earliest(counters: Column, replicas: int) -> int:
    """Replica with the first event by (tick, phase, index)."""
    best = 0
    for r in range(1, replicas):
        tick = counters[r].event_tick
        first = counters[best].event_tick
        if tick < first or (tick == first and counters[r].event_phase < counters[best].event_phase):
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
            if counters[r].bound <= arrival and behind(counters[r], arrival, until):
                return r
    if arrival == NEVER:
        return -1
    r = route(router, ctl.next, req.pick, counters, replicas)
    return r if behind(counters[r], arrival, until) else -1


@jitable
def arrive(req: Requests, rep: Replica, lim: Limits, cost: Cost, stats: Column, clients: Clients, r: int,
           tick: int) -> None:
    """ARRIVE of the next request at replica r: it joins the queue and wakes the replica, or is refused."""
    i = clients.ctl.next
    clients.ctl.next = i + 1
    if enqueue(req, rep, lim, stats, i, r):
        rep.c.bound = 0
        if rep.c.event_phase == TIMER:
            rep.c.event_tick = tick
            rep.c.event_phase = SCHEDULE
    else:
        on_ended(req, cost, clients, 1, tick + cost.frontend_out_ns)


def _build(schedule: Callable[..., None], retire: Callable[..., None]) -> Callable[..., int]:
    """Compile the engine around one policy; the policy is captured, so the disk cache knows it."""

    @jitable
    def complete(req: Requests, rep: Replica, lim: Limits, cost: Cost, stats: Column, itl: Column,
                 rows_time: Column, aux: Column, clients: Clients, log: Column, r: int) -> None:
        """COMPLETE of replica r."""
        step = rep.steps[rep.c.first_flight]
        wall = collect(req, rep, lim, cost, stats, itl, rows_time)
        if len(log) > 0:
            log_step(log, clients.ctl, rep, r, step, wall, 1, step.blocks, step.kv_tokens, step.gpu_ns)
        if rep.c.n_ended > 0:
            retire(req, rep, lim, aux)
            on_ended(req, cost, clients, rep.c.n_ended, rep.c.visible)

    @jitable
    def plan(req: Requests, rep: Replica, lim: Limits, cost: Cost, stats: Column, aux: Column) -> None:
        """SCHEDULE of a replica: ask the policy, launch, and set the next event."""
        planned = False
        if rep.c.n_flight <= lim.schedule_ahead:
            clear_plan(rep)
            schedule(req, rep, lim, aux)
            if rep.c.n_batch > 0:
                commit(req, rep, lim, cost, stats)
                planned = True
        if planned and rep.c.n_flight <= lim.schedule_ahead:
            rep.c.event_tick = rep.c.cpu_free
            rep.c.event_phase = SCHEDULE
        elif rep.c.n_flight == 0:
            rep.c.event_tick = rep.c.wake
            rep.c.event_phase = TIMER
        else:
            rep.c.event_tick = output_tick(rep)
            rep.c.event_phase = COMPLETE

    @jitable
    def advance(req: Requests, rep: Replica, lim: Limits, cost: Cost, stats: Column, itl: Column,
                rows_time: Column, aux: Column, clients: Clients, log: Column, crossings: Column, r: int, limit: int,
                until: int, leaps: bool) -> int:
        """Do replica r's events before (limit, ARRIVE); only the first when clients wait for answers."""
        c = rep.c
        while behind(c, limit, until):
            tick = c.event_tick
            if len(log) > 0 and clients.ctl.log_rows + lim.schedule_ahead + 2 > len(log):
                return LOG_FULL
            c.now = tick
            c.bound = 0
            if c.event_phase == COMPLETE:
                complete(req, rep, lim, cost, stats, itl, rows_time, aux, clients, log, r)
                c.event_phase = SCHEDULE
            else:
                rows = leap_rows(rep, lim) if leaps else 0
                if rows == 0 or not leap(req, rep, lim, cost, stats, itl, rows_time, clients.ctl, log, crossings,
                                         r, rows, limit, until):
                    plan(req, rep, lim, cost, stats, aux)
            if clients.load != OPEN:
                return DONE
        return DONE

    def run(req: Requests, reps: Column, lim: Limits, cost: Cost, stats: Column, itl: Column, rows_time: Column,
            aux: Column, control: Column, frontends: Column, log: Column, replicas: int, router: int, load: int,
            width: int, until: int, leaps: bool, stop_at: int, crossings: Column) -> int:
        ctl = control[0]
        clients = Clients(ctl, frontends, load, width)
        if ctl.released == 0:
            start_load(req, cost, clients)
        alone = load == OPEN or replicas == 1  # no other replica's event can cause an arrival here
        start = 0
        while True:
            arrival = next_arrival(req, ctl, until)
            r = next_replica(req, reps.c, ctl, replicas, router, load, arrival, until, start)
            routed = r < 0
            if routed:
                if arrival == NEVER:
                    return DONE
                if ctl.next >= stop_at:
                    return PAUSED
                r = route(router, ctl.next, req.pick, reps.c, replicas)
            # replica r of the columns that have a leading replica axis; numba cannot return a record, so no function
            rep = Replica(reps.running[r], reps.slots[r], reps.extents[r], reps.batch[r], reps.tokens[r],
                          reps.flight[r], reps.steps[r],
                          Prefix(reps.prefix.chain, reps.prefix.held, reps.prefix.found[r], reps.prefix.nodes[r]),
                          reps.c[r])
            if routed:
                start = 0
                arrive(req, rep, lim, cost, stats[r], clients, r, arrival)
            else:
                start = r + 1
                code = advance(req, rep, lim, cost, stats[r], itl, rows_time, aux[r], clients, log, crossings, r,
                               arrival if alone else NEVER, until, leaps and alone)
                if code != DONE:
                    return code

    return compiled(run)


@functools.cache
def _engine(policy: Policy) -> Callable[..., int]:
    return _build(policy.schedule, policy.retire)


def run_fast(job: Job, policy: Policy, leaps: bool = True, progress: Callable[[int], None] | None = None) -> None:
    """Run an array job to its end. `progress` is called with the number of requests that have arrived."""
    engine = _engine(policy)
    total = len(job.req.arrival)
    slice_size = max(10_000, total // 100) if progress else total
    stop_at = slice_size
    crossings = np.zeros(job.lim.block_size, dtype=np.int64)
    while True:
        code = engine(job.req, job.reps, job.lim, job.cost, job.stats, job.itl, job.rows_time, job.aux, job.ctl,
                      job.frontends, job.log, job.replicas, job.router, job.load, job.width, job.until, leaps,
                      stop_at, crossings)
        if code == DONE:
            return check_sums(job)
        if code == LOG_FULL:
            job.log = np.concatenate([job.log, np.zeros_like(job.log)])
        else:
            stop_at += slice_size
            if progress:
                progress(int(job.ctl["next"][0]))


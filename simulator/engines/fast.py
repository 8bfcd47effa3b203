"""The compiled engine: the reference engine's events, replica by replica, in one numba function per policy.

Replicas touch each other only through the router and, where clients wait for answers, requests are handed over or the
fleet changes, through events; so each is advanced on its own up to the tick that matters: the next event from outside.
Sequences that only decode are one row, the `lane`; `quiet` runs steps of the lane alone without asking the policy.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import numpy as np

from policies.registry import Policy
from policies.routers import READS_LOAD, ROUTED
from simulator.cost.step import Cost
from simulator.engines import interpreted
from simulator.engines.booking import clear_plan, collect, commit
from simulator.engines.clients import Clients, act, drop, start_load, upcoming
from simulator.engines.control import control_function
from simulator.engines.fleet import room_for_an_event
from simulator.engines.foresight import nobody_ends_before
from simulator.engines.future import phase_of
from simulator.engines.handover import keep_kv, pass_on, take_over
from simulator.engines.interpreted import on_lists
from simulator.engines.job import Job, check_sums
from simulator.engines.lane import depart, join, spill
from simulator.engines.members import left
from simulator.engines.pipeline import begin_round, commit_empty, drop_empty
from simulator.engines.pools import NUMBERS, PoolRows, pool_rows
from simulator.engines.quiet import run_quietly, steps_alike
from simulator.engines.rules import arrived_of, key_of, rule_of, schedule_of, sharers
from simulator.engines.signals import signals_now
from simulator.engines.steplog import log_step
from simulator.engines.turns import ACT, END, Mode, behind, next_replica, set_event, wake
from simulator.engines.visit import is_visit, visit_under
from simulator.engines.world import World
from simulator.jit import compiled, is_interpreted, jitable
from simulator.records import COMPLETE, CONTROL, SCHEDULE, TIMER
from simulator.state import GAPS, Column, Limits, Prefix, Replica
from simulator.units import NEVER

DONE = 0
PAUSED = 1
LOG_FULL = 2
FLEET = 3
"""Why the compiled loop came back: all done, `stop_at` requests have arrived, the step log must grow, a change of the
fleet (engines/control.py)."""

LIMITS: Final = len(Limits._fields)
COST_NUMBERS: Final = len(NUMBERS)


def _row_readers() -> tuple[Callable[..., Limits], Callable[..., Cost]]:
    """Functions of (rows, p) that make the Limits and the Cost of pool p in compiled code."""
    if is_interpreted():
        return interpreted.limits_at, interpreted.cost_at
    ndarray: Any = import_module("numba.np.unsafe.ndarray")
    to_fixed_tuple = ndarray.to_fixed_tuple

    @jitable
    def limits_at(rows: PoolRows, p: int) -> Limits:
        return Limits(*to_fixed_tuple(rows.limits[p], LIMITS))

    @jitable
    def cost_at(rows: PoolRows, p: int) -> Cost:
        at = rows.at[:, p]
        end = rows.at[:, p + 1]
        return Cost(rows.dense_ns[2 * at[0] : 2 * end[0]].reshape(2, end[0] - at[0]),
                    rows.cpu_ns[2 * at[1] : 2 * end[1]].reshape(2, end[1] - at[1]),
                    rows.prep_ns[2 * at[2] : 2 * end[2]].reshape(2, end[2] - at[2]),
                    rows.eager[2 * at[3] : 2 * end[3]].reshape(2, end[3] - at[3]),
                    rows.head_ns[2 * at[4] : 2 * end[4]].reshape(2, end[4] - at[4]),
                    *to_fixed_tuple(rows.numbers[p], COST_NUMBERS))

    return limits_at, cost_at


def _step_functions(schedule: Callable[..., None],
                    retire: Callable[..., None]) -> tuple[Callable[..., None], Callable[..., bool]]:
    """COMPLETE and SCHEDULE of a replica under a policy."""

    @jitable
    def complete(world: World, rep: Replica, r: int) -> None:
        """COMPLETE of replica r."""
        if world.lim.stages > 1 and drop_empty(rep, world.lim):
            return
        step = rep.steps[rep.c.first_flight]
        wall = collect(world, rep)
        if len(world.log) > 0:
            log_step(world.log, world.clients.ctl, rep, r, step, wall)
        if rep.c.n_ended > 0:
            if len(world.links.free) > 0:
                keep_kv(world.req, rep)
            retire(world.req, rep, world.lim, rep.aux)
            pass_on(world, rep, step, r)
            left(world.clients, rep.front, rep.c, r, rep.c.now)

    @jitable
    def plan(world: World, rep: Replica, lane: bool) -> bool:
        """SCHEDULE of a replica: ask the policy and launch what it plans; False when that is nothing."""
        c, lim = rep.c, world.lim
        if c.n_flight > lim.schedule_ahead:
            return False
        if c.n_gaps + lim.schedule_ahead + 2 > GAPS:
            spill(world, rep)
        if lim.stages > 1:
            begin_round(rep)
        while True:
            clear_plan(rep)
            schedule(world.req, rep, lim, rep.aux)
            if c.singles == 0:
                break
            spill(world, rep)
        if c.n_batch == 0 and c.with_lane == 0:
            return lim.stages > 1 and commit_empty(world.req, rep, lim, world.cost)
        commit(world.req, rep, lim, world.cost)
        if len(world.links.free) > 0:
            take_over(world.req, rep, world.clients)
        if lane:
            join(world, rep)
            if c.with_lane == 1 and c.lane_steps == c.lane_end:
                depart(world, rep)
        return True

    return complete, plan


def _advance(complete: Callable[..., None], plan: Callable[..., bool]) -> Callable[..., int]:
    """What a replica does on its own."""

    @jitable
    def advance(world: World, rep: Replica, r: int, limit: int, mode: Mode) -> int:
        """Do replica r's events before those of clients at `limit`; only the first when clients wait for answers."""
        c, front, lim = rep.c, rep.front, world.lim
        while behind(front, limit, mode.until):
            if len(world.log) > 0 and world.clients.ctl.log_rows + lim.schedule_ahead + 2 > len(world.log):
                return LOG_FULL
            if front.event_phase == TIMER and world.clients.coupled == 1:
                front.event_phase = SCHEDULE  # what others do in this tick before that may cause an arrival in it
                return DONE
            c.now = front.event_tick
            front.bound = 0
            if front.event_phase == COMPLETE:
                complete(world, rep, r)
                front.event_phase = SCHEDULE
                front.event_tick = c.now + c.pause
            else:
                most = steps_alike(rep, lim) if mode.quiet and c.slow == 0 else 0
                if most > 0 and run_quietly(world, rep, r, most, limit, mode.until):
                    if c.lane_steps == c.lane_end:
                        depart(world, rep)
                else:
                    set_event(rep, lim.schedule_ahead, plan(world, rep, mode.lane))
            if world.clients.coupled == 1:
                return DONE
        if mode.replicas > 1 and mode.router in READS_LOAD:
            front.bound = nobody_ends_before(world, rep)
        return DONE

    return advance


def _outside(visit: Callable[..., bool]) -> Callable[..., None]:
    """What an event from outside does, but for changes of the fleet."""

    @jitable
    def outside(world: World, rep: Replica, r: int, tick: int, code: int) -> None:
        """Do the event: at replica r, if it takes part."""
        drop(world.req, world.clients, tick, code)
        if not is_visit(code):
            act(world.req, world.cost, world.clients, tick, code)
        elif visit(world, rep, r, tick, code):
            wake(rep, tick)

    return outside


def _build(policy: Policy) -> Callable[..., int]:
    """Compile the engine around a policy and its sharers; their functions are captured: the code cache knows them."""
    limits_at, cost_at = _row_readers()
    rules = sharers(policy)  # all free what has ended alike
    advance = _advance(*_step_functions(schedule_of(rules), policy.retire))
    outside = _outside(visit_under(key_of(rules), arrived_of(rules)))

    def run(shared: World, rows: PoolRows, control: Column, reps: Column, given: Mode) -> int:
        # numba cannot return a record from a function: the views of one row are made here; [6:] is what pools share
        ctl = control[0]
        clients = Clients(ctl, *shared.clients[1:])
        pool = 0
        world = World(shared.req, limits_at(rows, pool), cost_at(rows, pool), clients, shared.itl,
                      shared.rows_time[pool], *shared[6:])
        if ctl.started == 0:
            start_load(world.req, world.cost, world.clients)
        alone = world.clients.coupled == 0 or given.replicas == 1  # no other replica's event can cause an arrival here
        mode = Mode(given.replicas, given.router, given.until, given.stop_at, given.lane, given.quiet and alone)
        start, ending = 0, 0
        tick, code = upcoming(world.req, world.clients, mode.until)
        r, todo = next_replica(world, reps.front, mode, tick, code, start)
        while True:
            if todo == END:
                if ending == mode.replicas:
                    return DONE
                r = ending
            if reps.front[r].pool != pool:
                pool = reps.front[r].pool
                world = World(shared.req, limits_at(rows, pool), cost_at(rows, pool), clients, shared.itl,
                              shared.rows_time[pool], *shared[6:])
            rep = Replica(reps.running[r], reps.slots[r], reps.vacant[r], reps.seats[r], reps.extents[r],
                          reps.ended[r], reps.batch[r], reps.tokens[r], reps.flight[r], reps.gains[r], reps.steps[r],
                          reps.stage_gpu[r], reps.stage_cpu[r], reps.phase[r], reps.frees[r], reps.calendar[r],
                          reps.gap_step[r], reps.gap_ns[r], Prefix(reps.prefix.chain, reps.prefix.held,
                          reps.prefix.found[r], reps.prefix.nodes[r], reps.prefix.host[r]),
                          reps.aux[r], reps.stats[r], reps.front[r], reps.c[r])
            turn, why = r, DONE
            while r == turn:
                if todo == ACT:
                    if world.routing[ROUTED] >= mode.stop_at:
                        return PAUSED
                    start = 0
                    if phase_of(code) == CONTROL:
                        return FLEET
                    outside(world, rep, r, tick, code)
                elif todo == END:
                    ending += 1
                    spill(world, rep)
                else:
                    start = r + 1
                    why = advance(world, rep, r, tick if alone else NEVER, mode)
                rep.front.used_blocks = world.lim.num_blocks - rep.c.free_blocks
                if why != DONE:
                    return why
                tick, code = upcoming(world.req, world.clients, mode.until)
                r, todo = next_replica(world, reps.front, mode, tick, code, start)
                if todo == END:
                    break

    return _runnable(compiled(run, code_name(policy)))


def _runnable(function: Callable[..., int]) -> Callable[..., int]:
    """The function as the interpreter can run it too, where it has to."""
    return on_lists(function) if is_interpreted() else function


def code_name(policy: Policy) -> str:
    """What the compiled engine of a policy is called in the code cache."""
    return f"engine-{policy.engine or policy.name}"


_engines: dict[str, Callable[..., int]] = {}


def _engine(policy: Policy) -> Callable[..., int]:
    name = code_name(policy)
    if name not in _engines:
        _engines[name] = _build(policy)
    return _engines[name]


@functools.cache
def _control() -> Callable[..., int]:
    return _runnable(control_function(*_row_readers()))


def run_fast(job: Job, policy: Policy, leaps: bool = True, progress: Callable[[int], None] | None = None) -> None:
    """Run an array job to its end. `progress` is called with the number of requests that have arrived."""
    engine = _engine(policy)
    total = len(job.req.arrival)
    slice_size = max(10_000, total // 100) if progress else total
    # see lane._leave on `settled`
    lane = leaps and policy.lane and not any(pool.lim.draft_tokens > 0 or pool.lim.stages > 1 or
                                             (pool.lim.prefix == 1 and pool.lim.schedule_ahead > 1)
                                             for pool in job.pools)
    mode = Mode(job.replicas, job.router, job.until, slice_size, lane, lane)
    rule = rule_of(policy)
    rows = pool_rows([pool._replace(lim=pool.lim._replace(rule=rule)) for pool in job.pools])
    code = FLEET if len(job.changes.roster) else PAUSED
    while True:
        world = World(job.req, job.lim, job.cost, job.clients(), job.itl, job.rows_time, job.log, job.routing,
                      job.links, job.acceptance, job.changes, signals_now(job))
        if code == FLEET:
            _control()(world, rows, job.ctl, job.reps, job.until)
        code = engine(world, rows, job.ctl, job.reps, mode)
        if code == DONE:
            return check_sums(job)
        if code == LOG_FULL:
            job.log = np.concatenate([job.log, np.zeros_like(job.log)])
        elif code == FLEET:
            room_for_an_event(job)
        else:
            mode = mode._replace(stop_at=mode.stop_at + slice_size)
            if progress:
                progress(int(job.routing[ROUTED]))

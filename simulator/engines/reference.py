"""The reference engine: a SimPy process per replica that runs the loop of a serving engine, and a source.

Read `_Run.replica` first: it is the loop of vLLM's EngineCore.step_with_batch_queue (schedule, launch, collect the
oldest output, repeat). All that changes requests is in the modules beside
this one and in the policies, shared with the compiled engine.
"""

from collections.abc import Generator
from contextlib import suppress
from typing import Any

import simpy

from policies.registry import Policy
from policies.routers import LEAST_KV
from simulator.engines.booking import clear_plan, collect, commit, output_tick
from simulator.engines.changes import change, start_changes
from simulator.engines.clients import act, drop, start_load, upcoming
from simulator.engines.future import index_of, phase_of
from simulator.engines.handover import keep_kv, pass_on, take_over
from simulator.engines.job import Job, as_arrays, check_sums
from simulator.engines.members import left, more_rows
from simulator.engines.pipeline import begin_round, commit_empty, drop_empty
from simulator.engines.signals import signals_now
from simulator.engines.steplog import log_step
from simulator.engines.visit import is_visit, replica_for, visit_under
from simulator.engines.world import World
from simulator.records import COMPLETE, CONTROL, SCHEDULE, TIMER, LogRow
from simulator.units import NEVER

Steps = Generator[simpy.Event, Any, None]


class _Tick(simpy.Event):
    """An event at (tick, phase, index); SimPy's priority orders phase and index within a tick."""

    def __init__(self, env: simpy.Environment, tick: int, phase: int, index: int) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        priority: Any = (phase << 32) + index
        env.schedule(self, priority=priority, delay=tick - env.now)


class _Run:
    """One simulation. Columns are lists of Python integers: nothing can overflow unseen."""

    def __init__(self, job: Job, policy: Policy) -> None:
        self.job, self.policy = job, policy
        self.visit = visit_under(policy.key, policy.arrived)
        self.clients = job.clients()
        self.worlds = [World(job.req, pool.lim, pool.cost, self.clients, job.itl, rows_time, job.log, job.routing,
                             job.links, job.acceptance, job.changes, signals_now(job))
                       for pool, rows_time in zip(job.pools, job.rows_time, strict=True)]
        self.env = simpy.Environment(initial_time=0)
        self.bells = [self.env.event() for _ in job.reps]
        self.more = self.env.event()

    def run(self) -> None:
        job = self.job
        start_load(job.req, job.cost, self.clients)
        start_changes(job.changes, self.clients, [rep.front for rep in job.reps], job.routing)
        self.env.process(self.source())
        self.replicas = [self.env.process(self.replica(r)) for r in range(len(job.reps))]
        self.env.run(until=None if job.until == NEVER else job.until + 1)

    def tick(self, tick: int, phase: int, index: int) -> _Tick:
        return _Tick(self.env, int(tick), phase, index)

    def source(self) -> Steps:
        """The clients' events in order; `more` rings when an answer may have brought an earlier one."""
        job = self.job
        while True:
            tick, code = upcoming(job.req, self.clients, job.until)
            if tick == NEVER:
                yield self.more
                self.more = self.env.event()
                continue
            event = self.tick(tick, phase_of(code), index_of(code))
            yield event | self.more if self.clients.coupled else event
            if self.more.triggered:
                self.more = self.env.event()
            if event.processed:
                drop(job.req, self.clients, tick, code)
                self.act(tick, code)

    def act(self, tick: int, code: int) -> None:
        """Do an event of the clients, of a request at a replica, or of the fleet."""
        job, fronts = self.job, [rep.front for rep in self.job.reps]
        if job.router == LEAST_KV:
            for rep in job.reps:
                rep.front.used_blocks = rep.front.blocks - rep.c.free_blocks
        r = replica_for(self.worlds[0], job.router, fronts, code, tick)
        rep = job.reps[max(r, 0)]
        world = self.worlds[rep.front.pool]
        if phase_of(code) == CONTROL:
            more_rows(job.changes.fleet, job.ctl, job.replicas)
            if change(world, rep, r, fronts, [rep.c for rep in job.reps], tick, code):
                self.replicas[r].interrupt()
        elif is_visit(code):
            if self.visit(world, rep, r, tick, code):
                self.wake(r)
        else:
            act(job.req, job.cost, self.clients, tick, code)

    def replica(self, r: int) -> Steps:
        """A replica's life, begun anew after each crash; one that hangs does nothing."""
        while True:
            with suppress(simpy.Interrupt):
                if self.job.reps[r].front.hung < NEVER:
                    yield self.env.event()  # until it is restarted
                yield from self.serve(r)

    def serve(self, r: int) -> Steps:
        """schedule -> launch -> collect, with up to schedule_ahead steps planned before the oldest output is seen."""
        rep = self.job.reps[r]
        ahead = self.worlds[rep.front.pool].lim.schedule_ahead
        yield from self.sleep(r)
        while True:
            if rep.c.n_flight <= ahead and self.plan(r) and rep.c.n_flight <= ahead:
                yield self.tick(rep.c.cpu_free + rep.c.pause, SCHEDULE, r)
            elif rep.c.n_flight == 0:
                yield from self.sleep(r)
            else:
                yield self.tick(output_tick(rep), COMPLETE, r)
                self.complete(r)
                yield self.tick(int(self.env.now) + rep.c.pause, SCHEDULE, r)

    def sleep(self, r: int) -> Steps:
        """Until a request arrives or the policy's wake-up comes; ends in the SCHEDULE phase of that tick."""
        self.bells[r] = self.env.event()
        wake = self.job.reps[r].c.wake
        if wake < NEVER:
            yield self.bells[r] | self.tick(wake, TIMER, r)
        else:
            yield self.bells[r]
        yield self.tick(int(self.env.now), SCHEDULE, r)

    def wake(self, r: int) -> None:
        """Replica r, if it sleeps, looks at its queue in this tick."""
        if not self.bells[r].triggered:
            self.bells[r].succeed()

    def ring(self) -> None:
        """There may be an earlier event than the one that the source waits for."""
        if not self.more.triggered:
            self.more.succeed()

    def plan(self, r: int) -> bool:
        """Let the policy plan a step and launch it; False when it plans nothing."""
        rep = self.job.reps[r]
        world = self.worlds[rep.front.pool]
        rep.c.now = int(self.env.now)
        if world.lim.stages > 1:
            begin_round(rep)
        clear_plan(rep)
        self.policy.schedule(world.req, rep, world.lim, rep.aux)
        if rep.c.n_batch == 0:
            return world.lim.stages > 1 and commit_empty(world.req, rep, world.lim, world.cost)
        commit(world.req, rep, world.lim, world.cost)
        if self.job.links.free and take_over(world.req, rep, self.clients):
            self.ring()
        return True

    def complete(self, r: int) -> None:
        """Collect the oldest output, let the policy free what ended, tell the clients."""
        job, rep = self.job, self.job.reps[r]
        rep.c.now = int(self.env.now)
        world = self.worlds[rep.front.pool]
        if world.lim.stages > 1 and drop_empty(rep, world.lim):
            return
        step = rep.steps[rep.c.first_flight]
        wall = collect(world, rep)
        if job.log is not None:
            if job.ctl.log_rows == len(job.log):
                job.log.append(LogRow())
            log_step(job.log, job.ctl, rep, r, step, wall)
        if rep.c.n_ended > 0:
            if job.links.free:
                keep_kv(job.req, rep)
            self.policy.retire(job.req, rep, world.lim, rep.aux)
            pass_on(world, rep, step, r)
            left(self.clients, rep.front, rep.c, r, rep.c.now)
            self.ring()


def run_reference(job: Job, policy: Policy) -> Job:
    """Run a list job to its end and return it with numpy columns."""
    _Run(job, policy).run()
    check_sums(job)
    return as_arrays(job)

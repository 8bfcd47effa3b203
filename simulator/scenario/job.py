"""Setup + trace -> the Job an engine runs."""

import numpy as np

from policies.routers import ROUTERS
from simulator.cost.reach import LAST_TICK, check_reach, reach
from simulator.engines.clients import CLOSED, GROUPED, OPEN, Talks
from simulator.engines.fleet import add_changes
from simulator.engines.job import Job, array_job, list_job, request_columns, slots_held
from simulator.engines.pools import Pool
from simulator.engines.signals import KNOWS_ALL, add_signals
from simulator.errors import ConfigError, TraceError
from simulator.memory import check_slots
from simulator.scenario import speculation as drafting
from simulator.scenario.asks import asked, tenants_of, weigh_tenants
from simulator.scenario.changes import plans_of
from simulator.scenario.clients import habits_of, talks_in
from simulator.scenario.fleet import groups_of, picks, pool_speeds
from simulator.scenario.handover import links
from simulator.scenario.routing import knows_of
from simulator.scenario.setup import Setup
from simulator.state import Limits
from simulator.units import to_ticks
from simulator.workload.shared import shared_blocks
from simulator.workload.trace import Trace

LOADS = {"open": OPEN, "closed": CLOSED, "grouped": GROUPED}



def in_submission_order(trace: Trace, load: str) -> Trace:
    """Open loads replay by arrival; closed and grouped clients submit in order of id.

    Raises TraceError for an open load without arrival times.
    """
    if load == "open":
        if trace.meta.untimed:
            raise TraceError(trace.meta.untimed)
        return trace
    return trace.take(np.argsort(trace.id, kind="stable"))



def build_job(setup: Setup, trace: Trace, compiled: bool, log: bool, replication: int = 0) -> Job:
    """The job an engine runs; `trace` must be in submission order."""
    scenario, limits = setup.scenario, setup.limits
    if len(trace) == 0:
        raise ConfigError("the trace holds no request")
    if not trace.extras and trace.cached.any():  # a trace that knows only how much is cached, not what
        if scenario.kv.offload:
            raise ConfigError(f"{scenario.place('kv.offload')} needs requests that name the blocks they share; the "
                              "trace says only how many of their tokens were cached")
        limits = limits._replace(prefix=0)
    shared = shared_blocks(trace, limits.block_size) if limits.prefix else None
    habits, talks = habits_of(scenario), talks_in(scenario, trace, replication)
    gives_up = habits.ttft_ns > 0 or habits.total_ns > 0
    _check_clients(setup, gives_up)
    pools = _pools(setup, limits)
    group, groups = groups_of(scenario, trace) if setup.pools else ((), ())
    req = request_columns(trace.arrival_ns, trace.prompt, trace.output, trace.max_tokens, trace.cached,
                          picks(scenario, trace, replication), shared.ends if shared else None,
                          group if len(groups) > 1 else (),
                          asked(setup.policy, scenario, trace, replication, setup.cost, limits.quantum),
                          setup.policy.ordered, scenario.cluster.hands_over, gives_up or habits.attempts > 1,
                          any(pool.lim.swap_blocks for pool in pools), any(pool.lim.offload_blocks for pool in pools),
                          scenario.cluster.submissions_again is not None)
    for pool in pools:
        counts = reach(pool.lim, "max_num_batched_tokens" in setup.policy.knobs, int(trace.prompt.max()),
                       int(trace.max_tokens.max()), len(trace))
        check_reach(pool.cost, counts, len(trace) * habits.attempts, pool.lim.stages)
    check_slots(scenario.cluster.size, slots_held(pools, len(trace)), "cluster.replicas")
    make = array_job if compiled else list_job
    job = make(req, *pools[0][:3], log, shared.numbers if shared else (), pools[1:], groups,
               setup.policy.aux + setup.policy.aux_per_tenant * len(tenants_of(trace)), pools[0].speed)
    weigh_tenants(scenario, trace, job)
    job.links = links(scenario.cluster, *_kv_of(setup), trace, len(groups) // 2, compiled)
    end = int(trace.arrival_ns[-1]) if scenario.horizon_s is None else to_ticks(scenario.horizon_s)
    try:
        plans = plans_of(setup, [pool.lim for pool in pools], end, replication)
    except ConfigError as error:
        raise scenario.placed(error) from None
    if plans is not None:
        add_changes(job, plans, compiled)
    job.router = ROUTERS[scenario.cluster.router]
    knows = knows_of(scenario, shared is not None)
    if knows != KNOWS_ALL:
        add_signals(job, knows)
    job.load, job.width = LOADS[scenario.load.kind], scenario.load.width
    job.habits, job.talks = habits, talks if compiled else Talks(*(column.tolist() for column in talks))
    if setup.speculation:
        job.acceptance = drafting.acceptance_of(setup.speculation, scenario.seed, replication, compiled)
    job.until = LAST_TICK if scenario.horizon_s is None else to_ticks(scenario.horizon_s)
    return job



def _check_clients(setup: Setup, gives_up: bool) -> None:
    """Raise ConfigError for what clients do, or the engine refuses, that the policy cannot."""
    scenario, policy = setup.scenario, setup.policy
    if gives_up and not policy.aborts:
        key = "load.timeout_s" if scenario.load.timeout_s else "load.ttft_timeout_s"
        raise ConfigError(f"{scenario.place(key)} needs a policy that can drop a running request; {policy.name} "
                          "returns its slots at the end of the batch")
    if scenario.admission.predicted_ttft_s and policy.ordered:
        raise ConfigError(f"{scenario.place('admission.predicted_ttft_s')}: the prediction takes requests first come, "
                          f"first served, {policy.name} does not")
    if (gives_up or scenario.load.retry) and setup.speculation:
        raise ConfigError("load: time-outs and retries are not modelled with engine.speculation")



def _kv_of(setup: Setup) -> tuple[int, int]:
    """[bytes] of KV of a token, on all GPUs of a replica together, and the layers that have it."""
    first = next(iter(setup.pools.values()), setup)
    return first.model.kv_bytes_per_token(first.scenario.hardware.kv_dtype), first.model.layers



def _pools(setup: Setup, limits: Limits) -> list[Pool]:
    """The pools as engines take them; `limits` those of a fleet of one kind."""
    if not setup.pools:
        return [Pool(limits, setup.cost, setup.scenario.cluster.replicas)]
    made = list(setup.pools.values())
    speeds = pool_speeds([each.cost for each in made])
    return [Pool(each.limits._replace(prefix=each.limits.prefix and limits.prefix), each.cost,
                 each.scenario.cluster.replicas, speed) for each, speed in zip(made, speeds, strict=True)]

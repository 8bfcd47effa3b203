"""Pools of unlike replicas: the scenario of each, who may go where, and what the router needs to know."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from policies.routers import DRAWN, ROUTERS, SESSION_AFFINITY
from simulator.cost.step import Cost
from simulator.errors import ConfigError, ServecastError
from simulator.scenario.handover import halves
from simulator.scenario.sections import PoolSpec, ServesSpec
from simulator.scenario.spec import Scenario, scenario_from
from simulator.state import Limits
from simulator.workload.streams import stream
from simulator.workload.trace import Trace

FRONT_END: Final = ("frontend_in_ns", "frontend_each_ns", "frontend_out_ns")
SPEEDS: Final = 1000
"""Relative speeds of pools are whole numbers up to this."""
SPEED_TOKENS: Final = 512
"""[tokens] of the prefill step whose time tells how fast a pool is."""


def pool_scenario(scenario: Scenario, name: str) -> Scenario:
    """The scenario of one pool: its own keys over those of the whole. Raises ConfigError naming the pool."""
    pool: PoolSpec = scenario.cluster.pools[name]
    data = scenario.model_dump(mode="python", exclude_unset=True)
    own = {"replicas", "serves", "role", "autoscale", "spot"}
    given = pool.model_dump(mode="python", exclude_unset=True, exclude=own)
    for key, value in given.items():
        data[key] = {**data.get(key, {}), **value} if isinstance(value, dict) else value
    data["cluster"] = {"replicas": pool.replicas, "router": scenario.cluster.router}
    with named_pool(name):
        return scenario_from(data, scenario.base, scenario.name)


def pool_speeds(costs: list[Cost]) -> list[int]:
    """How fast pools prefill, relative to each other: whole numbers up to SPEEDS."""
    times = [int(cost.dense_ns[1, min(SPEED_TOKENS, cost.dense_ns.shape[1] - 1)]) for cost in costs]
    fastest = max(1, min(times))
    return [max(1, round(SPEEDS * fastest / max(1, time))) for time in times]


def alike_in_front(cost: Cost, first: Cost) -> Cost:
    """The step times with the front end of the first pool: all requests come through one gateway."""
    numbers: Any = {name: getattr(first, name) for name in FRONT_END}
    return cost._replace(**numbers)


@contextmanager
def named_pool(name: str) -> Iterator[None]:
    """Put the pool's name in front of what goes wrong inside."""
    try:
        yield
    except ServecastError as error:
        error.args = (f"cluster.pools.{name}: {error}",)
        raise


def check_pools(limits: dict[str, Limits], policies: set[str]) -> None:
    """Raise ConfigError for pools that cannot be behind one router here."""
    if len(policies) > 1:
        raise ConfigError("cluster.pools: one policy for all pools is modelled, got " + ", ".join(sorted(policies)))
    streams = {name: lim.stream for name, lim in limits.items()}
    if len(set(streams.values())) > 1:
        whole = ", ".join(name for name, streamed in streams.items() if not streamed)
        raise ConfigError(f"cluster.pools: {whole} returns answers whole and others token by token: latencies of both "
                          "cannot be told in one run; set policy.stream: true")
    sizes = {name: lim.block_size for name, lim in limits.items() if lim.prefix}
    if len(set(sizes.values())) > 1:
        raise ConfigError("cluster.pools: prefix caching needs one kv.block_size in all pools, got "
                          + ", ".join(f"{name} {size}" for name, size in sizes.items()))


def groups_of(scenario: Scenario, trace: Trace) -> tuple[npt.NDArray[np.int32], list[list[int]]]:
    """Group of each request (N,), and the pools that each group may use; where requests are handed over, those of the
    first halves, then in the same order of the second.

    Raises ConfigError for requests that no pool serves and for classes that the trace does not have.
    """
    pools = scenario.cluster.pools
    may = np.stack([_served(name, pool.serves, trace) for name, pool in pools.items()], axis=1)
    parts = halves(scenario.cluster, trace, may)
    nobody = ~parts[0].any(axis=1)
    if nobody.any():
        row = int(np.flatnonzero(nobody)[0])
        raise ConfigError(f"cluster.pools: {int(nobody.sum())} requests are served by no pool, the first of class "
                          f"{trace.class_names[int(trace.cls[row])]} with {int(trace.prompt[row])} prompt tokens")
    kinds, group = np.unique(np.concatenate(parts, axis=1), axis=0, return_inverse=True)
    ways = np.split(kinds, len(parts), axis=1)
    return group.astype(np.int32).ravel(), [np.flatnonzero(kind).tolist() for way in ways for kind in way]


def _served(name: str, serves: ServesSpec, trace: Trace) -> npt.NDArray[np.bool_]:
    """Which requests a pool takes, (N,)."""
    taken = np.ones(len(trace), dtype=bool)
    if serves.classes is not None:
        for each in serves.classes:
            if each not in trace.class_names:
                raise ConfigError(f"cluster.pools.{name}.serves.classes: unknown class {each!r}; known: "
                                  f"{', '.join(trace.class_names)}")
        taken &= np.isin(trace.cls, [trace.class_names.index(each) for each in serves.classes])
    if serves.min_prompt_tokens is not None:
        taken &= trace.prompt >= serves.min_prompt_tokens
    if serves.max_prompt_tokens is not None:
        taken &= trace.prompt <= serves.max_prompt_tokens
    return taken


def picks(scenario: Scenario, trace: Trace, replication: int) -> npt.NDArray[np.int64]:
    """The number that a request's router works with, (N,): random, or its conversation; empty where not used."""
    router = ROUTERS[scenario.cluster.router]
    if router in DRAWN:
        return stream(scenario.seed, "router", replication).integers(0, 2**62, size=len(trace))
    if router != SESSION_AFFINITY:
        return np.zeros(0, dtype=np.int64)
    session = trace.extras.session
    if session is None:
        raise ConfigError("cluster.router: session_affinity needs a workload with conversations")
    places = stream(scenario.seed, "router", replication).integers(0, 2**62, size=int(session.max(initial=0)) + 1)
    alone = stream(scenario.seed, "router alone", replication).integers(0, 2**62, size=len(trace))
    return np.where(session >= 0, places[np.maximum(session, 0)], alone)

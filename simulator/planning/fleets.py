"""A candidate looked up, as a fleet of so many replicas, with slower steps or more of a resource: in all its pools."""

from collections.abc import Mapping
from dataclasses import replace

from simulator.planning.bounds import relieved_replica, scaled_cost
from simulator.planning.candidate import DECODE
from simulator.planning.unlike import BESIDE, OWN
from simulator.scenario.setup import Setup


def resized(setup: Setup, replicas: int) -> Setup:
    """The same with so many replicas; where some compute prompts, the others are more or fewer, and where some stand
    beside a candidate's own, these are; without any they are a fleet of one kind."""
    scenario = setup.scenario
    if not setup.pools:
        return replace(setup, scenario=scenario.updated({"cluster.replicas": replicas}))
    name = OWN if OWN in setup.pools else DECODE
    count = replicas - scenario.cluster.size + scenario.cluster.pools[name].replicas
    if name == OWN and count == 0:
        return setup.pools[BESIDE]
    own = setup.pools[name]
    own = replace(own, scenario=own.scenario.updated({"cluster.replicas": count}))
    return replace(setup, scenario=scenario.updated({f"cluster.pools.{name}.replicas": count}),
                   pools={**setup.pools, name: own})  # fmt: skip


def stretched(setup: Setup, factor: float, shares: Mapping[str, float] | None = None) -> Setup:
    """The same with all step times `factor` as long; those of a pool by its share of what that adds."""
    pools = {}
    for name, pool in setup.pools.items():
        share = (shares or {}).get(name, 1.0)
        pools[name] = stretched(pool, factor if share == 1.0 else 1 + (factor - 1) * share)
    return replace(setup, cost=scaled_cost(setup.cost, factor), pools=pools)


def relieved(setup: Setup, resource: str) -> Setup:
    """The same with RELIEF times as much of one resource on every replica."""
    pools = {name: relieved_replica(pool, resource) for name, pool in setup.pools.items()}
    for name, pool in pools.items():  # what a role adds to the limits, where they were looked up again
        own = setup.pools[name].limits
        limits = pool.limits._replace(hand_over=own.hand_over, reserve_prompt=own.reserve_prompt,
                                      max_model_len=own.max_model_len)  # fmt: skip
        pools[name] = replace(pool, limits=limits)
    if not pools:
        return relieved_replica(setup, resource)
    first = next(iter(pools.values()))
    return replace(first, scenario=setup.scenario, pools=pools)

"""What a scenario's router sees of the replicas, as the engines take it."""

from typing import Final

from policies.routers import PREFIX_AWARE, ROUTERS
from policies.signals import MILLI
from simulator.engines.signals import Knows
from simulator.errors import ConfigError
from simulator.scenario.sections import PrefixRouterSpec
from simulator.scenario.spec import Scenario
from simulator.units import to_ticks

CAPACITY: Final = 31_250
"""[blocks] of the index a replica: lruCapacityPerServer of the Gateway API inference extension, approx-prefix-cache-
producer (docs: its default)."""


def knows_of(scenario: Scenario, shared: bool) -> Knows:
    """`shared`: whether there are prefix caches and a trace that says what prompts share.

    Raises ConfigError for a router that looks at prefixes where there are none.
    """
    cluster, stale = scenario.cluster, to_ticks(scenario.cluster.staleness_s)
    if ROUTERS[cluster.router] != PREFIX_AWARE:
        return Knows(stale)
    if not shared:
        raise ConfigError(f"{scenario.place('cluster.router')}: prefix_aware needs prefix caches (kv.prefix_caching) "
                          "and a workload that says what prompts share: sessions, workload.prefix or prefix hashes")
    spec = cluster.prefixes or PrefixRouterSpec()
    capacity = 0 if spec.knows == "caches" else spec.capacity_blocks or CAPACITY
    return Knows(stale, True, capacity, round(MILLI * spec.share), spec.most_apart, round(MILLI * spec.factor))

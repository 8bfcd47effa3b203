"""What happens to replicas, as the engines take it: cluster.events with pools and replicas counted out."""

from policies.registry import Policy
from simulator.engines.changes import CRASH, DRAIN
from simulator.engines.clients import Habits, Talks
from simulator.errors import ConfigError
from simulator.scenario.sections import ClusterSpec, EventSpec
from simulator.state import Limits
from simulator.units import to_ticks

KINDS = {"crash": CRASH, "drain": DRAIN}


def change_rows(cluster: ClusterSpec, policy: Policy, limits: list[Limits]) -> list[tuple[int, int, int, int]]:
    """(tick, kind, replica, [ns] it lasts) of every change. Raises ConfigError for what is not modelled."""
    if not cluster.events:
        return []
    if cluster.hands_over:
        raise ConfigError("cluster.events beside prefill and decode pools is not modelled")
    if not policy.streams:
        raise ConfigError(f"cluster.events needs a policy that sends tokens as they come, got {policy.name}")
    if any(lim.prefix for lim in limits):
        raise ConfigError("cluster.events: a prefix cache that is lost with its replica is not modelled; set "
                          "kv.prefix_caching: false")
    if any(lim.swap_blocks for lim in limits):
        raise ConfigError("cluster.events with preemption by swap (kv.swap) is not modelled")
    if policy.aux_per_tenant:
        raise ConfigError(f"cluster.events under policy.name: {policy.name} is not modelled")
    if any(lim.draft_tokens for lim in limits):
        raise ConfigError("cluster.events with speculative decoding is not modelled")
    return [row for k, event in enumerate(cluster.events) for row in _rows(cluster, k, event)]


def refuse_clients(habits: Habits, talks: Talks, limits: list[Limits]) -> None:
    """Raise ConfigError for clients and admission rules that are not modelled beside changes of the fleet."""
    restless = habits.ttft_ns or habits.total_ns or habits.attempts > 1 or habits.max_in_flight
    if restless or len(talks.after) > 0 or any(lim.max_waiting or lim.predicted_ttft for lim in limits):
        raise ConfigError("cluster.events beside time-outs, retries, admission rules, load.max_in_flight or turns that "
                          "wait for answers is not modelled")


def _rows(cluster: ClusterSpec, k: int, event: EventSpec) -> list[tuple[int, int, int, int]]:
    chosen, where = range(cluster.size), f"cluster.events[{k}]"
    if event.pool is not None:
        if event.pool not in cluster.pools:
            known = ", ".join(cluster.pools) or "none"
            raise ConfigError(f"{where}.pool: unknown pool {event.pool!r}; known: {known}")
        chosen = cluster.ranges[event.pool]
    if event.replica is not None:
        if event.replica >= len(chosen):
            raise ConfigError(f"{where}.replica must be < {len(chosen)}, got {event.replica}")
        chosen = chosen[event.replica : event.replica + 1]
    return [(to_ticks(event.at_s + n * event.apart_s), KINDS[event.kind], r, to_ticks(event.for_s))
            for n, r in enumerate(chosen)]

"""What happens to replicas, as the engines take it: cluster.events and autoscalers, pools and replicas counted out."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from simulator.engines.booking import SLOW_UNIT
from simulator.engines.changes import CRASH, DRAIN, HANG, RECLAIM, SLOW
from simulator.engines.plans import Plans
from simulator.engines.scaler import Scaler, Shift
from simulator.errors import ConfigError
from simulator.scenario.autoscale import WEEK_S, AutoscaleSpec, scaler, shifts
from simulator.scenario.sections import ClusterSpec, EventSpec, pool_key
from simulator.state import Limits
from simulator.units import LONGEST_S, NS_PER_S, to_ticks
from simulator.workload.streams import stream

if TYPE_CHECKING:
    from simulator.scenario.setup import Setup

KINDS = {"crash": CRASH, "drain": DRAIN, "hang": HANG}
MOST_RECLAIMS: Final = 100_000
Row = tuple[int, int, int, int]


def plans_of(setup: "Setup", limits: list[Limits], end: int, replication: int) -> Plans | None:
    """What is to happen to the replicas, None for a fleet that stays as it is; `limits` of each pool, `end` [tick] up
    to which spot capacity is reclaimed.

    Raises ConfigError for what is not modelled.
    """
    cluster = setup.scenario.cluster
    scaled = list(autoscaled(cluster))
    if not cluster.events and not scaled and not cluster.spots:
        return None
    key = "cluster.events" if cluster.events else "cluster.autoscale" if scaled else spot_key(cluster)
    policy, specs = setup.policy, [spec for _, _, spec, _ in scaled]
    if not policy.streams:
        raise ConfigError(f"{key} needs a policy that sends tokens as they come, got {policy.name}")
    if any(lim.swap_blocks for lim in limits):
        raise ConfigError(f"{key} with preemption by swap (kv.swap) is not modelled")
    if policy.aux_per_tenant:
        raise ConfigError(f"{key} under policy.name: {policy.name} is not modelled")
    if any(lim.draft_tokens for lim in limits):
        raise ConfigError(f"{key} with speculative decoding is not modelled")
    if setup.scenario.horizon_s is None and any(spec.activation for spec in specs):
        raise ConfigError("cluster.autoscale.activation needs horizon_s: requests too few to activate wait for ever")
    if scaled:
        _check_waits(cluster)
    scalers: list[Scaler] = []
    plan: list[Shift] = []
    for pool, first, spec, count in scaled:
        plan += shifts(spec, len(scalers))
        scalers.append(scaler(spec, pool, first, count))
    rows = [row for k, event in enumerate(cluster.events) for row in _rows(cluster, k, event)]
    rows += reclaims(cluster, setup.scenario.seed, replication, end)
    notice = max((to_ticks(spot.notice_s) for spot in cluster.spots.values()), default=0)
    return Plans(rows, to_ticks(cluster.health_check_s), to_ticks(cluster.retry_s), notice, scalers, plan,
                 cluster.submissions_again)


def _check_waits(cluster: ClusterSpec) -> None:
    """Raise ConfigError for waits in which an autoscaler would decide without end."""
    waits = {"cluster.health_check_s": cluster.health_check_s, "cluster.retry_s": cluster.retry_s}
    waits |= {f"cluster.events[{k}].for_s": event.for_s for k, event in enumerate(cluster.events)}
    waits |= {pool_key(name, "spot.replace_s"): spot.replace_s for name, spot in cluster.spots.items()}
    for key, value in waits.items():
        if value > WEEK_S:
            raise ConfigError(f"{key} must be <= {WEEK_S:g} beside cluster.autoscale, got {value:g}")


def spot_key(cluster: ClusterSpec) -> str:
    """The first key that says of spot capacity."""
    return pool_key(next(iter(cluster.spots)), "spot")


def reclaims(cluster: ClusterSpec, seed: int, replication: int, end: int) -> list[Row]:
    """When spot replicas get their notice. Raises ConfigError for too many."""
    rows: list[Row] = []
    for name, spot in cluster.spots.items():
        ns = 3600 * NS_PER_S / spot.reclaims_per_hour
        for r in cluster.members(name):
            draw, at = stream(seed, f"spot {r}", replication), 0.0
            while (at := at + draw.exponential(ns)) < end:
                rows.append((round(at), RECLAIM, r, to_ticks(spot.replace_s)))
                if len(rows) > MOST_RECLAIMS:
                    raise ConfigError(f"{spot_key(cluster)}.reclaims_per_hour: over {MOST_RECLAIMS} replicas would be "
                                      "reclaimed")
    return rows


def autoscaled(cluster: ClusterSpec) -> Iterator[tuple[int, int, AutoscaleSpec, int]]:
    """(pool, its first replica, how it is scaled, most replicas) of each autoscaler."""
    places = list(cluster.pools)
    for name, spec in cluster.autoscales.items():
        members = cluster.members(name)
        yield places.index(name) if name else 0, members.start, spec, len(members)


def _rows(cluster: ClusterSpec, k: int, event: EventSpec) -> list[Row]:
    where = f"cluster.events[{k}]"
    if event.pool is not None and event.pool not in cluster.pools:
        known = ", ".join(cluster.pools) or "none"
        raise ConfigError(f"{where}.pool: unknown pool {event.pool!r}; known: {known}")
    chosen = cluster.members(event.pool or "")
    if event.replica is not None:
        if event.replica >= len(chosen):
            raise ConfigError(f"{where}.replica must be < {len(chosen)}, got {event.replica}")
        chosen = chosen[event.replica : event.replica + 1]
    last_s = event.at_s + (len(chosen) - 1) * event.apart_s
    if last_s > LONGEST_S:
        raise ConfigError(f"{where}: the last of {len(chosen)} replicas must have its turn by {LONGEST_S:.0f} s, got "
                          f"{last_s:g}")
    begins = [(to_ticks(event.at_s + n * event.apart_s), r) for n, r in enumerate(chosen)]
    lasts = to_ticks(event.for_s)
    if event.factor is not None:
        steps = [(0, round(SLOW_UNIT * event.factor)), (lasts, 0)]
        return [(at + after, SLOW, r, slow) for at, r in begins for after, slow in steps]
    return [(at, KINDS[event.kind], r, lasts) for at, r in begins]

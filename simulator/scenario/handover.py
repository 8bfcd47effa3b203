"""Pools that compute prompts and pools that go on from there: which requests are handed over, and over which links."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from simulator.cost.reach import LAST_TICK
from simulator.engines.job import links_of
from simulator.engines.world import LINK_BITS, Links
from simulator.errors import ConfigError
from simulator.scenario.spec import ClusterSpec
from simulator.units import to_ticks
from simulator.workload.trace import Trace

if TYPE_CHECKING:
    from simulator.scenario.setup import Setup

Table = npt.NDArray[np.bool_]


def with_roles(cluster: ClusterSpec, pools: "dict[str, Setup]") -> "dict[str, Setup]":
    """The pools, those with role: prefill handing over what they begin. Raises ConfigError for what is not modelled.

    What a prefill pool takes must find room in every decode pool: its max_model_len is the shortest of theirs. It
    admits a prompt only when all of it fits: blocks that wait to be fetched cannot be taken back from their owner.
    """
    if not cluster.hands_over:
        return pools
    for name, pool in pools.items():
        _check(name, pool, cluster)
    decode = [pool for name, pool in pools.items() if cluster.pools[name].role == "decode"]
    for key, found in (("model", {p.scenario.model for p in pools.values()}),
                       ("hardware.kv_dtype", {p.scenario.hardware.kv_dtype for p in pools.values()})):
        if len(found) > 1:
            raise ConfigError(f"cluster.pools: KV is handed over between pools of one {key}, got "
                              f"{', '.join(sorted(found))}")
    longest = min(pool.limits.max_model_len for pool in decode)
    for name, pool in pools.items():
        if cluster.pools[name].role == "prefill":
            limits = pool.limits._replace(hand_over=1, reserve_prompt=1,
                                          max_model_len=min(longest, pool.limits.max_model_len))
            pools = pools | {name: replace(pool, limits=limits)}
    return pools


def _check(name: str, pool: "Setup", cluster: ClusterSpec) -> None:
    where, lim = f"cluster.pools.{name}", pool.limits
    if pool.policy.name != "chunked":
        raise ConfigError(f"{where}: prefill and decode pools are modelled for policy.name: chunked, got "
                          f"{pool.policy.name}")
    if lim.contiguous:
        raise ConfigError(f"{where}: prefill and decode pools are modelled for kv.layout: paged, got contiguous")
    if lim.prefix:
        raise ConfigError(f"{where}: a prefix cache beside prefill and decode pools is not modelled; set "
                          "kv.prefix_caching: false")
    if cluster.pools[name].role == "decode" and lim.num_blocks * lim.block_size < lim.max_model_len:
        raise ConfigError(f"{where}: a decode pool must have room for the longest request handed to it: max_model_len "
                          f"must be <= {lim.num_blocks * lim.block_size} tokens of KV, got {lim.max_model_len}")


def halves(cluster: ClusterSpec, trace: Trace, may: Table) -> list[Table]:
    """Which pools each request may begin at and, where any are handed over, go on at; (N, P) each.

    `may` says which pools serve it. Raises ConfigError for one that would find nobody to go on.
    """
    if not cluster.hands_over:
        return [may]
    roles = np.array([pool.role for pool in cluster.pools.values()])
    long = (trace.prompt >= (cluster.disaggregate_from_tokens or 0))[:, np.newaxis]
    begin = may & np.where(long, roles == "prefill", roles == "both")
    if not (roles == "both").any():
        begin |= may & ~long & (roles == "decode")
    go_on = may & long & (roles == "decode")
    lost = long.ravel() & ~go_on.any(axis=1)
    if lost.any():
        raise ConfigError(f"cluster.pools: {int(lost.sum())} requests are served by no pool with role: decode")
    return [begin, go_on]


def links(setup: "Setup", trace: Trace, groups: int, arrays: bool) -> Links:
    """The link out of each replica; `groups` is the number of groups in which requests begin."""
    cluster, hardware = setup.scenario.cluster, setup.scenario.hardware
    if cluster.link is None:
        return links_of((), arrays=arrays)
    first = next(iter(setup.pools.values()))
    ns_a_token = first.model.kv_bytes_per_token(hardware.kv_dtype) / cluster.link.gb_per_s
    if ns_a_token * int(trace.prompt.sum()) >= LAST_TICK or ns_a_token * int(trace.prompt.max()) >= 2**40:
        raise ConfigError(f"cluster.link.gb_per_s: too slow for these prompts, got {cluster.link.gb_per_s}; "
                          f"a token takes {ns_a_token / 1e9:.3g} s")
    return links_of([round(ns_a_token * 2**LINK_BITS)] * cluster.size, to_ticks(cluster.link.latency_s), groups, arrays)

"""Pools that compute prompts and pools that go on from there: which requests are handed over, and over which links."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.cost.reach import LAST_TICK
from simulator.engines.job import links_of
from simulator.engines.world import LINK_BITS, Links
from simulator.errors import ConfigError
from simulator.scenario.sections import ClusterSpec
from simulator.state import Limits
from simulator.units import to_ticks
from simulator.workload.trace import Trace

Table = npt.NDArray[np.bool_]


class Kind(NamedTuple):
    """What decides whether a pool can take part in hand-overs."""

    limits: Limits
    policy: str
    model: str
    kv_dtype: str


def with_roles(cluster: ClusterSpec, pools: dict[str, Kind]) -> dict[str, Limits]:
    """Limits of the pools, those with role: prefill handing over what they begin. Raises ConfigError for what is not
    modelled.

    What a prefill pool takes must find room in every decode pool: its max_model_len is the shortest of theirs. It
    admits a prompt only when all of it fits: blocks that wait to be fetched cannot be taken back from their owner.
    """
    limits = {name: pool.limits for name, pool in pools.items()}
    if not cluster.hands_over:
        return limits
    roles = {name: pool.role for name, pool in cluster.pools.items()}
    for name, pool in pools.items():
        _check(f"cluster.pools.{name}", pool, roles[name])
    for key in ("model", "kv_dtype"):
        found = {getattr(pool, key) for pool in pools.values()}
        if len(found) > 1:
            raise ConfigError(f"cluster.pools: KV is handed over between pools of one {key}, got "
                              f"{', '.join(sorted(found))}")
    longest = min(limits[name].max_model_len for name in pools if roles[name] == "decode")
    for name, own in limits.items():
        if roles[name] == "prefill":
            limits[name] = own._replace(hand_over=1, reserve_prompt=1, max_model_len=min(longest, own.max_model_len))
    return limits


def _check(where: str, pool: Kind, role: str) -> None:
    lim = pool.limits
    if pool.policy != "chunked":
        raise ConfigError(f"{where}: prefill and decode pools are modelled for policy.name: chunked, got {pool.policy}")
    if lim.contiguous:
        raise ConfigError(f"{where}: prefill and decode pools are modelled for kv.layout: paged, got contiguous")
    if lim.draft_tokens:
        raise ConfigError(f"{where}: drafts (engine.speculation) are not modelled in prefill and decode pools")
    if lim.stages:
        raise ConfigError(f"{where}: pipeline stages (hardware.pipeline_parallel) are not modelled in prefill and "
                          "decode pools")
    if lim.prefix:
        raise ConfigError(f"{where}: a prefix cache beside prefill and decode pools is not modelled; set "
                          "kv.prefix_caching: false")
    if lim.window:
        raise ConfigError(f"{where}: handing over KV of a model with sliding windows is not modelled, got {pool.model}")
    if role == "decode" and lim.num_blocks * lim.block_size < lim.max_model_len:
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


def links(cluster: ClusterSpec, token_bytes: int, layers: int, trace: Trace, groups: int, arrays: bool) -> Links:
    """The link out of each replica of a model with so many layers; `groups` is the number of groups in which requests
    begin."""
    if cluster.link is None:
        return links_of((), arrays=arrays)
    ns_a_token = token_bytes / cluster.link.gb_per_s
    if ns_a_token * int(trace.prompt.sum()) >= LAST_TICK or ns_a_token * int(trace.prompt.max()) >= 2**40:
        raise ConfigError(f"cluster.link.gb_per_s: too slow for these prompts, got {cluster.link.gb_per_s}; "
                          f"a token takes {ns_a_token / 1e9:.3g} s")
    return links_of([round(ns_a_token * 2**LINK_BITS)] * cluster.size, to_ticks(cluster.link.latency_s), groups, arrays,
                    layers if cluster.link.overlap == "layerwise" else 0)

"""A fleet or its traffic otherwise than the plan has it: autoscaled, partly on spot capacity, or one input changed."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.planning.candidate import Candidate, scenario_of
from simulator.planning.spec import PlanSpec
from simulator.scenario.setup import Setup, on_host, prepare
from simulator.workload.inspect import variation
from simulator.workload.streams import stream
from simulator.workload.trace import MAX_TOKENS, Trace, freeze
from simulator.workload.transform import with_lengths

Way = tuple[str, float]
"""What is changed, and to what: a target of the autoscaler, a number of spot replicas, or a factor."""
AUTOSCALED: Final = "autoscaled"
SPOT: Final = "spot"
OWNED: Final = "owned"
BLOCK: Final = 1024
"""Arrivals whose span stays what it is while the gaps within become more even or less: the day's curve stays."""


def of_fleet(way: Way | None) -> bool:
    """Whether it is a way of a fleet in which no replica stands for the others."""
    return way is not None and way[0] in (AUTOSCALED, SPOT)


def fleet_setup(spec: PlanSpec, candidate: Candidate, replicas: int, way: Way) -> Setup:
    """A fleet of at most `replicas`, autoscaled to a target, or with so many of them on spot capacity."""
    name, value = way
    changes: dict[str, Any] = {"cluster.replicas": replicas}
    if name == AUTOSCALED:
        assert spec.autoscale is not None
        changes["cluster.autoscale"] = spec.autoscale.scaler(value, replicas)
    else:
        assert spec.spot is not None
        lent = round(value)
        pools: dict[str, Any] = {SPOT: {"replicas": lent, "spot": spec.spot.conditions()}}
        if lent < replicas:
            pools[OWNED] = {"replicas": replicas - lent}
        changes = {"cluster": {"router": candidate.router, "pools": pools}}
    return prepare(scenario_of(spec, candidate).updated(changes), shorten=True)


def changed_setup(setup: Setup, way: Way) -> Setup:
    """A replica with a faster or slower host, or with drafts that are right more or less often, in all its pools."""
    setup = replace(setup, pools={name: changed_setup(pool, way) for name, pool in setup.pools.items()})
    name, factor = way
    if name == "host time":
        return replace(setup, cost=on_host(setup, factor))
    if name == "acceptance" and setup.speculation is not None:
        chances = tuple(min(1.0, chance * factor) for chance in setup.speculation.chances)
        return replace(setup, speculation=replace(setup.speculation, chances=chances))
    return setup


def changed_trace(trace: Trace, way: Way, seed: int) -> Trace:
    """The requests with longer prompts or answers, other gaps between them, or fewer prefixes that others have too."""
    change = CHANGES.get(way[0])
    return trace if change is None else change(trace, way[1], seed)


def _prompts(trace: Trace, factor: float, seed: int) -> Trace:
    return with_lengths(trace, _lengths(trace.prompt, factor), trace.output, trace.max_tokens)


def _answers(trace: Trace, factor: float, seed: int) -> Trace:
    return with_lengths(trace, trace.prompt, _lengths(trace.output, factor), _lengths(trace.max_tokens, factor))


def _lengths(tokens: npt.NDArray[np.int64], factor: float) -> npt.NDArray[np.int64]:
    longer: npt.NDArray[np.int64] = np.clip(np.rint(tokens * factor), 1, MAX_TOKENS).astype(np.int64)
    return longer


def _gaps(trace: Trace, factor: float, seed: int) -> Trace:
    """Gaps to the power that makes their coefficient of variation `factor` times as large."""
    gaps = np.diff(trace.arrival_ns).astype(np.float64)
    wanted = factor * variation(gaps)
    low, high = 0.0, 8.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if variation(_bent(gaps, middle)) < wanted else (low, middle)
    arrival = trace.arrival_ns[0] + np.concatenate([[0], np.cumsum(_bent(gaps, high))])
    return replace(trace, arrival_ns=freeze(np.rint(arrival).astype(np.int64)))


def _bent(gaps: npt.NDArray[np.float64], power: float) -> npt.NDArray[np.float64]:
    """Gaps to a power, block by block as long in sum as before."""
    count = math.ceil(gaps.size / BLOCK)
    block = np.minimum(np.arange(gaps.size) // BLOCK, count - 1)
    sums = np.bincount(block, gaps, count)
    mean = np.maximum(sums / np.bincount(block, minlength=count), 1.0)
    bent = np.where(gaps > 0, (gaps / mean[block]) ** power, 0.0)
    made = np.bincount(block, bent, count)
    found: npt.NDArray[np.float64] = bent * (sums / np.where(made > 0, made, 1.0))[block]
    return found


def _prefixes(trace: Trace, factor: float, seed: int) -> Trace:
    """Less: of a share 1 - factor of the requests, drawn, nothing is known to a cache. More: what prompts begin with
    in common is `factor` times as long, in prompts as long as before."""
    if factor > 1:
        return _longer_prefixes(trace, factor)
    lone = stream(seed, "prefixes", 0).random(len(trace)) >= factor
    extras, own = trace.extras, np.arange(len(trace), dtype=np.int64)
    changes: dict[str, Any] = {}
    if extras.hash_ids is not None and extras.hash_ends is not None:
        unknown = int(extras.hash_ids.max(initial=0)) + 1 + np.arange(extras.hash_ids.size)
        changes["hash_ids"] = np.where(np.repeat(lone, np.diff(extras.hash_ends, prepend=0)), unknown, extras.hash_ids)
    if extras.session is not None:
        changes["session"] = np.where(lone, int(extras.session.max()) + 1 + own, extras.session)
    if extras.opening is not None:
        changes["opening"] = np.where(lone, int(extras.opening.max()) + 1 + own, extras.opening)
    return replace(trace, cached=freeze(np.where(lone, 0, trace.cached)), extras=replace(extras, **changes))


def can_share_more(trace: Trace) -> bool:
    """Whether prompts can have more in common at the same length: conversations repeat all that was said already."""
    return bool(trace.cached.any()) or trace.extras.opening is not None or trace.extras.hash_ids is not None


def _longer_prefixes(trace: Trace, factor: float) -> Trace:
    """System prompts, blocks known from earlier requests and tokens that the trace calls cached: each longer."""
    extras, changes = trace.extras, dict[str, Any]()
    if extras.hash_ids is not None and extras.hash_ends is not None:
        changes["hash_ids"] = freeze(_known_further(extras.hash_ids, extras.hash_ends, factor))
    if extras.opening_tokens is not None:
        changes["opening_tokens"] = freeze(np.minimum(_lengths(extras.opening_tokens, factor), trace.prompt)
                                           * (extras.opening_tokens > 0))
    cached = np.minimum(np.rint(trace.cached * factor).astype(np.int64), trace.prompt)
    return replace(trace, cached=freeze(cached), extras=replace(extras, **changes))


def _known_further(ids: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], factor: float) -> npt.NDArray[np.int64]:
    """Behind the blocks that an earlier request has had (the first k of a prompt), (factor - 1) k more are the same in
    all prompts that go on from there, and in those that repeat one of them."""
    made, fresh, start = ids.copy(), int(ids.max(initial=0)) + 1, 0
    seen, same, now = set[int](), dict[tuple[int, int], int](), dict[int, int]()
    for end in ends.tolist():
        own = ids[start:end].tolist()
        known = next((k for k, block in enumerate(own) if block not in seen), len(own))
        for j in range(min(round(known * (factor - 1)), len(own) - known)):
            now[own[known + j]] = same.setdefault((own[known - 1], j), fresh + len(same))
        made[start:end] = [now.get(block, block) for block in own]
        seen.update(own)
        start = end
    return made


CHANGES: Final[dict[str, Callable[[Trace, float, int], Trace]]] = {
    "prompt length": _prompts, "output length": _answers, "burstiness": _gaps, "hit rate": _prefixes,
}

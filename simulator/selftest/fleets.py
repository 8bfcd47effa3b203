"""Fleets of drawn cases: unlike pools, prefill and decode pools, replicas that crash or leave and come back.

`mixed` has all of it at once.
"""

from dataclasses import replace
from typing import Any, Final

from policies.registry import POLICIES
from simulator.engines.changes import RECLAIM, SLOW
from simulator.engines.pools import Pool
from simulator.selftest.cases import Case, Choose, Uniform, as_told, some_case, some_cost
from simulator.windows import blocks_for

HANDED: Final = {"policy": "chunked", "contiguous": 0, "prefix": 0, "window": 0, "draft_tokens": 0, "stages": 0}
CHANGED: Final = tuple(name for name, policy in POLICIES.items() if policy.streams and not policy.aux_per_tenant)
"""Policies beside which replicas may crash (scenario.changes)."""


def unlike_pools(seed: int, longest: int = 25) -> Case:
    """Some pools that differ in limits and step times, behind one router; some requests are for one of them only."""
    return with_pools(some_case(Uniform(seed), longest=longest), Uniform(seed + 1))


def changing(seed: int, longest: int = 25) -> Case:
    """Up to six changes of all kinds, ties among them and with arrivals; a third over unlike pools."""
    more = Uniform(seed + 1)
    given = {"policy": more.among("chunked", *CHANGED), "draft_tokens": 0, "swap_blocks": 0,
             "replicas": more.among(1, 2, 3)}
    case = as_told(some_case(Uniform(seed), given, longest=longest))
    if more.among(0, 0, 1):
        case = with_pools(case, more)
    tick, count, replicas = max(1, int(case.cost.dense_ns.max())), more.among(1, 2, 6), len(limits_of(case))
    changes = some_changes(more, tick, count, replicas)
    return replace(case, changes=changes, found_after=more.among(0, 0, 4 * tick), retry=more.among(tick, 3 * tick),
                   notice=more.among(0, 2, 9) * tick)


def some_changes(more: Choose, tick: int, count: int, replicas: int) -> tuple[tuple[int, int, int, int], ...]:
    """So many changes of all kinds, in order: (tick, kind, replica, [ns] or factor)."""
    rows = sorted(zip([t * tick for t in more.numbers(count, 0, more.among(10, 40))], more.numbers(count, 0, RECLAIM),
                      more.numbers(count, 0, replicas - 1), more.numbers(count, tick, 20 * tick), strict=True))
    rows = [(at, kind, r, more.among(0, 1500, 4000) if kind == SLOW else lasts) for at, kind, r, lasts in rows]
    return tuple(rows)


def handing_over(seed: int, longest: int = 25) -> Case:
    """A pool that hands over, decode pools with room for the longest request, a link. Every other request is handed
    over, the others are served whole by a decode pool."""
    return with_decode(as_told(some_case(Uniform(seed), HANDED, longest=longest)), Uniform(seed + 1))


def with_decode(case: Case, more: Choose) -> Case:
    """The case's replicas hand over to one or two decode pools."""
    lim = case.limits
    most = max(p + limit for p, limit in zip(case.prompt, case.limit, strict=True))
    decode = lim._replace(num_blocks=blocks_for(most, lim.block_size) + more.among(0, 1, 9),
                          max_num_seqs=more.among(1, 2, 6), schedule_ahead=more.among(0, 1, 2))
    tick = max(1, max(case.arrival, default=1) // 50)
    link = more.among(0, 3 * tick << 20, tick << 18), more.among(0, tick, 5 * tick), more.among(0, 0, 1, 2, 7)
    others = [Pool(decode, case.cost, more.among(1, 2))]
    if more.among(0, 0, 1):
        others.append(Pool(decode._replace(num_blocks=decode.num_blocks + 3), _other_cost(case, more), 1, 2))
    second = tuple(range(1, len(others) + 1))
    return replace(case, limits=lim._replace(hand_over=1, reserve_prompt=1), others=tuple(others),
                   groups=((0,), second, second, ()), link=link)


def limits_of(case: Case) -> list[Any]:
    """Limits of each replica."""
    return [pool.lim for pool in pools_of(case) for _ in range(pool.replicas)]


def pools_of(case: Case) -> tuple[Pool, ...]:
    """All pools, the case's own first."""
    return (Pool(case.limits, case.cost, case.replicas), *case.others)


def with_pools(case: Case, choose: Choose) -> Case:
    """One or two pools more; a prefix cache and windows need blocks of one size."""
    lim, count = case.limits, choose.among(1, 1, 2)
    others = []
    for _ in range(count):
        seqs = choose.among(1, 2, 5)
        own = lim._replace(
            max_num_seqs=seqs, max_num_batched_tokens=max(seqs, choose.among(1, 9, 50, 200)), preferred_sizes=0,
            num_blocks=choose.among(4, 9, 30, 1000), **_ahead(case, choose),
            block_size=lim.block_size if lim.prefix or lim.window else choose.among(1, 3, 4, 16))
        others.append(Pool(own, choose.among(case.cost, _other_cost(case, choose)), choose.among(1, 2),
                           choose.among(1, 3)))
    groups = choose.among((), (tuple(range(count + 1)), (1,), (0,)))
    return replace(case, others=tuple(others), groups=groups)


def _ahead(case: Case, choose: Choose) -> dict[str, int]:
    """Steps in flight of another pool: without stages, or with as many in a pipeline where the first has any."""
    stages = choose.among(0, 2, case.limits.stages) if case.limits.stages else 0
    return {"stages": stages, "schedule_ahead": stages - choose.among(0, 1) if stages else choose.among(0, 1, 2)}


def _other_cost(case: Case, choose: Choose) -> Any:
    """Other step times, behind the same front end: all requests come through one gateway."""
    own = case.cost
    return some_cost(choose, max(1, int(own.dense_ns.max()) // 5))._replace(
        frontend_in_ns=own.frontend_in_ns, frontend_each_ns=own.frontend_each_ns, frontend_out_ns=own.frontend_out_ns)

"""A fleet resized by the hour and paid for in two ways: some replicas reserved for every hour, the rest on demand;
or in three, with some on spot capacity."""

from collections.abc import Sequence
from typing import Any

Pair = tuple[int, int]
"""Owned replicas, reserved or by the hour, and spot ones."""


def mixed(replicas: Sequence[int], reserved: float, on_demand: float) -> dict[str, Any]:
    """The cheapest number of reserved replicas for these hours, and what it costs a day beside the two extremes.

    Prices in USD per replica and hour. The k-th replica pays as a reserved one where it is needed in a larger share of
    the hours than reserved / on_demand, which is the newsvendor's rule (Arrow, Harris and Marschak, Econometrica 1951).
    """

    def cost(count: int) -> float:
        more = sum(max(0, n - count) for n in replicas)
        return (count * reserved * len(replicas) + more * on_demand) * 24 / len(replicas)

    best = min(range(max(replicas) + 1), key=cost)
    return {"reserved": best, "most": max(replicas), "usd_per_day": cost(best),
            "usd_per_day_on_demand": cost(0), "usd_per_day_reserved": cost(max(replicas))}  # fmt: skip


def bought(hours: Sequence[Sequence[Pair]], reserved: float, on_demand: float, spot: float) -> dict[str, Any]:
    """The cheapest number of reserved replicas where each hour takes one of several fleets, and what a day then costs
    beside the ways to pay without one or two of the three.

    Prices in USD per replica and hour. The first fleet of an hour has no spot replicas. Of `count` reserved ones an
    hour costs the least of all its fleets: the owned replicas beyond them on demand, the others on spot capacity.
    """

    def fleet(fleets: Sequence[Pair], count: int) -> Pair:
        return min(fleets, key=lambda pair: (max(0, pair[0] - count) * on_demand + pair[1] * spot, pair[1]))

    def cost(count: int, choices: Sequence[Sequence[Pair]]) -> float:
        chosen = [fleet(fleets, count) for fleets in choices]
        more = sum(max(0, owned - count) * on_demand + lent * spot for owned, lent in chosen)
        return (count * reserved * len(hours) + more) * 24 / len(hours)

    owned_only = [fleets[:1] for fleets in hours]
    counts = range(max(pair[0] for fleets in hours for pair in fleets) + 1)
    best = min(counts, key=lambda count: cost(count, hours))
    two = min(counts, key=lambda count: cost(count, owned_only))
    taken = [fleet(fleets, best) for fleets in hours]
    alone = [fleet(fleets, 0) for fleets in hours]
    return {
        "hours": [{"reserved": best, "on_demand": max(0, owned - best), "spot": lent} for owned, lent in taken],
        "ways": [
            _way("on demand", owned_only, 0, cost(0, owned_only)),
            _way("reserved and on demand", owned_only, two, cost(two, owned_only)),
            _way("spot and on demand", [[pair] for pair in alone], 0, cost(0, hours)),
            _way("reserved, on demand and spot", [[pair] for pair in taken], best, cost(best, hours)),
        ],
    }


def _way(name: str, hours: Sequence[Sequence[Pair]], reserved: int, usd: float) -> dict[str, Any]:
    """One way to pay: replicas reserved, the most of the others in an hour, their hours a day, and USD a day."""
    more, lent = ([max(0, fleets[0][0] - reserved) for fleets in hours], [fleets[0][1] for fleets in hours])
    day = 24 / len(hours)
    return {"way": name, "reserved": reserved, "on_demand": max(more), "spot": max(lent),
            "on_demand_hours": sum(more) * day, "spot_hours": sum(lent) * day, "usd_per_day": usd}  # fmt: skip

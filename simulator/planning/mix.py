"""A fleet resized by the hour and paid for in two ways: some replicas reserved for every hour, the rest on demand."""

from collections.abc import Sequence
from typing import Any


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

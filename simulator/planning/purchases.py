"""A day of traffic paid for in three ways at once: reserved replicas, others by the hour, and some on spot capacity.

Which fleets keep the limits in an hour is simulated: the hour's requests on so many owned and spot replicas, all up at
its beginning, spot ones taken back as the plan says. What is bought of them is arithmetic (planning.mix): reserved
replicas are paid for every hour, and in each hour the fleet is taken that costs least beside them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulator.errors import ConfigError
from simulator.planning.candidate import Candidate
from simulator.planning.mix import Pair, bought
from simulator.planning.search import Search
from simulator.planning.ways import SPOT

EXTRA: Final = 3
"""A fleet with spot replicas has at most so many more than one without in the same hour."""


@dataclass(frozen=True)
class Purchases:
    """Fleets of one candidate, hour by hour, at `rate` times the workload's traffic and steps slower by `error`."""

    search: Search
    candidate: Candidate
    rate: float
    error: float

    def day(
        self, hours: Sequence[tuple[int, int]], need: Sequence[int], count: int, reserved: float, on_demand: float
    ) -> dict[str, Any] | None:
        """What to buy for `count` hours, those without requests as well; `hours` are rows of the trace, `need` the
        replicas that each takes without spot capacity. Prices in USD per replica and hour. None where the plan has no
        spot capacity, or no price of it for this GPU."""
        asked = self.search.spec.spot
        price = asked.price(self.candidate.gpu) if asked else None
        if price is None:
            return None
        fleets = [self.fleets(rows, least) for rows, least in zip(hours, need, strict=True)]
        fleets += [[(1, 0)]] * (count - len(fleets))
        return bought(fleets, reserved, on_demand, price * self.candidate.gpus)

    def fleets(self, rows: tuple[int, int], least: int) -> list[Pair]:
        """(owned, spot) of the fleets that keep every limit by the mean in one hour: without spot capacity, and with
        the fewest spot replicas for every smaller number of owned ones.

        With fewer owned replicas at the same size no level is better, so the first number without one ends the search.
        """
        assert self.search.spec.spot is not None
        share, found = self.search.spec.spot.share, [(least, 0)]
        for owned in range(least - 1, -1, -1):
            most = math.floor(share / (1 - share) * owned + 1e-9) if share < 1 else least + EXTRA
            counts = range(least - owned, min(most, least + EXTRA - owned) + 1)
            lent = next((n for n in counts if self._holds(rows, owned, n)), None)
            if lent is None:
                break
            found.append((owned, lent))
        return found

    def _holds(self, rows: tuple[int, int], owned: int, lent: int) -> bool:
        try:
            return self.search.judged(self.candidate, owned + lent, self.rate, 1 + self.error, rows=rows, whole=True,
                                      count=self.search.fewest(self.candidate), way=(SPOT, float(lent))).holds
        except ConfigError:  # an hour without a request that a level is about
            return False

"""A scenario's requests offered at any rate, to any number of replicas, the same ones each time."""

import functools
from typing import Any

from simulator.errors import ConfigError
from simulator.planning.traffic import Traffic, at_rate, mean_rate
from simulator.scenario.spec import Scenario
from simulator.workload.build import build_trace
from simulator.workload.generate import Generated
from simulator.workload.trace import Trace


class Offered:
    """Traces of one scenario by rate [requests/s] and replication.

    A generated workload is drawn at that rate, as `servecast run --set workload.arrivals.rate=...` does; requests that
    are written down, and a day's curve of points, arrive as many times as fast. Replication k draws the same random
    numbers at every rate.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario.updated({"load": {"kind": "open"}})
        self.traffic = Traffic(self.scenario)
        workload = scenario.parsed_workload()
        self._drawn = isinstance(workload, Generated) and workload.arrivals.rate is not None
        self._counted = isinstance(workload, Generated) and workload.arrivals.requests is not None
        own = workload.arrivals.rate if isinstance(workload, Generated) else None
        self.rate: float = self._measured() if own is None else own
        self.at = functools.lru_cache(maxsize=8)(self._at)

    @property
    def replicable(self) -> bool:
        """Whether another replication is another trace."""
        return self.traffic.replicable

    @property
    def grows(self) -> bool:
        """Whether more replicas can be given more requests; a recorded trace holds what it holds."""
        return self._drawn

    def _measured(self) -> float:
        rate = mean_rate(self.traffic.trace(0))
        if rate <= 0:
            raise ConfigError(
                f"{self.scenario.name}: its requests arrive all at once, so there is no rate to change; accepted: "
                "arrivals spread over time, or --concurrency"
            )
        return rate

    def _at(self, rate: float, replication: int, size: float = 1.0) -> Trace:
        """Requests at `rate`; `size` times as many where they are drawn."""
        if not self._drawn:
            return at_rate(self.traffic.trace(replication), rate / self.rate)
        changes: dict[str, Any] = {"workload.arrivals.rate": float(rate)}
        if self._counted and size != 1.0:
            changes["workload.arrivals.requests"] = round(self.scenario.workload["arrivals"]["requests"] * size)
        drawn = self.scenario.updated(changes)
        return build_trace(drawn.parsed_workload(), drawn.seed, replication, drawn.base)

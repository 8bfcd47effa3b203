"""The recommended fleet against two others that a plan may ask for: autoscaled, and partly on spot capacity.

Both are simulated whole, on the same requests, and count only where every level is met as the fixed fleet meets it: by
its whole interval, with step times slower by the profile's error. Cost is that of replicas from their order to their
release, in the time from the first arrival to the last answer. Where replicas may fail (`survive`), the autoscaled
fleet also meets the levels after the loss of so many in its busiest time (planning/loss.py).
"""

import math
from dataclasses import dataclass
from typing import Any, Final

from simulator.errors import ServecastError
from simulator.planning.edge import find_edge
from simulator.planning.flexible import ROOM
from simulator.planning.loss import lost_of_scaled
from simulator.planning.passing import by_mean, excess, surely
from simulator.planning.price import Fleet, price_of
from simulator.planning.search import Search
from simulator.planning.statistics import Judgement, level_rows, reason
from simulator.planning.ways import AUTOSCALED, SPOT, Way
from simulator.text import bounded

TARGET_STEP: Final = 0.1
"""Targets are searched to this relative accuracy."""
WIDEST: Final = 64.0
"""Targets tried are within this factor of the first one."""
SAFER: Final = 0.85
"""A target whose interval does not clear every limit is lowered by this factor, TRIES times at most."""
TRIES: Final = 4
LOSSES: Final = 10
"""Targets of which the loss is simulated, each SAFER times the one before."""
EXTRA: Final = 3
"""A fleet with spot replicas has at most so many more than the fixed one."""
MOST_SPOT: Final = 8
"""Fleets with spot replicas that are tried, the cheapest first."""


@dataclass(frozen=True)
class Alternatives:
    """Tries other fleets of the recommended candidate, at `rate` times the workload's traffic."""

    search: Search
    fleet: Fleet
    rate: float
    error: float

    def autoscaled(self) -> dict[str, Any] | None:
        """The largest target with which every level is met, and what that costs; None where it is not asked for."""
        spec = self.search.spec
        asked = spec.autoscale
        if asked is None:
            return None
        most = max(ROOM * self.fleet.serving, self.fleet.replicas, asked.min)
        row: dict[str, Any] = {
            "formula": asked.formula, "forecast": asked.forecast is not None, "metric": asked.metric,
            "min": asked.min, "most": most, "start_s": asked.start.total_s, "holds": False, "target": None,
            "tried": [], "reason": "", "loss": None,
        }  # fmt: skip
        try:
            target, judged = self._target(most, row["tried"])
            if self.fleet.spare and surely(judged):
                row["loss"] = self._surviving(most, target)
                target = row["loss"]["target"]
                judged = self._sure(most, target)
        except ServecastError as error:
            return row | {"reason": str(error)}
        row |= {"target": target, "levels": level_rows(judged)}
        if not surely(judged):
            return row | {"reason": reason(judged, self.error)}
        if row["loss"] and not row["loss"]["holds"]:
            return row | {"reason": _after(row["loss"])}
        nominal = self._judged(most, (AUTOSCALED, target), 1.0)
        return row | {"holds": True, "levels": level_rows(nominal), **self._cost(nominal)}

    def _target(self, most: int, tried: list[dict[str, Any]]) -> tuple[float, Judgement]:
        """The largest target that is sure, from one that is so by the mean of one look; the last one tried if none."""
        asked = self.search.spec.autoscale
        assert asked is not None and asked.target is not None
        slow = 1 + self.error
        target = asked.target
        if asked.searched:
            start = self._first_target(asked.metric or "")

            def at(value: float) -> float:
                judged = self._judged(most, (AUTOSCALED, value), slow, 1)
                tried.append({"target": value, "holds": judged.holds, "replica_hours": _mean(judged, "replica_hours")})
                return excess(judged, by_mean)

            highest = min(start * WIDEST, 1.0) if asked.metric == "kv" else start * WIDEST
            edge = find_edge(at, min(start, highest), lowest=start / WIDEST, highest=highest, step=TARGET_STEP,
                             first=1.4)  # fmt: skip
            target = edge.passes or start / WIDEST
        for _ in range(TRIES if asked.searched else 1):
            judged = self._sure(most, target)
            if surely(judged):
                break
            target *= SAFER
        return target, judged

    def _sure(self, most: int, target: float) -> Judgement:
        slow = 1 + self.error
        return self.search.verdict(self.fleet.candidate, most, self.rate, slow, way=(AUTOSCALED, target))

    def _surviving(self, most: int, target: float) -> dict[str, Any]:
        """The loss at the largest target up to this one with which every level is met after it; at the last one tried
        if there is none. A target that was given is not lowered."""
        asked = self.search.spec.autoscale
        assert asked is not None
        loss = lost_of_scaled(self.search, self.fleet, self.rate, most, target, 1 + self.error)
        for _ in range(LOSSES - 1 if asked.searched else 0):
            if loss["holds"]:
                break
            target *= SAFER
            loss = lost_of_scaled(self.search, self.fleet, self.rate, most, target, 1 + self.error)
        return loss

    def _first_target(self, metric: str) -> float:
        """Where the search begins: what a replica of the fixed fleet has on average."""
        judged = self.search.judged(self.fleet.candidate, self.fleet.serving, self.rate, count=1)
        record = judged.records[0]
        limits = self.search.runner.bench.setup(self.fleet.candidate).limits
        running = record["slots_mean"] * limits.max_num_seqs
        waiting = record["waiting_mean"]
        first = {"running": running, "requests": running + waiting, "waiting": max(1.0, waiting),
                 "kv": record["kv_mean"], "ttft": record["values"]["ttft * mean"]}[metric]  # fmt: skip
        return float(max(first, 1e-3))

    def spot(self) -> dict[str, Any] | None:
        """The cheapest fleet with spot replicas that meets every level; None where it is not asked for."""
        asked, candidate = self.search.spec.spot, self.fleet.candidate
        if asked is None:
            return None
        price = asked.price(candidate.gpu)
        row: dict[str, Any] = {"share": asked.share, "reclaims_per_hour": asked.reclaims_per_hour, "holds": False,
                               "price": price, "owned": 0, "spot": 0, "tried": [], "reason": ""}  # fmt: skip
        if price is None:
            return row | {"reason": f"spot.prices has no price for {candidate.gpu}"}
        failed: list[tuple[int, int]] = []
        for owned, lent, usd in self._mixes(asked.share, price):
            if any(owned <= a and lent <= b for a, b in failed):
                continue
            if len(row["tried"]) == MOST_SPOT:
                break
            try:
                way = (SPOT, float(lent))
                judged = self.search.verdict(candidate, owned + lent, self.rate, 1 + self.error, way=way)
            except ServecastError as error:
                return row | {"reason": str(error)}
            holds = surely(judged)
            why = "" if holds else reason(judged, self.error)
            row["tried"].append({"owned": owned, "spot": lent, "usd_per_hour": usd, "holds": holds, "reason": why})
            if holds:
                nominal = self._judged(owned + lent, (SPOT, float(lent)), 1.0)
                return row | {"holds": True, "owned": owned, "spot": lent, "levels": level_rows(nominal),
                              "usd_per_hour": usd, "saving_pct": 100 * (1 - usd / self.fleet.usd_per_hour)}  # fmt: skip
            failed.append((owned, lent))
        tried = row["tried"]
        return row | {"reason": tried[-1]["reason"] if tried else "no such fleet is cheaper than the fixed one"}

    def _mixes(self, share: float, spot_price: float) -> list[tuple[int, int, float]]:
        """(owned, spot replicas, USD/h) of every fleet that is cheaper than the fixed one, the cheapest first."""
        each = self.fleet.candidate.gpus
        own = price_of(self.search.spec, self.fleet.candidate.gpu).usd_per_hour * each
        found = []
        for size in range(self.fleet.serving, self.fleet.serving + EXTRA + 1):
            for lent in range(1, math.floor(share * size + 1e-9) + 1):
                usd = (size - lent) * own + lent * spot_price * each
                if usd < self.fleet.usd_per_hour:
                    found.append((size - lent, lent, usd))
        return sorted(found, key=lambda mix: mix[2])

    def _judged(self, replicas: int, way: Way, factor: float, count: int | None = None) -> Judgement:
        return self.search.judged(self.fleet.candidate, replicas, self.rate, factor, count=count, whole=True, way=way)

    def _cost(self, judged: Judgement) -> dict[str, Any]:
        """Replica hours against those of the fixed fleet in the same time, and what they cost an hour."""
        each = self.fleet.usd_per_hour / self.fleet.replicas
        hours, span = _mean(judged, "replica_hours"), _mean(judged, "fleet_hours")
        usd = hours * each / span
        return {
            "replica_hours": hours,
            "fixed_replica_hours": self.fleet.replicas * span,
            "mean_replicas": hours / span,
            "usd_per_hour": usd,
            "saving_pct": 100 * (1 - usd / self.fleet.usd_per_hour),
        }


def _after(loss: dict[str, Any]) -> str:
    """What is over its limit after the loss."""
    over = ", ".join(f"{level['name']} {bounded(level['value'])} > {bounded(level['limit'])}"
                     for level in loss["levels"] if not level["holds"])  # fmt: skip
    return f"in the {loss['after_s']:g} s after the loss of {loss['replicas']}: {over}"


def _mean(judged: Judgement, key: str) -> float:
    records = [record for record in judged.records if not record["idle"]]
    return float(sum(record[key] for record in records) / max(1, len(records)))

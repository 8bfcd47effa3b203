"""Who was in the fleet when, and what it cost: replica hours from the order of a replica to its release."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.engines.members import ABSENT, STARTING, STATES, UP
from simulator.result import Result
from simulator.units import NS_PER_S

Int64s = npt.NDArray[np.int64]
HOUR_NS: Final = 3600 * NS_PER_S


@dataclass(frozen=True)
class Stays:
    """Replicas in their states over [start, end), one row each, (M,); of the time looked at."""

    replica: Int64s
    state: Int64s
    start: Int64s  # [tick]
    end: Int64s    # [tick]

    def spent(self, state: int) -> int:
        """[ns] in a state, summed over the replicas."""
        rows = self.state == state
        return int((self.end[rows] - self.start[rows]).sum())


def stays(result: Result, begin: int, end: int) -> Stays:
    """What each replica was in [begin, end) ticks: in service where nothing else is told."""
    count = len(result.totals)
    rows = np.zeros((0, 3), dtype=np.int64)
    if result.fleet is not None:
        told = result.fleet[result.fleet["replica"] >= 0]
        rows = np.stack([told["replica"], told["tick"], told["state"]], axis=1)
    at_first = np.stack([np.arange(count), np.full(count, -1), np.full(count, UP)], axis=1)
    rows = np.concatenate([at_first, rows])
    rows = rows[np.argsort(rows[:, 0], kind="stable")]  # those of a replica are in order of time
    last = np.append(rows[1:, 0] != rows[:-1, 0], True)
    until = np.where(last, end, np.append(rows[1:, 1], end))
    start, stop = np.clip(rows[:, 1], begin, end), np.clip(until, begin, end)
    kept = stop > start
    return Stays(rows[kept, 0], rows[kept, 2], start[kept], stop[kept])


def paid_ns(result: Result, begin: int, end: int) -> int:
    """[ns] of replicas that were ordered and not yet released, in [begin, end) ticks."""
    return (end - begin) * len(result.totals) - stays(result, begin, end).spent(ABSENT)


def usd_per_replica_hour(result: Result) -> float:
    """The profile's example price of the GPUs of a replica."""
    return result.setup.gpu.price_usd_h * result.setup.scenario.hardware.gpus


def cost_usd(result: Result, parts: list[Result], begin: int, span: int) -> float:
    """What the replicas cost in the `span` ns from tick `begin`; `parts` are the pools, or the run alone."""
    each = parts or [result]
    return float(sum(paid_ns(part, begin, begin + span) / HOUR_NS * usd_per_replica_hour(part) for part in each))


def fleet(result: Result, parts: list[Result], begin: int, span: int) -> dict[str, Any]:
    """Replica hours by state, what was ordered and released, and the cost; `parts` are the pools, or the run alone."""
    found, end = stays(result, begin, begin + span), begin + span
    paid = paid_ns(result, begin, end)
    usd = cost_usd(result, parts, begin, span)
    fixed = sum(span * len(part.totals) / HOUR_NS * usd_per_replica_hour(part) for part in parts)
    tokens = int(result.totals["output"].sum()) - int(result.totals["failed_tokens"].sum())
    counts = _paid_replicas(found, begin, end)
    ordered = 0
    if result.fleet is not None:
        ordered = int(((result.fleet["replica"] >= 0) & (result.fleet["state"] == STARTING)).sum())
    return {
        "replica_hours": paid / HOUR_NS,
        "hours": {name: found.spent(code) / HOUR_NS for code, name in enumerate(STATES) if code != ABSENT},
        "mean_replicas": paid / span if span else None,
        "peak_replicas": int(counts.max(initial=0)),
        "least_replicas": int(counts.min(initial=len(result.totals))) if counts.size else 0,
        "replicas_started": ordered,
        "usd": usd,
        "usd_fixed": fixed,
        "usd_per_million_output_tokens": usd / tokens * 1e6 if tokens else None,
        "price": "example of the GPU's profile" if result.setup.gpu.name != "unit" else "1 USD/h by definition",
    }


def _paid_replicas(found: Stays, begin: int, end: int) -> Int64s:
    """Replicas paid for from `begin` and from every change after it, up to `end` [tick]."""
    rows = found.state != ABSENT
    ticks = np.concatenate([[begin, end], found.start[rows], found.end[rows]])
    ones = np.ones(rows.sum(), dtype=np.int64)
    change = np.concatenate([np.zeros(2, dtype=np.int64), ones, -ones])
    order = np.argsort(ticks, kind="stable")
    ticks, level = ticks[order], np.cumsum(change[order])
    last = np.append(ticks[1:] > ticks[:-1], True)
    return np.asarray(level[last][:-1])

"""The recommended fleet on the other shipped hosts: how many replicas of the same kind the same traffic then takes.

Launches wait for the CPU, and hosts of equal GPUs differ in it by a factor of two and more (hwprofiles/host), which no
margin on step times has in. A number is decided on as that of the plan is: whole fleets, steps slower by the same
error. On a slower host it is looked for from the recommended number up, on a faster one down.
"""

from collections.abc import Callable
from typing import Any

from simulator.planning.price import Fleet, pools_of, usd_of
from simulator.planning.search import Search
from simulator.planning.statistics import finite
from simulator.planning.ways import Way
from simulator.profiles.host import Host, list_hosts
from simulator.scenario.setup import Setup
from simulator.text import verb


def on_other_hosts(search: Search, fleet: Fleet, rate: float, error: float) -> list[dict[str, Any]]:
    """A row a shipped host, fastest first, the plan's own included: host, cpu_scale, mark, planned (whether it is the
    plan's), replicas with the spares (null: no allowed number does, and `reason` says why), usd_per_hour.

    Empty where the plan has a host of the user's own, and for a textbook's step times, which have none.
    """
    own, others = _hosts(search.runner.bench.setup(fleet.candidate))
    rows = [_row(search, fleet, own, fleet.serving, "", True)] if others else []
    for host in others:
        serving, why = _needed(search, fleet, rate, error, host.cpu_scale / own.cpu_scale)
        rows.append(_row(search, fleet, host, serving, why, False))
    return sorted(rows, key=lambda row: float(row["cpu_scale"]))


def carried_on_hosts(setup: Setup, moved: Callable[[Way], float]) -> list[dict[str, Any]]:
    """A row a shipped host as in on_other_hosts, with `factor`: how many times as much the same fleet carries there,
    from how far its wall is `moved`; null = there is no wall."""
    own, others = _hosts(setup)
    rows = [_named(own, True) | {"factor": 1.0}] if others else []
    for host in others:
        factor = moved(("host time", host.cpu_scale / own.cpu_scale))
        rows.append(_named(host, False) | {"factor": finite(factor)})
    return sorted(rows, key=lambda row: float(row["cpu_scale"]))


def _hosts(setup: Setup) -> tuple[Host, list[Host]]:
    """The host of a setup, and the shipped ones that are others; none where it is the user's own, or a textbook's."""
    own = setup.host
    if own.known or setup.gpu.name == "unit":
        return own, []
    return own, [host for host in list_hosts() if host.times == own.times and host.cpu_scale != own.cpu_scale]


def _named(host: Host, planned: bool) -> dict[str, Any]:
    return {"host": host.name, "cpu_scale": host.cpu_scale, "mark": host.mark, "planned": planned}


def _needed(search: Search, fleet: Fleet, rate: float, error: float, times: float) -> tuple[int | None, str]:
    """Fewest serving replicas where the CPU takes so many `times` as long; None, and why, where none allowed does."""
    candidate, way, slow = fleet.candidate, ("host time", times), 1 + error
    allowed = candidate.counts(search.spec)
    if times < 1:
        fewer = [n for n in allowed if n < fleet.serving]
        found = search.smallest(candidate, fewer, rate, slow, fewer[-1], way=way) if fewer else None
        return found or fleet.serving, ""
    more = [n for n in allowed if n >= fleet.serving]
    if not search.judged(candidate, fleet.serving, rate, slow, count=1, way=way).holds:
        never = search.never(candidate, more[-1], rate, 0, error, way)
        if never is not None:
            return None, never.reason
    found = search.smallest(candidate, more, rate, slow, fleet.serving, way=way)
    most = candidate.said(more[-1], " replicas")
    return found, "" if found else f"{most} {verb(more[-1], 'is', 'are')} the most allowed, and not enough"


def _row(search: Search, fleet: Fleet, host: Host, serving: int | None, why: str, planned: bool) -> dict[str, Any]:
    replicas = None if serving is None else serving + fleet.spare
    return {
        **_named(host, planned), "replicas": replicas,
        **({} if replicas is None else pools_of(search.spec, fleet.candidate, replicas)),
        "usd_per_hour": None if replicas is None else usd_of(search.spec, fleet.candidate, replicas), "reason": why,
    }  # fmt: skip

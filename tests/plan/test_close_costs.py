"""Fleets whose cost is near the cheapest one's are named beside it."""

from types import SimpleNamespace
from typing import Any

from simulator.planning.plan import _ties


def fleet(label: str, usd: float, spread: float = 0.0, kind: str = "a") -> Any:
    fleet = SimpleNamespace(candidate=SimpleNamespace(label=label, kinds=kind), usd_per_hour=usd,
                            usd_range=(usd * (1 - spread), usd * (1 + spread)))
    return SimpleNamespace(fleet=fleet)


def test_a_fleet_that_costs_a_cent_more_is_named() -> None:
    """10.76 and 10.77 USD/h, which no error of the profiles would turn round."""
    (line,) = _ties([fleet("4 H100", 10.76), fleet("3 H200", 10.77, kind="b"), fleet("L40S", 12.0, kind="c")])
    assert "3 H200 (10.77 USD/h)" in line and "10.76" in line and "prices" in line and "L40S" not in line


def test_what_cannot_be_told_apart_is_not_named_twice() -> None:
    lines = _ties([fleet("4 H100", 10.0, 0.1), fleet("3 H200", 10.1, 0.1, kind="b")])
    assert len(lines) == 1 and "cannot be told apart" in lines[0]


def test_one_fleet_has_no_equals() -> None:
    assert _ties([fleet("4 H100", 10.0)]) == _ties([]) == ()

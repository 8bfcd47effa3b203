"""Fleets whose cost is near the cheapest one's are named beside it."""

from types import SimpleNamespace
from typing import Any

from simulator.planning.ties import carried_ties, cost_ties, equal_costs, worst_ties


def fleet(label: str, usd: float, spread: float = 0.0, kind: str = "a") -> Any:
    return SimpleNamespace(candidate=SimpleNamespace(label=label, kinds=kind), usd_per_hour=usd,
                           usd_range=(usd * (1 - spread), usd * (1 + spread)))


def test_a_fleet_that_costs_a_cent_more_is_named() -> None:
    """10.76 and 10.77 USD/h, which no error of the profiles would turn round."""
    (line,) = cost_ties([fleet("4 H100", 10.76), fleet("3 H200", 10.77, kind="b"), fleet("L40S", 12.0, kind="c")])
    assert "3 H200 (10.77 USD/h)" in line and "10.76" in line and "prices" in line and "L40S" not in line


def test_what_cannot_be_told_apart_is_not_named_twice() -> None:
    lines = cost_ties([fleet("4 H100", 10.0, 0.1), fleet("3 H200", 10.1, 0.1, kind="b")])
    assert len(lines) == 1 and "cannot be told apart" in lines[0]


def test_one_fleet_has_no_equals() -> None:
    assert cost_ties([fleet("4 H100", 10.0)]) == cost_ties([]) == ()


def test_the_next_is_named_where_the_order_is_shown() -> None:
    (line,) = cost_ties([fleet("4 H100", 10.0, 0.1), fleet("L40S", 13.0, 0.1, kind="c")])
    assert line == "L40S comes next in cost, with 13.00 USD/h: it is dearer whatever the profiles' error"


def row(label: str, carries: float | None, low: float = 0.0, high: float | None = None) -> dict[str, Any]:
    return {"label": label, "carries": carries, "wall": True, "low": low, "high": high}


def test_what_fleets_carry_is_told_apart_as_their_cost_is() -> None:
    """One GPU errs alike at both ends, so ranges that overlap still have an order there; two GPUs have none."""
    known: Any = {name: SimpleNamespace(kinds=name[0]) for name in ("a1", "a2", "b1")}
    best = row("a1", 20.0, 18.0, 22.0)
    assert carried_ties([best, row("a2", 17.0, 15.5, 19.0)], known) == (
        "a2 comes next, with 17 requests/s (15.5 to 19): it carries less whether steps are slower or faster than "
        "predicted",)
    assert "cannot be told apart" in carried_ties([best, row("a2", 19.0, 17.0, 22.5)], known)[0]
    assert carried_ties([best, row("b1", 17.0, 15.5, 19.0)], known)[0].startswith(
        "a1 (18 to 22 requests/s) and b1 (15.5 to 19 requests/s) cannot be told apart")
    (line,) = carried_ties([best, row("a2", 19.5, 17.5, 21.5)], known)
    assert line == "Less than 3 % below the 20 requests/s of the best: a2 (19.5 requests/s)"
    assert carried_ties([best, row("a2", None)], known) == ()


def test_worst_levels_that_are_nearly_equal_are_named() -> None:
    rows = [{"label": "a", "worst": 0.5}, {"label": "b", "worst": 0.51}, {"label": "c", "worst": 0.6}]
    assert worst_ties(rows) == ("Less than 3 % above the best's worst level, 50 % of its limit: b (51 %)",)
    assert worst_ties(rows[::2]) == worst_ties([]) == ()


def test_equal_costs_are_said_to_be_in_the_order_of_the_plan() -> None:
    """Four replicas of two GPUs and two of four: nothing but the order of the candidates parts them; a fleet of other
    cost or of other GPUs is not named."""
    first, second, dearer, more = (SimpleNamespace(candidate=SimpleNamespace(label=label), usd_per_hour=usd, gpus=gpus)
                                   for label, usd, gpus in (("a", 8.0, 8), ("b", 8.0, 8), ("c", 8.1, 8), ("d", 8.0, 9)))
    fleets: Any = [first, second, dearer, more]
    (line,) = equal_costs(fleets)
    assert line.startswith("b costs the same") and "a stands first only" in line
    assert equal_costs([fleets[0], *fleets[2:]]) == () and equal_costs([]) == ()

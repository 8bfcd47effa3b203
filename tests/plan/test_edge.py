"""The search for the edge finds roots known beforehand, and needs fewer points than halving would."""

import math
from collections.abc import Callable

import pytest

from simulator.planning.edge import find_edge


def wall(at: float) -> Callable[[float], float]:
    """1 / (1 - rate / capacity) against five times its idle value: crosses at 0.8 of the capacity, infinite beyond."""
    capacity = at / 0.8
    return lambda rate: math.inf if rate >= capacity else math.log(1 / (1 - rate / capacity) / 5)


SHAPES = {
    "queue": wall,
    "straight": lambda at: lambda rate: math.log(rate / at),
    "cliff": lambda at: lambda rate: -3.0 if rate < at else math.inf,
    "steep": lambda at: lambda rate: 40 * math.log(rate / at),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("root", [0.7, 5.9, 6.0, 6.1, 14.2, 333.0])
def test_the_bracket_holds_the_root_and_is_narrow(shape: str, root: float) -> None:
    excess = SHAPES[shape](root)
    tried: list[float] = []

    def counted(rate: float) -> float:
        tried.append(rate)
        return excess(rate)

    edge = find_edge(counted, 6.0, lowest=0.01, highest=1e5, step=0.01)
    assert edge.passes <= root * (1 + 1e-12) and root * (1 - 1e-12) <= edge.fails
    assert edge.fails / edge.passes <= 1.01
    assert {edge.passes, edge.fails} <= set(tried)  # both ends were seen
    assert len(tried) == len(set(tried))


def halving(excess: Callable[[float], float], start: float) -> int:
    """Points that it takes without secants: down by two, up by the same steps, then the middle."""
    points, low, high, at, factor = 0, 0.0, math.inf, start, 1.15
    while low == 0 or math.isinf(high):
        points += 1
        if excess(at) <= 0:
            low, at, factor = at, at * factor, min(2.0, 1.1 * factor * factor)
        else:
            high, at = at, at / 2
    while high / low > 1.01:
        points += 1
        middle = math.sqrt(low * high)
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    return points


@pytest.mark.parametrize("shape", ["queue", "straight", "steep"])
def test_secants_need_fewer_points_than_halving(shape: str) -> None:
    """Over roots from a tenth to ten times the start."""
    spent = {"secants": 0, "halving": 0}
    for k in range(41):
        excess = SHAPES[shape](6.0 * 10 ** (k / 20 - 1))
        tried: list[float] = []

        def counted(rate: float, excess: Callable[[float], float] = excess, tried: list[float] = tried) -> float:
            tried.append(rate)
            return excess(rate)

        find_edge(counted, 6.0, lowest=0.01, highest=1e5, step=0.01)
        spent["secants"] += len(tried)
        spent["halving"] += halving(excess, 6.0)
    assert spent["secants"] < spent["halving"], spent


def test_no_edge_above_and_none_below() -> None:
    assert find_edge(lambda rate: -1.0, 6.0, lowest=0.1, highest=100.0).fails == math.inf
    none = find_edge(lambda rate: 1.0, 6.0, lowest=0.1, highest=100.0)
    assert none.passes == 0.0 and none.fails == 0.1

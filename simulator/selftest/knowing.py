"""What routers and policies of drawn cases know."""

from typing import Any

from policies.registry import ASKS, POLICIES
from simulator.engines.signals import Knows


def some_knowledge(choose: Any, router: str, prefix: int, tick: int) -> Knows:
    """A router that sees all, or looks now and then; that knows the caches, or what it sent where."""
    stale = choose.among(0, 0, 0, 3, 20) * tick
    if router != "prefix_aware" or not prefix:
        return Knows(stale)
    return Knows(stale, True, choose.among(0, 0, 3, 20), choose.among(0, 500), choose.among(0, 1, 32), 1100)


def some_asks(choose: Any, policy: str, sheds: int, n: int, tick: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The columns that the policy needs, or who sheds by priority: few values, so that many are equal."""
    low, most = {"priority": -1}, {"priority": 3, "tenant": 2, "predicted": 9, "target": 9 * tick, "joins": 2}
    return tuple((name, tuple(choose.numbers(n, low.get(name, 0), choose.among(1, most[name]))))
                 for name in ASKS if name in POLICIES[policy].needs or (sheds and name == "priority"))

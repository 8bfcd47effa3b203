"""What the routers of drawn cases know."""

from typing import Any

from simulator.engines.signals import Knows


def some_knowledge(choose: Any, router: str, prefix: int, tick: int) -> Knows:
    """A router that sees all, or looks now and then; that knows the caches, or what it sent where."""
    stale = choose.among(0, 0, 0, 3, 20) * tick
    if router != "prefix_aware" or not prefix:
        return Knows(stale)
    return Knows(stale, True, choose.among(0, 0, 3, 20), choose.among(0, 500), choose.among(0, 1, 32), 1100)

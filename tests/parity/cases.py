"""Drawn simulations for the tests: by hypothesis, which shrinks what fails, and uniform from a seed."""

from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st

from simulator.selftest.cases import Case, Uniform, as_told, differences, job, outcome, ran, run, some_case

__all__ = ["COMMON", "SEEDS", "Case", "as_told", "cases", "differences", "job", "outcome", "ran", "run"]

COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
"""Settings of hypothesis: simulations have no deadline, and drawing them is slow."""
SEEDS = st.integers(0, 2**40)


class Shrinking:
    """Numbers drawn by hypothesis: favours extremes and repeats, and a failure shrinks to a small case."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def among(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def numbers(self, n: int, low: int, high: int) -> list[int]:
        return list(self.draw(st.lists(st.integers(low, high), min_size=n, max_size=n)))


@st.composite
def _shrinking(draw: Any, given: dict[str, Any], most: int) -> Case:
    return some_case(Shrinking(draw), given, most)


def cases(ahead: int | None = None, most: int = 20, policies: tuple[str, ...] = (),
          fixed: dict[str, Any] | None = None) -> st.SearchStrategy[Case]:
    """Cases of both kinds, of any of the `policies` (default: of all); `fixed` are rows of the table not drawn."""
    given: dict[str, Any] = (fixed or {}) | ({} if ahead is None else {"schedule_ahead": ahead})

    def of(given: dict[str, Any]) -> st.SearchStrategy[Case]:
        return st.one_of(_shrinking(given, most), SEEDS.map(lambda seed: some_case(Uniform(seed), given, most)))

    return st.one_of(*(of(given | {"policy": name}) for name in policies)) if policies else of(given)

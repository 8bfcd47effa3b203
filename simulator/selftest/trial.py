"""One seed tried: its case run with and without leaps, some on SimPy too, against each other and the invariants."""

from collections.abc import Callable, Iterator
from typing import Final

from simulator.selftest.cases import Case, Uniform, outcome, run, some_case, unlike
from simulator.selftest.fleets import changing, handing_over, unlike_pools
from simulator.selftest.invariants import broken
from simulator.selftest.mixed import mixed

SIMPY_EACH: Final = 10
"""One seed in so many runs on SimPy too."""
LONG_EACH: Final = 20
"""One seed in so many has prompts and answers of up to 200 tokens."""
LONGER_EACH: Final = 500
"""One seed in so many has some of up to 3,000."""
FLEETS: Final[tuple[Callable[[int, int], Case] | None, ...]] = (None, None, unlike_pools, changing, handing_over, mixed)
"""What a case's fleet is, one of these by turns; None: replicas that are alike."""


def case_of(seed: int) -> Case:
    """The case of a seed."""
    if seed % LONGER_EACH == 7:
        return some_case(Uniform(seed), most=8, longest=3000)
    fleet, longest = FLEETS[seed // SIMPY_EACH % len(FLEETS)], 200 if seed % LONG_EACH == 3 else 25
    return fleet(seed, longest) if fleet else some_case(Uniform(seed), longest=longest)


def with_simpy(seed: int) -> bool:
    """Whether SimPy runs this seed."""
    return seed % SIMPY_EACH == 0 or seed % LONGER_EACH == 7


def faults(case: Case, simpy: bool = True) -> list[str]:
    """What is wrong with a case: columns in which engines differ, invariants broken, an exception; [] if nothing."""
    try:
        return sorted(_faults(case, simpy))
    except Exception as error:  # whatever it is, the case is kept
        return [f"{type(error).__name__}: {error}"]


def _faults(case: Case, simpy: bool) -> Iterator[str]:
    fast, plain = run(case, "fast"), run(case, "fast without leaps")
    outcomes = {"fast": outcome(fast), "fast without leaps": outcome(plain)}
    if simpy:
        outcomes["reference"] = outcome(run(case, "reference"))
    yield from unlike(outcomes)
    yield from broken(case, fast)

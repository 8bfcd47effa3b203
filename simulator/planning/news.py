"""What a long search says while it runs: what it does now, how much of its work is done, what is known so far."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from simulator.text import several

MOST: Final = 0.95
"""Share of a part that is taken as done, at most, before its end."""
INTERRUPTED: Final = "an interruption"
"""What stopped a search: Ctrl-C."""


@dataclass(frozen=True)
class News:
    """`done` is a share of the whole work, 0 to 1: parts count alike, so it is an estimate. `beside` is in words what
    no estimate counts, as an engine that is still to be compiled."""

    doing: str
    done: float
    known: str = ""
    simulated: int = 0
    beside: str = ""


Tell = Callable[[News], None]


def first_times(names: Iterable[str]) -> list[str]:
    """The names, "" where one was there before."""
    found: list[str] = []
    for name in names:
        found.append("" if name in found else name)
    return found


def minutes(engines: Sequence[str]) -> str:
    """What compiling these takes, each once; empty where there are none."""
    known = [name for name in dict.fromkeys(engines) if name]
    return f"{several(len(known), 'minute')} to compile {' and '.join(known)}" if known else ""


class Teller:
    """Keeps count of the parts of a search and tells every simulation of it; without `tell` nothing happens."""

    def __init__(self, tell: Tell | None, parts: int) -> None:
        self.parts, self.known, self.beside = max(1, parts), "", ""
        self._tell, self._doing, self._later = tell, "", ""
        self._ended = self._simulated = self._before = 0

    def begin(self, doing: str, engines: Sequence[str] = ()) -> None:
        """The part before, if any, is over; this one begins. `engines`: which are compiled before its first simulation
        ("" = none) and before those of the parts after it."""
        self._ended += bool(self._doing)
        self._doing, self._before = doing, self._simulated
        self.beside, self._later = minutes(engines), minutes(engines[1:])
        self._say()

    def count(self, simulations: int = 1) -> None:
        """So many more simulations are done."""
        self._simulated += simulations
        self.beside = self._later
        self._say()

    @property
    def done(self) -> float:
        """Share of the work; a part that runs is as far as it has simulations against the mean of those before."""
        usual = self._before / self._ended if self._ended else 0.0
        share = min(MOST, (self._simulated - self._before) / usual) if usual else 0.0
        return min(1.0, (self._ended + share) / self.parts)

    def _say(self) -> None:
        if self._tell:
            self._tell(News(self._doing, self.done, self.known, self._simulated, self.beside))

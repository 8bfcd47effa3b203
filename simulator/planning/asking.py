"""What a judgement needs to know of a question: a plan has it, and so have the levels asked of one scenario."""

from typing import Protocol

from simulator.planning.slo import SloSpec
from simulator.planning.spec import SearchSpec


class Asking(Protocol):
    """A plan (PlanSpec), or the levels of a scenario (capacity.Levels)."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def slo(self) -> SloSpec:
        """The service levels."""

    @property
    def search(self) -> SearchSpec:
        """Confidence and replications."""

    @property
    def warmup_fraction(self) -> float:
        """First share of the requests that is left out."""

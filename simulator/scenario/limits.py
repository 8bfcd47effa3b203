"""Limits on the times of one request, and limits that were likely written in another unit."""

from typing import Final

from pydantic import Field

from simulator.config import Section
from simulator.units import LONGEST_S

__all__ = ["LONGEST_S", "ODD_FROM_S", "RequestLimits", "asked_back"]

ODD_FROM_S: Final = {"ttft": 100.0, "queue": 100.0, "tpot": 5.0, "itl": 5.0, "e2e": 10_000.0}
"""[s] limits from here on read like milliseconds: nobody waits as long for a first or a next token."""


class RequestLimits(Section):
    """Limits [s] that one request must meet, all of them, to count as good. Not given = no limit."""

    ttft_s: float | None = Field(default=None, gt=0, le=LONGEST_S)
    tpot_s: float | None = Field(default=None, gt=0, le=LONGEST_S)
    e2e_s: float | None = Field(default=None, gt=0, le=LONGEST_S)
    queue_s: float | None = Field(default=None, gt=0, le=LONGEST_S)

    @property
    def limits(self) -> dict[str, float]:
        """Metric -> limit [s], those given."""
        given = {metric: getattr(self, f"{metric}_s") for metric in ("ttft", "tpot", "e2e", "queue")}
        return {metric: value for metric, value in given.items() if value is not None}


def asked_back(key: str, metric: str, value: float) -> str | None:
    """What to ask about a limit that reads like milliseconds; None when it does not."""
    if value < ODD_FROM_S[metric]:
        return None
    return (
        f"{key} is in seconds, got {value:g} s: did you mean {value / 1000:g}? "
        f"accepted: less than {ODD_FROM_S[metric]:g}"
    )

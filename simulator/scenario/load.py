"""How clients submit requests and what they do when answers are late; what the engine refuses under overload."""

from typing import Literal

from pydantic import Field, model_validator

from simulator.config import Section
from simulator.scenario.limits import LONGEST_S
from simulator.state import LARGEST_COUNT
from simulator.workload.pauses import LONGEST_S as LONGEST_PAUSE_S
from simulator.workload.pauses import Pauses

MOST = 2**40
"""Largest accepted count of requests: products with other counts stay inside int64."""


class RetrySpec(Section):
    """A client whose request was refused for overload, or who gave up, submits it again.

    The wait doubles with every attempt, up to `max_backoff_s`. As openai-python's default client (`_constants.py`:
    MAX_RETRIES 2, INITIAL_RETRY_DELAY 0.5, MAX_RETRY_DELAY 8.0), without its random part.
    """

    attempts: int = Field(default=3, ge=2, le=100, description="submissions in all")
    backoff_s: float = Field(default=0.5, ge=0, le=1e6)
    max_backoff_s: float = Field(default=8.0, ge=0, le=1e6)

    @model_validator(mode="after")
    def _consistent(self) -> "RetrySpec":
        if self.max_backoff_s < self.backoff_s:
            raise ValueError(f"max_backoff_s must be >= backoff_s, got {self.max_backoff_s:g} < {self.backoff_s:g}")
        return self


class LoadSpec(Section):
    """How clients submit. open: at the trace's times; closed: `width` clients, each with one request or
    conversation at a time; grouped: `width` at a time, the next group when every request of the last has ended."""

    kind: Literal["open", "closed", "grouped"] = "open"
    width: int = Field(default=1, ge=1, le=MOST)
    turns: Literal["as_given", "after_answer"] | None = Field(
        default=None, description="later turns of a conversation: when the trace says (default), or the client's pause "
        "after the answer before; default of generated sessions")
    think_s: float | Pauses | None = Field(
        default=None, description="the client's pause after an answer; default: the trace's delays, 0 for closed")
    ramp_s: float | None = Field(default=None, gt=0, le=1e6, description="closed: from the first client's start to the "
                                 "last one's, evenly")
    max_in_flight: int | None = Field(default=None, ge=1, le=LARGEST_COUNT, description="open: requests in flight; "
                                      "others wait at the client")
    ttft_timeout_s: float | None = Field(default=None, gt=0, le=LONGEST_S, description="the client gives up when no "
                                         "token has come by then")
    timeout_s: float | None = Field(default=None, gt=0, le=LONGEST_S, description="... when the answer is not complete")
    retry: RetrySpec | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "LoadSpec":
        if self.kind == "open" and self.width != 1:
            raise ValueError("width has no effect on an open load; it belongs to closed and grouped")
        if self.ramp_s is not None and (self.kind != "closed" or self.width == 1):
            raise ValueError("ramp_s has no effect here; it belongs to a closed load of several clients")
        if self.max_in_flight is not None and (self.kind != "open" or self.turns == "after_answer"):
            raise ValueError("max_in_flight belongs to an open load without turns: after_answer")
        if self.kind == "grouped" and (self.turns == "after_answer" or self.think_s is not None):
            raise ValueError("turns: after_answer and think_s have no effect on a grouped load")
        if isinstance(self.think_s, float) and not 0 <= self.think_s <= LONGEST_PAUSE_S:
            raise ValueError(f"think_s must be 0..{LONGEST_PAUSE_S:.0f}, got {self.think_s:g}")
        if self.timeout_s is not None and self.timeout_s < (self.ttft_timeout_s or 0):
            raise ValueError("timeout_s must be >= ttft_timeout_s")
        return self


class ShedSpec(Section):
    """Whom a busy replica refuses: the less urgent, as a gateway that sheds by priority."""

    waiting: int = Field(ge=1, le=LARGEST_COUNT, description="refuse one that finds so many waiting at its replica")
    from_priority: int = Field(default=1, ge=-LARGEST_COUNT, le=LARGEST_COUNT,
                               description="of this priority or a larger one; a smaller one is more urgent")


class AdmissionSpec(Section):
    """What a replica refuses so that what it takes is answered in time (HTTP 429)."""

    max_waiting: int | None = Field(default=None, ge=1, le=LARGEST_COUNT, description="refuse a request that finds so "
                                    "many waiting at its replica")
    predicted_ttft_s: float | None = Field(default=None, gt=0, le=LONGEST_S, description="refuse one whose first token "
                                           "is predicted to come later")
    shed: ShedSpec | None = None

    @model_validator(mode="after")
    def _sheds_first(self) -> "AdmissionSpec":
        if self.shed and self.max_waiting is not None and self.shed.waiting >= self.max_waiting:
            raise ValueError(f"shed.waiting must be < max_waiting ({self.max_waiting}), which refuses everybody, got "
                             f"{self.shed.waiting}")
        return self

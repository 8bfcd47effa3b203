"""Generated conversations: sessions begin at random, and every turn's prompt is all that was said before and more."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simulator.errors import ConfigError
from simulator.memory import check_requests

from .arrivals import Arrivals, sample_arrivals
from .extras import Extras
from .lengths import Lengths, sample_lengths
from .pauses import LONGEST_S, Pauses, sample_pauses
from .prefixes import Prefixes, sample_prefixes
from .streams import stream
from .trace import MAX_TOKENS, Int64s, Trace, TraceMeta, content_sha256, make_trace

MOST_TURNS: Final = 10_000


@dataclass(frozen=True)
class Sessions:
    """Conversations of several turns; a person who reads and writes, or an agent that calls tools, between them.

    arrivals     when sessions begin; its `requests` counts sessions
    turns        requests of a session
    new          [tokens] each turn adds to the prompt: the user's words, a tool's output
    output       [tokens] of each answer; it is part of the next prompt
    first        [tokens] prompt of the first turn (system prompt, files); default: as new
    prefix       what sessions begin with, one of several texts; comes before `first`
    think_s      [s] from the answer at the client to the next turn
    max_context  [tokens] a session ends before the turn whose prompt and answer would exceed it
    """

    arrivals: Arrivals
    turns: Lengths
    new: Lengths
    output: Lengths
    first: Lengths | None = None
    think_s: float | Pauses = 0.0
    max_context: int | None = None
    prefix: Prefixes | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.think_s, Pauses) and not 0 <= self.think_s <= LONGEST_S:
            raise ConfigError(f"sessions.think_s must be 0..{LONGEST_S:.0f} s, got {self.think_s}")
        if self.max_context is not None and not 2 <= self.max_context <= MAX_TOKENS:
            raise ConfigError(f"sessions.max_context must be 2..{MAX_TOKENS}, got {self.max_context}")


def generate_sessions(spec: Sessions, seed: int, replication: int = 0) -> Trace:
    """Draw the sessions, rows of one after the other; the arrival of a later turn is only that of its session.

    Every use of chance has its own stream. Raises ConfigError for options that cannot be drawn from.
    """
    begin = sample_arrivals(spec.arrivals, stream(seed, "arrivals", replication))
    turns = np.minimum(sample_lengths(spec.turns, begin.size, stream(seed, "sessions/turns", replication)), MOST_TURNS)
    total = int(turns.sum())
    check_requests(total, "sessions.turns")
    new = sample_lengths(spec.new, total, stream(seed, "sessions/new", replication))
    output = sample_lengths(spec.output, total, stream(seed, "sessions/output", replication))
    ends = np.cumsum(turns)
    starts = ends - turns
    if spec.first is not None:
        new[starts] = sample_lengths(spec.first, begin.size, stream(seed, "sessions/first", replication))
    session = np.repeat(np.arange(begin.size), turns)
    turn = np.arange(total) - starts[session]
    said = np.cumsum(new + output)
    prompt = said - (said - new - output)[starts][session] - output
    delay = sample_pauses(spec.think_s, total, stream(seed, "sessions/think", replication))
    delay[starts] = 0
    extras = Extras(session, turn, delay)
    if spec.prefix is not None:
        group, tokens = sample_prefixes(spec.prefix, begin.size, seed, "sessions/prefix", replication)
        prompt = prompt + tokens[session]
        extras = replace(extras, opening=group[session], opening_tokens=tokens[session])
    kept = _within(spec, prompt + output, turn)
    columns = (column[kept] for column in (begin[session], prompt, output))
    trace = make_trace(*columns, extras=extras.take(np.flatnonzero(kept), total))
    return replace(trace, meta=TraceMeta("sessions", spec.arrivals.kind, content_sha256(trace), total,
                                         {"beyond max_context": int(total - kept.sum())} if not kept.all() else {}))


def _within(spec: Sessions, context: Int64s, turn: Int64s) -> np.ndarray:
    """Turns whose context fits; contexts only grow, so what is left of a session is its beginning."""
    most = MAX_TOKENS if spec.max_context is None else spec.max_context
    kept: np.ndarray = context <= most
    if not kept[turn == 0].all():
        longest = int(context[turn == 0].max())
        raise ConfigError(f"sessions.max_context must leave room for first turns, which have up to {longest} tokens, "
                          f"got {most}")
    return kept

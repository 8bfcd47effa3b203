"""Scenario + trace -> what clients do: who waits for whose answer and how long, when they give up or come again."""

import numpy as np
import numpy.typing as npt

from simulator.engines.clients import Habits, Talks
from simulator.engines.job import talks_of
from simulator.errors import ConfigError
from simulator.scenario.spec import Scenario
from simulator.units import to_ticks
from simulator.workload.extras import NONE
from simulator.workload.pauses import sample_pauses
from simulator.workload.sessions import Sessions
from simulator.workload.streams import stream
from simulator.workload.trace import Trace

Int64s = npt.NDArray[np.int64]


def follows_answers(scenario: Scenario) -> bool:
    """Whether later turns of a conversation are submitted after the answer before."""
    generated = isinstance(scenario.parsed_workload(), Sessions)
    return scenario.load.turns == "after_answer" or (generated and scenario.load.turns is None)


def habits_of(scenario: Scenario) -> Habits:
    """The scenario's load as the engine has it."""
    load, retry = scenario.load, scenario.load.retry
    return Habits(
        ramp_ns=to_ticks(load.ramp_s or 0), max_in_flight=load.max_in_flight or 0,
        ttft_ns=to_ticks(load.ttft_timeout_s or 0), total_ns=to_ticks(load.timeout_s or 0),
        attempts=retry.attempts if retry else 1, backoff_ns=to_ticks(retry.backoff_s if retry else 0),
        longest_ns=to_ticks(retry.max_backoff_s if retry else 0))


def talks_in(scenario: Scenario, trace: Trace, replication: int) -> Talks:
    """Conversations of the trace, in its order. Raises ConfigError for one that does not know them or their pauses."""
    n, think = len(trace), scenario.load.think_s
    drawn = None if think is None else sample_pauses(think, n, stream(scenario.seed, "think", replication))
    if not follows_answers(scenario):
        return talks_of(0) if drawn is None else talks_of(0)._replace(pause=drawn)
    session, turn, delay = trace.extras.session, trace.extras.turn, trace.extras.delay_ns
    if session is None or turn is None:
        raise ConfigError(f"{scenario.place('load.turns')}: after_answer needs a trace with sessions and turns; "
                          f"{trace.meta.source} has none (columns: {{session: ..., turn: ...}})")
    talks = talks_of(n)
    order, same = trace.extras.in_turns()
    before, after = order[:-1][same], order[1:][same]
    talks.after[before], talks.follows[after] = after, 1
    if drawn is not None:
        return talks._replace(pause=drawn)
    if delay is None or np.any(delay[after] == NONE):
        raise ConfigError(f"{scenario.place('load.turns')}: {trace.meta.source} does not say how long clients wait "
                          "after an answer (columns: {delay: ...}); give load.think_s")
    talks.pause[before] = delay[after]
    return talks

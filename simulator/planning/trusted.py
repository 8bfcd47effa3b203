"""How far to trust the step times behind a prediction: a mark, an error, and what lies outside measurements."""

from typing import Any

from simulator.metrics.trust import longest_of, mark_of, not_measured
from simulator.planning.bounds import Ready, step_error
from simulator.scenario.setup import Setup
from simulator.workload.trace import Trace


def trusted(found: Ready, longest: int) -> dict[str, Any]:
    """{"mark": the weakest of the fleet's, "step_time_error": relative, "not_measured": [sentences]}.

    `longest` request [tokens].
    """
    assert found.setup is not None
    errors = [error.relative for error in found.errors.values()] or [found.error.relative]
    return _known(found.setup, max(errors), longest)


def trusted_run(setup: Setup, trace: Trace) -> dict[str, Any]:
    """The same of a scenario that is set up, with the error that its profiles have."""
    pools = list(setup.pools.values()) or [setup]
    return _known(setup, max(step_error(pool).relative for pool in pools), longest_of(trace))


def _known(setup: Setup, error: float, longest: int) -> dict[str, Any]:
    pools = list(setup.pools.values()) or [setup]
    beyond = [text for pool in pools for text in _beyond(pool, longest)]
    return {"mark": mark_of(setup), "step_time_error": error, "not_measured": list(dict.fromkeys(beyond))}


def _beyond(setup: Setup, longest: int) -> list[str]:
    """What a run's report calls not measured, of one kind of replica."""
    if mark_of(setup) == "textbook":
        return []
    if setup.scenario.cost_model == "roofline":
        return ["every step time: they are rooflines of the GPU's datasheet"]
    return not_measured(setup, longest)

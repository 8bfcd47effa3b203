"""How far to trust the step times behind a fleet of a plan: a mark, an error, and what lies outside measurements."""

from typing import Any

from simulator.metrics.trust import mark_of, not_measured
from simulator.planning.bounds import Ready
from simulator.scenario.setup import Setup


def trusted(found: Ready, longest: int) -> dict[str, Any]:
    """{"mark": the weakest of the fleet's, "step_time_error": relative, "not_measured": [sentences]}.

    `longest`: prompt + output of the longest request [tokens].
    """
    assert found.setup is not None
    pools = list(found.setup.pools.values()) or [found.setup]
    errors = [error.relative for error in found.errors.values()] or [found.error.relative]
    beyond = [text for setup in pools for text in _beyond(setup, longest)]
    return {"mark": mark_of(found.setup), "step_time_error": max(errors), "not_measured": list(dict.fromkeys(beyond))}


def _beyond(setup: Setup, longest: int) -> list[str]:
    """What a run's report calls not measured, of one kind of replica."""
    if mark_of(setup) == "textbook":
        return []
    if setup.scenario.cost_model == "roofline":
        return ["every step time: they are rooflines of the GPU's datasheet"]
    return not_measured(setup, longest)

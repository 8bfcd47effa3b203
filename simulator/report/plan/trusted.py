"""How far to trust the step times behind a fleet of a plan: a mark, an error, and what lies outside measurements."""

from typing import Any

from simulator.cost.ranges import extrapolations
from simulator.metrics.trust import mark_of, never_run, scaled_line
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
    mark = mark_of(setup)
    if mark == "textbook":
        return []
    if setup.scenario.cost_model == "roofline":
        return ["every step time: they are rooflines of the GPU's datasheet"]
    reason, named = never_run(setup), scaled_line(setup)
    found = extrapolations(setup.gpu, setup.scenario.hardware.tensor_parallel, setup.limits.max_num_seqs,
                           setup.limits.max_num_batched_tokens, longest)
    if named:
        found = [f"{found[0]}; {named}", *found[1:]]
    return [reason, *found] if reason else found

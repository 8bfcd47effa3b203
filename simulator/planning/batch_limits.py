"""Batch limits that a plan leaves to the engine, tried around its default for the candidates that lead.

Not every combination: one limit after the other, a step up or down at a time for as long as that helps (coordinate
search), each judged by one look at the fleet that would be an improvement: fewer replicas, or more traffic on the same.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from simulator.planning.bounds import Ready
from simulator.planning.candidate import Candidate
from simulator.planning.looks import FAR_OFF
from simulator.planning.price import bound_key
from simulator.planning.search import Outcome, Search
from simulator.planning.spec import PlanSpec
from simulator.planning.statistics import Judgement, finite

USUAL: Final = {
    "max_num_batched_tokens": (512, 1024, 2048, 4096, 8192, 16384),
    "max_num_seqs": (32, 64, 128, 256, 512, 1024),
}
"""Settings in use: defaults of vLLM (2,048 and 8,192 tokens, 256 and 1,024 sequences), SGLang and TensorRT-LLM (8,192
tokens), which hwprofiles/engine has with their sources, and the powers of two around them."""
BETTER: Final = 0.99
"""A step helps where the worst level comes nearer to its limit by at least this factor."""
LEADERS: Final = 3
"""Most candidates whose limits are tried."""

NEAR: Final = 0.7
"""A candidate leads where it would be the best with at least this share of its replicas, or with one less; one without
a feasible fleet where its largest carries this share of the traffic or is within FAR_OFF of its limits."""

Look = Callable[[Candidate], Judgement | None]
"""The fleet that would be an improvement with these limits, judged; None where the limits cannot run."""


@dataclass
class Tried:
    """What was tried for one candidate at one size of its fleet, in order, and which setting did."""

    label: str
    fleet: str  # what would be an improvement: `with 2 replicas`, `at 17 requests/s`
    default: dict[str, int]
    rows: list[dict[str, Any]] = field(default_factory=list)
    found: str = ""  # label of the setting that did; empty = none

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return dict(vars(self))


def open_limits(spec: PlanSpec, found: Ready) -> dict[str, int]:
    """Limits that the plan does not name and the candidate's policy has -> what the engine sets."""
    setup, c = found.setup, found.candidate
    if not spec.search.batch_limits or setup is None or setup.gpu.name == "unit" or c.prefill_replicas:
        return {}
    own = {"max_num_batched_tokens": setup.token_budget, "max_num_seqs": setup.limits.max_num_seqs}
    return {key: value for key, value in own.items()
            if key in setup.policy.knobs and getattr(spec.candidates, key) == (None,)}


def _holds(judged: Judgement) -> bool:
    return judged.holds


def climb(
    candidate: Candidate, default: dict[str, int], look: Look, tried: Tried, does: Callable[[Judgement], bool] = _holds
) -> Candidate | None:
    """The first setting around the candidate's whose look `does`; None where no step helps any more.

    `default`: the value of each limit that is open. Writes down what it looks at.
    """
    best, at = _worst(look(candidate)), candidate
    for key, usual in default.items():
        values = sorted({*USUAL[key], usual})
        for step in (1, -1):
            before = at
            for value in _from(values, getattr(at, key) or usual, step):
                changed = _with(at, key, None if value == usual else value)
                judged = look(changed)
                good = judged is not None and does(judged)
                tried.rows.append(_row(key, value, judged, good))
                if good:
                    tried.found = changed.label
                    return changed
                if _worst(judged) > best * BETTER:
                    break
                best, at = _worst(judged), changed
            if at is not before:
                break
    return None


def _with(candidate: Candidate, key: str, value: int | None) -> Candidate:
    if key == "max_num_seqs":
        return replace(candidate, max_num_seqs=value)
    return replace(candidate, max_num_batched_tokens=value)


def _from(values: list[int], value: int, step: int) -> Iterator[int]:
    """The values above (step 1) or below (-1) one of them, nearest first."""
    yield from [v for v in values if v > value] if step > 0 else [v for v in reversed(values) if v < value]


def _worst(judged: Judgement | None) -> float:
    """How far the worst level is beyond its limit; an overloaded fleet by its levels too, which tell how much."""
    return math.inf if judged is None else max(level.ratio for level in judged.levels)


def _row(key: str, value: int, judged: Judgement | None, does: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"limit": key, "value": value, "does": does, "level": None, "of_limit": None,
                           "overloaded": False}  # fmt: skip
    if judged is None:
        return row
    worst = max(judged.levels, key=lambda level: level.ratio)
    return row | {"level": worst.name, "of_limit": finite(worst.ratio), "overloaded": judged.overloaded}


def fewer_replicas(
    search: Search, leading: Sequence[tuple[Ready, Outcome]], tried: list[Tried]
) -> Iterator[tuple[Ready, Outcome]]:
    """Better fleets of the candidates that lead (best first), by other batch limits; `tried` gets what was looked at.

    Of none that is feasible: of the one that is nearest, at its largest fleet.
    """
    best = _value(search.spec, *leading[0]) if leading and leading[0][1].status == "feasible" else math.inf
    for found, outcome in leading[:LEADERS]:
        default = open_limits(search.spec, found)
        while default:
            target = _target(search, outcome, best)
            if target is None:
                break
            fleet = f"with {outcome.candidate.said(target, ' replicas')}"
            note = Tried(outcome.candidate.label, fleet, default)
            tried.append(note)
            better = _solved(search, outcome.candidate, default, target, note)
            if better is None or not _beats(better[1], outcome):
                note.found = ""
                break
            found, outcome = better
            best = min(best, _value(search.spec, found, outcome))
            yield found, outcome


def _solved(
    search: Search, candidate: Candidate, default: dict[str, int], target: int, note: Tried
) -> tuple[Ready, Outcome] | None:
    """The first setting with which `target` replicas do by one look, searched whole."""
    spec, bench = search.spec, search.runner.bench

    def look(changed: Candidate) -> Judgement | None:
        found = bench.ready(changed)
        if found.setup is None:
            return None
        return search.judged(changed, target, spec.growth, 1 + found.error.relative, count=1)

    changed = climb(candidate, default, look, note)
    if changed is None:
        return None
    found = bench.ready(changed)
    return found, search.solve(found, spec.growth, near=target)


def _beats(better: Outcome, outcome: Outcome) -> bool:
    """Whether other limits made it feasible, or with fewer replicas."""
    return better.status == "feasible" and (outcome.status != "feasible" or better.replicas < outcome.replicas)


def _value(spec: PlanSpec, found: Ready, outcome: Outcome) -> float:
    """The objective, smaller is better; replicas where it has no bound."""
    value = bound_key(spec, found.candidate, outcome.replicas)
    return float(outcome.replicas) if value is None else value


def _target(search: Search, outcome: Outcome, best: float) -> int | None:
    """The most replicas that would be an improvement on the best fleet and are not far from what it takes now."""
    spec, candidate = search.spec, outcome.candidate
    counts = candidate.counts(spec)
    if outcome.status != "feasible":
        idle = outcome.best_try if outcome.status == "infeasible" else None
        near = outcome.rate_met >= NEAR * spec.growth or (idle is not None and idle.binding.ratio < FAR_OFF)
        return counts[-1] if counts and near else None
    least = min(outcome.replicas - 1, NEAR * outcome.replicas)
    return max((n for n in counts if least <= n < outcome.replicas and (bound_key(spec, candidate, n) or n) < best),
               default=None)  # fmt: skip

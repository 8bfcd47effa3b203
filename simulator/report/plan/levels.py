"""Service levels of a fleet as rows of plan.json, and in words what they were decided on."""

from collections.abc import Mapping
from typing import Any, Final

from simulator.planning.statistics import Judgement
from simulator.state import REJECTED_LENGTH, STATUS_NAMES
from simulator.text import joined, level_value, several, verb

TOO_LONG: Final = STATUS_NAMES[REJECTED_LENGTH].removeprefix("rejected: ")
Data = Mapping[str, Any]
BY_VALUE: Final = "meets by value"
"""Verdict of a level of one recorded trace: within its limit for these very requests, not by its whole interval."""


def level_rows(judged: Judgement, slow: Judgement | None, fast: Judgement | None) -> list[dict[str, Any]]:
    """Every service level: mean, an interval over replications and the profile's error together, and the verdict of
    `slow`, which is what decides."""
    rows = []
    for k, level in enumerate(judged.levels):
        decided = slow.levels[k] if slow else level
        low = fast.levels[k].interval.low if fast else level.interval.low
        high = decided.interval.high
        in_part = decided.verdict == "meets" and not high <= level.limit
        rows.append(
            {
                "name": level.name,
                "limit": level.limit,
                "value": level.interval.mean,
                "low": max(0.0, low),
                "high": high,
                "decided_on": decided.interval.mean,
                "replications": level.interval.n,
                "verdict": BY_VALUE if in_part else decided.verdict,
            }
        )
    return rows


def level_lines(best: Data) -> list[str]:
    """Each level against its limit, and what the fleet was chosen to withstand if not all of the intervals."""
    lines = []
    for level in best["levels"]:
        name = level["name"].replace("requests that", "Requests that")
        lines.append(
            f"{name}: {level_value(level, 'value')} ({level_value(level, 'low')} to "
            f"{level_value(level, 'high')}) against a limit of {level_value(level, 'limit')}."
        )
    lines += refused_lines(best)
    return [*lines, chosen_words(best)] if by_value(best) else lines


def refused_requests(judged: Judgement) -> dict[str, Any]:
    """How many requests of the first replication no replica takes, of how many, and why."""
    record = next(each for each in judged.records if not each["idle"])
    return {"requests": record["rejected"], "of": record["arrived"], "reasons": record["rejected_by_reason"]}


def refused_lines(best: Data) -> list[str]:
    """What the fleet refuses, and how that counts."""
    known = best["refused"]
    if not known["requests"]:
        return []
    reasons = known["reasons"]
    named = {TOO_LONG: f"{TOO_LONG} ({best['replica']['max_model_len']:,} tokens)"}
    why = " and ".join(f"{count:,} {named.get(reason, reason)}" for reason, count in reasons.items())
    share = 100 * known["requests"] / known["of"]
    refuses = verb(known["requests"], "is", "are")
    those = f"{known['requests']:,} of {several(known['of'], 'request')} ({share:.2g} %)"
    return [f"{those} {refuses} refused by this fleet: {why}. They get no answer and count as beyond "
            "every limit, so a level is met only where it leaves that many out."]


def by_value(best: Data) -> list[str]:
    """Names of the levels whose interval reaches beyond the limit."""
    return [level["name"] for level in best["levels"] if level["verdict"] == BY_VALUE]


def chosen_words(best: Data) -> str:
    """What the fleet was chosen to withstand."""
    open_ends = by_value(best)
    error = best["trust"]["step_time_error"]
    if not open_ends:
        slower = "with the slower ones " if error else ""
        return f"The fleet was chosen so that {slower}the whole interval is still within every limit."
    steps = f"with steps {100 * error:.1f} % slower " if error else ""
    values = ", ".join(f"{level['name']} {level_value(level, 'decided_on')}" for level in best["levels"])
    reach = verb(len(open_ends), "reaches", "reach")
    whose = verb(len(open_ends), "the interval", "the intervals")
    return (
        "Meets by value, not by its whole interval: a recorded trace has no replications, and the fleet was chosen so "
        f"that on these very requests every level is within its limit {steps}({values}). How far such traffic may "
        f"differ is left out of that: {whose} of {joined(open_ends)} {reach} beyond the limit."
    )

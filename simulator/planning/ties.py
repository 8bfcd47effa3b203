"""Whether the order of a ranking is shown: runners-up that the model cannot tell from the best, and those close to it.

Two GPUs err each for itself: ranges that overlap are not told apart. Within one GPU step times err together, so ends
are compared in pairs, both with faster steps and both with slower ones.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from simulator.metrics.apart import CLOSE, NEAR_PCT
from simulator.planning.candidate import Candidate
from simulator.planning.price import Fleet
from simulator.text import joined, number, verb

MOST_NAMED: Final = 3


def cost_ties(fleets: Sequence[Fleet]) -> tuple[str, ...]:
    """What is to be said of fleets by cost, the best first."""
    if not fleets:
        return ()
    best = fleets[0]
    tied = [fleet for fleet in fleets[1:] if _tied(best, fleet)]
    close = [fleet for fleet in fleets[1:] if fleet not in tied and fleet.usd_per_hour <= CLOSE * best.usd_per_hour]
    lines = []
    if tied:
        words = [f"{f.candidate.label} ({_span(f)} USD/h)" for f in (best, *tied)]
        lines.append(f"{joined(words)} cannot be told apart: within the profiles' error any of them may be the "
                     "cheapest")
    if close:
        words = [f"{f.candidate.label} ({f.usd_per_hour:.2f} USD/h)" for f in close[:MOST_NAMED]]
        lines.append(f"Less than {NEAR_PCT} more than the {best.usd_per_hour:.2f} USD/h of the "
                     f"cheapest: {', '.join(words)}; a small change of prices decides between them")
    if len(fleets) > 1 and not lines:
        following = min(fleets[1:], key=lambda fleet: fleet.usd_per_hour)
        lines.append(f"{following.candidate.label} comes next in cost, with {following.usd_per_hour:.2f} USD/h: it is "
                     f"dearer {_shown(best.candidate, following.candidate)}")
    return tuple(lines)


def equal_costs(fleets: Sequence[Fleet]) -> tuple[str, ...]:
    """What put the first of fleets that cost the same and have as many GPUs before the others (price.rank_key)."""
    best = fleets[0] if fleets else None
    equal = [fleet.candidate.label for fleet in fleets[1:]
             if best and fleet.gpus == best.gpus and math.isclose(fleet.usd_per_hour, best.usd_per_hour)]  # fmt: skip
    if best is None or not equal:
        return ()
    costs, has = verb(len(equal), "costs", "cost"), verb(len(equal), "has", "have")
    return (
        f"{joined(equal)} {costs} the same and {has} as many GPUs: {best.candidate.label} stands first only as the "
        "plan's candidates are written, not for its latencies, which the table shows",
    )


def _span(fleet: Fleet) -> str:
    """The range of cost [USD/h], one number where both ends agree."""
    low, high = (f"{usd:.2f}" for usd in fleet.usd_range)
    return low if low == high else f"{low} to {high}"


def _tied(best: Fleet, other: Fleet) -> bool:
    if best.candidate.kinds != other.candidate.kinds:
        return other.usd_range[0] <= best.usd_range[1]
    return any(b <= a for a, b in zip(best.usd_range, other.usd_range, strict=True))


def _shown(best: Candidate, other: Candidate) -> str:
    """How surely the other is behind."""
    if best.kinds != other.kinds:
        return "whatever the profiles' error"
    return "whether steps are slower or faster than predicted"


def carried_ties(rows: Sequence[Mapping[str, Any]], known: Mapping[str, Candidate]) -> tuple[str, ...]:
    """The same of what fleets carry (`label`, `carries`, `low` and `high` [requests/s] of each), the best first."""
    able = [row for row in rows if row["carries"]]
    if len(able) < 2:
        return ()
    best, others = able[0], able[1:]
    tied = [row for row in others if _carry_alike(best, row, known)]
    close = [row for row in others if row not in tied and row["carries"] * CLOSE >= best["carries"]]
    lines = []
    if tied:
        lines.append(f"{joined([_carried(row) for row in (best, *tied)])} cannot be told apart: within the profiles' "
                     "error any of them may carry most")
    if close:
        words = [f"{row['label']} ({number(row['carries'])} requests/s)" for row in close[:MOST_NAMED]]
        lines.append(f"Less than {NEAR_PCT} below the {number(best['carries'])} requests/s of the best: "
                     f"{', '.join(words)}")
    if not lines:
        label, shown = others[0]["label"], number(others[0]["carries"])
        lines.append(f"{label} comes next, with {shown} requests/s ({_range(others[0])}): it carries less "
                     f"{_shown(known[best['label']], known[label])}")
    return tuple(lines)


def _carry_alike(best: Mapping[str, Any], other: Mapping[str, Any], known: Mapping[str, Candidate]) -> bool:
    (low, high), (others_low, others_high) = _ends(best), _ends(other)
    if known[best["label"]].kinds != known[other["label"]].kinds:
        return others_high >= low
    return others_low >= low or others_high >= high


def _ends(row: Mapping[str, Any]) -> tuple[float, float]:
    """[requests/s] where every level surely holds, and where one possibly does; without a wall there is no end."""
    if not row["wall"]:
        return math.inf, math.inf
    return row["low"] or 0.0, math.inf if row["high"] is None else row["high"]


def _carried(row: Mapping[str, Any]) -> str:
    return f"{row['label']} ({_range(row)} requests/s)"


def _range(row: Mapping[str, Any]) -> str:
    if not row["wall"]:
        return f"over {number(row['carries'])}"
    return f"{number(row['low'], 'less')} to {number(row['high'], 'more')}"


def worst_ties(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The same of fleets by their `worst` level over its limit, the best first."""
    known = [(row["label"], row["worst"]) for row in rows]
    best = known[0][1] if known else None
    if best is None:
        return ()
    close = [f"{label} ({100 * worst:.0f} %)" for label, worst in known[1:]
             if worst is not None and worst <= CLOSE * best]  # fmt: skip
    return (f"Less than {NEAR_PCT} above the best's worst level, {100 * best:.0f} % of its limit: "
            f"{', '.join(close[:MOST_NAMED])}",) if close else ()

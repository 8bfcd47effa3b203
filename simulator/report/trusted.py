"""The mark of a prediction in words: what its step times stand on, and the first of what was not measured."""

from collections.abc import Mapping
from typing import Any, Final

from simulator.text import several

MOST_BEYOND: Final = 2
"""So many sentences on what was not measured stand in the answer; the page has them all."""


def trust_line(known: Mapping[str, Any]) -> str:
    """What step times stand on: the weakest mark, the error, and the first of what was not measured."""
    line, beyond = mark_line(known), known["not_measured"]
    left = len(beyond) - MOST_BEYOND
    more = f"; the report has {left} more" if left > 0 else ""
    return f"{line} Not measured: {'; '.join(beyond[:MOST_BEYOND])}{more}." if beyond else line


def short_line(known: Mapping[str, Any]) -> str:
    """The mark and the error, and how much more the report says."""
    beyond = len(known["not_measured"])
    more = f" {several(beyond, 'note')} on what was not measured: in the report." if beyond else ""
    return f"{mark_line(known, False)}{more}"


def trusted_lines(known: Mapping[str, Any] | None) -> list[str]:
    """All of it, for a section of its own: the mark, then each that was not measured; nothing where it is not known."""
    return [mark_line(known, False), *(f"Not measured: {text}." for text in known["not_measured"])] if known else []


def mark_line(known: Mapping[str, Any], judged: bool = True) -> str:
    """The mark and the error alone. `judged`: the answer keeps a margin for it; else it is by the mean prediction."""
    if known["mark"] == "textbook":
        return "Step times are a textbook's: they have no error."
    margin = f"{100 * known['step_time_error']:.1f} %"
    how = f"judged with a margin of {margin} for their error" if judged else f"they may be off by {margin}"
    return f"Step times: {known['mark']}, {how}."

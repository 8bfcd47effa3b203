"""Batch limits that were tried around the engine's default, in words and as rows of a table."""

from collections.abc import Mapping
from typing import Any

Data = Mapping[str, Any]


def limit_lines(notes: list[dict[str, Any]]) -> list[str]:
    """What the search of the batch limits gained, and of the best candidate how far the nearest setting was."""
    gained = [note for note in notes if note["found"]]
    lines = []
    if gained:
        lines.append(f"Batch limits: {gained[-1]['found']} does {gained[-1]['fleet']}; as the engine sets them "
                     f"({_default(gained[0])}) it does not.")  # fmt: skip
    last = next((note for note in notes if not note["found"]), None)
    if not gained and last is not None and last["rows"]:
        count = len(last["rows"])
        others = f"none of {count} other settings" if count > 1 else "no other setting"
        lines.append(f"Batch limits as the engine sets them ({_default(last)}): {others} of {last['label']} does "
                     f"{last['fleet']}{_nearest(last)}.")  # fmt: skip
    return lines


def _default(note: Data) -> str:
    return ", ".join(f"{key} {value}" for key, value in note["default"].items())


def _nearest(note: Data) -> str:
    """` (nearest: max_num_seqs 512, p95 TTFT at 1.3 of its limit)`."""
    known = [row for row in note["rows"] if row["of_limit"] is not None]
    if not known:
        return ""
    row = min(known, key=lambda each: each["of_limit"])
    return f" (nearest: {row['limit']} {row['value']}, {row['level']} at {row['of_limit']:.2f} of its limit)"


def limit_rows(notes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a setting that was looked at: the candidate, the setting, the fleet, and how its worst level was."""
    rows = []
    for note in notes:
        for row in note["rows"]:
            of = "cannot run" if row["level"] is None else (
                f"{row['level']} at {row['of_limit']:.2f} of its limit" if row["of_limit"] is not None
                else f"{row['level']} without end")  # fmt: skip
            rows.append({"label": note["label"], "setting": f"{row['limit']} {row['value']}", "fleet": note["fleet"],
                         "does": row["does"], "worst": of})  # fmt: skip
    return rows

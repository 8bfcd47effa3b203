"""Batch limits that were tried around the engine's default, in words and as rows of a table."""

from collections.abc import Mapping
from typing import Any

from simulator.text import number, several, verb

Data = Mapping[str, Any]


def limit_lines(notes: list[dict[str, Any]], bought: str) -> list[str]:
    """What the search of the batch limits gained; else how far the nearest setting was of the candidate `bought`, or,
    where of that there is no smaller fleet to try, of another that would then be the better one."""
    gained = [note for note in notes if note["found"]]
    lines = []
    if gained:
        lines.append(f"Batch limits: {gained[-1]['found']} keeps every limit {gained[-1]['fleet']}; as the engine sets "
                     f"them ({_default(gained[0])}) it does not.")  # fmt: skip
    missed = sorted((note for note in notes if not note["found"]), key=lambda note: note["label"] != bought)
    last = missed[0] if missed else None
    if not gained and last is not None and last["rows"]:
        count = len(last["rows"])
        others = f"none of {count} other settings" if count > 1 else "no other setting"
        tried = tried_words(notes) if len(notes) > 1 else ""
        if last["label"] == bought:
            lines.append(f"Batch limits as the engine sets them ({_default(last)}): {others} of {bought} keeps "
                         f"every limit {last['fleet']}{_nearest(last)}{tried}.")  # fmt: skip
        else:
            lines.append(f"Batch limits: {last['label']} would be the better choice {last['fleet']}, but {others} than "
                         f"the engine's ({_default(last)}) keeps every limit then{_nearest(last)}{tried}.")  # fmt: skip
    return lines


def tried_words(notes: list[dict[str, Any]]) -> str:
    """`; 7 were tried, of 3 candidates`: how many settings stand in limit_rows."""
    count, of = sum(len(note["rows"]) for note in notes), len({note["label"] for note in notes if note["rows"]})
    return f"; {count} {verb(count, 'was', 'were')} tried, of {several(of, 'candidate')}"


def _default(note: Data) -> str:
    return ", ".join(f"{key} {value}" for key, value in note["default"].items())


def _nearest(note: Data) -> str:
    """` (nearest: max_num_seqs 512, p95 TTFT 30 % above its limit)`."""
    known = [row for row in note["rows"] if row["of_limit"] is not None]
    if not known:
        return ""
    row = min(known, key=lambda each: (_only_overloaded(each), each["of_limit"]))
    return f" (nearest: {row['limit']} {row['value']}, {_how(row)})"


def _only_overloaded(row: Data) -> bool:
    """Whether it is the backlog that does not hold, every level being within its limit as long as the trace is."""
    return bool(row.get("overloaded")) and row["of_limit"] is not None and row["of_limit"] <= 1


def _how(row: Data) -> str:
    """How the worst level of a setting was: `p95 TTFT 30 % above its limit`, `p95 TPOT 22 times its limit`."""
    level, ratio = row["level"], row["of_limit"]
    if level is None:
        return "cannot run"
    if ratio is None:
        return f"{level} without end"
    if _only_overloaded(row):
        return "overloaded"
    if ratio <= 1:
        return f"{level} at {100 * ratio:.0f} % of its limit"
    far = f"{100 * (ratio - 1):.2g} % above" if ratio < 2 else f"{number(ratio)} times"
    return f"{level} {far} its limit"


def limit_rows(notes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a setting that was looked at: the candidate, the setting, the fleet, and how its worst level was."""
    rows = []
    for note in notes:
        for row in note["rows"]:
            rows.append({"label": note["label"], "setting": f"{row['limit']} {row['value']}", "fleet": note["fleet"],
                         "does": row["does"], "worst": _how(row)})  # fmt: skip
    return rows

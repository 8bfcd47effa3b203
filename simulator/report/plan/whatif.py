"""A what-if in words, on the screen and as a page; works on the plain data of planning.whatif.compare."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from simulator.planning.whatif import REPLICA_HOURS, SHARES, USD_PER_MILLION
from simulator.report.folder import new_folder
from simulator.report.plan.forest import Bar, forest
from simulator.report.render import markdown_cell, render
from simulator.report.sections import not_modelled
from simulator.report.trusted import short_line, trusted_lines
from simulator.text import bounded, several, share, stopped_lines, times

Data = Mapping[str, Any]
HEADLINE: Final = ("TTFT p99", "TPOT p99", "output tokens/s", "within SLO", USD_PER_MILLION)
"""Metrics said of the base."""
DRAWN: Final = ("TTFT p99", "TPOT p99", "E2E mean")
"""Metrics whose changes are said and drawn: times, smaller is better."""
NO_INTERVAL: Final = "no interval: one replication"
UNCOMPARED = (
    "TTFT, E2E and queueing of an overloaded case are not compared: they grow for as long as requests come, so they "
    "say how long the trace is. Its TPOT does not."
)


def value_text(metric: str, cell: Data) -> str:
    """A cell's value; a dash where it is not defined."""
    value = cell["value"]
    if not cell["defined"]:
        return "-"
    if metric in SHARES:
        return share(value, "-")
    if metric == "output tokens/s":
        return "-" if value is None else f"{value:,.0f}"
    if metric == REPLICA_HOURS:
        return "-" if value is None else f"{value:,.3g} h"
    if metric == USD_PER_MILLION:
        return "-" if value is None else f"{value:,.3g} USD"
    return bounded(value)


def change_text(cell: Data) -> str:
    """A cell's change: `+12.0 % (+10.0 to +14.1 %)`, large ones as ratios (`3.20x`); empty where there is none."""
    if cell["change"] is None:
        return ""
    text = amount(cell, "change")
    span = span_text(cell)
    if span:
        text += f" ({span})"
    return text + (" ~" if cell["told_apart"] is False else "")


def span_text(cell: Data) -> str:
    """The interval of a change: `+10.0 to +14.1 %`, with its unit once where both ends have the same; empty without."""
    if cell["change_low"] is None or cell["change_high"] is None:
        return ""
    low, high = amount(cell, "change_low"), amount(cell, "change_high")
    if low == high == "same":
        return ""
    for unit in (" %", " points"):
        if low.endswith(unit) and high.endswith(unit):
            low = low.removesuffix(unit)
    return f"{low} to {high}"


def amount(cell: Data, key: str) -> str:
    """One end of a change: points of a share; per cent, but twice and more, or a tenth and less, as a ratio."""
    value = float(cell[key])
    if value == (0 if cell["kind"] == "points" else 1):
        return "same"
    if cell["kind"] == "points":
        return f"{value:+.1f} points" if abs(value) >= 0.05 else f"{value:+.1g} points"
    if 0.1 < value < 2:
        return f"{100 * (value - 1):+.1f} %"
    return times(value)


def drawn(data: Data) -> list[str]:
    """The metrics whose changes are said and drawn: times, and the cost where fleets change their size."""
    return [metric for metric in (*DRAWN, USD_PER_MILLION) if metric in data["metrics"]]


def verdict_lines(data: Data) -> list[str]:
    """The answer in plain words: how the base does, which change helps and hurts most, what cannot be compared."""
    base = data["rows"][0]
    said = ", ".join(f"{m} {value_text(m, base['cells'][m])}" for m in HEADLINE if m in base["cells"])
    lines = [f"The base {'is overloaded' if base['overloaded'] else 'keeps up'}: {said}."]
    for metric in drawn(data):
        found = [(row["cells"][metric], _named(row)) for row in data["rows"][1:] if not row["error"]]
        told = sorted(((cell["change"], name, cell) for cell, name in found
                       if cell["change"] is not None and cell["told_apart"] is not False), key=lambda each: each[0])
        parts = []
        if told and told[0][0] < 1:
            parts.append(f"best with {told[0][1]}, {change_text(told[0][2])}")
        if told and told[-1][0] > 1:
            parts.append(f"worst with {told[-1][1]}, {change_text(told[-1][2])}")
        lines += [f"{metric}: {'; '.join(parts)}."] if parts else []
    lines[1:1] = _within_lines(data)
    rows = data["rows"]
    over = [row["name"] for row in rows if row["overloaded"]]
    waited = [metric for metric in drawn(data) if any(row["cells"].get(metric, {}).get("grows") for row in rows)]
    if over and waited:
        lines.append(f"Overloaded, and so not compared by {' and '.join(waited)}, which grow with the trace: "
                     f"{', '.join(over)}.")  # fmt: skip
    lines += [f"Cannot run: {row['name']} ({row['error']})." for row in data["rows"] if row["error"]]
    lines += [f"Base: {short_line(data['trust'])}"] if data.get("trust") else []
    return lines + stopped_lines(data)


def _named(row: Data) -> str:
    """A case by its name, and that it is overloaded."""
    return f"{row['name']}{' (overloaded)' if row['overloaded'] else ''}"


def _within_lines(data: Data) -> list[str]:
    """How the share within the SLO changes: from the base's to the smallest and, where that is more, the largest."""
    base, key = data["rows"][0], "within SLO"
    found = [(row["cells"][key]["value"], _named(row))
             for row in data["rows"][1:] if not row["error"] and row["cells"].get(key, {}).get("value") is not None]
    if not found or base["cells"].get(key, {}).get("value") is None:
        return []
    own, low, high = base["cells"][key]["value"], min(found), max(found)
    parts = [f"falls to {share(low[0])} with {low[1]}"] if low[0] < own else []
    parts += [f"rises to {share(high[0])} with {high[1]}"] if high[0] > own else []
    return [f"The share within the SLO, {share(own)} in the base, {' and '.join(parts)}."] if parts else []


def interval_words(data: Data) -> str:
    """`90 % intervals`, or that one replication has none."""
    return f"{100 * data['confidence']:.0f} % intervals" if data["replications"] > 1 else NO_INTERVAL


def pictures(data: Data) -> list[dict[str, Any]]:
    """For each metric drawn, the changes of all overlays with their intervals."""
    found = []
    for metric in drawn(data):
        bars = []
        for row in data["rows"][1:]:
            cell = row["cells"].get(metric)
            if not cell or cell["change"] is None:
                continue
            low, high = cell["change_low"] or cell["change"], cell["change_high"] or cell["change"]
            open_ = cell["told_apart"] is not True
            colour = "var(--muted)" if open_ else "var(--good)" if cell["change"] < 1 else "var(--bad)"
            bars.append(Bar(_named(row), low, high, cell["change"], change_text(cell), colour))
        svg = forest(bars, f"{metric} against the base", f"{metric} against the base")
        if svg:
            found.append({"svg": Markup(svg), "caption": f"{metric}: change against the base{_drawn_words(data)}"})
    return found


def _drawn_words(data: Data) -> str:
    if data["replications"] == 1:
        return ", on a logarithmic axis. No interval: one replication, so any change may be chance: grey."
    return " with its interval, on a logarithmic axis. Green is less, red more, grey may be chance."


def whatif_tables(data: Data) -> Iterator[Any]:
    """The answer, then a block of rows a case: every metric with its value and its change; within 100 columns."""
    yield from (Text(line) for line in verdict_lines(data))
    table = Table(title=f"{data['name']}: change against the base", title_justify="left")
    for column, side in (("", "left"), ("metric", "left"), ("value", "right"), ("change", "right")):
        table.add_column(column, justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in data["rows"]:
        name = _named(row)
        if row["error"]:
            table.add_row(name, row["error"], end_section=True)
            continue
        for k, metric in enumerate(data["metrics"]):
            cell = row["cells"][metric]
            change = change_text(cell) if row is not data["rows"][0] else ""
            table.add_row("" if k else name, metric, value_text(metric, cell), change,
                          end_section=metric == data["metrics"][-1])  # fmt: skip
    yield table
    yield Text(
        f"{_interval_text(data)} Shares change by percentage points, all else by a factor. The error of the step times "
        "is in both alike and not in the intervals."
    )
    if any(row["overloaded"] for row in data["rows"]):
        yield Text(UNCOMPARED)


def _interval_text(data: Data) -> str:
    if data["replications"] == 1:
        return "No interval: one replication, with the same requests for base and change; any difference may be chance."
    return (f"In brackets: {100 * data['confidence']:.0f} % interval of the change over "
            f"{several(data['replications'], 'replication')}, each with the same requests for base and change; ~: it "
            "may be chance.")


def write_whatif(data: Data, out: Path) -> None:
    """whatif.json, report.html and report.md, whole or not at all."""
    pages = render_whatif(data)
    with new_folder(out) as folder:
        text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
        (folder / "whatif.json").write_text(text + "\n", encoding="utf-8")
        for name, page in pages.items():
            (folder / name).write_text(page, encoding="utf-8")


def render_whatif(data: Data) -> dict[str, str]:
    """File name -> page of a what-if table."""
    shared = {
        "data": data,
        "value_text": value_text,
        "change_text": change_text,
        "amount": amount,
        "span_text": span_text,
        "uncompared": UNCOMPARED,
        "interval_words": interval_words(data),
        "answer": verdict_lines(data),
        "pictures": pictures(data),
        "verdict": "overloaded" if data["rows"][0]["overloaded"] or data["stopped"] else "stable",
    }
    page = render(
        "whatif.html",
        title=f"{data['name']}: what if",
        trusted=trusted_lines(data.get("trust")),
        not_modelled=not_modelled(),
        **shared,
    )
    return {"report.html": page, "report.md": render("whatif.md", cell=markdown_cell, **shared)}

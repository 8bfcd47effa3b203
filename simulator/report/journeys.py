"""Requests on their way: what each waited for and when, a row a request. The picture of a busy server, whose slots
would be confetti.

The form is that of request timelines in Agrawal et al., "Sarathi-Serve", OSDI 2024 (figures 1 and 2).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simulator.report.slots import add_bars, label_of, labels_of, time_unit
from simulator.report.svg import HELD, HELD_LINE, MUTED, REQUESTS, figure, style
from simulator.report.timeline import end_tick, start_tick
from simulator.run import Result
from simulator.text import several
from simulator.units import NEVER, NS_PER_S

ROWS: Final = 40
"""Requests shown."""
WAITING, PREFILL, ANSWER, SENDING = REQUESTS[1], REQUESTS[0], REQUESTS[2], REQUESTS[3]
LEGEND: Final = ((WAITING, "waits for a place"), (PREFILL, "prompt computed"), (ANSWER, "answer, token by token"))


def journey_figure(results: Sequence[Result], labels: Sequence[str] | None = None) -> Figure:
    """ROWS requests in order of submission from the middle of the run, one panel a result, the same requests in all."""
    names = list(labels) if labels is not None else labels_of(results)
    fewest = min(len(result.requests.arrival) for result in results)
    first = max(0, (fewest - ROWS) // 2)
    rows = np.arange(first, min(fewest, first + ROWS))
    whole = any(result.setup.limits.stream == 0 for result in results)
    with style():
        fig, axes = figure(9.2, 2.9 * len(results) + 0.6, len(results), sharex=True)
        spans = [_parts(result, rows) for result in results]
        unit, label = time_unit(results[0])
        low = min(float(own["arrival"].min()) for own in spans)
        high = max(float(own["end"].max()) for own in spans)
        for ax, result, name, own in zip(axes, results, names, spans, strict=True):
            _panel(ax, result, name, own, rows, unit)
        axes[-1].set_xlim((low - 0.01 * (high - low)) / unit, (high + 0.01 * (high - low)) / unit)
        axes[-1].set_xlabel(label)
        handles = [Patch(facecolor=colour, label=what) for colour, what in LEGEND]
        if any("landed" in own for own in spans):
            handles.insert(2, Patch(facecolor=SENDING, label="its KV is sent"))
        if whole:
            handles.append(Patch(facecolor=HELD, edgecolor=HELD_LINE, hatch="////", linewidth=0,
                                 label="computed, returned whole at its batch's end"))
        fig.legend(handles=handles, loc="outside lower left", ncols=len(handles), handlelength=1.4)
    return fig


def _parts(result: Result, rows: Any) -> dict[str, Any]:
    """[s after the first arrival] ends of the parts of each request; what never came ends with the run."""
    req, zero, end = result.requests, start_tick(result), end_tick(result)

    def seconds(column: Any) -> Any:
        known = np.asarray(column)[rows]
        return (np.where(known == NEVER, end, known) - zero) / NS_PER_S

    arrival, scheduled, first, last = (seconds(c) for c in (req.arrival, req.scheduled, req.first, req.last))
    streamed = bool(result.setup.limits.stream)
    sent = {}
    if len(req.source):
        sent["landed"] = np.where(req.source[rows] >= 0, np.clip(seconds(req.landed), first, last), first)
    return sent | {"arrival": arrival, "scheduled": np.maximum(scheduled, arrival),
            "first": first if streamed else np.maximum(scheduled, arrival), "last": last, "end": last,
            "streamed": streamed}


def _panel(ax: Axes, result: Result, name: str, own: dict[str, Any], rows: Any, unit: float) -> None:
    place = np.arange(len(rows))
    bars = partial(add_bars, ax, place, thick=0.82, linewidths=0)
    bars(own["arrival"] / unit, own["scheduled"] / unit, facecolors=WAITING)
    if own["streamed"]:
        bars(own["scheduled"] / unit, own["first"] / unit, facecolors=PREFILL)
        if "landed" in own:
            bars(own["first"] / unit, own["landed"] / unit, facecolors=SENDING)
        bars(own.get("landed", own["first"]) / unit, own["last"] / unit, facecolors=ANSWER)
    else:
        bars(own["scheduled"] / unit, own["last"] / unit, facecolors=HELD, edgecolors=HELD_LINE, hatch="////")
    ax.grid(axis="x")
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks([0, len(rows) - 1], [f"{rows[0] + 1:,}", f"{rows[-1] + 1:,}"], color=MUTED)
    ax.set_ylabel("request")
    shown = f"{len(rows)} of {several(len(result.requests.arrival), 'request')}"
    ax.set_title(f"{label_of(name, 32)} · {shown} in order of arrival, from mid-run")

"""KV memory over time: what is reserved for whom and how much of it is filled, contiguous beside paged.

The form is that of figure 3 in Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", SOSP 2023.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simulator.kv import reservation
from simulator.report.slots import label_of, labels_of, time_unit
from simulator.report.svg import EMPTY, HELD, HELD_LINE, MUTED, REQUESTS, figure, style
from simulator.report.timeline import end_tick, slot_spans, start_tick
from simulator.run import Result
from simulator.units import NS_PER_S

MOST: Final = 40
"""Requests that can be told apart."""
SAMPLES: Final = 400


def can_be_mapped(results: Sequence[Result]) -> bool:
    """Whether the picture says something: reservations, few requests, one replica, nobody preempted."""
    few = all(len(result.requests.arrival) <= MOST and len(result.totals) == 1 for result in results)
    calm = not any(result.requests.preempted.any() or result.requests.found.any() for result in results)
    return few and calm and any(result.setup.limits.contiguous for result in results)


def memory_figure(results: Sequence[Result], labels: Sequence[str] | None = None) -> Figure:
    """KV memory [tokens] of the first replica over time, one panel a result."""
    names = list(labels) if labels is not None else labels_of(results)
    with style():
        fig, axes = figure(9.2, 2.6 * len(results) + 0.6, len(results), sharex=True)
        for ax, result, name in zip(axes, results, names, strict=True):
            _panel(ax, result, name)
        axes[-1].set_xlabel(time_unit(results[0])[1])
        handles = [Patch(facecolor=REQUESTS[0], label="filled (a colour a request)"),
                   Patch(facecolor=HELD, edgecolor=HELD_LINE, hatch="////", linewidth=0, label="reserved and empty"),
                   Patch(facecolor=EMPTY, edgecolor=MUTED, linewidth=0.5, label="free")]
        fig.legend(handles=handles, loc="outside lower left", ncols=3, handlelength=1.4)
    return fig


def _panel(ax: Axes, result: Result, name: str) -> None:
    limits, unit = result.setup.limits, time_unit(result)[0]
    capacity = limits.num_blocks * limits.block_size
    times = np.linspace(0.0, (end_tick(result) - start_tick(result)) / NS_PER_S, SAMPLES)
    ax.set_facecolor(EMPTY)
    ax.grid(False)
    bottom = np.zeros(SAMPLES)
    for row, start, end in _held(result):
        inside = (times >= start) & (times < end)
        filled = np.where(inside, _filled(result, row, times), 0.0)
        taken = _taken(result, row, filled, inside)
        low = float(result.requests.extent[row] * limits.block_size) if limits.contiguous else bottom
        colour = REQUESTS[row % len(REQUESTS)]
        ax.fill_between(times / unit, low, low + taken, where=inside, facecolor=HELD, edgecolor=HELD_LINE, hatch="////",
                        linewidth=0, step="post")
        ax.fill_between(times / unit, low, low + filled, where=inside, facecolor=colour, linewidth=0, step="post")
        bottom = bottom + taken
    ax.set_xlim(0, times[-1] / unit)
    ax.set_ylim(0, capacity)
    ax.set_ylabel("KV tokens")
    kind = "contiguous" if limits.contiguous else f"paged, blocks of {limits.block_size}"
    ax.set_title(f"{label_of(name, 32)} · {kind} · memory for {capacity:,} tokens")


def _held(result: Result) -> list[tuple[int, float, float]]:
    """(request, from, to) [s] of every request that held memory, in order of admission."""
    spans, zero = slot_spans(result), start_tick(result)
    found = [(int(row), (start - zero) / NS_PER_S, (end - zero) / NS_PER_S)
             for row, start, end in zip(spans.row, spans.start, spans.held, strict=True)]
    return sorted(found, key=lambda each: each[1])


def _filled(result: Result, row: int, times: Any) -> Any:
    """[tokens] computed at each time: the prompt from the start on, then the answer evenly from first to last token."""
    req, zero = result.requests, start_tick(result)
    first, last = (req.first[row] - zero) / NS_PER_S, (req.last[row] - zero) / NS_PER_S
    if result.setup.limits.stream == 0:
        first = (req.scheduled[row] - zero) / NS_PER_S
    share = np.clip((times - first) / (last - first), 0, 1) if last > first else np.ones(len(times))
    return req.prompt[row] + np.floor(share * (req.done[row] - 1))


def _taken(result: Result, row: int, filled: Any, inside: Any) -> Any:
    """[tokens] of memory held at each time."""
    req, limits = result.requests, result.setup.limits
    if limits.contiguous:
        blocks = reservation(req, limits, row, int(req.prompt[row] + req.limit[row]))
        return np.where(inside, float(blocks * limits.block_size), 0.0)
    return np.ceil(filled / limits.block_size) * limits.block_size

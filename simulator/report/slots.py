"""The slot picture: who held which slot when, so that empty and wasted capacity is seen.

Its form is that of the figures in Yu et al., "Orca", OSDI 2022 (figures 3 and 4): time to the
right, a row a slot.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from simulator.report.svg import EMPTY, HELD, HELD_LINE, INK, MUTED, PAPER, REQUESTS, figure, style
from simulator.report.timeline import Spans, end_tick, slot_spans, start_tick
from simulator.run import Result
from simulator.state import Limits
from simulator.text import several
from simulator.units import NS_PER_S

MAX_SPANS: Final = 260
"""Requests in a slot picture; of more, a window from the middle of the run is shown."""
MAX_SLOTS: Final = 128
FEWEST_SLOTS: Final = 16
LABELLED: Final = 26
"""Up to this many requests are named by letters."""


def label_of(text: str, limit: int = 48) -> str:
    """A name as a label: printable characters only, shortened to `limit`."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def labels_of(results: Sequence[Result]) -> list[str]:
    """Scenario names, or policies where the names are equal, numbered where both are."""
    names = [label_of(result.scenario.name) for result in results]
    if len(set(names)) < len(names):
        names = [f"{name} · {result.setup.policy.name}" for name, result in zip(names, results, strict=True)]
    return names if len(set(names)) == len(names) else [f"{k + 1}: {name}" for k, name in enumerate(names)]


def time_unit(result: Result) -> tuple[float, str]:
    """(seconds per unit, name) of a time axis: steps on the textbook GPU, else seconds."""
    step = textbook_step(result)
    return (step, "step") if step else (1.0, "time [s]")


def textbook_step(result: Result) -> float:
    """[s] length of every step on the textbook GPU, 0 on a real one."""
    if result.setup.gpu.name != "unit":
        return 0.0
    step = result.scenario.hardware.step_s
    return 1.0 if step is None else step


def slot_figure(results: Sequence[Result], labels: Sequence[str] | None = None) -> Figure:
    """Who held which slot when, one panel a result on one time axis.

    Requests are coloured, empty slots grey, slots of a static batch whose request has ended hatched. Of a long
    run or many slots a window is shown; the title says so.
    """
    names = list(labels) if labels is not None else labels_of(results)
    shown = [(result, name, r) for result, name in zip(results, names, strict=True) for r in _replicas_shown(result)]
    spans = [_shown_slots(result, r) for result, _, r in shown]
    window = _window([result for result, _, _ in shown], spans)
    slots = [_slots_shown(result, r, own) for (result, _, r), own in zip(shown, spans, strict=True)]
    heights = [float(np.clip(0.36 * n, 1.1, 3.0)) for n in slots]
    with style():
        fig, axes = figure(
            9.2, sum(heights) + 0.62 * len(shown) + 0.55, len(shown), sharex=True, height_ratios=heights
        )
        for ax, (result, name, r), own, count in zip(axes, shown, spans, slots, strict=True):
            _slot_panel(ax, result, own, window, count)
            ax.set_title(_slot_title(result, name, r, own, count))
        axes[-1].set_xlabel(time_unit(results[0])[1])
        _slot_legend(fig, results)
    return fig


def crowded(result: Result) -> bool:
    """Whether a replica that is shown served more requests than a picture of slots can show."""
    return any(_served(result, r) > MAX_SPANS for r in _replicas_shown(result))


def _served(result: Result, r: int) -> int:
    """Requests that held a slot at a replica."""
    req = result.requests
    there = (req.replica == r) | (req.source == r) if len(req.source) else req.replica == r
    return int(np.count_nonzero((req.slot >= 0) & there))


def _replicas_shown(result: Result) -> list[int]:
    """The first; where requests are handed over, the busiest of those with each role."""
    cluster, busy = result.scenario.cluster, result.totals["wall"]
    if not len(result.requests.source):
        return [0]
    roles = [[r for name, pool in cluster.pools.items() if pool.role == role for r in cluster.ranges[name]]
             for role in ("prefill", "decode", "both")]
    return [max(members, key=lambda r: int(busy[r])) for members in roles if members]


def _pool_of(result: Result, r: int) -> str:
    """Name of a replica's pool, "" where there are none."""
    return next((name for name, own in result.scenario.cluster.ranges.items() if r in own), "")


def _limits(result: Result, r: int) -> Limits:
    pools = result.setup.pools
    return (pools[_pool_of(result, r)] if pools else result.setup).limits


def _shown_slots(result: Result, r: int) -> Spans:
    """Spans of a replica and its first MAX_SLOTS slots."""
    spans = slot_spans(result)
    return spans.only((spans.replica == r) & (spans.slot < MAX_SLOTS))


def _slots_shown(result: Result, r: int, spans: Spans) -> int:
    """All slots, or where few of many are ever used, a tenth more than those: empty capacity stays visible."""
    used = int(spans.slot.max(initial=0)) + 1
    least = FEWEST_SLOTS if len(_replicas_shown(result)) == 1 else FEWEST_SLOTS // 2
    return min(_limits(result, r).max_num_seqs, MAX_SLOTS, max(least, used + 1 + used // 10))


def _window(results: Sequence[Result], spans: Sequence[Spans]) -> tuple[int, int]:
    """[ns after the first arrival] what to show: all, or MAX_SPANS requests in mid-run."""
    lengths = [end_tick(result) - start_tick(result) for result in results]
    if max(len(own.row) for own in spans) <= MAX_SPANS:
        return 0, max(lengths)
    middle = min(lengths) // 2
    half = middle
    for result, own in zip(results, spans, strict=True):
        if len(own.row) > MAX_SPANS:
            away = np.abs(own.start - start_tick(result) - middle)
            half = min(half, int(np.partition(away, MAX_SPANS)[MAX_SPANS]))
    half = max(half, middle // 100, 1)
    return max(middle - half, 0), middle + half


def _slot_panel(ax: Axes, result: Result, spans: Spans, window: tuple[int, int], count: int) -> None:
    zero, unit = start_tick(result), time_unit(result)[0] * NS_PER_S
    low, high = window
    spans = spans.only((spans.held - zero > low) & (spans.start - zero < high))
    few = len(result.requests.arrival) <= LABELLED
    edge = PAPER if len(spans.row) <= 80 else "none"
    colour = np.array(REQUESTS)[spans.row % len(REQUESTS)]
    start, useful, held = ((column - zero) / unit for column in (spans.start, spans.useful, spans.held))
    thick = 0.86 if count <= 32 else 1.0
    ax.set_facecolor(EMPTY)
    ax.grid(False)
    wasted = held > useful
    if few:
        ax.barh(spans.slot[wasted], (held - useful)[wasted], thick, useful[wasted], color=HELD, edgecolor=HELD_LINE,
                hatch="////", linewidth=0)
        ax.barh(spans.slot, useful - start, thick, start, color=colour, edgecolor=edge, linewidth=0.8)
    else:
        add_bars(ax, spans.slot[wasted], useful[wasted], held[wasted], thick, facecolors=HELD, linewidths=0)
        add_bars(ax, spans.slot, start, useful, thick, facecolors=colour, edgecolors=edge, linewidths=0.4)
    if few:
        for row, slot, left, right in zip(spans.row, spans.slot, start, useful, strict=True):
            _name_bar(ax, result, int(row), float(slot), left, right, (high - low) / unit)
    ax.set_xlim(low / unit, high / unit)
    ax.set_ylim(count - 0.5, -0.5)
    ax.set_ylabel("slot")
    if count <= 8:
        ax.set_yticks(range(count))
    else:
        ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))


def add_bars(ax: Axes, slot: Any, left: Any, right: Any, thick: float, **look: Any) -> None:
    """Bars from `left` to `right` as one artist: hundreds of single ones take long to make."""
    low, high = slot - thick / 2, slot + thick / 2
    corners = np.stack([left, low, right, low, right, high, left, high], axis=1).reshape(-1, 4, 2)
    ax.add_collection(PolyCollection(list(corners), **look), autolim=False)


def _name_bar(
    ax: Axes, result: Result, row: int, slot: float, left: float, right: float, width: float
) -> None:
    letter = chr(ord("A") + row)
    text = f"{letter} · {int(result.requests.output[row])}" if right - left > width * 0.055 else letter
    if right - left > width * 0.012:
        ax.text((left + right) / 2, slot, text, ha="center", va="center", fontsize=8.5, color=INK)


def _slot_title(result: Result, name: str, r: int, spans: Spans, count: int) -> str:
    summary, limits, cluster = result.summary, _limits(result, r), result.scenario.cluster
    use, pool, replicas = summary["slot_utilization"], _pool_of(result, r), _replicas_shown(result)
    parts = []
    if r == replicas[0]:  # of the whole run
        parts = [label_of(name, 32), f"{several(summary['steps'], 'step')}"]
        if use is not None:
            parts.append(f"slot use {100 * use:.4g} %")
    if cluster.size > 1:
        busiest = f"busiest {cluster.pools[pool].role} replica, " if len(replicas) > 1 else "replica "
        parts.append(f"{busiest}{r} of {cluster.size}{f', pool {pool}' if pool else ''}")
    if limits.max_num_seqs > count:
        parts.append(f"first {count} of {limits.max_num_seqs} slots")
    if len(spans.row) < _served(result, r):
        parts.append("part of the run")
    if not spans.exact:
        parts.append("ends inside batches estimated")
    return " · ".join(parts)


def _slot_legend(fig: Figure, results: Sequence[Result]) -> None:
    handles = [
        Patch(facecolor=REQUESTS[0], label="a request (colours tell them apart)"),
        Patch(facecolor=EMPTY, edgecolor=MUTED, linewidth=0.5, label="empty slot"),
    ]
    if any(result.setup.policy.name == "static" for result in results):
        handles.insert(
            1,
            Patch(
                facecolor=HELD,
                edgecolor=HELD_LINE,
                hatch="////",
                linewidth=0,
                label="held, but its request has ended",
            ),
        )
    fig.legend(handles=handles, loc="outside lower left", ncols=len(handles), handlelength=1.4)

"""The prefix cache in pictures: what it found over time, and what it would find with more or less KV memory."""

from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from simulator.metrics.reuse import Curve, hit_rate_over_time
from simulator.report.slots import time_unit
from simulator.report.svg import INK, LINES, MUTED, figure, style
from simulator.report.timeline import bin_edges
from simulator.run import Result
from simulator.units import GIB, NS_PER_S

BINS: Final = 40
POINTS: Final = 160


def reuse_figure(result: Result) -> Figure | None:
    """Hit rate over time, and against KV memory; None where nothing is reused."""
    known = result.reuse_curve
    if known is None:
        return None
    with style():
        fig, axes = figure(9.2, 2.9, 1, 2)
        _against_memory(axes[0], result, *known)
        _over_time(axes[1], result)
    return fig


def _over_time(ax: Axes, result: Result) -> None:
    edges = bin_edges(result, BINS)
    rate, _ = hit_rate_over_time(result, edges)
    unit, label = time_unit(result)
    ax.stairs(np.nan_to_num(rate), (edges - edges[0]) / NS_PER_S / unit, fill=True, color=LINES[0], alpha=0.22)
    ax.stairs(rate, (edges - edges[0]) / NS_PER_S / unit, baseline=None, color=LINES[0])
    mean = result.summary["kv"]["prefix_cache"]["hit_rate"]
    ax.axhline(mean, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    ax.set_title(f"found over time; {100 * mean:.0f} % in all")
    ax.set_xlabel(label)
    _shares(ax)


def _against_memory(ax: Axes, result: Result, hits: Curve, tokens: int) -> None:
    limits = result.setup.limits
    block, own = limits.block_size, limits.num_blocks
    low, high = min(own / 8, hits.enough / 8), max(2.0 * own, 1.3 * hits.enough)
    sizes = np.unique(np.append(np.geomspace(max(low, 1), high, POINTS), own))
    rates = np.array([hits.hits(size) * block / tokens for size in sizes])
    ax.plot(sizes * block, rates, color=LINES[2])
    ideal = hits.ideal * block / tokens
    ax.axhline(ideal, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    ax.annotate(f"memory without end: {100 * ideal:.0f} %", (0, ideal), xycoords=("axes fraction", "data"), ha="left",
                va="bottom", fontsize=8, color=MUTED, xytext=(3, 1), textcoords="offset points")
    measured = result.summary["kv"]["prefix_cache"]["hit_rate"]
    ax.plot([own * block], [measured], "o", color=LINES[1], markersize=6, zorder=4)
    right = np.log(own / max(low, 1)) > 0.7 * np.log(high / max(low, 1))
    ax.annotate(f"this run{_gigabytes(result)}", (own * block, measured), ha="right" if right else "left", va="top",
                fontsize=8.5, color=INK, xytext=(-2 if right else 4, -10), textcoords="offset points")
    ax.set_xscale("log")
    ax.set_xlim(max(low, 1) * block, high * block)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    ax.xaxis.set_minor_formatter("")
    ax.set_title("prompt tokens found, by size of the KV memory")
    ax.set_xlabel("KV memory of a replica, tokens")
    _shares(ax)


def _shares(ax: Axes) -> None:
    ax.set_ylim(0, 1.03)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _gigabytes(result: Result) -> str:
    capacity = result.setup.capacity
    if capacity is None:
        return ""
    return f": {result.setup.limits.num_blocks * capacity.block_bytes / GIB:.3g} GiB a GPU"


def _short(value: float) -> str:
    """1,500 as `1.5k`, 2,000,000 as `2M`."""
    for size, mark in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{mark}"
    return f"{value:g}"

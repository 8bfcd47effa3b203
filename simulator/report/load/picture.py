"""The latency-throughput curve: latencies over delivered tokens, and speed for one user against that of a GPU."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from simulator.report.load.words import a_gpu
from simulator.report.svg import LINES, MUTED, PAPER, figure, style
from simulator.text import number, seconds

Data = Mapping[str, Any]
PANELS: Final = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E latency"))
MARKS: Final = (("p50", LINES[0]), ("p99", LINES[1]))


def curve_figure(data: Data) -> Figure:
    """Four panels; filled points are stable, hollow ones are not, diamonds are measured."""
    measured: Sequence[Data] = data.get("measured") or ()
    with style():
        fig, axes = figure(9.2, 6.2, 2, 2)
        for ax, (metric, title) in zip(axes, PANELS, strict=False):
            _latency(ax, data, measured, metric, title)
        _speeds(axes[3], data, measured)
        handles = [Line2D([], [], color=colour, label=mark) for mark, colour in MARKS]
        handles += [
            Line2D([], [], color=MUTED, marker="o", linestyle="", label="stable"),
            Line2D([], [], color=MUTED, marker="o", linestyle="", markerfacecolor="none", label="not stable"),
        ]
        if measured:
            handles.append(Line2D([], [], color=MUTED, marker="D", linestyle="", label="measured"))
        fig.legend(handles=handles, loc="outside lower left", ncols=5)
    return fig


def panel_figures(data: Data) -> list[tuple[str, Figure]]:
    """The panels one by one, with their titles: a page lays them side by side, or one below the other."""
    measured: Sequence[Data] = data.get("measured") or ()
    drawn = []
    for k in range(len(PANELS) + 1):
        with style():
            fig, axes = figure(4.6, 3.1)
            if k < len(PANELS):
                _latency(axes[0], data, measured, *PANELS[k])
            else:
                _speeds(axes[0], data, measured)
        drawn.append((axes[0].get_title(), fig))
    return drawn


def _latency(ax: Axes, data: Data, measured: Sequence[Data], metric: str, title: str) -> None:
    """One latency over output tokens/s, logarithmic upwards."""
    for mark, colour in MARKS:
        key = f"{metric}_{mark}_s"
        rows = [row for row in data["points"] if row[key] and row["output_tokens_per_s"]]
        _points(ax, [(row["output_tokens_per_s"], row[key], row["verdict"] == "stable") for row in rows], colour)
        real = [(row["output_tokens_per_s"], row[key]) for row in measured if _known(row, "output_tokens_per_s", key)]
        if real:
            ax.plot(*zip(*real, strict=True), "D", color=colour, markersize=5, zorder=5)
    ax.set_title(title)
    ax.set_xlabel("output tokens/s, all GPUs")
    ax.set_xlim(left=0)
    if ax.lines:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(10, (1, 2, 5), numticks=8))
        ax.yaxis.set_minor_formatter("")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def _speeds(ax: Axes, data: Data, measured: Sequence[Data]) -> None:
    """Output tokens/s of a GPU against those that one user sees (1 / mean TPOT)."""
    points = [
        (1 / row["tpot_mean_s"], a_gpu(row, data), row["verdict"] == "stable")
        for row in data["points"]
        if row["tpot_mean_s"] and row["output_tokens_per_s"]
    ]
    _points(ax, points, LINES[2])
    real = [
        (1 / row["tpot_mean_s"], a_gpu(row, data))
        for row in measured
        if _known(row, "tpot_mean_s", "output_tokens_per_s")
    ]
    if real:
        ax.plot(*zip(*real, strict=True), "D", color=LINES[2], markersize=5, zorder=5)
    ax.set_title("Tokens/s of a GPU against those of a user")
    ax.set_xlabel("output tokens/s that a user sees")
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def _points(ax: Axes, points: Sequence[tuple[float, float, bool]], colour: str) -> None:
    """A line through the points, hollow where the verdict is not stable."""
    if not points:
        return
    ax.plot([x for x, _, _ in points], [y for _, y, _ in points], "-", color=colour)
    for stable in (True, False):
        own = [(x, y) for x, y, found in points if found == stable]
        if own:
            face = colour if stable else PAPER
            ax.plot(*zip(*own, strict=True), "o", color=colour, markersize=4.5, markerfacecolor=face, zorder=4)


def _known(row: Data, *keys: str) -> bool:
    return all(row.get(key) for key in keys)

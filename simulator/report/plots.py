"""Pictures of results: pure functions Result -> matplotlib Figure; `simulator.report.svg` writes them out.

`figures(result)` draws the set of one result, `compare_figures(results)` that of several. Large runs are
reduced to what a picture can show: time in bins, distributions at fixed quantiles, slots in a window.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, StepPatch
from matplotlib.ticker import FuncFormatter, LogLocator, PercentFormatter

from simulator.metrics.latency import due, fates, times
from simulator.report.compared import overloaded
from simulator.report.fleet import fleet_figure
from simulator.report.journeys import journey_figure
from simulator.report.memory_map import can_be_mapped, memory_figure
from simulator.report.reuse import reuse_figure
from simulator.report.slots import crowded, label_of, labels_of, slot_figure, time_unit
from simulator.report.svg import EMPTY, INK, LINES, MUTED, REQUESTS, Picture, figure, style
from simulator.report.timeline import Level, levels
from simulator.run import Result
from simulator.state import log_bin_edges
from simulator.text import MISSING, seconds
from simulator.text import share as per_cent
from simulator.units import NS_PER_S

Floats = npt.NDArray[np.float64]

QUANTILES: Final = np.unique(np.concatenate([np.linspace(0, 1, 201), 1 - np.logspace(-2, -4, 30)]))


# levels over time


def batch_figure(result: Result) -> Figure:
    """Running and waiting requests and KV memory over time: mean of each time bin, shaded up to its peak."""
    seen = levels(result)
    pools = list(result.setup.pools.values()) or [result.setup]
    slots = sum(pool.limits.max_num_seqs * pool.scenario.cluster.size for pool in pools)
    held = sum(pool.limits.num_blocks * pool.scenario.cluster.size for pool in pools)
    with style():
        fig, axes = figure(5.0, 4.4, 3, sharex=True)
        _level_panel(axes[0], result, seen["running"], "running requests", LINES[0])
        _limit(axes[0], slots, seen["running"], "slots")
        _level_panel(axes[1], result, seen["waiting"], "waiting requests", LINES[1])
        blocks = Level(
            seen["kv"].edges,
            seen["kv"].mean / held,
            seen["kv"].peak / held,
            seen["kv"].exact,
        )
        _level_panel(axes[2], result, blocks, "KV blocks in use", LINES[2])
        axes[2].yaxis.set_major_formatter(PercentFormatter(1.0))
        axes[-1].set_xlabel(time_unit(result)[1])
    return fig


def _level_panel(ax: Axes, result: Result, seen: Level, title: str, colour: str) -> None:
    unit = time_unit(result)[0]
    left = seen.edges / unit
    # add_artist, not ax.stairs: that would search both for limits, which are set below
    ax.add_artist(StepPatch(seen.peak, left, baseline=0, fill=True, color=colour, alpha=0.18, linewidth=0))
    no_baseline: Any = None
    ax.add_artist(StepPatch(seen.mean, left, baseline=no_baseline, fill=False, edgecolor=colour, linewidth=1.2))
    ax.set_xlim(left[0], left[-1])
    ax.set_ylim(0, 1.12 * float(seen.peak.max(initial=0)) or 1.0)
    ax.set_title(title if seen.exact else f"{title} (estimated)")


def _limit(ax: Axes, value: float, seen: Level, text: str) -> None:
    """A dashed line at a limit, when the level comes near it."""
    if float(seen.peak.max(initial=0)) >= 0.5 * value:
        ax.set_ylim(0, 1.18 * value)
        ax.axhline(value, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        ax.annotate(
            f"{value:,.0f} {text}",
            (1, value),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
            color=MUTED,
            xytext=(-2, 1),
            textcoords="offset points",
        )


# distributions

_LATENCIES: Final = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("itl_s", "ITL"), ("e2e_s", "E2E latency"))
_TARGETS: Final = ("ttft_s", "tpot_s", "e2e_s")


def latency_figure(results: Sequence[Result], labels: Sequence[str] | None = None) -> Figure:
    """Cumulative distributions of TTFT, TPOT, ITL and E2E latency; p50 and p99 marked, SLO targets dashed.

    A request that was refused or never ended counts as infinitely late: its curve ends below 100 %.
    """
    names = list(labels) if labels is not None else labels_of(results)
    with style():
        fig, axes = figure(
            5.0 if len(results) == 1 else 9.2, 4.4 + 0.22 * (len(results) > 1), 2, 2, sharey=True
        )
        for ax, (key, title) in zip(axes, _LATENCIES, strict=True):
            for k, result in enumerate(results):
                _curve(ax, result, key, LINES[k % len(LINES)], names[k])
            _finish_curve(ax, results[0], key, title)
        if len(results) > 1:
            handles = [Patch(facecolor=LINES[k % len(LINES)], label=name) for k, name in enumerate(names)]
            fig.legend(handles=handles, loc="outside lower left", ncols=min(len(names), 3), handlelength=1.2)
    return fig


def distribution(result: Result, key: str) -> tuple[Floats, Floats]:
    """(values [s] increasing, share of requests at or below each) of one latency.

    Shares are of all requests that were due one after the warm-up, as in `simulator.metrics.summary`; for ITL of
    all gaps.
    """
    if key == "itl_s":
        filled = np.flatnonzero(result.itl)
        share = np.cumsum(result.itl[filled]) / max(int(result.itl.sum()), 1)
        if len(filled) == 1:
            return np.array([result.summary[key]["mean"]]), share
        return log_bin_edges()[filled] / NS_PER_S, share
    fate, able = fates(result), due(result, key)
    rows = fate.measured if able is None else fate.measured & able
    values = np.sort(times(result, key, rows & fate.completed)) / NS_PER_S
    return values, np.arange(1, len(values) + 1) / max(int(np.count_nonzero(rows)), 1)


def _curve(ax: Axes, result: Result, key: str, colour: str, name: str) -> None:
    values, share = distribution(result, key)
    if not len(values):
        return
    if len(values) > len(QUANTILES):
        at = np.unique(np.searchsorted(share, QUANTILES * share[-1]).clip(0, len(values) - 1))
        values, share = values[at], share[at]
    values = np.maximum(values, 1e-9)
    ax.step(np.append(values[0], values), np.append(0, share), where="post", color=colour, label=name)
    for mark, level in (("p50", 0.5), ("p99", 0.99)):
        value = result.summary[key][mark]
        if value:
            ax.plot([value], [level], "o", color=colour, markersize=4, zorder=4)


def _finish_curve(ax: Axes, result: Result, key: str, title: str) -> None:
    ax.set_title(title)
    ax.set_ylim(0, 1.03)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if not ax.lines:
        ax.text(
            0.5,
            0.5,
            "not defined: answers\nare returned whole" if key in ("tpot_s", "itl_s") else "no value",
            transform=ax.transAxes,
            ha="center",
            va="center",
            color=MUTED,
        )
        ax.set_xticks([])
        return
    low, high = _range(ax)
    target = getattr(result.scenario.slo, key, None) if key in _TARGETS else None
    if target and target < 3 * high:
        high = max(high, target)
        ax.axvline(target, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        ax.annotate(
            f"SLO {seconds(target)}",
            (target, 0.04),
            xytext=(-3, 0),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="bottom",
            fontsize=8,
            color=MUTED,
        )
    _time_axis(ax, low, high)


def _time_axis(ax: Axes, low: float, high: float) -> None:
    """Seconds with units; logarithmic where the values span more than a factor of 30."""
    if high > 30 * low:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(10, (1, 3) if high < 60 * low else (1,), numticks=6))
        ax.xaxis.set_minor_formatter("")
    else:
        ax.locator_params(axis="x", nbins=4)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))


def _range(ax: Axes) -> tuple[float, float]:
    values = np.concatenate([np.asarray(line.get_xdata(), dtype=float) for line in ax.lines])
    return float(values.min()), float(values.max())


# where the time goes

PARTS: Final = (
    ("dense_s", "dense layers"),
    ("decode_attention_s", "decode attention"),
    ("prefill_attention_s", "prefill attention"),
    ("exposed_cpu_s", "GPU waits for CPU"),
    ("copy_s", "KV copies"),
)


def time_figure(results: Sequence[Result], labels: Sequence[str] | None = None) -> Figure:
    """Shares of the GPUs' time: dense layers, attention, waiting for the CPU; the rest had nothing to do."""
    names = list(labels) if labels is not None else labels_of(results)
    with style():
        fig, (ax,) = figure(9.2, 0.42 * len(results) + 0.95)
        for k, result in enumerate(results):
            _time_bar(ax, result.summary, result.scenario.cluster.size, k)
        ax.set_yticks(range(len(results)), names if len(results) > 1 else [""])
        ax.set_ylim(len(results) - 0.45, -0.55)
        ax.set_xlim(0, 1)
        ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        ax.grid(False)
        ax.spines[["left", "bottom"]].set_visible(False)
        ax.tick_params(left=False)
        copied = any(result.summary["time"]["copy_s"] for result in results)
        shown = PARTS if copied else PARTS[:-1]
        handles = [Patch(facecolor=colour, label=text) for (_, text), colour in zip(shown, REQUESTS, strict=False)]
        handles.append(Patch(facecolor=EMPTY, edgecolor=MUTED, linewidth=0.5, label="idle"))
        fig.legend(handles=handles, loc="outside lower left", ncols=len(handles), handlelength=1.2)
    return fig


def time_shares(summary: dict[str, Any], replicas: int) -> dict[str, float]:
    """Share of (makespan x replicas), or of the replica hours, spent in each of PARTS and `idle`."""
    hours = summary["fleet"]["replica_hours"] if "fleet" in summary else (summary["makespan_s"] or 0) * replicas / 3600
    total = max(3600 * hours, 1e-12)
    shares = {key: max(0.0, (summary["time"][key] or 0.0) / total) for key, _ in PARTS}
    return shares | {"idle": max(0.0, 1 - sum(shares.values()))}


def _time_bar(ax: Axes, summary: dict[str, Any], replicas: int, row: int) -> None:
    left = 0.0
    colours = (*REQUESTS[: len(PARTS)], EMPTY)
    for (key, share), colour in zip(time_shares(summary, replicas).items(), colours, strict=True):
        ax.barh([row], [share], 0.62, left, color=colour, linewidth=0)
        if share > 0.06:
            ax.text(
                left + share / 2,
                row,
                f"{100 * share:.0f} %",
                ha="center",
                va="center",
                fontsize=8.5,
                color=MUTED if key == "idle" else INK,
            )
        left += share


# several results

_COMPARED: Final = (
    ("throughput", "output_tokens_per_s", "output tokens/s"),
    ("ttft_s", "p50", "TTFT p50"),
    ("ttft_s", "p99", "TTFT p99"),
    ("tpot_s", "p99", "TPOT p99"),
    ("e2e_s", "p99", "E2E p99"),
    ("slot_utilization", "", "slot use"),
)


def compare_figure(results: Sequence[Result], labels: Sequence[str] | None = None) -> Figure:
    """Throughput, latencies and slot use side by side, one panel a quantity, one bar a result."""
    names = list(labels) if labels is not None else labels_of(results)
    with style():
        fig, axes = figure(9.2, 2 * (0.3 * len(results) + 0.55) + 0.1, 2, 3, sharey=True)
        for ax, (section, key, title) in zip(axes, _COMPARED, strict=True):
            values = [r.summary[section][key] if key else r.summary[section] for r in results]
            grows = [section in ("ttft_s", "e2e_s") and overloaded(r.summary) for r in results]
            _bars(ax, values, title, grows)
        axes[0].set_yticks(range(len(results)), [label_of(name, 30) for name in names])
        axes[0].set_ylim(len(results) - 0.5, -0.5)
    return fig


def _bars(ax: Axes, values: Sequence[float | None], title: str, grows: Sequence[bool]) -> None:
    """A bar a value; one that `grows` with the length of the trace has none."""
    known = [0.0 if grows[k] else value or 0.0 for k, value in enumerate(values)]
    top = max(known) or 1.0
    forms = {"output tokens/s": "{:,.0f}".format, "slot use": per_cent}
    text = forms.get(title, seconds)
    ax.barh(range(len(values)), known, 0.66, color=[LINES[k % len(LINES)] for k in range(len(values))])
    for k, value in enumerate(values):
        ax.annotate(
            "grows: overloaded" if grows[k] else MISSING if value is None else text(value),
            (known[k], k),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    ax.set_xlim(0, top * 1.32)
    ax.set_xticks([])
    ax.set_title(title)
    ax.grid(False)
    ax.spines[["bottom", "left"]].set_visible(False)
    ax.tick_params(left=False)


# sets


def figures(result: Result) -> dict[str, Figure]:
    """The pictures of one result by file stem: fleet, prefix hits where there are any, slots, load, latency, time."""
    reuse = reuse_figure(result)
    return {
        **({} if result.fleet is None else {"fleet": fleet_figure(result)}),
        **_who_and_when([result], None),
        "load": batch_figure(result),
        "latency": latency_figure([result]),
        **({"reuse": reuse} if reuse else {}),
        "time": time_figure([result]),
    }


def _who_and_when(results: Sequence[Result], names: Sequence[str] | None) -> dict[str, Figure]:
    """Slots over time; requests on their way where slots could only be shown in part."""
    if any(crowded(result) for result in results):
        return {"journeys": journey_figure(results, names)}
    drawn = {"slots": slot_figure(results, names)}
    return drawn | {"memory": memory_figure(results, names)} if can_be_mapped(results) else drawn


def compare_figures(results: Sequence[Result]) -> dict[str, Figure]:
    """The pictures of several results by file stem: compare, slots, latency, time."""
    names = labels_of(results)
    return {
        "compare": compare_figure(results, names),
        **_who_and_when(results, names),
        "latency": latency_figure(results, names),
        "time": time_figure(results, names),
    }


def pictures(results: Result | Sequence[Result]) -> dict[str, Picture]:
    """The figures of one result, or of several compared, ready to be written."""
    drawn = figures(results) if isinstance(results, Result) else compare_figures(results)
    return {name: Picture(fig) for name, fig in drawn.items()}

"""The fleet over time, as one who is on call reads it: replicas, what was asked of them, the queue, targets met, cost.

For runs in which something happens to the fleet: autoscaling, crashes, restarts. One axis of time, from the first
arrival to the last output.
"""

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from simulator.engines.members import DOWN, DRAINING, STARTING, UP
from simulator.metrics.fleet import HOUR_NS, Stays, stays, usd_per_replica_hour
from simulator.metrics.latency import fates
from simulator.metrics.pools import parts
from simulator.metrics.summary import meets_slo
from simulator.report.slots import time_unit
from simulator.report.svg import EMPTY, HELD, HELD_LINE, INK, LINES, MUTED, REQUESTS, figure, style
from simulator.report.timeline import BINS, bin_edges, end_tick, level, start_tick
from simulator.run import Result
from simulator.scenario.autoscale import AutoscaleSpec
from simulator.scenario.changes import autoscaled
from simulator.scenario.sections import EventSpec
from simulator.units import NEVER, NS_PER_S

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

SHOWN: Final = ((UP, "serving", REQUESTS[0]), (STARTING, "starting", REQUESTS[1]), (DRAINING, "draining", REQUESTS[3]),
                (DOWN, "down", HELD_LINE))
"""State, its name, its colour; from the bottom up."""
MARKED: Final = 12
"""Events up to which each is marked."""
ATTAINED_BINS: Final = 80
SAME_COST: Final = 0.005
"""A fleet that costs less than this share below all of it all the time is one that did not change."""
METRIC_NAMES: Final = {"waiting": "waiting requests a replica", "running": "running requests a replica",
                       "requests": "requests a replica", "kv": "share of KV blocks held", "ttft": "mean TTFT [s]"}


def fleet_figure(result: Result) -> "Figure":
    """Replicas by state, the autoscaler's metric, requests waiting and running, targets met, and cost, over time."""
    specs = list(result.scenario.cluster.autoscales.items())
    metric = specs[0] if len(specs) == 1 and specs[0][1].metric else None
    met = attained(result)
    begin, end = start_tick(result), end_tick(result)
    found = stays(result, begin, end)
    unit, label = time_unit(result)
    with style():
        fig, axes = figure(9.2, 1.35 * (3 + (metric is not None) + (met is not None)) + 0.7,
                           3 + (metric is not None) + (met is not None), sharex=True)
        rest = iter(axes)
        _replicas(next(rest), result, found, unit)
        if metric is not None:
            _metric(next(rest), result, *metric, unit)
        _queue(next(rest), result, unit)
        if met is not None:
            _attained(next(rest), *met, unit)
        _cost(next(rest), result, unit)
        axes[-1].set_xlim(0, (end - begin) / NS_PER_S / unit)
        axes[-1].set_xlabel(label)
    return fig


def attained(result: Result) -> tuple[Floats, Floats] | None:
    """Edges [s] from the first arrival, and the share of those who arrived between that met every target; NaN where
    nobody arrived. None without targets."""
    fate = fates(result)
    met = meets_slo(result, fate)
    if met is None or not fate.arrived.any():
        return None
    begin = start_tick(result)
    arrival = (result.requests.arrival[fate.arrived] - begin) / NS_PER_S
    edges = np.linspace(0, max(float(arrival.max()), 1e-9), min(ATTAINED_BINS, max(1, len(arrival) // 20)) + 1)
    all_, _ = np.histogram(arrival, edges)
    good, _ = np.histogram(arrival[met[fate.arrived]], edges)
    return edges, np.where(all_ > 0, good / np.maximum(all_, 1), np.nan)


def _replicas(ax: "Axes", result: Result, found: Stays, unit: float) -> None:
    from matplotlib.ticker import MaxNLocator

    edges = bin_edges(result)
    left = (edges - edges[0]) / NS_PER_S / unit
    below = np.zeros(len(edges) - 1)
    for state, name, colour in SHOWN:
        rows = found.state == state
        if not rows.any():
            continue
        height = level(found.start[rows], found.end[rows], 1, edges).mean
        ax.stairs(below + height, left, baseline=below, fill=True, color=colour, label=name)
        below = below + height
    tick, wanted = wanted_over_time(result)
    if len(tick):
        ax.step((tick - edges[0]) / NS_PER_S / unit, wanted, where="post", color=INK, linewidth=1.0,
                linestyle=(0, (3, 2)), label="wanted")
    ax.set_ylim(0, 1.3 * max(float(below.max()), float(wanted.max(initial=1))))
    _mark_events(ax, result, unit)
    ax.set_title("replicas")
    ax.legend(loc="upper right", ncols=5, handlelength=1.2, borderaxespad=0.1)
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))


def _mark_events(ax: "Axes", result: Result, unit: float) -> None:
    """What the scenario lets happen: a line each at its beginning, where they are few."""
    events = result.scenario.cluster.events
    if len(events) > MARKED:
        return
    for event in events:
        at = (event.at_s - start_tick(result) / NS_PER_S) / unit
        ax.axvline(at, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
        ax.annotate(_event_name(event), (at, 0), xycoords=("data", "axes fraction"), xytext=(2, 2), fontsize=7.5,
                    color=INK, textcoords="offset points", rotation=90, va="bottom")


def _event_name(event: EventSpec) -> str:
    """`crash answers 1`: what happens to whom, without a number to all of them."""
    return " ".join(str(part) for part in (event.kind, event.pool, event.replica) if part is not None)


def wanted_over_time(result: Result) -> tuple[Int64s, Int64s]:
    """[tick] and replicas that the autoscalers want from then on, over all pools; empty without one."""
    scaled = list(autoscaled(result.scenario.cluster))
    if not scaled or result.fleet is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    rows = result.fleet[result.fleet["replica"] < 0]
    fixed = len(result.totals) - sum(most for *_, most in scaled)
    now = {pool: spec.min if spec.initial is None else spec.initial for pool, _, spec, _ in scaled}
    ticks, values = [start_tick(result)], [fixed + sum(now.values())]
    for row in rows:
        now[int(row["pool"])] = int(row["wanted"])
        ticks.append(int(row["tick"]))
        values.append(fixed + sum(now.values()))
    return np.array(ticks, dtype=np.int64), np.array(values, dtype=np.int64)


def _metric(ax: "Axes", result: Result, pool: str, spec: AutoscaleSpec, unit: float) -> None:
    assert result.fleet is not None and spec.target is not None and spec.metric is not None
    rows = result.fleet[(result.fleet["replica"] < 0) & (result.fleet["metric"] >= 0)]
    value = rows["metric"] / 1000
    whole = spec.formula == "keda" and spec.metric != "ttft"
    ax.step((rows["tick"] - start_tick(result)) / NS_PER_S / unit, value, where="post", color=LINES[3], linewidth=1.2)
    if not whole:
        ax.axhline(spec.target, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        ax.annotate(f"target {spec.target:g}", (1, spec.target), xycoords=("axes fraction", "data"), ha="right",
                    va="bottom", fontsize=8, color=MUTED, xytext=(-2, 1), textcoords="offset points")
    ax.set_ylim(0, 1.15 * max(float(value.max(initial=0)), 0 if whole else spec.target) or 1)
    name = METRIC_NAMES[spec.metric].replace("a replica", "in all") if whole else METRIC_NAMES[spec.metric]
    ax.set_title(f"{name}, as the autoscaler{f' of pool {pool}' if pool else ''} read it")


def _queue(ax: "Axes", result: Result, unit: float) -> None:
    """Who waits for a first step, at the gateway or at a replica, and who is in the system."""
    edges, req = bin_edges(result, BINS), result.requests
    end = end_tick(result)
    here = np.flatnonzero(req.arrival < NEVER)
    gone = np.where(req.last[here] < NEVER, req.last[here], end)
    gone = np.where(req.status[here] > 3, req.arrival[here], gone)
    begun = np.minimum(np.where(req.scheduled[here] < NEVER, req.scheduled[here], gone), gone)
    left = (edges - edges[0]) / NS_PER_S / unit
    within = level(req.arrival[here], np.maximum(gone, req.arrival[here]), 1, edges)
    waiting = level(req.arrival[here], np.maximum(begun, req.arrival[here]), 1, edges)
    ax.stairs(within.mean, left, color=LINES[0], linewidth=1.2, label="in the system")
    ax.stairs(waiting.mean, left, fill=True, color=LINES[1], alpha=0.6, label="waiting")
    ax.set_ylim(0, 1.3 * float(within.mean.max(initial=0)) or 1)
    ax.set_title("requests")
    ax.legend(loc="upper right", ncols=2, handlelength=1.2, borderaxespad=0.1)


def _attained(ax: "Axes", edges: Floats, share: Floats, unit: float) -> None:
    from matplotlib.ticker import PercentFormatter

    ax.stairs(np.where(np.isnan(share), 0, 1), edges / unit, fill=True, color=HELD)
    ax.stairs(np.nan_to_num(share), edges / unit, fill=True, color=REQUESTS[2])
    ax.set_ylim(0, 1.02)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_title("requests that met every target, by time of arrival")


def _cost(ax: "Axes", result: Result, unit: float) -> None:
    """USD spent so far, beside what all replicas all the time would have cost, where that is more."""
    edges = bin_edges(result, 200)
    spent, fixed = np.zeros(len(edges) - 1), 0.0
    for part in parts(result).values() or [result]:
        found = stays(part, int(edges[0]), int(edges[-1]))
        rows = np.isin(found.state, [state for state, *_ in SHOWN])
        price = usd_per_replica_hour(part)
        spent += level(found.start[rows], found.end[rows], price, edges).mean
        fixed += price * len(part.totals)
    hours = np.diff(edges) / HOUR_NS
    left = (edges - edges[0]) / NS_PER_S / unit
    total = np.append(0.0, np.cumsum(spent * hours))
    whole = fixed * (edges - edges[0]) / HOUR_NS
    ax.plot(left, total, color=LINES[2])
    ax.fill_between(left, total, color=EMPTY, linewidth=0)
    ax.set_ylim(0, 1.2 * float(whole[-1]) or 1)
    ends = [(total[-1], f"{total[-1]:,.2f} USD")]
    if whole[-1] > total[-1] * (1 + SAME_COST):
        ax.plot(left, whole, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        ends.append((whole[-1], f"all the time: {whole[-1]:,.2f} USD"))
    for value, text in ends:
        ax.annotate(text, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8,
                    color=MUTED, xytext=(-2, 1), textcoords="offset points")
    ax.set_title("cost so far, at the example price of the GPU's profile")

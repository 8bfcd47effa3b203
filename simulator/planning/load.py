"""A load test of a scenario in one go: the same requests at several rates or numbers of clients.

    servecast load chat --rates 1,2,4,8        servecast load chat --concurrency 1,8,64

Every point is a whole run with its verdict; means over replications, which draw the same random numbers at each point.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from simulator.errors import ConfigError
from simulator.metrics.intervals import interval
from simulator.metrics.latency import FATES
from simulator.metrics.readings import VERDICTS
from simulator.planning.measure import scaled_fleet
from simulator.planning.news import INTERRUPTED
from simulator.planning.offered import Offered
from simulator.planning.traffic import Traffic
from simulator.planning.trusted import trusted_run
from simulator.run import Result, simulate
from simulator.scenario.load import MOST
from simulator.scenario.setup import Setup, prepare
from simulator.scenario.spec import Scenario
from simulator.version import schema_of
from simulator.workload.trace import Trace

Axis = Literal["rate", "concurrency"]
METRICS: Final = {
    "requests_per_s": ("throughput", "requests_per_s"),
    "output_tokens_per_s": ("throughput", "output_tokens_per_s"),
    **{f"ttft_{k}_s": ("ttft_s", k) for k in ("mean", "p50", "p90", "p99")},
    **{f"tpot_{k}_s": ("tpot_s", k) for k in ("mean", "p50", "p90", "p99")},
    **{f"itl_{k}_s": ("itl_s", k) for k in ("mean", "p50", "p90", "p99")},
    **{f"e2e_{k}_s": ("e2e_s", k) for k in ("mean", "p50", "p90", "p99")},
    "queue_p99_s": ("queue_s", "p99"),
    "attained": ("goodput", "attained"),
    "goodput_per_s": ("goodput", "requests_per_s"),
    "running": ("batch", "mean_running"),
    "kv_peak": ("kv", "peak_use"),
}
"""Column -> where it stands in a summary."""
INTERVALS: Final = ("requests_per_s", "output_tokens_per_s", "ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "tpot_p99_s",
                    "e2e_p99_s")  # fmt: skip
"""Columns with a 90 % interval over replications."""
SHARES: Final = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2)
"""Rates tried where none are given, as shares of what is served when requests never run out."""
MOST_POINTS: Final = 200


def load_curve(
    scenario: Scenario,
    axis: Axis = "rate",
    values: Sequence[float] = (),
    *,
    replications: int = 3,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """One row a rate [requests/s] (open load) or number of clients (closed load), as plain data; null = not finite.

    No values: SHARES of what the fleet serves at its widest. A recorded trace has one replication.
    Ctrl-C leaves the points that were done by then; `stopped` says so.
    Raises ConfigError for values that are not accepted.
    """
    _check(axis, values)
    asked = sorted(set(values)) if values else [1.0]
    offered = Offered(scenario) if axis == "rate" else None
    traffic = offered.traffic if offered else Traffic(_closed(scenario, 1))
    setup = prepare(scenario)
    if not values:
        asked = _own_values(scenario, setup, traffic.trace(0), axis)
    count = replications if traffic.replicable else 1
    rows: list[dict[str, Any]] = []
    stopped = ""
    try:
        for value in asked:
            results = []
            for k in range(count):
                run, trace = _case(scenario, offered, traffic, value, k)
                ready = replace(setup, scenario=run)
                results.append(simulate(run, "auto", trace=trace, setup=ready, replication=k))
                if progress:
                    progress(len(rows) * count + k + 1)
            rows.append({axis: value, **_row(results)})
    except KeyboardInterrupt:
        if not rows:
            raise
        stopped = INTERRUPTED
    return {
        "schema": schema_of("load"),
        "name": scenario.name,
        "description": scenario.description,
        "axis": axis,
        "replications": count,
        "requests": len(traffic.trace(0)),
        "gpus": scenario.cluster.size * scenario.hardware.gpus,
        **scaled_fleet(scenario),
        "gpu": setup.gpu.name,
        "model": scenario.model,
        "policy": setup.policy.name,
        "trust": trusted_run(setup, traffic.trace(0)),
        "trace": _facts(traffic.trace(0), axis),
        "points": rows,
        "stopped": stopped,
        "carries": _carries(rows, axis),
        "scenario": scenario.model_dump(mode="json"),
    }


def _facts(trace: Trace, axis: Axis) -> dict[str, Any]:
    """The account of the trace; where rates are asked for, the one it has by itself is none of theirs."""
    return (replace(trace.meta, log_per_s=0.0) if axis == "rate" else trace.meta).facts


def _check(axis: Axis, values: Sequence[float]) -> None:
    flag = "--rates" if axis == "rate" else "--concurrency"
    for value in values:
        whole = axis == "rate" or value == int(value)
        if not 0 < value <= MOST or not whole:
            what = "numbers of requests/s > 0" if axis == "rate" else f"whole numbers of clients, 1 to {MOST}"
            raise ConfigError(f"{flag} must be {what}, got {value:g}")
    if len(values) > MOST_POINTS:
        raise ConfigError(f"{flag}: at most {MOST_POINTS} points, got {len(values)}")


def _closed(scenario: Scenario, width: int) -> Scenario:
    return scenario.updated({"load": {"kind": "closed", "width": width}})


def _case(
    scenario: Scenario, offered: Offered | None, traffic: Traffic, value: float, k: int
) -> tuple[Scenario, Trace]:
    if offered is not None:
        return offered.scenario, offered.at(value, k)
    return _closed(scenario, int(value)), traffic.trace(k)


def _own_values(scenario: Scenario, setup: Setup, trace: Trace, axis: Axis) -> list[float]:
    """Where to look when nothing is named: up to a full engine."""
    slots = setup.limits.max_num_seqs * scenario.cluster.size
    if axis == "concurrency":
        return [float(2**k) for k in range(1 + int(math.log2(max(1, min(slots, len(trace))))))]
    full = _closed(scenario, min(slots, len(trace)))
    result = simulate(full, "auto", trace=trace, setup=replace(setup, scenario=full))
    served = result.summary["throughput"]["requests_per_s"]
    if not served:
        raise ConfigError(f"{scenario.name}: no request is served at any load; try: servecast run")
    return [float(f"{served * share:.3g}") for share in SHARES]


def _row(results: Sequence[Result]) -> dict[str, Any]:
    """Means over replications; a percentile that is infinite in one of them is null."""
    summaries = [result.summary for result in results]
    row: dict[str, Any] = {}
    for name, (section, key) in METRICS.items():
        found = [summary[section][key] for summary in summaries]
        row[name] = None if any(v is None for v in found) else sum(found) / len(found)
        if name in INTERVALS and len(found) > 1:
            known = interval(found) if row[name] is not None else None
            row[f"{name}_low"], row[f"{name}_high"] = (known.low, known.high) if known else (None, None)
    worst = sorted(summaries, key=lambda summary: VERDICTS.index(summary["banner"]["verdict"]))[len(summaries) // 2]
    row["verdict"], row["reason"] = worst["banner"]["verdict"], worst["banner"]["reason"]
    for name in (*FATES, "preemptions"):
        row[name] = sum(summary["requests"][name] for summary in summaries)
    if "fleet" in summaries[0]:
        had = [summary["fleet"]["mean_replicas"] or 0.0 for summary in summaries]
        row["mean_gpus"] = sum(had) / len(had) * results[0].scenario.hardware.gpus
    return row


def _carries(rows: Sequence[dict[str, Any]], axis: Axis) -> float | None:
    """The largest point up to which every verdict is stable; None where the first is not."""
    best = None
    for row in rows:
        if row["verdict"] != "stable":
            break
        best = float(row[axis])
    return best

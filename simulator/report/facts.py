"""What a report says in words and rows: pure functions result or summary -> text, units included."""

from collections.abc import Sequence
from typing import Any, Final

from simulator.metrics.readings import few_line
from simulator.report.plots import seconds_text
from simulator.run import Result

Rows = list[tuple[str, str, str]]
"""(what, value, what it means)"""

LATENCIES: Final = (
    ("ttft_s", "TTFT, time to first token"),
    ("queue_s", "of it: waiting in the queue"),
    ("prefill_s", "of it: prefill"),
    ("frontend_s", "of it: front end"),
    ("tpot_s", "TPOT, time per output token"),
    ("itl_s", "ITL, gap between two tokens"),
    ("e2e_s", "E2E, whole answer"),
    ("normalized_latency_s", "E2E per output token"),
)
VERDICTS: Final = {
    "stable": "Stable: the backlog does not grow at this load.",
    "overloaded": "Overloaded: requests come faster than they are served; latencies below depend on how long "
    "the trace is and say little about a longer one.",
    "rejecting": "Rejecting: requests are refused for good; latencies below count them as infinite.",
    "missing its targets": "Missing its targets: the backlog does not grow, but over 1 % of the requests miss one.",
    "undecided": "Undecided: this run is too short to tell whether the backlog grows.",
}


def number(value: float | int | None, digits: int = 4) -> str:
    """A number for reading: thousands separated, `digits` significant digits, a dash for none."""
    if value is None:
        return "—"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def time(value: float | None) -> str:
    """A time [s] with its unit, a dash for none (also for infinite: a percentile on a failed request)."""
    return "—" if value is None else seconds_text(value)


def share(value: float | None) -> str:
    """A share as per cent, a dash for none."""
    return "—" if value is None else f"{100 * value:.4g} %" if value >= 0.1 else f"{100 * value:.3g} %"


def setting(result: Result) -> str:
    """Model, GPUs, replicas, policy, engine and load in one line."""
    scenario, setup = result.scenario, result.setup
    hardware = scenario.hardware
    engine = "textbook" if setup.engine.name == "unit" else f"{setup.engine.name} {setup.engine.version}"
    gpus = (
        f"{hardware.tensor_parallel} x {setup.gpu.name}" if hardware.tensor_parallel > 1 else setup.gpu.name
    )
    fleet = f"{scenario.cluster.replicas} replicas, each {gpus}" if scenario.cluster.replicas > 1 else gpus
    weights = setup.model.weight_format(hardware.weight_dtype).dtype
    model = f"{setup.model.name} ({weights} weights, {hardware.kv_dtype} KV) on "
    what = "textbook steps of equal length" if setup.gpu.name == "unit" else model + fleet
    load = scenario.load.kind + (
        f" load, {scenario.load.width} wide" if scenario.load.kind != "open" else " load"
    )
    return (
        f"{what} · policy {setup.policy.name}, up to {setup.limits.max_num_seqs} sequences · "
        f"engine {engine} · {load}"
    )


def verdict(summary: dict[str, Any]) -> tuple[str, str, str]:
    """(code, sentence, reason)."""
    found = summary["banner"]
    return found["verdict"].split(" ")[0], VERDICTS[found["verdict"]], found["reason"]


def answer(result: Result) -> list[str]:
    """The result in a few sentences."""
    summary = result.summary
    counts, rate = summary["requests"], summary["throughput"]
    lines = [
        f"{counts['completed']:,} of {counts['arrived']:,} requests were answered in "
        f"{time(summary['makespan_s'])}, at {number(rate['output_tokens_per_s'])} output tokens/s and "
        f"{number(rate['requests_per_s'])} requests/s."
    ]
    ttft, tpot, e2e = summary["ttft_s"], summary["tpot_s"], summary["e2e_s"]
    if ttft["p50"] is not None:
        late = (
            f"; 99 % within {time(ttft['p99'])}"
            if ttft["p99"] is not None
            else "; over 1 % were never answered"
        )
        lines.append(f"Half of the requests got their first token within {time(ttft['p50'])}{late}.")
    if tpot["p50"] is not None:
        lines.append(
            f"After it, tokens followed every {time(tpot['p50'])} (median); whole answers took "
            f"{time(e2e['p50'])} (median), {time(e2e['p99'])} at p99."
        )
    elif result.setup.limits.stream == 0:
        lines.append(
            "Answers are returned whole at the end of their batch, so there is no time per output token."
        )
    few = few_line(summary)
    lines += [f"{few[0].upper()}{few[1:]}."] if few else []
    lines += [
        f"Worst {int(length) // 60} minutes: p99 {label} {time(block['p99'])}, from {time(block['start_s'])} on."
        for key, label in (("ttft_s", "TTFT"), ("e2e_s", "E2E"))
        for length, block in summary["windows"].get(key, {}).items()
    ]
    attained = summary["goodput"]["attained"]
    if attained is not None:
        lines.append(
            f"{share(attained)} of the requests met every target ({_targets(summary['goodput']['slo'])})."
        )
    return lines


def _targets(slo: dict[str, float | None]) -> str:
    names = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E", "queue_s": "queue"}
    return ", ".join(f"{names.get(key, key)} ≤ {seconds_text(value)}" for key, value in slo.items() if value)


def cards(result: Result) -> Rows:
    """The key numbers: (label, value, note)."""
    summary = result.summary
    ttft, tpot, e2e, counts = (summary[key] for key in ("ttft_s", "tpot_s", "e2e_s", "requests"))
    found = [
        (
            "output tokens/s",
            number(summary["throughput"]["output_tokens_per_s"]),
            f"{number(summary['throughput']['requests_per_s'])} requests/s",
        ),
        ("TTFT p99", time(ttft["p99"]), f"median {time(ttft['p50'])}"),
        ("TPOT p99", time(tpot["p99"]), f"median {time(tpot['p50'])}"),
        ("E2E p99", time(e2e["p99"]), f"median {time(e2e['p50'])}"),
        (
            "slots in use",
            share(summary["slot_utilization"]),
            f"of {result.setup.limits.max_num_seqs} per replica",
        ),
        (
            "KV peak",
            share(summary["kv"]["peak_use"]),
            f"of KV blocks; mean {share(summary['kv']['mean_use'])}",
        ),
    ]
    if summary["goodput"]["attained"] is not None:
        found.insert(4, ("within SLO", share(summary["goodput"]["attained"]), "of all that arrived"))
    failed = counts["rejected"] + counts["unfinished"]
    if failed or counts["preemptions"]:
        found.append(("not answered", f"{failed:,}", f"{counts['preemptions']:,} preemptions"))
    return found


def classes(summary: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """(class, cells) when the trace has more than one class of requests."""
    found = []
    for name, own in summary.get("per_class", {}).items():
        cells = [number(own["requests"]["arrived"]), number(own["requests"]["completed"])]
        cells += [time(own[key][mark]) for key in ("ttft_s", "tpot_s", "e2e_s") for mark in ("p50", "p99")]
        found.append((name, [*cells, share(own["goodput"]["attained"])]))
    return found


_COMPARED: Final = (
    ("output tokens/s", ("throughput", "output_tokens_per_s"), number, 1),
    ("requests/s", ("throughput", "requests_per_s"), number, 1),
    ("TTFT p50", ("ttft_s", "p50"), time, -1),
    ("TTFT p99", ("ttft_s", "p99"), time, -1),
    ("TPOT p50", ("tpot_s", "p50"), time, -1),
    ("TPOT p99", ("tpot_s", "p99"), time, -1),
    ("E2E p50", ("e2e_s", "p50"), time, -1),
    ("E2E p99", ("e2e_s", "p99"), time, -1),
    ("within SLO", ("goodput", "attained"), share, 1),
    ("makespan", ("makespan_s",), time, -1),
    ("steps", ("steps",), number, 0),
    ("slot use", ("slot_utilization",), share, 0),
    ("GPU busy", ("gpu_utilization",), share, 0),
    ("KV in use, peak", ("kv", "peak_use"), share, 0),
    ("completed", ("requests", "completed"), number, 1),
    ("rejected", ("requests", "rejected"), number, -1),
    ("unfinished", ("requests", "unfinished"), number, -1),
    ("preemptions", ("requests", "preemptions"), number, -1),
)


def comparison(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Rows of the side-by-side table: value, ratio to the first and whether it is the best."""
    rows = []
    for label, path, form, sense in _COMPARED:
        values = [_at(result.summary, path) for result in results]
        known = [value for value in values if value is not None]
        best = (max(known) if sense > 0 else min(known)) if known and sense and len(set(known)) > 1 else None
        cells = [
            {
                "text": form(value),
                "best": value is not None and value == best,
                "ratio": _ratio(value, values[0]) if k else "",
            }
            for k, value in enumerate(values)
        ]
        rows.append({"label": label, "cells": cells})
    return rows


def _ratio(value: float | None, first: float | None) -> str:
    """How many times the first value; very small ratios as 1/n."""
    if value is None or not first:
        return ""
    return f"{value / first:.3g}x" if value >= 0.1 * first or not value else f"1/{number(first / value, 3)}"


def _at(summary: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = summary
    for key in path:
        value = value[key]
    return value

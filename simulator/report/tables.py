"""Summaries as rich tables: one run, or several side by side. Names from input are Text, never markup."""

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.metrics.apart import can_be_proved
from simulator.metrics.readings import few_line
from simulator.report.compared import DIVERGES, STARRED, Cell, compared, overloaded
from simulator.run import Result
from simulator.text import MISSING, gpus_of, number, seconds, share

Summary = dict[str, Any]

_STATS: Final = ("mean", "p50", "p90", "p95", "p99", "p999")
_TIMES: Final = (
    ("TTFT", "ttft_s"),
    ("  front end", "frontend_s"),
    ("  queue", "queue_s"),
    ("  prefill", "prefill_s"),
    ("TPOT", "tpot_s"),
    ("ITL", "itl_s"),
    ("E2E", "e2e_s"),
    ("E2E per token", "normalized_latency_s"),
)
COLOURS: Final = {"stable": "green", "overloaded": "red", "undecided": "yellow", "rejecting": "red",
                  "missing its targets": "red"}


def summary_table(summary: Summary) -> RenderableType:
    """One run: counts, throughput, latencies, use, verdict."""
    parts: list[Text | Table | Group] = [_headline(summary), _facts(summary), _latencies(summary)]
    parts += [Text(few_line(summary), style="dim"), _trust(summary), _verdict(summary), _busy_note(summary)]
    return Group(*(part for part in parts if not isinstance(part, Text) or part.plain))


def _trust(summary: Summary) -> Text:
    """90 % intervals of the three means, and what was extrapolated."""
    known = summary["trust"]
    text = Text(style="dim")
    ranges = [
        f"mean {label} {seconds(low)} to {seconds(high)}"
        for label, key in (("TTFT", "ttft_s.mean"), ("TPOT", "tpot_s.mean"), ("E2E", "e2e_s.mean"))
        for low, high in ([known["interval_90"][key]] if key in known["interval_90"] else [])
    ]
    if ranges:
        text.append(f"90 % interval for the model's error ({known['mark']}): " + ", ".join(ranges))
    for line in known["extrapolated"]:
        text.append(f"\nnot measured: {line}")
    return text


def _fleet(summary: Summary) -> str:
    """`4 x h100-sxm`, `2 replicas of 4 x h100-sxm`; of every pool."""
    if "pools" in summary:
        return " + ".join(_replicas(own["replicas"], own["gpu"], own) for own in summary["pools"].values())
    made, scenario = summary["provenance"], summary["scenario"]
    return _replicas(scenario["cluster"]["replicas"], made["gpu"]["name"], scenario["hardware"])


def _replicas(count: int, gpu: str, split: Summary) -> str:
    tensor, stages = split["tensor_parallel"], split["pipeline_parallel"]
    if tensor * stages == 1:
        return f"{count} x {gpu}"
    each = gpus_of(gpu, tensor, stages)
    return each if count == 1 else f"{count} replicas of {each}"


def _headline(summary: Summary) -> Text:
    made, scenario = summary["provenance"], summary["scenario"]
    text = Text(summary["name"], style="bold")
    text.append(
        f"  {made['policy']}, {scenario['model']} on {_fleet(summary)} ({summary['trust']['mark']})",
        style="dim",
    )
    return text


def _facts(summary: Summary) -> Group:
    """Name-value pairs: the long ones a line each, the others two a line."""
    flow, kv, batch = (summary[name] for name in ("throughput", "kv", "batch"))
    per_s = f"{number(flow['requests_per_s'])} requests/s, {number(flow['output_tokens_per_s'])} output tokens/s"
    blocks = f"{number(kv['num_gpu_blocks'])}, " if kv["num_gpu_blocks"] else ""
    long = [
        ("requests", summary["conservation"] + _reasons(summary)),
        ("goodput", _goodput(summary["goodput"])),
    ]
    short = [
        ("throughput", per_s, "slots used", share(summary["slot_utilization"])),
        ("makespan", seconds(summary["makespan_s"]), "GPU busy", share(summary["gpu_utilization"])),
        ("KV blocks", f"{blocks}mean {share(kv['mean_use'])}, peak {share(kv['peak_use'])}",
         "batch", f"mean {number(batch['mean_scheduled'])}, p99 {number(batch['p99'])}, max {number(batch['max'])}"),
        ("preemptions", number(summary["requests"]["preemptions"]),
         "waiting", f"mean {number(summary['queue']['mean_waiting'])}, max {number(summary['queue']['max_waiting'])}"),
    ]  # fmt: skip
    return Group(_pairs(long), _pairs(short))


def _pairs(rows: Sequence[Sequence[str]]) -> Table:
    """Names and values in turn along a row, names dim; the first column as wide as its longest name anywhere."""
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=len("preemptions"))
    for row in rows:
        table.add_row(*(Text(text, style="" if k % 2 else "dim") for k, text in enumerate(row)))
    return table


def _reasons(summary: Summary) -> str:
    """Why requests were refused, in brackets."""
    why = summary["requests"]["rejected_by_reason"]
    return f" ({', '.join(f'{count:,} {reason}' for reason, count in why.items())})" if why else ""


def _goodput(good: Summary) -> str:
    if good["attained"] is None:
        return "no targets set"
    targets = ", ".join(
        f"{name.removesuffix('_s').upper()} {seconds(limit)}"
        for name, limit in good["slo"].items()
        if limit is not None
    )
    return (
        f"{share(good['attained'])} of arrived within {targets}; {number(good['requests_per_s'])} requests/s"
    )


def _latencies(summary: Summary) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", *_STATS, "count"):
        table.add_column(
            column.replace("p999", "p99.9"), justify="left" if not column else "right", no_wrap=True
        )
    for label, name in _TIMES:
        stats = summary[name]
        missing = "∞" if stats["count"] else MISSING
        table.add_row(label, *(seconds(stats[key], missing) for key in _STATS), number(stats["count"]))
    return table


def _verdict(summary: Summary) -> Text:
    seen = summary["banner"]
    text = Text(seen["verdict"], style=f"bold {COLOURS[seen['verdict']]}")
    return text.append(f": {seen['reason']}", style="dim")


def _busy_note(summary: Summary) -> Text:
    """Why a GPU that could take more looks busy; empty when it does not look so, or is full."""
    busy, held = summary["gpu_utilization"] or 0.0, summary["slot_utilization"] or 0.0
    misleading = busy > 0.9 and held < 0.5 and summary["stability"]["verdict"] == "stable"
    misleading = misleading and summary["provenance"]["gpu"]["mark"] != "textbook"
    text = "GPU busy: a step for few sequences reads all the weights, so low load keeps it busy too"
    return Text(f"{text}; room for more shows in slots, KV blocks and latency" if misleading else "", style="dim")


def compare_table(results: Sequence[Result]) -> RenderableType:
    """Runs side by side: each value with its ratio to the first run's; the best of a line is starred, where proved."""
    summaries = [result.summary for result in results]
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for summary in summaries:
        table.add_column(Text(str(summary["name"])), justify="right")
    for label, cells in compared(results):
        table.add_row(label, *(_cell(cell) for cell in cells))
    table.add_row(
        "verdict",
        *(Text(s["banner"]["verdict"], style=COLOURS[s["banner"]["verdict"]]) for s in summaries),
    )
    stars = f"*: {STARRED}" if can_be_proved(results) else "no star: so few requests prove nothing"
    lines = [f"(0.50x): half the first; {stars}; –: not defined, as TPOT of answers that come whole; "
             "∞: a percentile that falls on requests never answered"]  # fmt: skip
    lines += [f"{s['name']}: {DIVERGES}" for s in summaries if overloaded(s)]
    lines += [f"{s['name']}: rejected{_reasons(s)}" for s in summaries if s["requests"]["rejected"]]
    return Group(table, Text("\n".join(lines), style="dim"))


def _cell(cell: Cell) -> Text:
    text = f"{cell.text} ({cell.ratio})" if cell.ratio else cell.text
    if cell.text == MISSING:
        return Text(text)
    return Text(f"{text} *" if cell.best else f"{text}  ", style="bold" if cell.best else "")

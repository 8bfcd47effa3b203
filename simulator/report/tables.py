"""Summaries as rich tables: one run, or several side by side. Names from input are Text, never markup."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.metrics.stability import value_at

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
_COLOURS: Final = {"stable": "green", "overloaded": "red", "undecided": "yellow"}


def seconds(value: float | None, missing: str = "∞") -> str:
    """A time with three significant digits and its unit."""
    if value is None:
        return missing
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= size:
            return f"{_digits(value / size)} {unit}"
    return "0 s" if value == 0 else f"{_digits(value * 1e9)} ns"


def number(value: float | None) -> str:
    """A number with three significant digits, or whole when large."""
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else _digits(value)


def share(value: float | None) -> str:
    """A share in percent."""
    return "–" if value is None else f"{100 * value:.1f} %"


def _digits(value: float) -> str:
    size = abs(value)
    return (
        f"{value:,.0f}"
        if size >= 100
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
        if size >= 1
        else f"{value:.3g}"
    )


def summary_table(summary: Summary) -> RenderableType:
    """One run: counts, throughput, latencies, use, verdict."""
    parts: list[Text | Table] = [_headline(summary), _facts(summary), _latencies(summary)]
    parts += [_trust(summary), _verdict(summary), _busy_note(summary)]
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
        text.append(f"90 % interval for the model's error ({known['mark']} profile): " + ", ".join(ranges))
    for line in known["extrapolated"]:
        text.append(f"\nnot measured: {line}")
    return text


def _headline(summary: Summary) -> Text:
    made, scenario = summary["provenance"], summary["scenario"]
    text = Text(summary["name"], style="bold")
    text.append(
        f"  {made['policy']}, {scenario['model']} on {scenario['cluster']['replicas']} x "
        f"{scenario['hardware']['tensor_parallel']} {made['gpu']['name']} ({made['gpu']['mark']})",
        style="dim",
    )
    return text


def _facts(summary: Summary) -> Table:
    """Name-value pairs, two a line."""
    flow, kv, batch, good = (summary[name] for name in ("throughput", "kv", "batch", "goodput"))
    left = [
        ("requests", summary["conservation"] + _reasons(summary)),
        ("makespan", seconds(summary["makespan_s"])),
        (
            "throughput",
            f"{number(flow['requests_per_s'])} requests/s, "
            f"{number(flow['output_tokens_per_s'])} output tokens/s",
        ),
        ("goodput", _goodput(good)),
        ("preemptions", number(summary["requests"]["preemptions"])),
    ]
    right = [
        ("slots used", share(summary["slot_utilization"])),
        ("GPU busy", share(summary["gpu_utilization"])),
        (
            "batch",
            f"mean {number(batch['mean_scheduled'])}, p99 {number(batch['p99'])}, max {number(batch['max'])}",
        ),
        (
            "KV blocks",
            f"{number(kv['num_gpu_blocks'])}, mean {share(kv['mean_use'])}, peak {share(kv['peak_use'])}",
        ),
        (
            "waiting",
            f"mean {number(summary['queue']['mean_waiting'])}, max {number(summary['queue']['max_waiting'])}",
        ),
    ]
    table = Table.grid(padding=(0, 2))
    for (name, value), (other, more) in zip(left, right, strict=True):
        table.add_row(Text(name, style="dim"), Text(value), Text(other, style="dim"), Text(more))
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
        missing = "∞" if stats["count"] else "–"
        table.add_row(label, *(seconds(stats[key], missing) for key in _STATS), number(stats["count"]))
    return table


def _verdict(summary: Summary) -> Text:
    seen = summary["stability"]
    text = Text(seen["verdict"], style=f"bold {_COLOURS[seen['verdict']]}")
    return text.append(f": {seen['reason']}", style="dim")


def _busy_note(summary: Summary) -> Text:
    """Why a GPU that could take more looks busy; empty when it does not look so, or is full."""
    busy, held = summary["gpu_utilization"] or 0.0, summary["slot_utilization"] or 0.0
    misleading = busy > 0.9 and held < 0.5 and summary["stability"]["verdict"] == "stable"
    misleading = misleading and summary["provenance"]["gpu"]["mark"] != "textbook"
    text = "GPU busy: a step for few sequences reads all the weights, so low load keeps it busy too"
    return Text(f"{text}; room for more shows in slots, KV blocks and latency" if misleading else "", style="dim")


class _Row(NamedTuple):
    """A line of the comparison; `better` +1 = more is better, -1 = less, 0 = neither."""

    label: str
    path: str
    show: Callable[[Any], str]
    better: int


COMPARED: Final = (
    _Row("requests/s", "throughput.requests_per_s", number, 1),
    _Row("output tokens/s", "throughput.output_tokens_per_s", number, 1),
    *(
        _Row(f"{label} {stat}", f"{name}.{stat}", seconds, -1)
        for label, name in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s"))
        for stat in ("mean", "p50", "p95", "p99")
    ),
    _Row("queue mean", "queue_s.mean", seconds, -1),
    _Row("goodput", "goodput.attained", share, 1),
    _Row("makespan", "makespan_s", seconds, -1),
    _Row("steps", "steps", number, 0),
    _Row("slots used", "slot_utilization", share, 0),
    _Row("GPU busy", "gpu_utilization", share, 0),
    _Row("KV peak", "kv.peak_use", share, 0),
    _Row("prefix hits", "kv.prefix_cache.hit_rate", share, 0),
    _Row("preemptions", "requests.preemptions", number, -1),
    _Row("rejected", "requests.rejected", number, -1),
    _Row("unfinished", "requests.unfinished", number, -1),
)


def compare_table(summaries: Sequence[Summary]) -> RenderableType:
    """Runs side by side: each value with its ratio to the first run's; the best of a line is starred."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for summary in summaries:
        table.add_column(Text(str(summary["name"])), justify="right")
    done = [summary["requests"]["completed"] for summary in summaries]
    whole = [count == max(done) for count in done]
    for row in COMPARED:
        cells = _cells(row, [_plain(summary, row.path) for summary in summaries], whole)
        if cells:
            table.add_row(row.label, *cells)
    table.add_row(
        "verdict",
        *(Text(s["stability"]["verdict"], style=_COLOURS[s["stability"]["verdict"]]) for s in summaries),
    )
    lines = ["* best of the line; (ratio to the first); ∞: a percentile that falls on requests never answered"]
    lines += [f"{s['name']}: rejected{_reasons(s)}" for s in summaries if s["requests"]["rejected"]]
    return Group(table, Text("\n".join(lines), style="dim"))


def _plain(summary: Summary, path: str) -> float | None:
    """The number, None = infinite; NaN for a latency that no request has (TPOT of answers returned whole)."""
    section, _, key = path.partition(".")
    if key and isinstance(summary[section], dict) and summary[section].get("count") == 0:
        return float("nan")
    value = value_at(summary, path)
    return None if value == float("inf") else int(value) if section in ("requests", "steps") else value


def _cells(row: _Row, values: Sequence[float | None], whole: Sequence[bool]) -> list[Text]:
    """Cells of one line; empty when no run has the number.

    A mean or a makespan over fewer completed requests than another run's (`whole` false) is never the best.
    """
    compared = [v for v in values if v is not None and v == v]
    if not compared:
        return []
    partial = row.label.endswith("mean") or row.label == "makespan"
    fair = [v for k, v in enumerate(values) if v is not None and v == v and (whole[k] or not partial)]
    best = None if row.better == 0 or not fair else max(fair) if row.better > 0 else min(fair)
    given = [v for v in values if v is None or v == v]
    differ = any(v != given[0] for v in given)
    return [
        _cell(row, value, values[0], differ and value == best and (whole[k] or not partial), first=k == 0)
        for k, value in enumerate(values)
    ]


def _cell(row: _Row, value: float | None, base: float | None, best: bool, first: bool) -> Text:
    if value is not None and value != value:
        return Text("–")
    text = row.show(value)
    if not first and value is not None and base is not None and base == base and base > 0:
        text += f" ({_times(value / base)})"
    return Text(f"{text} *" if best else f"{text}  ", style="bold" if best else "")


def _times(ratio: float) -> str:
    """How many times the first run's value; very small ratios as 1/n."""
    if 0 < ratio < 0.1:
        return f"1/{number(1 / ratio)}"
    return f"{ratio:.2f}x" if ratio < 100 else f"{ratio:,.0f}x"

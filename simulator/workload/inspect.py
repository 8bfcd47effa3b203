"""What a trace looks like: rates, burstiness, lengths, and what was left out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from simulator.text import number, seconds, several
from simulator.units import NS_PER_S

from .trace import Int64s, Trace

if TYPE_CHECKING:
    from rich.table import Table

_PERCENTILES: Final = (50, 90, 95, 99)
_MINUTE_NS: Final = 60 * NS_PER_S


def inspect_trace(trace: Trace, max_model_len: int | None = None) -> dict[str, Any]:
    """Figures of a trace, ready for JSON (None where a figure has no meaning).

    rate_per_s: (N - 1) / span; peak_minute_per_s: most arrivals in any 60 s, / 60 (None below 60 s of span);
    gap_cv: standard deviation / mean of the gaps (1 for a Poisson process); lengths in tokens, percentiles
    with linear interpolation; too_long (with `max_model_len`): prompts with no room for one output token,
    and requests whose prompt + max_tokens do not fit.
    """
    span_s = trace.span_ns / NS_PER_S
    facts: dict[str, Any] = {
        "source": trace.meta.source,
        "format": trace.meta.format,
        "sha256": trace.meta.sha256,
        "rows_read": trace.meta.rows_read,
        "rows_dropped": dict(trace.meta.rows_dropped),
        "copies": trace.meta.copies,
        "time_unit": trace.meta.unit or None,
        "not_simulated": list(trace.meta.not_used),
        "requests": len(trace),
        "first_arrival_s": None if trace.meta.untimed else int(trace.arrival_ns[0]) / NS_PER_S,
        "span_s": None if trace.meta.untimed else span_s,
        "rate_per_s": (len(trace) - 1) / span_s if span_s else None,
        "peak_minute_per_s": _peak_minute(trace.arrival_ns) if trace.span_ns >= _MINUTE_NS else None,
        "gap_cv": _gap_cv(trace.arrival_ns),
        "prompt_tokens_per_s": float(trace.prompt.sum()) / span_s if span_s else None,
        "output_tokens_per_s": float(trace.output.sum()) / span_s if span_s else None,
        "prompt": length_figures(trace.prompt),
        "output": length_figures(trace.output),
        "cached_share": float(trace.cached.sum() / trace.prompt.sum()),
        "classes": _classes(trace),
    }
    if max_model_len is not None:
        facts["too_long"] = too_long(trace, max_model_len)
    return facts


def length_figures(tokens: Int64s) -> dict[str, float | int]:
    """mean, p50, p90, p95, p99, max, total of a token column."""
    at = np.percentile(tokens, _PERCENTILES)
    named = {f"p{p}": float(value) for p, value in zip(_PERCENTILES, at, strict=True)}
    return {"mean": float(tokens.mean()), **named, "max": int(tokens.max()), "total": int(tokens.sum())}


def too_long(trace: Trace, max_model_len: int) -> dict[str, int]:
    """How many prompts leave no room for a token, and how many requests may outgrow max_model_len [tokens]."""
    return {
        "max_model_len": max_model_len,
        "prompts": int((trace.prompt >= max_model_len).sum()),
        "requests": int((trace.prompt + trace.max_tokens > max_model_len).sum()),
    }


def _peak_minute(arrival_ns: Int64s) -> float:
    ends = np.searchsorted(arrival_ns, arrival_ns + _MINUTE_NS, side="left")
    return float((ends - np.arange(arrival_ns.size)).max()) / 60


def variation(values: npt.NDArray[Any]) -> float:
    """Coefficient of variation, standard deviation over mean; 0 of nothing, and where the mean is."""
    mean = float(values.mean()) if values.size else 0.0
    return float(values.std()) / mean if mean > 0 else 0.0


def _gap_cv(arrival_ns: Int64s) -> float | None:
    gaps: npt.NDArray[np.float64] = np.diff(arrival_ns).astype(np.float64)
    return variation(gaps) if gaps.any() else None


def _classes(trace: Trace) -> dict[str, dict[str, float]]:
    figures = {}
    for code, name in enumerate(trace.class_names):
        rows = trace.cls == code
        count = int(rows.sum())
        means = (float(trace.prompt[rows].mean()), float(trace.output[rows].mean())) if count else (0.0, 0.0)
        figures[name] = {"requests": count, "prompt_mean": means[0], "output_mean": means[1]}
    return figures


def inspect_table(facts: Mapping[str, Any]) -> "Table":
    """The figures of inspect_trace as a rich table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"Trace {facts['source']}"), show_header=False)
    table.add_column("figure")
    table.add_column("value")
    for name, value in _lines(facts):
        table.add_row(name, Text(value))
    return table


def _lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("format", str(facts["format"]) + (f", times in {facts['time_unit']}" if facts["time_unit"] else "")),
        ("rows read", f"{facts['rows_read']:,}"),
        (
            "requests",
            f"{facts['requests']:,}" + (f" ({facts['copies']} copies)" if facts["copies"] > 1 else ""),
        ),
        *((f"dropped: {reason}", f"{count:,}") for reason, count in facts["rows_dropped"].items()),
        ("first arrival, span", _times(facts)),
        ("rate", _number(facts["rate_per_s"], "requests/s")),
        ("peak minute", "- (less than a minute of arrivals)" if facts["peak_minute_per_s"] is None else
         _number(facts["peak_minute_per_s"], "requests/s")),
        ("burstiness", _number(facts["gap_cv"], "(deviation of gaps / their mean; Poisson 1)")),
        ("prompt tokens", _spread(facts["prompt"])),
        ("output tokens", _spread(facts["output"])),
        ("load", _number(facts["prompt_tokens_per_s"], "prompt tokens/s")),
        ("", _number(facts["output_tokens_per_s"], "output tokens/s")),
        ("prefix-cached", f"{100 * facts['cached_share']:.1f} % of prompt tokens"),
    ]
    if facts["not_simulated"]:
        lines.append(("read, not simulated", ", ".join(facts["not_simulated"])))
    if len(facts["classes"]) > 1:
        lines += [(f"class {name}", _class_line(each)) for name, each in facts["classes"].items()]
    if "too_long" in facts:
        lines += _hints(facts["too_long"])
    return lines


def _times(facts: Mapping[str, Any]) -> str:
    if facts["first_arrival_s"] is None:
        return "no arrival times: for closed and grouped loads"
    return f"{seconds(facts['first_arrival_s'])}, {seconds(facts['span_s'])}"


def _hints(long: Mapping[str, int]) -> list[tuple[str, str]]:
    limit = f"max_model_len {long['max_model_len']:,}"
    return [
        (f"prompts that leave no room in {limit}", f"{long['prompts']:,}"),
        (f"prompt + max_tokens beyond {limit}", f"{long['requests']:,}"),
    ]


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{number(value)} {unit}"


def _spread(figures: Mapping[str, float]) -> str:
    parts = [f"mean {number(figures['mean'])}"]
    parts += [f"p{p} {figures[f'p{p}']:,.0f}" for p in _PERCENTILES]
    return ", ".join([*parts, f"max {figures['max']:,}"])


def _class_line(each: Mapping[str, float]) -> str:
    means = f"mean prompt {each['prompt_mean']:,.0f}, output {each['output_mean']:,.0f}"
    return f"{several(int(each['requests']), 'request')}, {means}"

"""A result as a notebook shows it: one small HTML table, everything from input escaped."""

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from simulator.text import number, seconds, several, share

TIMES: Final = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("E2E", "e2e_s"), ("queue", "queue_s"))
MARKS: Final = (("mean", "mean"), ("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("p999", "p99.9"))


def html_table(summary: Mapping[str, Any]) -> str:
    """Name and verdict, throughput, latencies."""
    counts, flow, said = summary["requests"], summary["throughput"], summary["banner"]
    facts = [
        f"{counts['completed']:,} of {several(counts['arrived'], 'request')}",
        f"{number(flow['requests_per_s'])} requests/s",
        f"{number(flow['output_tokens_per_s'])} output tokens/s",
        f"KV peak {share(summary['kv']['peak_use'])}",
    ]
    head = "".join(f"<th>{label}</th>" for _, label in MARKS)
    rows = "".join(
        f"<tr><td>{label}</td>{''.join(f'<td>{seconds(summary[key][mark])}</td>' for mark, _ in MARKS)}</tr>"
        for label, key in TIMES
    )
    return (
        f"<p><b>{escape(str(summary['name']))}</b>: {escape(said['verdict'])} "
        f"<small>({escape(said['reason'])})</small><br>{', '.join(facts)}</p>"
        f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )

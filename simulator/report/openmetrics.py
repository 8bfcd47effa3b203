"""A result as OpenMetrics text (OpenMetrics 1.0), to lie beside a real server's metrics: a snapshot of the whole run.

Latencies are summaries (quantiles, count, sum over completed requests); a quantile that is infinite is +Inf, as the
format writes it. Every sample carries the scenario's name.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from simulator.metrics.latency import FATES, PERCENTILES
from simulator.metrics.readings import VERDICTS

Data = Mapping[str, Any]
TIMES: Final = (
    ("ttft_s", "time_to_first_token_seconds", "first token at the client - submission"),
    ("tpot_s", "time_per_output_token_seconds", "(last token - first token) / (output tokens - 1)"),
    ("itl_s", "inter_token_latency_seconds", "gaps between tokens of one answer"),
    ("e2e_s", "e2e_request_latency_seconds", "last token at the client - submission"),
    ("queue_s", "request_queue_time_seconds", "first scheduled - entry into the waiting queue"),
)
GAUGES: Final = (
    (("throughput", "requests_per_s"), "requests_per_second", "completed requests / makespan"),
    (("throughput", "output_tokens_per_s"), "output_tokens_per_second", "delivered tokens / makespan"),
    (("goodput", "attained"), "slo_attained_ratio", "requests within every target / requests arrived"),
    (("kv", "mean_use"), "kv_cache_usage_ratio", "KV blocks held, averaged over the time of steps"),
    (("kv", "peak_use"), "kv_cache_peak_usage_ratio", "most KV blocks held at a time"),
    (("gpu_utilization",), "gpu_busy_ratio", "GPU time of all steps / (makespan x replicas)"),
    (("slot_utilization",), "slots_used_ratio", "sequences scheduled / max_num_seqs"),
    (("makespan_s",), "makespan_seconds", "first submission -> last token delivered"),
)


def openmetrics(summary: Data) -> str:
    """The text of a summary, ended by `# EOF`."""
    labels = f'scenario="{_escaped(str(summary["name"]))}"'
    return "\n".join([*_lines(summary, labels), "# EOF"]) + "\n"


def _lines(summary: Data, labels: str) -> Iterator[str]:
    yield from _head("requests", "gauge", f"{FATES[0]} = {' + '.join(FATES[1:])}")
    for state in FATES[1:]:
        yield f'servecast_requests{{{labels},state="{state}"}} {summary["requests"][state]}'
    yield from _head("preemptions", "gauge", "times a running request lost its KV blocks")
    yield f"servecast_preemptions{{{labels}}} {summary['requests']['preemptions']}"
    for path, name, what in GAUGES:
        value: Any = summary
        for key in path:
            value = value[key]
        if value is not None:
            yield from _head(name, "gauge", what)
            yield f"servecast_{name}{{{labels}}} {value!r}"
    for key, name, what in TIMES:
        stats = summary[key]
        if stats["count"]:
            yield from _head(name, "summary", what)
            for mark, quantile in PERCENTILES:
                value = "+Inf" if stats[mark] is None else repr(stats[mark])
                yield f'servecast_{name}{{{labels},quantile="{quantile:g}"}} {value}'
            yield f"servecast_{name}_count{{{labels}}} {stats['count']}"
            yield f"servecast_{name}_sum{{{labels}}} {stats['mean'] * stats['count']!r}"
    yield from _head("verdict", "stateset", "what the run is called")
    for verdict in VERDICTS:
        own = int(summary["banner"]["verdict"] == verdict)
        yield f'servecast_verdict{{{labels},servecast_verdict="{verdict}"}} {own}'


def _head(name: str, kind: str, what: str) -> Iterator[str]:
    """Metadata of a family; a name that ends in a unit says so."""
    yield f"# TYPE servecast_{name} {kind}"
    unit = next((unit for unit in ("seconds", "ratio") if name.endswith(f"_{unit}")), None)
    if unit:
        yield f"# UNIT servecast_{name} {unit}"
    yield f"# HELP servecast_{name} {_escaped(what)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

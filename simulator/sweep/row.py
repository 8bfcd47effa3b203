"""What a sweep keeps of a simulation: a short row of the summary's numbers, under their dotted names."""

from dataclasses import dataclass
from typing import Any, Final

from simulator.run import Result

COUNTS: Final = ("requests.arrived", "requests.completed", "requests.rejected", "requests.aborted",
                 "requests.unfinished", "requests.preemptions", "steps")
NUMBERS: Final = (
    "throughput.requests_per_s", "throughput.output_tokens_per_s", "throughput.total_tokens_per_s",
    "ttft_s.mean", "ttft_s.p50", "ttft_s.p90", "ttft_s.p99", "tpot_s.mean", "tpot_s.p50", "tpot_s.p99",
    "itl_s.p50", "itl_s.p99", "e2e_s.mean", "e2e_s.p50", "e2e_s.p99", "queue_s.mean", "queue_s.p99",
    "goodput.attained", "goodput.requests_per_s", "makespan_s", "slot_utilization", "gpu_utilization",
    "kv.mean_use", "kv.peak_use",
)
NAMES: Final = {
    "throughput.requests_per_s": "requests/s", "throughput.output_tokens_per_s": "output tokens/s",
    "throughput.total_tokens_per_s": "tokens/s with prompts", "goodput.attained": "share within the SLO",
    "goodput.requests_per_s": "good requests/s", "makespan_s": "makespan", "slot_utilization": "slots used",
    "gpu_utilization": "GPU busy", "kv.mean_use": "KV blocks used, mean", "kv.peak_use": "KV blocks used, peak",
    "requests.preemptions": "preemptions",
}  # fmt: skip
"""Metrics as they are said, but for latencies and counts."""
TEXTS: Final = ("stability.verdict", "banner.verdict")
METRICS: Final = (*COUNTS, *NUMBERS, *TEXTS)

_HIGHER_IS_BETTER: Final = ("throughput.", "goodput.", "requests.completed")


@dataclass(frozen=True)
class Record:
    """Outcome of one row: metrics by dotted name (None = not defined), or why it failed."""

    point: int
    replication: int
    metrics: dict[str, Any]
    error: str | None = None


def record_of(point: int, replication: int, result: Result) -> Record:
    """The metrics of a result; definitions are those of simulator.metrics.summary.summarize."""
    return Record(point, replication, flat_metrics(result.summary))


def flat_metrics(summary: dict[str, Any]) -> dict[str, Any]:
    """{"ttft_s.p99": ...} for every name in METRICS; what the summary lacks is None."""
    return {name: _at(summary, name) for name in METRICS}


def said_name(metric: str) -> str:
    """A metric as it is said: `TTFT p99` for ttft_s.p99, `output tokens/s`, `preemptions`."""
    first, _, last = metric.rpartition(".")
    if first.endswith("_s"):
        return f"{'queue time' if first == 'queue_s' else first.removesuffix('_s').upper()} {last}"
    return NAMES.get(metric, metric.replace(".", " "))


def higher_is_better(metric: str) -> bool:
    """Whether more of a metric is better; latencies, queues and costs are better low."""
    return metric.startswith(_HIGHER_IS_BETTER)


def _at(summary: dict[str, Any], name: str) -> Any:
    value: Any = summary
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value

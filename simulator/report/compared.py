"""Results side by side: the lines of the comparison on screen and on paper, with ratios to the first result.

A latency with the waiting of an overloaded run is no property of the system: it grows for as long as requests come. It
is shown, but neither compared nor ever the best.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from simulator.metrics.apart import better_in_all, is_sample
from simulator.replicate import value_at
from simulator.run import Result
from simulator.text import MISSING, number, seconds, share, times

Summary = dict[str, Any]
UNDEFINED: Final = float("nan")
SAME: Final = times(1.0)
DIVERGES: Final = (
    "overloaded: its TTFT, E2E and queue times grow for as long as requests come, so they are not compared; compare "
    "latency at a rate that all carry"
)

STARRED: Final = (
    "the best of a line, where that is proved: every other run is worse in each of ten parts of the requests"
)


class Row(NamedTuple):
    """A line; `better` +1 = more is better, -1 = less, 0 = neither. `waits`: a latency with the time in the queue;
    `rare`: left out where it is 0 everywhere."""

    label: str
    path: str
    show: Callable[[Any], str]
    better: int
    waits: bool = False
    rare: bool = False


def _seconds(value: float | None) -> str:
    return seconds(value, "∞")


ROWS: Final = (
    Row("requests/s", "throughput.requests_per_s", number, 1),
    Row("output tokens/s", "throughput.output_tokens_per_s", number, 1),
    *(
        Row(f"{label} {stat}", f"{name}.{stat}", _seconds, -1, label != "TPOT")
        for label, name in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s"))
        for stat in ("mean", "p50", "p95", "p99")
    ),
    Row("queue mean", "queue_s.mean", _seconds, -1, True),
    Row("goodput", "goodput.attained", share, 1),
    Row("makespan", "makespan_s", _seconds, -1),
    Row("steps", "steps", number, 0),
    Row("slots used", "slot_utilization", share, 0),
    Row("GPU busy", "gpu_utilization", share, 0),
    Row("KV peak", "kv.peak_use", share, 0),
    Row("prefix hits", "kv.prefix_cache.hit_rate", share, 0),
    Row("preemptions", "requests.preemptions", number, -1),
    Row("rejected", "requests.rejected", number, -1),
    Row("given up by clients", "requests.aborted", number, -1),
    Row("lost with replicas", "requests.lost", number, -1, rare=True),
    Row("unfinished", "requests.unfinished", number, -1),
)


class Cell(NamedTuple):
    """One value as text, its ratio to the first (empty where there is none), and whether it is the best of its line."""

    text: str
    ratio: str
    best: bool


def compared(results: Sequence[Result]) -> list[tuple[str, list[Cell]]]:
    """(label, cells) of every line that at least one run has."""
    summaries = [result.summary for result in results]
    done = [summary["requests"]["completed"] for summary in summaries]
    whole = [count == max(done) for count in done]
    steady = [not overloaded(summary) for summary in summaries]
    lines = []
    for row in ROWS:
        values = [_plain(summary, row.path) for summary in summaries]
        if any(v is not None and v == v for v in values) and (any(values) or not row.rare):
            sound = steady if row.waits else [True] * len(values)
            stars = _stars(row, values, whole, sound, results)
            lines.append((row.label, _cells(row, values, sound, stars)))
    return lines


def overloaded(summary: Summary) -> bool:
    """Whether more came than was served."""
    return bool(summary["stability"]["verdict"] == "overloaded")


def _plain(summary: Summary, path: str) -> float | None:
    """The number, None = infinite; NaN for a latency that no request has (TPOT of answers returned whole)."""
    section, _, key = path.partition(".")
    if key and isinstance(summary[section], dict) and summary[section].get("count") == 0:
        return UNDEFINED
    value = value_at(summary, path)
    return None if value == float("inf") else int(value) if section in ("requests", "steps") else value


def _fair(row: Row, whole: Sequence[bool], steady: Sequence[bool]) -> list[bool]:
    """Which runs may be the best of a line.

    A mean or a makespan over fewer completed requests than another run's (`whole` false) is never the best, nor is a
    latency that is not `steady`.
    """
    partial = row.label.endswith("mean") or row.label == "makespan"
    return [steady[k] and (whole[k] or not partial) for k in range(len(whole))]


def _stars(row: Row, values: Sequence[float | None], whole: Sequence[bool], sound: Sequence[bool],
           results: Sequence[Result]) -> list[int]:
    """The best run of a line, where all others are proved worse and that shows in the digits written.

    What is not `sound` is not compared. Requests that are written out prove it by their numbers, and runs that are
    equally good share it.
    """
    fair = _fair(row, whole, sound)
    known = [k for k, value in enumerate(values) if fair[k] and value is not None and value == value]
    if row.better == 0 or not known:
        return []
    best = max(known, key=lambda k: row.better * float(values[k] or 0))
    first = [k for k in known if values[k] == values[best]]
    others = [k for k, value in enumerate(values) if k not in first and (value is None or value == value)]
    if not others or any(_ratio(values[k], values[best]) == SAME for k in others):
        return []
    if not any(is_sample(result) for result in results):
        return first
    judged = [k for k in others if sound[k]]
    proved = len(first) == 1 and judged and all(
        fair[k] and better_in_all(results[best], results[k], row.path, row.better) for k in judged)
    return first if proved else []


def _cells(row: Row, values: Sequence[float | None], steady: Sequence[bool], stars: Sequence[int]) -> list[Cell]:
    """Cells of one line."""
    return [
        Cell(
            MISSING if value is not None and value != value else row.show(value),
            _ratio(value, values[0]) if k and steady[0] and steady[k] else "",
            k in stars,
        )
        for k, value in enumerate(values)
    ]


def _ratio(value: float | None, base: float | None) -> str:
    if value is None or base is None or value != value or not base > 0:
        return ""
    return times(value / base)

"""Steps and requests as a Chrome trace, to be opened in https://ui.perfetto.dev or chrome://tracing.

Format: "Trace Event Format" (Google, 2016): complete events (ph X) for steps, counters (C) for running,
waiting and KV blocks, async begin / end pairs (b, e) for the phases of a request. Times in microseconds.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.errors import ConfigError
from simulator.records import LOG_FIELDS
from simulator.run import Result
from simulator.units import NEVER

Event = dict[str, Any]

MAX_ROWS: Final = 100_000
"""Log rows written unless asked otherwise; more make a trace that viewers open slowly."""
_DETAIL: Final = (
    "steps",
    "decode",
    "context",
    "prefill",
    "prefill_tokens",
    "running",
    "waiting",
    "blocks",
    "kv_tokens",
    "pad_rows",
)


def chrome_trace(result: Result, max_rows: int = MAX_ROWS) -> dict[str, Any]:
    """The step log as a Chrome trace (JSON-safe dict); at most `max_rows` log rows from its start.

    A log row may stand for many equal steps (`args.steps`). Raises ConfigError when the run kept no step log.
    """
    if result.log is None:
        raise ConfigError("a trace of steps needs the step log: simulate(..., log=True)")
    log = result.log[:max_rows]
    until = int(log["end"].max(initial=0)) if len(log) < len(result.log) else NEVER
    events = [*_names(result), *_steps(log), *_counters(log), *_requests(result, until)]
    return {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {
            "scenario": result.scenario.name,
            "rows": len(log),
            "rows_left_out": len(result.log) - len(log),
        },
    }


def _us(tick: int) -> float:
    return tick / 1000


def _names(result: Result) -> Iterator[Event]:
    for r in range(len(result.totals)):
        yield {"ph": "M", "pid": r, "name": "process_name", "args": {"name": f"replica {r}"}}
        yield {"ph": "M", "pid": r, "tid": 0, "name": "thread_name", "args": {"name": "steps"}}


def _kind(row: dict[str, int]) -> str:
    if row["prefill"] and row["decode"]:
        return "mixed step"
    return (
        "prefill step"
        if row["prefill"]
        else f"{row['steps']} decode steps"
        if row["steps"] > 1
        else "decode step"
    )


def _steps(log: npt.NDArray[np.void]) -> Iterator[Event]:
    for values in log.tolist():
        row = dict(zip(LOG_FIELDS, values, strict=True))
        yield {
            "ph": "X",
            "pid": row["replica"],
            "tid": 0,
            "cat": "step",
            "name": _kind(row),
            "ts": _us(row["end"] - row["wall_ns"]),
            "dur": _us(row["wall_ns"]),
            "args": {**{name: row[name] for name in _DETAIL}, "gpu_ms": row["gpu_ns"] / 1e6},
        }


def _counters(log: npt.NDArray[np.void]) -> Iterator[Event]:
    for values in log.tolist():
        row = dict(zip(LOG_FIELDS, values, strict=True))
        at = {"ph": "C", "pid": row["replica"], "ts": _us(row["end"] - row["wall_ns"])}
        yield {**at, "name": "requests", "args": {"running": row["running"], "waiting": row["waiting"]}}
        yield {**at, "name": "KV blocks", "args": {"in use": row["blocks"]}}


def _requests(result: Result, until: int) -> Iterator[Event]:
    req = result.requests
    shown = np.flatnonzero((req.replica >= 0) & (req.arrival <= until) & (req.last < NEVER))
    for k in shown.tolist():
        ticks = [int(column[k]) for column in (req.arrival, req.scheduled, req.first, req.last)]
        common = {"pid": int(req.replica[k]), "cat": "request", "id": int(result.trace.id[k])}
        for name, start, end in zip(("queue", "prefill", "decode"), ticks, ticks[1:], strict=False):
            yield {
                **common,
                "ph": "b",
                "name": name,
                "ts": _us(start),
                "args": {
                    "prompt": int(req.prompt[k]),
                    "output": int(req.output[k]),
                    "slot": int(req.slot[k]),
                },
            }
            yield {**common, "ph": "e", "name": name, "ts": _us(end)}

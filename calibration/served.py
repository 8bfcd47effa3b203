"""What a benchmark client wrote about a user's own server -> one table a run, as requests.csv has it.

Read: vLLM `bench serve --save-result --save-detailed` (also --append-result), SGLang `bench_serving --output-details`,
inference-perf per_request_lifecycle_metrics.json, GuideLLM benchmarks.json, AIPerf profile_export.jsonl. TPOT is
(E2E - TTFT) / (n - 1): some clients count stream events, not tokens. Requests that failed or gave nothing are left out.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from simulator.config import shown
from simulator.errors import CalibrationError
from simulator.reading import MAX_RESULT, ReadError, read_text
from simulator.workload.records import Record, transposed, value_at

ACCEPTED: Final = ("a detailed result of vllm bench serve (--save-result --save-detailed) or SGLang bench_serving "
                   "(--output-details), inference-perf per-request metrics, GuideLLM benchmarks.json, AIPerf "
                   "profile_export.jsonl")
UNIT_S: Final = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""[s] of the units that AIPerf writes."""
_DRAWN_SEED: Final = 1


@dataclass(frozen=True)
class Served:
    """One run as a client saw it. `table` has the columns of requests.csv, sorted by arrival; `notes` say what the file
    leaves open."""

    path: Path
    kind: str  # open, or closed with `width` in flight
    width: int
    table: pd.DataFrame = field(hash=False)
    model: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Row:
    """A request; times in seconds, `start` None where the file has none."""

    start: float | None
    prompt: int
    output: int
    ttft: float
    e2e: float


def read_served(path: Path) -> list[Served]:
    """The runs in a client's result file. Raises CalibrationError naming file and what is missing."""
    documents = _documents(path)
    if isinstance(documents[0], list):
        documents = documents[0]
    try:
        runs = list(_runs(path, documents))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CalibrationError(f"{path}: not a readable benchmark result: {problem}; accepted: {ACCEPTED}") from error
    if not runs:
        raise CalibrationError(f"{path}: no request that was served, with lengths, TTFT and end; accepted: {ACCEPTED}")
    return runs


def _documents(path: Path) -> list[Any]:
    """The JSON values of a file: one document, or one a line."""
    try:
        text = read_text(path, MAX_RESULT)
    except ReadError as error:
        raise CalibrationError(f"{path}: {error}") from error
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        pass
    try:
        values = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{path}: not JSON, nor JSON lines: {error}; accepted: {ACCEPTED}") from error
    if not values:
        raise CalibrationError(f"{path}: empty file; accepted: {ACCEPTED}")
    return values


def _runs(path: Path, documents: list[Any]) -> Iterator[Served]:
    first = documents[0]
    if not isinstance(first, Mapping):
        raise ValueError(f"an object is needed, got {shown(first)}")
    if "benchmarks" in first:
        for benchmark in first["benchmarks"]:
            rows = [_guidellm(each) for each in benchmark["requests"]["successful"]]
            yield from _made(path, rows, *_guide(benchmark))
    elif "input_lens" in first:
        for document in documents:
            yield from _bench(path, document)
    elif "metrics" in first:
        yield from _made(path, [_aiperf(each) for each in documents if _profiled(each)], "open", 0)
    elif "info" in first:
        yield from _made(path, [_inference_perf(each) for each in documents if not each.get("error")], "open", 0)
    elif "request_throughput" in first:
        raise ValueError("a summary without its requests")
    else:
        raise ValueError(f"unknown keys {shown(sorted(map(str, first))[:8])}")


def _bench(path: Path, document: Record) -> Iterator[Served]:
    """vLLM's and SGLang's benchmark client: a list a column."""
    rows = [_Row(r.get("start_times"), r["input_lens"], r["output_lens"], r["ttfts"], r["ttfts"] + sum(r["itls"]))
            for r in transposed(document) if not r.get("errors")]
    rate, width = float(document.get("request_rate") or "inf"), document.get("max_concurrency")
    unlimited = rate == float("inf")
    closed = unlimited and width is not None
    notes, untimed = [], any(row.start is None for row in rows)
    if untimed and not unlimited:
        drawn = np.random.default_rng(_DRAWN_SEED).exponential(1.0 / rate, len(rows)).cumsum()
        rows = [_Row(float(at), r.prompt, r.output, r.ttft, r.e2e) for at, r in zip(drawn, rows, strict=True)]
        notes.append(f"no start_times: arrivals drawn at {rate:g} requests/s, not those of the run")
    if width is not None and not closed:
        notes.append(f"max_concurrency {width} beside a rate: requests are sent when they were")
    model = str(document.get("model_id", ""))
    yield from _made(path, rows, "closed" if closed else "open", int(width or 0) if closed else 0, model, tuple(notes))


def _guide(benchmark: Record) -> tuple[str, int]:
    strategy = value_at(benchmark, "config.strategy") or {}
    streams = strategy.get("streams") or strategy.get("max_concurrency")
    if strategy.get("type_") == "concurrent" and isinstance(streams, int):
        return "closed", streams
    return "open", 0


def _guidellm(record: Record) -> _Row:
    start = _first(record, "request_start_time", "start_time")
    end = _first(record, "request_end_time", "end_time")
    if record.get("time_to_first_token_ms") is not None:
        ttft = float(record["time_to_first_token_ms"]) / 1e3
    else:
        ttft = float(record["first_token_time"]) - start
    return _Row(start, record["prompt_tokens"], record["output_tokens"], ttft, end - start)


def _first(record: Record, *names: str) -> float:
    return float(next(record[name] for name in (*names, names[0]) if record.get(name) is not None))


def _inference_perf(record: Record) -> _Row:
    info, start = record["info"], float(record["start_time"])
    times = info["output_token_times"]
    if not times:
        return _Row(start, info["input_tokens"], 0, 0.0, 0.0)
    last = max(float(times[-1]), float(record["end_time"]))
    return _Row(start, info["input_tokens"], info["output_tokens"], float(times[0]) - start, last - start)


def _profiled(record: Record) -> bool:
    about = record["metadata"]
    return (about.get("benchmark_phase", "profiling") == "profiling" and not about.get("was_cancelled")
            and not record.get("error"))


def _aiperf(record: Record) -> _Row:
    metrics = record["metrics"]
    return _Row(int(record["metadata"]["request_start_ns"]) / 1e9, int(metrics["input_sequence_length"]["value"]),
                int(metrics["output_sequence_length"]["value"]), _seconds(metrics["time_to_first_token"]),
                _seconds(metrics["request_latency"]))


def _seconds(entry: Record) -> float:
    return float(entry["value"]) * UNIT_S[str(entry["unit"])]


def _made(path: Path, rows: list[_Row], kind: str, width: int, model: str = "", notes: tuple[str, ...] = ()
          ) -> Iterator[Served]:
    """A run of the rows that were served; nothing where there are none."""
    done = [row for row in rows if row.output > 0 and row.ttft > 0]
    if not done:
        return
    start = np.array([0.0 if row.start is None else float(row.start) for row in done])
    prompt, output = np.array([row.prompt for row in done]), np.array([row.output for row in done])
    ttft = np.array([row.ttft for row in done], dtype=np.float64)
    e2e = np.maximum(np.array([row.e2e for row in done], dtype=np.float64), ttft)
    if not all(np.isfinite(each).all() for each in (start, ttft, e2e)) or (prompt < 1).any():
        raise ValueError("times must be finite and prompts hold at least one token")
    left_out = len(rows) - len(done)
    more = (f"{left_out} of {len(rows)} requests without output left out",) if left_out else ()
    table = pd.DataFrame({
        "id": np.arange(len(done)), "arrival_s": start - start.min(), "prompt_tokens": prompt.astype(np.int64),
        "output_tokens": output.astype(np.int64), "ttft_s": ttft, "tpot_s": (e2e - ttft) / np.maximum(output - 1, 1),
        "e2e_s": e2e})
    yield Served(path, kind, width, table.sort_values("arrival_s", kind="stable", ignore_index=True), model,
                 (*notes, *more))

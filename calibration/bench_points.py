"""Points of a measured latency-throughput curve: what benchmarks and measured runs report, as a load test's columns.

Read are folders of measured runs (run.yaml with requests), the JSON that `vllm bench serve --save-result` writes and
the JSON lines of `sglang.bench_serving`, and AIPerf's profile_export_aiperf.json. Times come out in seconds.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.measured import find_runs, load_run
from calibration.served import UNIT_S
from simulator.errors import CalibrationError
from simulator.reading import MAX_RESULT, ReadError, read_json, read_text

Point = dict[str, Any]
MARKS: Final = (("mean", "mean"), ("p50", "median"), ("p90", "p90"), ("p99", "p99"))
"""Statistic of a load test -> how the benchmarks of vLLM and SGLang call it (benchmarks/serve.py, bench_serving.py)."""
TIMES: Final = {"ttft": ("ttft",), "tpot": ("tpot",), "itl": ("itl",), "e2e": ("e2el", "e2e_latency")}
AIPERF: Final = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
"""AIPerf's inter-token latency is (latency - TTFT) / (tokens - 1): the TPOT of everybody else."""


def measured_points(paths: Iterable[Path]) -> list[Point]:
    """All points of files and folders, in order. Raises CalibrationError naming the file and what is accepted."""
    points: list[Point] = []
    for path in paths:
        if path.is_dir():
            points += [_of_run(folder) for folder in find_runs([path])]
        else:
            points += _of_file(path)
    return points


def _of_run(folder: Path) -> Point:
    """A measured run, from its requests: duration is last completion - first arrival."""
    run = load_run(folder)
    table = run.requests
    arrival, e2e = table.arrival_s.to_numpy(dtype=float), table.e2e_s.to_numpy(dtype=float)
    span = float((arrival + e2e).max() - arrival.min())
    point: Point = {"source": run.name, "requests_per_s": len(table) / span}
    point["output_tokens_per_s"] = float(table.output_tokens.sum()) / span
    if run.kind == "open" and np.ptp(arrival) > 0:
        point["rate"] = (len(table) - 1) / float(np.ptp(arrival))
    elif run.width:
        point["concurrency"] = run.width
    several = table.output_tokens.to_numpy() > 1
    columns = {"ttft": table.ttft_s, "tpot": table.tpot_s[several], "e2e": table.e2e_s}
    for name, column in columns.items():
        values = column.to_numpy(dtype=float)
        if values.size:
            point[f"{name}_mean_s"] = float(values.mean())
            for mark in ("p50", "p90", "p99"):
                point[f"{name}_{mark}_s"] = float(np.percentile(values, float(mark[1:])))
    return point


def _of_file(path: Path) -> list[Point]:
    try:
        found = [_of_content(content) for content in _contents(path)]
    except ReadError as error:
        raise CalibrationError(f"{path}: not a readable JSON result: {error}") from error
    if not found or any(point is None for point in found):
        raise CalibrationError(
            f"{path}: holds no benchmark result; accepted: vllm bench serve --save-result, sglang.bench_serving, "
            "AIPerf's profile_export_aiperf.json, or a folder of measured runs (run.yaml)"
        )
    name = path.stem
    return [{"source": name if len(found) == 1 else f"{name} {k}", **(p or {})} for k, p in enumerate(found, 1)]


def _contents(path: Path) -> list[Any]:
    """The results of a file: one JSON value, a list of them, or one a line."""
    try:
        content = read_json(path, MAX_RESULT)
    except ReadError:
        lines = [line for line in read_text(path, MAX_RESULT).splitlines() if line.strip()]
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise ReadError(f"neither JSON nor JSON lines: {error}") from None
    return content if isinstance(content, list) else [content]


def _of_content(content: Any) -> Point | None:
    if not isinstance(content, dict):
        return None
    if _number(content.get("request_throughput")) is not None:
        return _of_bench(content)
    return _of_aiperf(content) if isinstance(content.get("request_throughput"), dict) else None


def _of_bench(content: Mapping[str, Any]) -> Point:
    """Aggregates of vLLM's and SGLang's benchmark: milliseconds."""
    point: Point = {"requests_per_s": content["request_throughput"]}
    point["output_tokens_per_s"] = _number(content.get("output_throughput"))
    rate, width = _number(content.get("request_rate")), _number(content.get("max_concurrency"))
    if rate is not None and rate < float("inf") and width is None:
        point["rate"] = rate
    if width is not None:
        point["concurrency"] = width
    for name, theirs in TIMES.items():
        for mark, statistic in MARKS:
            for their in theirs:
                value = _number(content.get(f"{statistic}_{their}_ms"))
                if value is not None:
                    point[f"{name}_{mark}_s"] = value / 1000
    return point


def _of_aiperf(content: Mapping[str, Any]) -> Point:
    def block(name: str) -> Mapping[str, Any]:
        found = content.get(name)
        return found if isinstance(found, dict) else {}

    point: Point = {"requests_per_s": _number(block("request_throughput").get("avg"))}
    point["output_tokens_per_s"] = _number(block("output_token_throughput").get("avg"))
    for name, theirs in AIPERF.items():
        scale = UNIT_S.get(str(block(theirs).get("unit")), 0.0)
        for mark in ("mean", "p50", "p90", "p99"):
            value = _number(block(theirs).get("avg" if mark == "mean" else mark))
            if value is not None and scale:
                point[f"{name}_{mark}_s"] = value * scale
    given = content.get("input_config")
    load = given.get("loadgen") if isinstance(given, dict) else None
    for ours, key in (("concurrency", "concurrency"), ("rate", "request_rate")):
        value = _number(load.get(key)) if isinstance(load, dict) else None
        if value is not None and "concurrency" not in point:
            point[ours] = value
    return point


def _number(value: Any) -> float | None:
    """A number, also one that JSON cannot write and benchmarks put as text (`inf`)."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

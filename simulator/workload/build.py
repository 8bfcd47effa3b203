"""Workload description -> Trace: the one door for scenarios."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.errors import ConfigError, TraceError
from simulator.state import LARGEST_COUNT
from simulator.units import column_to_ticks

from .asks import MOST_PRIORITY, Asks
from .generate import Generated, generate_trace
from .sessions import Sessions, generate_sessions
from .spec import Inline, TraceFile, Workload, parse_workload
from .trace import DEFAULT_CLASS, Trace, TraceMeta, content_sha256, make_trace


def build_trace(
    workload: Workload | Mapping[str, Any], seed: int = 0, replication: int = 0, base: str | Path = "."
) -> Trace:
    """Read or draw the workload. A mapping is parsed first (spec.parse_workload, paths from `base`).

    A written-out workload is the same in every replication, a file too unless copies of it are turned. Raises
    TraceError, ConfigError.
    """
    spec = parse_workload(workload, base) if isinstance(workload, Mapping) else workload
    if isinstance(spec, Generated):
        return generate_trace(spec, seed, replication)
    if isinstance(spec, Sessions):
        return generate_sessions(spec, seed, replication)
    return inline_trace(spec) if isinstance(spec, Inline) else file_trace(spec, seed, replication)


def is_random(workload: Workload) -> bool:
    """Whether seed and replication change the trace."""
    return isinstance(workload, Generated | Sessions) or turns_copies(workload)


def turns_copies(workload: Workload) -> bool:
    """Whether copies of a file are turned by times that are drawn."""
    return isinstance(workload, TraceFile) and workload.copies > 1 and workload.copy_shift_s is None


def file_trace(spec: TraceFile, seed: int = 0, replication: int = 0) -> Trace:
    """Read the file of a TraceFile; seed and replication turn its copies."""
    from .load import load_trace  # here, because pyarrow takes long to load

    return load_trace(**vars(spec), seed=seed, replication=replication)


def _check_arrivals(arrival_s: npt.NDArray[np.float64]) -> None:
    """Refuse times that are negative or out of order, in the units they were written in."""
    for k, value in enumerate(arrival_s):
        if value < 0:
            raise ConfigError(f"workload.requests.arrival_s: row {k + 1} must be >= 0, got {value}")
        if k and value < arrival_s[k - 1]:
            raise ConfigError(f"workload.requests.arrival_s: row {k + 1} must not be before the row above, "
                              f"got {value} after {arrival_s[k - 1]}")


def _asks(spec: Inline, n: int) -> Asks:
    """What written-out requests ask for. Raises ConfigError."""
    columns: dict[str, npt.NDArray[np.int64]] = {}
    accepted = {"priority": (-MOST_PRIORITY, MOST_PRIORITY), "predicted": (1, LARGEST_COUNT)}
    for name, (low, high) in accepted.items():
        given = getattr(spec, name)
        if given is not None:
            columns[name] = _as_long(name, given, n)
            if not low <= columns[name].min() <= columns[name].max() <= high:
                raise ConfigError(f"workload.requests.{name} must be {low}..{high}, got {columns[name].min()} to "
                                  f"{columns[name].max()}")
    if spec.ttft_target_s is not None:
        targets = _as_long("ttft_target_s", spec.ttft_target_s, n)
        if not targets.min() > 0:
            raise ConfigError(f"workload.requests.ttft_target_s must be > 0, got {targets.min()}")
        columns["target_ns"] = column_to_ticks(targets)
    tenants = tuple(dict.fromkeys(spec.tenant or ()))
    if spec.tenant is not None:
        columns["tenant"] = _as_long("tenant", [tenants.index(name) for name in spec.tenant], n)
    return Asks(**columns, tenants=tenants)


def _as_long(name: str, given: Any, n: int) -> npt.NDArray[Any]:
    """One value a request; one number stands for all. Raises ConfigError."""
    column = np.asarray(given)
    if column.ndim == 0:
        column = np.repeat(column, n)
    if column.shape != (n,):
        raise ConfigError(f"workload.requests.{name} must be one value or a list of {n} like output, got {len(column)}")
    return column


def inline_trace(spec: Inline) -> Trace:
    """Columns of an Inline. Raises ConfigError naming the first entry that is not accepted."""
    n = len(spec.output)
    names = tuple(dict.fromkeys(spec.cls or (DEFAULT_CLASS,)))
    codes = [names.index(name) for name in spec.cls] if spec.cls else 0
    arrival = np.asarray(spec.arrival_s, dtype=np.float64)
    if arrival.ndim == 0:
        arrival = np.repeat(arrival, n)
    _check_arrivals(arrival)
    try:
        trace = make_trace(
            column_to_ticks(arrival),
            spec.prompt,
            spec.output,
            max_tokens=spec.max_tokens,
            cached=spec.cached,
            cls=codes,
            class_names=names,
            asks=_asks(spec, n),
        )
    except (TraceError, OverflowError) as error:
        raise ConfigError(f"workload.requests: {error}") from error
    return replace(trace, meta=TraceMeta("requests", "inline", content_sha256(trace), n))

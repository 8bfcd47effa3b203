"""The task of a sweep: run a few rows (point x replication) and return their metrics.

The same function runs in this process, in a local worker process and on a Dask worker. A process keeps the
last prepared setups and traces, so points that share them pay once. Common random numbers: all points of a
replication draw from the same named streams, so they see the same arrivals and lengths.
"""

import functools
import json
import os
import shutil
import tempfile
import time
from copy import deepcopy
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from simulator.atomic import PART
from simulator.config import set_key
from simulator.errors import ServecastError, TraceError
from simulator.run import simulate
from simulator.scenario.setup import Setup, prepare
from simulator.scenario.spec import Scenario, scenario_from
from simulator.sweep.row import Record, record_of
from simulator.sweep.spec import Point
from simulator.workload.build import build_trace
from simulator.workload.spec import parse_workload
from simulator.workload.store import open_columns, save_columns
from simulator.workload.trace import Trace
from simulator.workload.unequal import unequal

_STUB = {"requests": {"output": [1]}}
_WHERE = "point"


@dataclass(frozen=True)
class Work:
    """What all rows of a sweep share. `base`: the base scenario as plain data; `folder`: where its relative
    paths start; `store`: folder for traces that several points share, None without a common disk."""

    base: dict[str, Any]
    folder: str
    store: str | None = None


@dataclass(frozen=True)
class Row:
    """One simulation. `shared`: other points use the same trace."""

    point: int
    replication: int
    values: Point
    shared: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """(point, replication)."""
        return self.point, self.replication


def run_rows(work: Work, rows: list[Row]) -> tuple[list[Record], float]:
    """Records of the rows, in order, and the seconds they took. A failing row gives a record with `error`."""
    start = time.perf_counter()
    records = [_run_row(work, row) for row in rows]
    return records, time.perf_counter() - start


def workload_of(base: dict[str, Any], values: Point) -> tuple[dict[str, Any], Any]:
    """The workload section and the seed of a point."""
    data = {"workload": deepcopy(base.get("workload")), "seed": base.get("seed", 0)}
    for key, value in values.items():
        if _makes_trace(key):
            set_key(data, key.split("."), value)
    return data["workload"], data["seed"]


def trace_key(base: dict[str, Any], values: Point, replication: int) -> str:
    """Equal for rows that replay the same trace: hash of workload, seed and, where drawn, replication."""
    workload, seed = workload_of(base, values)
    text = _text([workload, *((seed, replication) if _drawn(workload) else (0, 0))])
    return sha256(text.encode()).hexdigest()[:24]


def _drawn(workload: Any) -> bool:
    """Whether seed and replication change the trace: not of written-out requests, nor of a file without copies."""
    if not isinstance(workload, dict) or "requests" in workload:
        return False
    file = workload.get("trace")
    return "trace" not in workload or (isinstance(file, dict) and file.get("copies", 1) != 1)


def scenario_of(work: Work, values: Point) -> Scenario:
    """The whole scenario of a point, for looking at it or running it alone. Raises ConfigError."""
    data = deepcopy(work.base)
    for key, value in values.items():
        set_key(data, key.split("."), value)
    return scenario_from(data, work.folder, _WHERE)


def _run_row(work: Work, row: Row) -> Record:
    try:
        workload, seed = workload_of(work.base, row.values)
        text = _text(workload)
        setup = _setup_of(work, row.values, _contexts(text, work.folder))
        store = os.path.join(work.store, trace_key(work.base, row.values, row.replication)) \
            if work.store and row.shared else None
        trace = _trace(text, seed, row.replication, work.folder, store)
        setup = replace(setup, scenario=setup.scenario.model_copy(update={"seed": seed}))
        result = simulate(setup.scenario, setup=setup, trace=trace, replication=row.replication)
        return record_of(row.point, row.replication, result)
    except ServecastError as error:
        return Record(row.point, row.replication, {}, str(error).removeprefix(f"{_WHERE}: "))
    except Exception as error:  # one bad point must not end the sweep
        return Record(row.point, row.replication, {}, f"{type(error).__name__}: {error}")


@functools.lru_cache(maxsize=64)
def _contexts(workload: str, folder: str) -> float:
    """How unequal the contexts of a workload section are: all of it that a setup hangs on."""
    return unequal(parse_workload(json.loads(workload), folder))


def _setup_of(work: Work, values: Point, contexts: float) -> Setup:
    """The prepared setup; the workload section is left out of the cache key but for its `contexts`."""
    data = deepcopy({key: value for key, value in work.base.items() if key not in ("workload", "seed")})
    for key, value in values.items():
        if not _makes_trace(key):
            set_key(data, key.split("."), value)
    return _setup(_text(data), work.folder, contexts)


@functools.lru_cache(maxsize=64)
def _setup(data: str, folder: str, contexts: float) -> Setup:
    return prepare(scenario_from({**json.loads(data), "workload": _STUB}, folder, _WHERE), contexts=contexts)


@functools.lru_cache(maxsize=4)
def _trace(workload: str, seed: int, replication: int, folder: str, store: str | None) -> Trace:
    """The trace of a row: mapped from `store` when it is there, else built (and saved there)."""
    if store is not None and os.path.isdir(store):
        try:
            return open_columns(store)
        except TraceError:
            pass
    trace = build_trace(json.loads(workload), seed, replication, folder)
    if store is None:
        return trace
    return _share(trace, Path(store))


def _share(trace: Trace, store: Path) -> Trace:
    """Save the columns under `store`, whole or not at all, and map them; another process may be first."""
    store.parent.mkdir(parents=True, exist_ok=True)
    part = tempfile.mkdtemp(prefix=PART, dir=store.parent)
    try:
        save_columns(trace, part)
        os.rename(part, store)
    except OSError:
        return trace
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return open_columns(store)


def _makes_trace(key: str) -> bool:
    return key == "seed" or key.split(".")[0] == "workload"


def _text(data: Any) -> str:
    return json.dumps(data, sort_keys=True, default=str)

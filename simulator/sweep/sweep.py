"""Sweeps: run a scenario at many points, on this machine or a Dask cluster, so that a kill loses little.

Rows (point x replication) are handed out in tasks of about half a second, finished tasks become part files,
and a resumed sweep runs the rows that no part file holds. A point that fails is recorded and the rest go on.
"""

import json
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulator.errors import ServecastError
from simulator.reading import absolute
from simulator.scenario.spec import Scenario
from simulator.sweep.pool import dask_pool, local_pool, usable_cores
from simulator.sweep.row import Record
from simulator.sweep.spec import Point, Points, SweepSpec, axis_keys, sweep_points
from simulator.sweep.store import FORMAT, Store, claim, locked, write_manifest
from simulator.sweep.task import Row, Work, run_rows, trace_key, workload_of
from simulator.workload.files import file_sha256

if TYPE_CHECKING:
    from policies.registry import Policy

TASK_SECONDS: Final = 0.5
TASK_ROWS: Final = 256

LOOK_S: Final = 5.0
ALONE_S: Final = 60.0
"""[s] How often a silent cluster is asked for its workers, and how long it may be without any."""
WORKER_DIED: Final = "the worker process died while running this point, twice (killed, or out of memory)"

Task = Future[tuple[list[Record], float]]
Progress = Callable[[int, int, int], None]
"""Called with rows done, rows in all, rows failed."""


@dataclass(frozen=True)
class SweepOutcome:
    """`rows` in all, `resumed` of them there before; `failed` counts new rows recorded with an error."""

    folder: Path
    points: int
    rows: int
    resumed: int
    failed: int


def run_sweep(spec: SweepSpec, base: Scenario, out: str | Path, *, jobs: int | None = None,
              dask: str | None = None, resume: bool = False,
              progress: Progress | None = None) -> SweepOutcome:
    """Run every row that `out` does not hold yet.

    `jobs` local processes (default: usable cores), or the Dask cluster at `dask` (tcp://host:port).
    Raises ConfigError for an `out` that may not be written to; errors of single points are recorded instead.
    """
    folder, place, points = Path(out), absolute(out), sweep_points(spec)
    traces = None if dask else str(place / "traces")
    work = Work(_plain_base(base), str(base.base.resolve()), traces)
    manifest = _manifest(spec, base, work, points)
    if dask:
        with dask_pool(dask):
            pass  # an address where nobody answers leaves no folder
    claim(folder, manifest["identity"], resume)
    store = Store(folder, points, manifest["keys"])
    with locked(folder):
        write_manifest(folder, manifest)
        done = store.done()
        todo = [row for row in plan_rows(work, points, spec.replications) if row.key not in done]
        run = _Run(work, store, todo, len(done), progress)
        if todo:
            if not dask:
                from simulator.engine_choice import announce

                announce(swept_policies(base, points))
            run.drive(jobs or usable_cores(), dask)
        _finish(store, manifest)
    return SweepOutcome(folder, len(points), len(points) * spec.replications, len(done), run.failed)


def swept_policies(base: Scenario, points: Points) -> "list[Policy]":
    """Policies whose engines the points take; a base or a point that cannot be set up has none."""
    from policies.registry import POLICIES
    from simulator.scenario.setup import prepare

    names = {str(point.get("policy.name", point.get("policy"))) for point in points}
    with suppress(ServecastError):
        return [POLICIES[name] for name in sorted(names) if name in POLICIES] or [prepare(base).policy]
    return []


def plan_rows(work: Work, points: Points, replications: int) -> list[Row]:
    """Every row, ordered by replication and then so that rows that replay one trace are neighbours."""
    rows: list[Row] = []
    for replication in range(replications):
        by_trace: dict[str, list[int]] = {}
        for k, point in enumerate(points):
            by_trace.setdefault(trace_key(work.base, point, replication), []).append(k)
        rows += [Row(k, replication, points[k], len(same) > 1) for same in by_trace.values() for k in same]
    return rows


@dataclass
class _Run:
    """The state of a running sweep."""

    work: Work
    store: Store
    rows: list[Row]
    before: int
    progress: Progress | None
    written: int = 0
    failed: int = 0
    seconds_per_row: float = 0.0
    suspects: deque[Row] = field(default_factory=deque)
    suspected: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.todo = deque(self.rows)

    def drive(self, jobs: int, dask: str | None) -> None:
        """Hand out tasks until none is left; a broken pool of processes is replaced."""
        self._show()
        while self.todo or self.suspects:
            with ExitStack() as stack:
                there: Callable[[], int] | None = None
                if dask:
                    executor, workers, there = stack.enter_context(dask_pool(dask))
                else:
                    executor, workers = stack.enter_context(local_pool(jobs)), jobs
                self._hand_out(executor, workers, 2 * workers if workers > 1 else 1, there)

    def _hand_out(self, executor: Executor, workers: int, window: int, there: Callable[[], int] | None) -> None:
        flying: dict[Task, list[Row]] = {}
        while self.todo or self.suspects or flying:
            while self._may_fly(flying, window):
                rows = self._next_task(workers)
                try:
                    flying[executor.submit(run_rows, self.work, rows)] = rows
                except BrokenExecutor:
                    self.todo.extendleft(reversed(rows))
                    break
            if not flying:
                return
            for future in _some_done(flying, there):
                if self._take(future, flying.pop(future)):
                    for rows in flying.values():
                        self._suspect(rows)
                    return

    def _may_fly(self, flying: dict[Task, list[Row]], window: int) -> bool:
        """Whether another task may be handed out; a suspect runs with no other beside it."""
        in_flight = (row.key for rows in flying.values() for row in rows)
        alone = bool(self.suspects) or any(key in self.suspected for key in in_flight)
        return bool(self.todo or self.suspects) and len(flying) < (1 if alone else window)

    def _next_task(self, workers: int) -> list[Row]:
        """A suspect alone, else the next rows of one replication, about TASK_SECONDS of work."""
        if self.suspects:
            return [self.suspects.popleft()]
        size = int(TASK_SECONDS / self.seconds_per_row) if self.seconds_per_row else 1
        size = max(1, min(size, TASK_ROWS, -(-len(self.todo) // (2 * workers))))
        rows = [self.todo.popleft()]
        while self.todo and len(rows) < size and self.todo[0].replication == rows[0].replication:
            rows.append(self.todo.popleft())
        return rows

    def _take(self, future: Task, rows: list[Row]) -> bool:
        """Write a finished task; True when the pool is broken and must be replaced."""
        try:
            records, seconds = future.result()
        except CancelledError:
            raise ServecastError("the cluster went away; what is done is kept, go on with --resume") from None
        except Exception as error:
            self._suspect(rows)
            return isinstance(error, BrokenExecutor)
        self.seconds_per_row = 0.5 * (self.seconds_per_row or seconds / len(rows)) + 0.5 * seconds / len(rows)
        self._write(records)
        return False

    def _suspect(self, rows: list[Row]) -> None:
        """Rows of a task whose worker died: try each alone; what dies alone is recorded as failed."""
        for row in rows:
            if row.key in self.suspected:
                self._write([Record(row.point, row.replication, {}, WORKER_DIED)])
            else:
                self.suspected.add(row.key)
                self.suspects.append(row)

    def _write(self, records: list[Record]) -> None:
        self.store.write(records)
        self.written += len(records)
        self.failed += sum(record.error is not None for record in records)
        self._show()

    def _show(self) -> None:
        if self.progress:
            self.progress(self.before + self.written, self.before + len(self.rows), self.failed)


def _some_done(flying: Iterable[Task], there: Callable[[], int] | None) -> set[Task]:
    """The tasks done, when there are some. `there` says how many workers of a cluster are left: a scheduler without any
    keeps tasks for ever, so after ALONE_S that is an error. Raises ServecastError."""
    alone_since = None
    while True:
        done = wait(flying, None if there is None else LOOK_S, FIRST_COMPLETED).done
        if done or there is None:
            return done
        if there() > 0:
            alone_since = None
        elif alone_since is None:
            alone_since = time.monotonic()
        elif time.monotonic() - alone_since > ALONE_S:
            raise ServecastError(f"the cluster has had no worker for {ALONE_S:.0f} s; what is done is kept: start "
                                 "workers and go on with --resume")


def _plain_base(base: Scenario) -> dict[str, Any]:
    return json.loads(json.dumps(base.model_dump(mode="json", exclude_unset=True)))  # type: ignore[no-any-return]


def _manifest(spec: SweepSpec, base: Scenario, work: Work, points: Points) -> dict[str, Any]:
    from simulator.version import __version__

    axes = [block.model_dump(mode="json", exclude_none=True) for block in spec.axes]
    what = {"base": work.base, "axes": axes, "replications": spec.replications,
            "servecast": __version__, "files": _files(work, points)}
    identity = sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()
    return {"format": FORMAT, "identity": identity, "name": spec.name, "description": spec.description,
            "points": len(points), "rows": len(points) * spec.replications, "keys": axis_keys(points),
            "status": "running", "trust": _trust(base), **what}


def _trust(base: Scenario) -> dict[str, Any] | None:
    """What the base's step times stand on; None where it cannot be set up."""
    from simulator.planning.trusted import trusted_run
    from simulator.scenario.setup import prepare
    from simulator.workload.build import build_trace

    with suppress(ServecastError, OSError):
        trace = build_trace(base.parsed_workload(), base.seed, 0, base.base)
        return trusted_run(prepare(base), trace)
    return None


def _files(work: Work, points: Points) -> dict[str, str]:
    """SHA-256 of every trace file that some point replays; missing files are left to the points to report."""
    names = {_trace_file(work.base, point) for point in points} - {None}
    found = {str(name): Path(work.folder) / str(name) for name in names}
    return {name: file_sha256(path) for name, path in sorted(found.items()) if path.is_file()}


def _trace_file(base: dict[str, Any], point: Point) -> str | None:
    if not any(key.split(".")[0] == "workload" for key in point) and "trace" not in base.get("workload", {}):
        return None
    workload, _ = workload_of(base, point)
    trace = workload.get("trace") if isinstance(workload, dict) else None
    name = trace.get("path") if isinstance(trace, dict) else trace
    return name if isinstance(name, str) else None


def _finish(store: Store, manifest: dict[str, Any]) -> None:
    """Say in the manifest that all is there, and give back the disk space of the shared traces."""
    parts = sorted(str(path.relative_to(store.folder)) for path in store.parts())
    write_manifest(store.folder, {**manifest, "status": "complete", "parts": parts})
    shutil.rmtree(store.traces, ignore_errors=True)

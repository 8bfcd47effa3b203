"""Where a sweep's results lie: manifest.json, and a parquet data set that grows by whole files.

    DIR/manifest.json                                   what is swept, under which identity
    DIR/results/replication=0/part-00000012.parquet     rows of a finished task, named by its first point
    DIR/traces/                                         shared trace columns, removed at the end

A part file takes its name when it is complete, and its presence is the record that its rows are done: there
is no second place that could disagree. What a kill leaves half-written has a name that starts with `.part-`.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from simulator.atomic import PART, atomic
from simulator.errors import ConfigError
from simulator.reading import MAX_RESULT, ReadError, read_json
from simulator.sweep.row import COUNTS, NUMBERS, TEXTS, Record
from simulator.sweep.spec import Points

FORMAT: Final = "servecast sweep 1"
MANIFEST: Final = "manifest.json"


class Store:
    """The output folder of one sweep."""

    def __init__(self, folder: Path, points: Points, keys: list[str]) -> None:
        self.folder = folder
        self.points = points
        self.keys = keys
        self._types = {key: axis_type([p.get(key) for p in points]) for key in keys}

    @property
    def results(self) -> Path:
        """Root of the parquet data set."""
        return self.folder / "results"

    @property
    def traces(self) -> Path:
        """Shared trace columns."""
        return self.folder / "traces"

    def parts(self) -> list[Path]:
        """Finished part files."""
        return part_files(self.folder)

    def write(self, records: list[Record]) -> None:
        """Add the rows of a finished task (one replication) as one part file, whole or not at all."""
        if not records:
            return
        first = records[0]
        folder = self.results / f"replication={first.replication}"
        folder.mkdir(parents=True, exist_ok=True)
        with atomic(folder / f"part-{first.point:08d}.parquet") as temporary:
            pq.write_table(self._table(records), temporary)

    def done(self) -> set[tuple[int, int]]:
        """(point, replication) of every finished row. Half-written and damaged files are removed."""
        for stray in self.folder.rglob(f"{PART}*"):
            shutil.rmtree(stray) if stray.is_dir() else stray.unlink(missing_ok=True)
        found: set[tuple[int, int]] = set()
        for part in self.parts():
            try:
                numbers = pq.read_table(part, columns=["point"], partitioning=None)["point"].to_pylist()
            except (pa.ArrowInvalid, OSError):
                part.unlink()
                continue
            found.update((number, replication_of(part)) for number in numbers)
        return found

    def _table(self, records: list[Record]) -> pa.Table:
        columns: dict[str, pa.Array] = {"point": pa.array([r.point for r in records], pa.int64())}
        for key in self.keys:
            kind = self._types[key]
            values = [self.points[r.point].get(key) for r in records]
            columns[key] = pa.array([_plain(v, kind) for v in values], kind)
        for names, kind in ((COUNTS, pa.int64()), (NUMBERS, pa.float64()), (TEXTS, pa.string())):
            for name in names:
                columns[name] = pa.array([r.metrics.get(name) for r in records], kind)
        columns["error"] = pa.array([r.error for r in records], pa.string())
        return pa.table(columns)


def part_files(folder: Path) -> list[Path]:
    """Finished part files of the sweep in `folder`."""
    return sorted((folder / "results").glob("replication=*/part-*.parquet"))


def replication_of(part: Path) -> int:
    """The replication of a part file's rows: the name of its folder tells."""
    return int(part.parent.name.partition("=")[2])


def axis_type(values: list[Any]) -> pa.DataType:
    """Parquet type that holds every value of a key: bool, int64, float64, else text (JSON for structures)."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pa.bool_()
    if int in kinds and not all(abs(value) < 2**63 for value in values if type(value) is int):
        return pa.string()
    if kinds == {int}:
        return pa.int64()
    return pa.float64() if kinds and kinds <= {int, float} else pa.string()


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None or not pa.types.is_string(kind):
        return value
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write DIR/manifest.json, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest, None where there is none. Raises ConfigError for one that is not ours."""
    path = folder / MANIFEST
    try:
        if not path.exists():
            return None
        manifest = read_json(path, MAX_RESULT)
    except ReadError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ConfigError(f"{path}: not the manifest of a sweep ({FORMAT})")
    return manifest


def claim(folder: Path, identity: str, resume: bool) -> None:
    """Check that `folder` may hold the sweep `identity`: new or empty, or the same sweep under `resume`.

    Raises ConfigError and touches nothing otherwise.
    """
    manifest = read_manifest(folder) if folder.is_dir() else None
    if manifest is None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"--out {folder}: exists and holds no sweep; accepted: a new or empty folder")
    elif not resume:
        raise ConfigError(f"--out {folder}: holds a sweep already; accepted: --resume, or another folder")
    elif manifest.get("identity") != identity:
        raise ConfigError(f"--out {folder}: holds another sweep (the spec, base scenario, trace or version "
                          "changed); --resume needs the same, or name another folder")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second sweep out of `folder` while this process lives. Raises ConfigError."""
    try:
        import fcntl
    except ImportError:  # no advisory locks on this system
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"--out {folder}: another sweep is writing there now") from None
        yield

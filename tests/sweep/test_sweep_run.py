"""Sweeps in this process and in worker processes: the right rows, once each, whatever fails."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sweep_cases import base_of, make

from simulator.errors import ConfigError
from simulator.run import simulate
from simulator.sweep import sweep as sweep_module
from simulator.sweep.pool import Inline
from simulator.sweep.row import METRICS, flat_metrics
from simulator.sweep.show import load_table
from simulator.sweep.spec import SweepSpec, sweep_points
from simulator.sweep.sweep import SweepOutcome, plan_rows, run_sweep
from simulator.sweep.task import Row, Work, run_rows, scenario_of, trace_key
from simulator.workload.build import build_trace

GRID = [{"grid": {"policy.max_num_seqs": [4, 64], "workload.arrivals.rate": [4, 12]}}]


def go(spec: SweepSpec, out: Path, **options: Any) -> SweepOutcome:
    """run_sweep in this process unless told otherwise."""
    return run_sweep(spec, base_of(spec), out, **{"jobs": 1, **options})


def work_of(spec: SweepSpec) -> Work:
    """The shared part of a spec's rows, nothing stored."""
    return Work(base_of(spec).model_dump(mode="json", exclude_unset=True), ".")


def test_every_row_equals_its_scenario_run_alone(tmp_path: Path) -> None:
    spec = make(GRID, replications=2)
    assert go(spec, tmp_path / "out") == SweepOutcome(tmp_path / "out", 4, 8, 0, 0)
    table = load_table(tmp_path / "out")
    assert table["point"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert table["replication"].tolist() == [0, 1] * 4
    for row in table.to_dict("records"):
        point = sweep_points(spec)[row["point"]]
        assert {key: row[key] for key in point} == point
        alone = flat_metrics(simulate(base_of(spec).updated(point), replication=row["replication"]).summary)
        assert {name: row[name] for name in METRICS} == alone


def test_processes_and_shared_traces_change_nothing(tmp_path: Path) -> None:
    spec = make(GRID, replications=2)
    go(spec, tmp_path / "one")
    go(spec, tmp_path / "two", jobs=2)
    pd.testing.assert_frame_equal(load_table(tmp_path / "one"), load_table(tmp_path / "two"))
    assert not (tmp_path / "two" / "traces").exists()


def test_points_of_a_replication_replay_the_same_requests() -> None:
    spec = make([{"grid": {"hardware.gpu": ["h100-sxm", "l40s"], "policy.name": ["chunked", "vllm_v0"]}}],
                replications=2)
    work = work_of(spec)
    traces = {}
    for row in plan_rows(work, sweep_points(spec), 2):
        scenario = scenario_of(work, row.values)
        trace = build_trace(scenario.parsed_workload(), scenario.seed, row.replication)
        traces.setdefault(row.replication, []).append(trace)
    for same in traces.values():
        assert len(same) == 4
        for (_, column), *others in zip(*(trace.columns() for trace in same), strict=True):
            assert all(np.array_equal(column, other) for _, other in others)
    assert not np.array_equal(traces[0][0].arrival_ns, traces[1][0].arrival_ns)


def test_a_key_without_effect_changes_no_metric(tmp_path: Path) -> None:
    go(make([{"grid": {"name": ["a", "b"], "policy.max_num_seqs": [8]}}], replications=2), tmp_path / "out")
    table = load_table(tmp_path / "out")
    first, second = (table[table["name"] == name][list(METRICS)].reset_index(drop=True) for name in "ab")
    pd.testing.assert_frame_equal(first, second)


def test_only_what_makes_the_trace_makes_its_key() -> None:
    base = work_of(make(GRID)).base
    key = trace_key(base, {}, 0)
    assert trace_key(base, {"policy.max_num_seqs": 5}, 0) == key
    changed = [trace_key(base, {"workload.arrivals.rate": 9}, 0), trace_key(base, {"seed": 9}, 0)]
    assert len({key, *changed, trace_key(base, {}, 1)}) == 4
    written = {"workload": {"requests": {"output": [3, 4]}}}
    assert trace_key(written, {}, 0) == trace_key(written, {"seed": 1}, 1)
    for name, drawn in (({"sessions": {}}, True), ({"trace": {"path": "a.csv", "copies": 2}}, True),
                        ({"trace": {"path": "a.csv"}}, False), ({"trace": "a.csv"}, False)):
        assert (trace_key({"workload": name}, {}, 0) != trace_key({"workload": name}, {}, 1)) == drawn


def test_a_stored_trace_is_used_by_the_next_process(tmp_path: Path) -> None:
    spec = make(GRID)
    work = Work(work_of(spec).base, ".", str(tmp_path / "traces"))
    row = Row(0, 0, {"policy.max_num_seqs": 4}, shared=True)
    plain, _ = run_rows(work_of(spec), [row])
    saved, _ = run_rows(work, [row])
    folder = tmp_path / "traces" / trace_key(work.base, row.values, 0)
    assert folder.is_dir() and [p.name for p in folder.parent.iterdir()] == [folder.name]
    fresh = multiprocessing.get_context("spawn")
    with fresh.Pool(1) as pool:
        mapped, _ = pool.apply(run_rows, (work, [row]))
    assert plain == saved == mapped


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_point_is_recorded_and_the_rest_go_on(tmp_path: Path, jobs: int) -> None:
    axes = [{"grid": {"policy.max_num_seqs": [8, 0, 16]}},
            {"list": [{}, {"workload.arrivals.rate": -1.0}, {"hardware.gpu": "abacus"}]}]
    outcome = go(make(axes), tmp_path / "out", jobs=jobs)
    assert (outcome.rows, outcome.failed) == (9, 7)
    table = load_table(tmp_path / "out").set_index("point")
    assert table["error"].isna().tolist() == [True, False, False, False, False, False, True, False, False]
    assert table.loc[3, "error"] == "policy.max_num_seqs must be >= 1, got 0"
    assert table.loc[1, "error"] == "workload.arrivals.rate must be > 0, got -1.0"
    assert "unknown GPU 'abacus'; known: a100" in table.loc[2, "error"]
    assert table.loc[[0, 6], "requests.completed"].tolist() == [300, 300]


class Stop(Exception):
    """Ends a sweep from within."""


def stop_after(rows: int) -> Any:
    """A progress function that ends the sweep once `rows` are done."""
    def progress(done: int, total: int, failed: int) -> None:
        if done >= rows:
            raise Stop
    return progress


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_resumed_sweep_repeats_nothing_and_equals_one_that_never_stopped(tmp_path: Path, jobs: int) -> None:
    spec = make([{"grid": {"policy.max_num_seqs": list(range(1, 25))}}])
    others = set(multiprocessing.active_children())
    with pytest.raises(Stop):
        go(spec, tmp_path / "out", jobs=jobs, progress=stop_after(5))
    before = {path: path.stat().st_ino for path in (tmp_path / "out").rglob("part-*.parquet")}
    assert set(multiprocessing.active_children()) <= others
    outcome = go(spec, tmp_path / "out", jobs=jobs, resume=True)
    assert outcome.resumed >= 5 and outcome.rows == 24
    assert {path: path.stat().st_ino for path in before} == before
    go(spec, tmp_path / "whole")
    pd.testing.assert_frame_equal(load_table(tmp_path / "out"), load_table(tmp_path / "whole"))
    assert go(spec, tmp_path / "out", resume=True).resumed == 24


def test_half_written_and_damaged_files_are_done_again(tmp_path: Path) -> None:
    spec = make(GRID)
    go(spec, tmp_path / "out")
    whole = load_table(tmp_path / "out")
    parts = sorted((tmp_path / "out").rglob("part-*.parquet"))
    parts[0].write_bytes(parts[0].read_bytes()[:100])
    stray = parts[1].with_name(".part-abc")
    stray.write_bytes(b"PAR1")
    go(spec, tmp_path / "out", resume=True)
    assert not stray.exists()
    pd.testing.assert_frame_equal(load_table(tmp_path / "out"), whole)


def test_a_killed_worker_costs_only_its_task(tmp_path: Path) -> None:
    killed = []
    others = set(multiprocessing.active_children())

    def progress(done: int, total: int, failed: int) -> None:
        if done >= 3 and not killed:
            worker = next(iter(set(multiprocessing.active_children()) - others))
            killed.append(worker.pid)
            os.kill(int(worker.pid or 0), signal.SIGKILL)

    spec = make([{"grid": {"policy.max_num_seqs": list(range(1, 41))}}], requests=3000)
    outcome = go(spec, tmp_path / "out", jobs=2, progress=progress)
    assert killed and (outcome.rows, outcome.failed) == (40, 0)
    assert load_table(tmp_path / "out")["point"].tolist() == list(range(40))


class Fragile(Inline):
    """Every task that holds point 5 takes the whole pool down."""

    broken = False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.broken:
            raise BrokenProcessPool
        if any(row.point == 5 for row in args[1]):
            self.broken = True
            future: Future[Any] = Future()
            future.set_exception(BrokenProcessPool())
            return future
        return super().submit(fn, *args, **kwargs)


def test_only_a_point_that_kills_its_worker_twice_is_failed(tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "local_pool", lambda jobs: nullcontext(Fragile()))
    outcome = go(make([{"grid": {"policy.max_num_seqs": list(range(1, 13))}}]), tmp_path / "out", jobs=3)
    table = load_table(tmp_path / "out")
    assert outcome.failed == 1 and table["point"].tolist() == list(range(12))
    assert table[table["error"].notna()]["point"].tolist() == [5]


def test_folders_that_are_not_this_sweep_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="holds no sweep"):
        go(make(GRID), tmp_path / "full")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["thesis.txt"]
    go(make(GRID), tmp_path / "out")
    with pytest.raises(ConfigError, match="holds a sweep already"):
        go(make(GRID), tmp_path / "out")
    with pytest.raises(ConfigError, match="holds another sweep"):
        go(make(GRID, seed=4), tmp_path / "out", resume=True)


def test_a_changed_trace_file_is_another_sweep(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,6,7\n")
    spec = make([{"grid": {"policy.max_num_seqs": [1, 2]}}], workload={"trace": str(file)})
    assert go(spec, tmp_path / "out").failed == 0
    assert go(spec, tmp_path / "out", resume=True).resumed == 2
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,6,8\n")
    with pytest.raises(ConfigError, match="holds another sweep"):
        go(spec, tmp_path / "out", resume=True)


def test_two_sweeps_do_not_write_one_folder(tmp_path: Path) -> None:
    refused = []

    def progress(done: int, total: int, failed: int) -> None:
        if not refused:
            with pytest.raises(ConfigError, match="another sweep is writing there now") as error:
                go(make(GRID), tmp_path / "out", resume=True)
            refused.append(error)

    go(make(GRID), tmp_path / "out", progress=progress)
    assert refused


def test_the_manifest_tells_what_was_run(tmp_path: Path) -> None:
    go(make(GRID, replications=2), tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["points"], manifest["rows"], manifest["status"]) == (4, 8, "complete")
    assert manifest["keys"] == ["policy.max_num_seqs", "workload.arrivals.rate"]
    assert sum(len(pd.read_parquet(tmp_path / "out" / part)) for part in manifest["parts"]) == 8
    assert len(pd.read_parquet(tmp_path / "out" / "results")) == 8


def test_equal_sweeps_leave_equal_bytes(tmp_path: Path) -> None:
    spec = make([{"grid": {"policy.max_num_seqs": [4]}}])
    files = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        go(spec, folder)
        files.append({p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()})
    assert files[0] == files[1] and len(files[0]) == 3


LIMITED = """
import resource, sys
sys.path.insert(0, "tests/sweep")
from sweep_cases import base_of, make
from simulator.run import simulate
from simulator.sweep.task import Row, Work, run_rows

work = Work(base_of(make([{"grid": {"policy.max_num_seqs": [64]}}])).model_dump(mode="json", exclude_unset=True), ".")
rows = [Row(k, 0, {"workload.arrivals.requests": n}) for k, n in enumerate((20, 20_000_000, 30))]
run_rows(work, rows[:1])  # everything is loaded
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, used + 2**29))
for record in run_rows(work, rows)[0]:
    print(record.error or record.metrics["requests.completed"])
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc to know what is in use")
def test_a_point_beyond_the_memory_that_is_left_is_one_point_lost() -> None:
    env = os.environ | {"SERVECAST_COMPILE": "off"}
    done = subprocess.run([sys.executable, "-c", LIMITED], cwd=Path(__file__).parents[2], env=env, capture_output=True,
                          text=True, check=True)
    first, second, third = done.stdout.strip().splitlines()
    assert (first, third) == ("20", "30")
    assert "memory" in second.lower()

"""The same sweep on a real Dask scheduler with two workers, one of which is killed half-way."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sweep_cases import base_of, make

from simulator.errors import ConfigError, ServecastError
from simulator.sweep import sweep
from simulator.sweep.show import load_table
from simulator.sweep.sweep import run_sweep

distributed: Any = pytest.importorskip("distributed", reason="the extra servecast[dask] is not installed")
ROOT = Path(__file__).parents[2]


def _run(module: str, *arguments: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-m", module, *arguments], env=environment,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """Address of a scheduler, and its two single-threaded worker processes."""
    file = str(tmp_path / "scheduler.json")
    scheduler = _run("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
                     "--scheduler-file", file)
    workers = [_run("distributed.cli.dask_worker", "--scheduler-file", file, "--nthreads", "1", "--no-nanny",
                    "--no-dashboard", "--local-directory", str(tmp_path)) for _ in range(2)]
    try:
        for _ in range(600):
            if Path(file).exists():
                break
            time.sleep(0.1)
        with distributed.Client(scheduler_file=file, timeout="60s", set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            address = client.scheduler.address
        yield address, workers
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


def test_a_killed_dask_worker_loses_no_row(cluster: tuple[str, list["subprocess.Popen[bytes]"]],
                                           tmp_path: Path) -> None:
    address, workers = cluster
    killed = []

    def progress(done: int, total: int, failed: int) -> None:
        if done >= 10 and not killed:
            workers[0].send_signal(signal.SIGKILL)
            killed.append(done)

    spec = make([{"grid": {"policy.max_num_seqs": list(range(1, 31)), "workload.arrivals.rate": [4, 8]}}],
                requests=3000)
    base = base_of(spec)
    outcome = run_sweep(spec, base, tmp_path / "out", dask=address, progress=progress)
    assert killed and killed[0] < 60
    assert (outcome.rows, outcome.failed) == (60, 0)
    assert workers[0].wait(10) == -signal.SIGKILL and workers[1].poll() is None
    run_sweep(spec, base, tmp_path / "local", jobs=1)
    pd.testing.assert_frame_equal(load_table(tmp_path / "out"), load_table(tmp_path / "local"))


def test_a_cluster_that_loses_all_workers_is_an_error(cluster: tuple[str, list["subprocess.Popen[bytes]"]],
                                                      tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done by then is kept; the sweep goes on with --resume, here without the cluster."""
    address, workers = cluster
    monkeypatch.setattr(sweep, "LOOK_S", 0.2)
    monkeypatch.setattr(sweep, "ALONE_S", 1.0)

    def progress(done: int, total: int, failed: int) -> None:
        if done >= 3:
            for worker in workers:
                worker.send_signal(signal.SIGKILL)

    spec = make([{"grid": {"policy.max_num_seqs": list(range(1, 31))}}], requests=3000)
    with pytest.raises(ServecastError, match="has had no worker for 1 s; what is done is kept"):
        run_sweep(spec, base_of(spec), tmp_path / "out", dask=address, progress=progress)
    kept = len(load_table(tmp_path / "out"))
    assert 3 <= kept < 30
    outcome = run_sweep(spec, base_of(spec), tmp_path / "out", jobs=1, resume=True)
    assert (outcome.resumed, outcome.rows, outcome.failed) == (kept, 30, 0)


def test_no_scheduler_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make([{"grid": {"policy.max_num_seqs": [1]}}])
    with pytest.raises(ConfigError, match=r"--dask tcp://127\.0\.0\.1:9: no scheduler answers"):
        run_sweep(spec, base_of(spec), tmp_path / "out", dask="tcp://127.0.0.1:9")
    assert list(tmp_path.iterdir()) == []

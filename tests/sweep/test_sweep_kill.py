"""A sweep in its own process, killed from outside: no orphan, no half file, only tasks in flight are lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from sweep_cases import make

from simulator.sweep.show import load_table

ROOT = Path(__file__).parents[2]
POINTS = 150

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for child processes in /proc")


def start(folder: Path, *more: str) -> "subprocess.Popen[str]":
    """`servecast sweep` of POINTS points on two workers, in a session of its own."""
    spec = make([{"grid": {"policy.max_num_seqs": list(range(1, POINTS + 1))}}], requests=4000)
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(spec.model_dump(mode="json", exclude_none=True)))
    command = [sys.executable, "-m", "simulator.cli.main", "sweep", str(file), "--out", str(folder / "out")]
    return subprocess.Popen([*command, "--jobs", "2", *more], cwd=ROOT, text=True, stderr=subprocess.PIPE,
                            start_new_session=True, preexec_fn=_hear_ctrl_c)


def _hear_ctrl_c() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that: the tests may be such a job."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def parts(folder: Path) -> dict[Path, tuple[int, int]]:
    """Finished part files with what would change if they were written again."""
    return {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (folder / "out" / "results").rglob("part-*.parquet")}


def wait_for_parts(folder: Path, process: "subprocess.Popen[str]", count: int) -> None:
    """Until `count` tasks are finished (the sweep must not be over by then)."""
    for _ in range(6000):
        if len(parts(folder)) >= count:
            break
        assert process.poll() is None
        time.sleep(0.01)
    assert process.poll() is None


def alive(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


def assert_all_gone(session: int) -> None:
    """No process of the session is left within 20 s."""
    for _ in range(200):
        if not alive(session):
            return
        time.sleep(0.1)
    left = alive(session)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    pytest.fail(f"processes left: {left}")


def finish(folder: Path) -> None:
    """Resume; every point must be there once, and what was done before must not have been touched."""
    before = parts(folder)
    process = start(folder, "--resume")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    done_before = load_table_rows(before)
    assert f"{done_before} of them done before" in errors
    assert {path: stamp for path, stamp in parts(folder).items() if path in before} == before
    table = load_table(folder / "out")
    assert table["point"].tolist() == list(range(POINTS))
    assert table["error"].isna().all()


def load_table_rows(files: dict[Path, tuple[int, int]]) -> int:
    """Rows in part files."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in files)


def test_kill_9_then_resume(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for_parts(tmp_path, process, 6)
    process.kill()
    process.communicate()
    assert_all_gone(process.pid)
    finish(tmp_path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_termination_leave_nothing_half_done(tmp_path: Path, number: int, code: int) -> None:
    process = start(tmp_path)
    wait_for_parts(tmp_path, process, 5)
    os.killpg(process.pid, number)  # as a terminal does: the workers get it too
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert_all_gone(process.pid)
    assert not list((tmp_path / "out").rglob(".part-*.parquet"))
    finish(tmp_path)

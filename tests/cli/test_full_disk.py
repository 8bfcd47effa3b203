"""A disk that is full at any file: exit code 1, one line, nothing half-written, and what was done is gone on with.

The system's own limit on the size of a file stands in for the disk: each file of a whole run is in turn the one that
does not fit by a byte.
"""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.cli.main import main

SCENARIO = "workload: {requests: {output: [3, 5, 9], prompt: 4}}\nhardware: unit\npolicy: chunked\n"
SWEEP = "base: s.yaml\naxes: [{grid: {policy.max_num_seqs: [1, 2, 3]}}]\n"


def limited(largest: int | None, *arguments: str) -> tuple[int, str]:
    """(exit code, stderr) of a command in a process that may write files of so many bytes at most."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.dup2(writer, 2)
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            if largest is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
            code = main(arguments)
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader) as pipe:
        text = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def sizes(folder: Path) -> list[int]:
    return sorted({path.stat().st_size for path in folder.rglob("*") if path.is_file()} - {0})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    (tmp_path / "w.yaml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_any_file_that_does_not_fit_leaves_nothing(place: Path) -> None:
    command = ("run", "s.yaml", "--engine", "reference", "-q")
    assert limited(None, *command, "--out", "whole")[0] == 0
    before = sorted(place.iterdir())
    for size in sizes(place / "whole"):
        code, text = limited(size - 1, *command, "--out", "out")
        assert code == 1 and text.count("\n") == 1 and "File too large" in text, (size, text)
        assert sorted(place.iterdir()) == before, size


def test_a_sweep_goes_on_where_the_disk_was_full(place: Path) -> None:
    assert limited(None, "sweep", "w.yaml", "-q", "-j", "1", "-o", "whole")[0] == 0
    for size in sizes(place / "whole"):
        out = f"out{size}"
        code, text = limited(size - 1, "sweep", "w.yaml", "-q", "-j", "1", "-o", out)
        assert code == 1 and text.count("\n") == 1 and "File too large" in text, (size, text)
        assert not list(Path(out).rglob(".part-*"))
        assert limited(None, "sweep", "w.yaml", "-q", "-j", "1", "-o", out, "--resume")[0] == 0
        assert sizes(place / out) == sizes(place / "whole")


def test_no_home_no_locale(place: Path) -> None:
    """Nothing but a PATH in the environment: the run is the same, in ASCII."""
    root = str(Path(__file__).resolve().parents[2])
    bare = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "PYTHONPATH": root, "SERVECAST_COMPILE": "off"}
    command = [sys.executable, "-m", "simulator.cli.main", "run", "s.yaml", "--engine", "reference", "--out", "out"]
    done = subprocess.run(command, env=bare, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (place / "out" / "summary.json").is_file()

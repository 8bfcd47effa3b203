"""Output folders: whole or not at all, the same bytes for the same seed, nothing of others replaced."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SMALL = ("--set", "workload.arrivals.requests=60")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_run_writes_summary_requests_plots_and_report(servecast, tmp_path):
    outcome = servecast("run", "chat", *SMALL, "--out", tmp_path / "out")
    assert outcome.code == 0 and "arrived 60 = completed 60" in outcome.out
    written = contents(tmp_path / "out")
    assert {"summary.json", "requests.parquet", "steps.parquet", "report.html"} <= set(written)
    assert any(name.startswith("plots/") for name in written)
    assert json.loads(written["summary.json"])["requests"]["arrived"] == 60


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(servecast, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert servecast("run", "chat", *SMALL, "--seed", seed, "--out", tmp_path / name, "-q").code == 0
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a == b
    assert a["requests.parquet"] != c["requests.parquet"]


def test_no_report_leaves_out_pictures_and_log(servecast, tmp_path):
    servecast("run", "chat", *SMALL, "--no-report", "--out", tmp_path / "out", "-q")
    assert {name for name in contents(tmp_path / "out") if not name.startswith(".")} == {
        "summary.json", "requests.parquet"}


def test_compare_writes_one_folder_with_all_runs(servecast, tmp_path):
    outcome = servecast("compare", "wx_four_slots", "--policies", "static,chunked", "--out", tmp_path / "out")
    assert outcome.code == 0
    runs = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [run["steps"] for run in runs] == [14, 10]
    assert (tmp_path / "out" / "report.html").is_file()


def test_quiet_prints_nothing(servecast, tmp_path):
    assert servecast("run", "wx_four_slots", "-q", "--out", tmp_path / "out") == (0, "", "")
    assert servecast("compare", "wx_four_slots", "wx_pair_1000_10", "-q") == (0, "", "")


def test_nothing_is_drawn_when_not_on_a_terminal(servecast):
    outcome = servecast("run", "chat", *SMALL)
    assert outcome.err == "" and "\x1b" not in outcome.out and "\r" not in outcome.out


def test_a_folder_of_somebody_else_is_kept(servecast, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    outcome = servecast("run", "chat", *SMALL, "--out", tmp_path)
    assert outcome.code == 2 and outcome.err.count("\n") == 1 and str(tmp_path) in outcome.err
    assert contents(tmp_path) == {"thesis.txt": b"years of work"}


def test_full_disk_is_one_line_and_leaves_the_old_result(servecast, tmp_path, monkeypatch):
    servecast("run", "chat", *SMALL, "--no-report", "-q", "--out", tmp_path / "out")
    before = contents(tmp_path)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "requests.parquet")

    monkeypatch.setattr("simulator.report.write._write_parquet", full)
    outcome = servecast("run", "chat", *SMALL, "--no-report", "--out", tmp_path / "out")
    assert (outcome.code, outcome.err) == (1, "requests.parquet: No space left on device\n")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_in_the_middle_of_writing_leaves_nothing(number, code, tmp_path):
    """The plot library is replaced by a wait, so that the signal arrives while the folder is half filled."""
    waiting = tmp_path / "waiting"
    program = (
        "import signal, sys, time, pathlib, simulator.report.write as output\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored\n"
        "from simulator.cli.main import main\n"
        "def wait(*arguments):\n"
        f"    pathlib.Path({str(waiting)!r}).touch()\n"
        "    time.sleep(60)\n"
        "output._write_report = wait\n"
        f"sys.exit(main(['run', 'wx_four_slots', '--out', {str(tmp_path / 'out')!r}]))\n")
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not waiting.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code and "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == [waiting]


def test_memory_says_that_another_number_of_blocks_was_set(servecast, tmp_path):
    (tmp_path / "in.yaml").write_text("workload: {requests: {output: [2]}}\nmax_model_len: 64\n")
    assert "were set" not in servecast("run", tmp_path / "in.yaml").out
    told = servecast("run", tmp_path / "in.yaml", "--set", "kv.num_gpu_blocks=1000").out.splitlines()
    assert told[-1] == "  1,000 blocks were set in the scenario instead"

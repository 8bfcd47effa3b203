"""A plan killed without a chance to tidy up: its folder is absent or whole, and what it had simulated is used."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAN = {
    "workload": {"arrivals": {"kind": "poisson", "rate": 60, "requests": 300}, "prompt": 1, "output": 20},
    "step_s": 0.001, "max_model_len": 1000, "slo": {"queue_p95_s": 0.05}, "search": {"replications": 2},
    "candidates": {"gpu": "unit", "policy": "static", "max_num_seqs": [1, 2], "replicas": {"max": 8}},
}  # fmt: skip
CODE = """
import json, sys
from pathlib import Path
from simulator.planning.plan import plan
from simulator.planning.spec import plan_from
from simulator.report.plan.data import plain
from simulator.report.plan.page import write_plan
out, cache = map(Path, sys.argv[2:])
write_plan(plain(plan(plan_from(json.loads(sys.argv[1])), jobs=1, cache=cache, explain=False)), out)
"""


def start(out: Path, cache: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", CODE, json.dumps(PLAN), str(out), str(cache)], cwd=ROOT)


def kept(cache: Path) -> int:
    """Points that the cache holds."""
    if not (cache / "points.sqlite").is_file():
        return 0
    with sqlite3.connect(cache / "points.sqlite", timeout=10) as file:
        there = file.execute("SELECT count(*) FROM sqlite_master WHERE name = 'points'").fetchone()[0]
        return int(file.execute("SELECT count(*) FROM points").fetchone()[0]) if there else 0


def kill(process: "subprocess.Popen[bytes]", when: Callable[[], bool]) -> int:
    """SIGKILL as soon as it is time; how the process ended."""
    while process.poll() is None and not when():
        time.sleep(0.001)
    process.kill()
    return process.wait(20)


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_killed_plan_leaves_nothing_half_done(tmp_path: Path) -> None:
    assert start(tmp_path / "whole", tmp_path / "cache whole").wait(300) == 0
    whole, points = files(tmp_path / "whole"), kept(tmp_path / "cache whole")
    assert {"plan.json", "report.html", "report.md"} <= whole.keys()
    (tmp_path / "cut").mkdir()
    out, cache = tmp_path / "cut" / "out", tmp_path / "cache"
    assert kill(start(out, cache), lambda: kept(cache) >= 2) == -signal.SIGKILL
    assert list(out.parent.iterdir()) == [] and 2 <= (before := kept(cache)) < points
    kill(start(out, cache), lambda: len(list(out.parent.iterdir())) > 0)  # while it writes, or just behind
    assert not out.exists() or files(out) == whole
    assert start(out, cache).wait(300) == 0 and kept(cache) == points > before
    assert files(out) == whole
    assert list(out.parent.iterdir()) == [out]

"""The first run answers at once, on SimPy, and what it leaves running behind it is one process that ends by itself."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.engine_choice import is_small
from simulator.scenario.setup import prepare
from simulator.scenario.spec import scenario_from
from simulator.workload.build import build_trace

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 240
TOLD = "compiling the engine (static), once for this version of servecast: a minute or two\n"
SCENARIO = ("run", "wx_four_slots", "--json")


def environment(cache: Path, mode: str) -> dict[str, str]:
    return os.environ | {"SERVECAST_CACHE": str(cache), "SERVECAST_COMPILE": mode, "PYTHONPATH": str(ROOT)}


def start(cache: Path, mode: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-m", "simulator.cli.main", *(arguments or SCENARIO)], text=True,
                            env=environment(cache, mode), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(cache: Path, mode: str, *arguments: str) -> tuple[int, str, str]:
    process = start(cache, mode, *arguments)
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out, err


def behind(cache: Path) -> list[int]:
    """Processes in the background that work for this cache."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            line, given = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
        except OSError:
            continue
        if b"engine_choice" in line and str(cache).encode() in given:
            found.append(int(place.name))
    return found


def begun(cache: Path) -> int:
    """How often compiling has begun without an end."""
    return sum(path.read_bytes().count(b"compiling") for path in cache.rglob("*.log"))


def until(condition: object) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    if not Path("/proc/self/environ").exists():
        pytest.skip("needs /proc to see processes")
    yield tmp_path / "cache"
    for pid in behind(tmp_path / "cache"):
        os.kill(pid, signal.SIGKILL)


def test_two_first_runs_answer_while_one_process_compiles(cache: Path) -> None:
    first, second = start(cache, "background"), start(cache, "background")
    answers = [process.communicate(timeout=WAIT_S) for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert all(err.count("static: few requests and no compiled engine yet") == 1 for _, err in answers)
    until(lambda: not behind(cache))
    (code,) = cache.rglob("*.code")
    assert not list(cache.rglob("*.log")) and not list(cache.rglob(".part-*"))
    code_before = code.stat().st_mtime_ns
    later = run(cache, "background")
    assert later == (0, answers[0][0], "") and answers[0][0] == answers[1][0]
    assert code.stat().st_mtime_ns == code_before and not behind(cache)


@pytest.mark.nightly
def test_a_killed_compile_is_begun_again_and_three_times_is_enough(cache: Path) -> None:
    for tries in range(1, 4):
        assert run(cache, "background")[0] == 0
        until(lambda wanted=tries: begun(cache) == wanted)
        for pid in behind(cache):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not behind(cache))
    assert not list(cache.rglob("*.code"))
    code, _, err = run(cache, "background")
    assert code == 0 and "3 times; compiling now" in err
    assert list(cache.rglob("*.code")) and not behind(cache)


def test_it_can_be_switched_off(cache: Path) -> None:
    code, out, err = run(cache, "off")
    assert code == 0 and json.loads(out) and "background" not in err and err.count("SimPy runs this") == 1
    assert not behind(cache) and not list(cache.rglob("*.code"))
    assert run(cache, "off", *SCENARIO, "--quiet")[2] == ""


def test_who_waits_for_the_compiler_is_told_and_with_quiet_is_not(cache: Path) -> None:
    """From the command line and, where nothing is set up for what libraries log, from Python."""
    program = ("from simulator import load_scenario, simulate\nfrom scenarios import ROOT\n"
               "simulate(load_scenario(ROOT / 'wx_four_slots.yaml'))")
    commands = {("-m", "simulator.cli.main", *SCENARIO, "-q"): "", ("-m", "simulator.cli.main", *SCENARIO): TOLD,
                ("-c", program): TOLD}
    for arguments, told in commands.items():
        process = subprocess.Popen([sys.executable, *arguments], text=True, env=environment(cache, "wait"),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=1)
        assert process.stderr is not None
        if told:
            assert process.stderr.readline() == told
        else:
            until(lambda: list(cache.rglob("engine-static.lock")))
        process.terminate()
        assert process.communicate(timeout=WAIT_S)[1] == ""
    assert not list(cache.rglob("*.code"))


def test_a_mode_that_is_none_is_refused_in_one_line(cache: Path) -> None:
    code, out, err = run(cache, "sometimes")
    assert (code, out) == (2, "")
    assert err == "SERVECAST_COMPILE must be one of background, wait, off, got sometimes\n"


def test_a_cache_that_cannot_be_written_is_said_and_answered_without(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    code, out, err = run(file, "background")
    assert code == 0 and json.loads(out)
    assert str(file) in err and "not kept" in err and "Traceback" not in err


def test_damaged_code_is_noticed(cache: Path) -> None:
    assert run(cache, "background")[0] == 0
    for pid in behind(cache):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not behind(cache))
    (folder,) = (cache / "compiled").iterdir()
    broken = folder / "engine-static-0123456789abcdef01234567.code"
    broken.write_bytes(b"")
    broken.chmod(0o600)
    code, out, err = run(cache, "off")
    assert code == 0 and json.loads(out) and "made again" in err and not broken.exists()


@pytest.mark.nightly
@pytest.mark.parametrize("delay_s", [2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
def test_terminated_while_compiling(cache: Path, delay_s: float) -> None:
    """143 as the shell expects, and nothing kept or printed."""
    process = start(cache, "wait")
    time.sleep(delay_s)
    process.terminate()
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (143, "") and "ignored" not in err


def small(requests: int, output: int, replicas: int = 1, slots: int = 128) -> bool:
    scenario = scenario_from({
        "workload": {"arrivals": {"kind": "poisson", "rate": 5, "requests": requests}, "prompt": {"kind": "fixed",
                     "value": 100}, "output": {"kind": "fixed", "value": output}}, "hardware": "unit",
        "policy": {"name": "chunked", "max_num_seqs": slots}, "cluster": {"replicas": replicas}})
    return is_small(prepare(scenario), build_trace(scenario.parsed_workload(), 0))


def test_what_takes_simpy_longer_than_compiling_is_compiled() -> None:
    """Alone on its replica a token takes SimPy 13 to 15 us: half a million of them, 7 s (docs/performance.md)."""
    assert small(2_000, 200) and not small(2_000, 400) and not small(100_000, 10)
    assert small(100, 10, replicas=64) and not small(100, 10, replicas=4_096, slots=1_024)

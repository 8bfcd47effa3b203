"""A policy in a user's own file: the tutorial as written, what is refused, and both engines alike."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator import Result, load_scenario, simulate
from simulator.cli.main import main
from simulator.errors import ConfigError, NoProgressError
from simulator.jit import compiled, is_interpreted
from simulator.scenario.setup import prepare
from simulator.scenario.spec import scenario_from

PAGE = (Path(__file__).resolve().parents[2] / "docs/tutorial-policy.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (servecast .*)$", PAGE, re.MULTILINE)
BUSY = [command for command in COMMANDS if "busy.yaml" in command]
OUTPUT = [8, 8, 2, 2, 6, 1, 1, 4]
CHOSEN = ["policy.name=null", "policy.file=short_first.py"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tutorial's files in the working folder."""
    (code, peeks), (data,) = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "yaml"))
    assert len(code.splitlines()) <= 30
    (tmp_path / "short_first.py").write_text(code)
    (tmp_path / "short_first.yaml").write_text(data)
    for name in ("peeks.py", "oracle_peeks.py"):
        assert f"`{name}`" in PAGE
        (tmp_path / name).write_text(peeks)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tutorial_as_written(folder: Path, monkeypatch: pytest.MonkeyPatch,
                                 capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """Every command on the page does what the page says, and the pictures are there. On SimPy, as for who reads it."""
    assert len(COMMANDS) == 4 + len(BUSY)
    monkeypatch.setenv("SERVECAST_COMPILE", "off")
    codes = [main(shlex.split(command)[1:]) for command in COMMANDS if command not in BUSY]
    assert codes == [0, 0, 0, 2]
    assert "peeks.py:2: a policy must not read output, the true length" in capsys.readouterr().err
    for name in ("first_come", "short_first"):
        assert "<svg" in (folder / f"out/{name}/plots/slots.svg").read_text()


@pytest.mark.nightly
def test_what_knowing_the_lengths_is_worth(folder: Path, monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """The numbers of the page."""
    monkeypatch.setenv("SERVECAST_COMPILE", "off")
    start, *runs = BUSY
    assert main(shlex.split(start.partition(" > ")[0])[1:]) == 0
    (folder / "busy.yaml").write_text(capsys.readouterr().out)
    assert [main(shlex.split(command)[1:]) for command in runs] == [0, 0]
    guess, knows = (json.loads((folder / "out" / name / "summary.json").read_text())["e2e_s"]
                    for name in ("guess", "knows"))
    assert f"mean E2E is {guess['mean']:.1f} s. Who knew the lengths would have {knows['mean']:.1f} s" in PAGE
    assert f"p99 of {knows['p99']:.0f} s against {guess['p99']:.0f} s" in re.sub(r"\s+", " ", PAGE)


def run(code: str, tmp_path: Path, engine: Any = "reference", name: str = "mine", slots: int = 2,
        **rest: Any) -> Result:
    (tmp_path / f"{name}.py").write_text(code)
    data: dict[str, Any] = {"workload": {"requests": {"output": OUTPUT}}, "hardware": "unit"}
    policy = {"file": f"{name}.py", "max_num_seqs": slots}
    return simulate(scenario_from(data | rest | {"policy": policy}, tmp_path, allow_code=True), engine)


def shortest_first(result: Result) -> bool:
    """Nobody was admitted before a shorter one, and the longest not with the first."""
    started = result.requests.scheduled[np.argsort(OUTPUT, kind="stable")]
    return bool(np.all(np.diff(started) >= 0) and started[0] < started[-1])


def test_the_order_is_that_of_the_key(folder: Path) -> None:
    """All came at 0, so the shorter is admitted before the longer."""
    result = simulate(load_scenario("short_first.yaml", CHOSEN, allow_code=True), "reference")
    assert shortest_first(result)
    plain = simulate(load_scenario("short_first.yaml"), "reference")
    assert result.requests.last.mean() < plain.requests.last.mean()


def test_a_key_that_is_the_arrival_changes_nothing(tmp_path: Path) -> None:
    """First come, first served, written as a key, is `chunked` in every column, short of memory too."""
    code = "def key(req, lim, i):\n    return i\n\n\ndef victim(req, rep, lim):\n    return rep.c.n_running - 1\n"
    small = {"block_size": 1, "num_gpu_blocks": 11}
    own = run(code, tmp_path, slots=3, kv=small)
    named = {"workload": {"requests": {"output": OUTPUT}}, "hardware": "unit", "kv": small,
             "policy": {"name": "chunked", "max_num_seqs": 3}}
    plain = simulate(scenario_from(named), "reference")
    assert own.requests.preempted.sum() > 0
    for name in ("scheduled", "first", "last", "preempted", "slot"):
        assert getattr(own.requests, name).tolist() == getattr(plain.requests, name).tolist(), name


def test_a_file_that_is_not_allowed_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    (tmp_path / "a.yaml").write_text("workload: {requests: {output: [1]}}\nhardware: unit\npolicy: {file: mine.py}\n")
    with pytest.raises(ConfigError, match=r"a.yaml:3: policy.file: mine.py is Python code, .* only .*--allow-code"):
        load_scenario(tmp_path / "a.yaml")
    assert not (tmp_path / "ran").exists()


def test_its_hash_is_in_the_result_and_in_the_name_of_the_compiled_code(tmp_path: Path) -> None:
    code = "def key(req, lim, i):\n    return {}\n"
    first, second = run(code.format("i"), tmp_path), run(code.format("-i"), tmp_path)
    assert first.provenance()["policy_sha256"] != second.provenance()["policy_sha256"]
    assert first.setup.policy.engine != second.setup.policy.engine


KEY = "def key(req, lim, i):\n    return i\n"
SCHEDULE = "from policies.queues import admit, plan, take_head\n\n\ndef schedule(req, rep, lim, aux):\n"
ADMITS = ("    if rep.c.n_waiting > 0 and rep.c.n_running == 0:\n        i = take_head(req, rep)\n"
          "        admit(req, rep, i)\n        plan(rep, i, 1)\n")  # fmt: skip
BAD = {
    "reads the true length": (KEY.replace("return i", "return req.output[i]"), "py:2: a policy must not read output"),
    "reads it in disguise": (KEY.replace("return i", "return req[2][i]"), "mine.py:2: a policy must not read output"),
    "fails": (KEY.replace("return i", "return 1 // (i - i)"), "mine.py:2: ZeroDivisionError: integer"),
    "raises": (KEY.replace("return i", "raise ValueError"), "mine.py:2: key must raise nothing"),
    "is not Python": ("def key(:\n", "mine.py:1: "),
    "fails when read": ("x = 1\ny = nowhere\n", "mine.py:2: NameError: name 'nowhere'"),
    "other arguments": ("def key(req, i):\n    return i\n", r"mine.py:1: key must take \(req, lim, i\), takes \(req"),
    "has nothing": ("x = 1\n", "mine.py: has none of key, victim, schedule"),
    "unknown column": ("NEEDS = ['age']\n" + KEY, "mine.py: NEEDS must be a list of priority, tenant"),
    "plans who holds no slot": (SCHEDULE + "    plan(rep, 0, 1)\n", "a plan that cannot be: request 0 holds no slot"),
    "no KV blocks": (SCHEDULE + ADMITS, r"request 0 is to hold 1 tokens in 0 KV blocks"),
    "planned twice": (SCHEDULE + ADMITS + "        plan(rep, i, 1)\n", "in 0 KV blocks|planned twice"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_breaks_the_contract_is_named_with_file_and_line(tmp_path: Path, what: str) -> None:
    code, message = BAD[what]
    with pytest.raises(ConfigError, match=message):
        run(code, tmp_path)


def test_a_policy_that_never_plans_stands_still(tmp_path: Path) -> None:
    with pytest.raises(NoProgressError, match="replica 0 stands still: 8 requests wait"):
        run(SCHEDULE + "    pass\n", tmp_path)


def test_an_oracle_may_look(tmp_path: Path) -> None:
    assert shortest_first(run(KEY.replace("return i", "return req.output[i]"), tmp_path, name="oracle_mine"))


@pytest.mark.parametrize("how", ["interpreted", pytest.param("compiled", marks=pytest.mark.nightly)])
def test_both_engines_agree_and_the_trial_comes_before_compiling(how: str, folder: Path,
                                                                 request: pytest.FixtureRequest) -> None:  # fmt: skip
    if how == "interpreted":
        request.getfixturevalue("interpreted")
    scenario = load_scenario("short_first.yaml", CHOSEN, allow_code=True)
    slow, fast = (simulate(scenario, engine).requests for engine in ("reference", "fast"))
    for name in slow._fields:
        assert getattr(slow, name).tolist() == getattr(fast, name).tolist(), name
    with pytest.raises(ConfigError, match=r"mine.py:2: ZeroDivisionError"):
        run(KEY.replace("return i", "return 1 // (i - i)"), folder, "fast")


@pytest.mark.skipif(is_interpreted(), reason="nothing is compiled")
def test_a_key_is_compiled_as_it_is_run(folder: Path) -> None:
    """By itself; the engine around it is compiled in the long tests."""
    scenario = load_scenario("short_first.yaml", CHOSEN, allow_code=True)
    req, setup = simulate(scenario, "reference").requests, prepare(scenario)
    key = setup.policy.key

    def keys(req: Any, lim: Any, found: Any) -> None:
        for i in range(len(found)):
            found[i] = key(req, lim, i)

    found, plain = np.zeros(len(req.arrival), dtype=np.int64), type(req)(*(column.tolist() for column in req))
    compiled(keys, "own-key")(req, setup.limits, found)
    assert found.tolist() == [key(plain, setup.limits, i) for i in range(len(found))] and len(set(found)) > 1

"""What a long command says while it runs, and what Ctrl-C leaves of it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.cli import progress
from simulator.cli.main import main
from simulator.cli.progress import Watch
from simulator.code_cache import CodeCache
from simulator.config import Document
from simulator.planning import points
from simulator.planning.budget import spend
from simulator.planning.news import News, Teller
from simulator.planning.plan import plan
from simulator.planning.spec import plan_from
from simulator.planning.whatif import asked_for, compare
from simulator.run import simulate
from simulator.scenario.spec import load_scenario

SCENARIO = """
name: textbook
workload: {arrivals: {kind: poisson, rate: 0.2, requests: 60}, prompt: 4, output: 3}
hardware: unit
policy: {name: chunked, max_num_seqs: 4, max_num_batched_tokens: 64}
max_model_len: 64
slo: {ttft_s: 60}
"""
WHATIF = """
replications: 2
overlays:
  - {name: twice, traffic: 2}
  - {name: longer, output_scale: 2}
  - {name: half, traffic: 0.5}
"""
PLAN = """
name: textbook plan
workload: {arrivals: {kind: poisson, rate: 0.2, requests: 400}, prompt: 4, output: 3}
max_model_len: 64
slo: {ttft_p50_s: 60}
candidates: {gpu: unit, max_num_seqs: [2, 3, 4]}
budget: {replicas: 1}
"""
SWEEP = """
name: textbook sweep
base: base.yaml
axes:
  - grid: {policy.max_num_seqs: [1, 2, 3, 4]}
"""


def test_lines_come_after_5_s_and_then_ever_more_seldom() -> None:
    """Pauses of 5, 7.5, 11.25, ... s; a second long: 1 to 40 s have three lines, and a day one a minute."""
    now = [0.0]
    watch = Watch(lambda: now[0])
    said = []
    for second in range(1, 41):
        now[0] = float(second)
        said += [second] if watch.due() else []
    assert said == [5, 13, 25]
    now[0] = 86_400.0
    assert watch.due() and not watch.due()
    now[0] += 60
    assert watch.due()


def test_what_is_compiled_first_is_said_before_the_first_is_done(capsys: pytest.CaptureFixture[str],
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines are two minutes; without any it is the run that is still going."""
    monkeypatch.setattr("simulator.cli.progress.FIRST_S", 0.0)
    monkeypatch.setattr("simulator.cli.progress.SILENT_S", 0.01)
    for engines in (["chunked", "static", ""], [""]):
        with progress.progress_bar("both", 4, False, "still running", engines) as advance:
            time.sleep(0.1)
            advance(4)
    said = capsys.readouterr().err
    assert "both: 2 minutes to compile chunked and static first" in said and "both: still running" in said
    assert said.index("compile") < said.index("4 of 4 done") < said.index("still running")


def test_the_rest_takes_as_long_a_share_as_what_is_done() -> None:
    """A quarter in 10 s leaves 30 s; half an hour for a tenth leaves 4.5 h. What compiling took before the first
    simulation, here 100 s, says nothing of the rest."""
    now = [0.0]
    watch = Watch(lambda: now[0])
    now[0] = 100.0
    assert watch.left(0.0) == ""
    now[0] = 110.0
    assert watch.left(0.25) == "about 30 s left" and watch.left(0.001) == ""
    now[0] = 1900.0
    assert watch.left(0.1) == "about 4.5 h left"
    watch = Watch(lambda: now[0])
    assert watch.left(0.2) == ""
    now[0] = 1906.0
    assert watch.left(0.4) == "about 18 s left"


def test_what_no_estimate_counts_is_named_and_the_estimate_begins_anew_after_it() -> None:
    """Half is done in 10 s and an engine is compiled in 60: the half that is left takes 10 s, not 70."""
    now = [0.0]
    watch = Watch(lambda: now[0])
    assert watch.left(0.0, "1 minute to compile static") == ""
    now[0] = 10.0
    assert watch.left(0.5, "1 minute to compile static") == "about 10 s left, and 1 minute to compile static"
    now[0] = 70.0
    assert watch.left(0.5) == ""
    now[0] = 75.0
    assert watch.left(0.75) == "about 5 s left"


def test_a_what_if_names_the_engines_that_it_will_compile(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base is there; the static one is compiled before the third case, and once."""
    monkeypatch.setattr(CodeCache, "has", lambda self, name: name == "engine-chunked")
    static = "set: {policy: {name: static, max_num_seqs: 2}}"
    Path("whatif.yaml").write_text(
        f"overlays: [{{name: twice, traffic: 2}}, {{name: batch, {static}}}, {{name: again, {static}, traffic: 2}}]\n",
        encoding="utf-8")
    told: list[News] = []
    monkeypatch.setattr("simulator.planning.whatif.simulate", lambda run, **more: simulate(run, "reference", **more))
    compare(asked_for(load_scenario("base.yaml"), Document("whatif.yaml")), jobs=1, progress=told.append)
    before = [news.beside for news in told if news.doing.startswith(("base", "twice"))]
    assert set(before) == {"1 minute to compile static"}
    assert {news.beside for news in told if news.doing.startswith(("batch", "again"))} == {""}


@pytest.mark.parametrize("budget", [{}, {"budget": {"replicas": 1}}])
def test_a_plan_names_the_engines_that_it_will_compile(budget: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two policies, neither compiled: both are named until the first simulation, then the second until its own."""
    monkeypatch.setattr(CodeCache, "has", lambda *_: False)
    monkeypatch.setattr(points, "simulate", lambda run, **more: simulate(run, "reference", **more))
    spec = plan_from(yaml.safe_load(PLAN) | {"budget": None, "candidates": {
        "gpu": "unit", "max_num_seqs": 2, "policy": ["orca", "static"]}} | budget)  # fmt: skip
    told: list[News] = []
    work = spend if spec.budget else plan
    work(spec, jobs=1, explain=False, progress=told.append)
    named = list(dict.fromkeys(news.beside for news in told))
    assert len(named) == 3 and named[0].startswith("2 minutes to compile ") and named[1].startswith("1 minute to ")
    assert named[2] == "" and all(news.beside for news in told if not news.simulated)


def test_parts_count_alike_and_a_part_that_runs_by_its_simulations() -> None:
    """Four parts; the first took 10 simulations, so 5 of the second are half of it."""
    told: list[News] = []
    teller = Teller(told.append, 4)
    teller.begin("one")
    teller.count(10)
    teller.begin("two")
    assert teller.done == 0.25
    teller.count(5)
    assert teller.done == 0.375
    teller.count(500)
    assert 0.375 < teller.done < 0.5
    assert [news.doing for news in told] == ["one", "one", "two", "two", "two"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("base", SCENARIO), ("whatif", WHATIF), ("plan", PLAN), ("sweep", SWEEP)):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


COMMANDS = {
    "whatif": (["whatif", "base.yaml", "whatif.yaml", "--jobs", "1"], ["base (1 of 4 cases)", "half (4 of 4 cases)"]),
    "plan": (["plan", "plan.yaml", "--jobs", "1", "--no-cache"], ["seqs 4 (3 of 3 candidates)", "so far: "]),
    "capacity": (["capacity", "base.yaml", "--quick"], ["the highest rate"]),
    "load": (["load", "base.yaml", "--rates", "0.1,0.2"], ["6 of 6 done"]),
    "sweep": (["sweep", "sweep.yaml", "--out", "out", "--jobs", "1"], ["4 of 4 done"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_pipe_is_told_what_is_done_and_how_far(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With no pause between lines each step is one; --quiet says nothing."""
    monkeypatch.setattr(Watch, "due", lambda self: True)
    command, words = COMMANDS[name]
    assert main(command) == 0
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
    more = ["--out", "other"] if name == "sweep" else []
    assert main([*command, *more, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_silent_stretch_is_not_silence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One long simulation, or the engine being compiled: nothing is told, and still a line comes."""
    monkeypatch.setattr(progress, "SILENT_S", 0.01)
    monkeypatch.setattr(progress, "FIRST_S", 0.02)
    with progress.news_of("planning", False):
        time.sleep(0.3)
    assert capsys.readouterr().err.startswith("planning: the first simulation is still running")


def test_what_was_printed_is_not_printed_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However often a line is due, and however often the same is told."""
    monkeypatch.setattr(progress, "SILENT_S", 0.01)
    monkeypatch.setattr(Watch, "due", lambda self: True)
    with progress.news_of("planning", False) as tell:
        assert tell is not None
        time.sleep(0.1)
        for news in (News("one", 0.0), News("one", 0.0), News("two", 0.0)):
            tell(news)
            time.sleep(0.05)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and len(set(said)) == 3


def interrupted_at(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while `word` is told."""

    def line(text: str) -> None:
        if word in text:
            raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "due", lambda self: True)
    monkeypatch.setattr(progress, "SILENT_S", 1000.0)
    monkeypatch.setattr(progress, "_line", line)


@pytest.mark.parametrize(
    "name, word",
    [("whatif", "longer (3 of 4"), ("plan", "seqs 4 (3 of 3"), ("capacity", "its range"), ("load", "5 of 6")],
)
def test_ctrl_c_leaves_what_is_known_marked(
    name: str, word: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted_at(word, monkeypatch)
    command, _ = COMMANDS[name]
    assert main([*command, "--json"]) == 130
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert data["stopped"] == "an interruption"
    if name == "whatif":
        assert [row["name"] for row in data["rows"]] == ["base", "twice"] and data["missing"] == ["longer", "half"]
    if name == "plan":
        assert data["best"]["carries"] > 0 and data["rows"][-1]["reason"] == "not finished: the search was interrupted"
    if name == "load":
        assert [row["rate"] for row in data["points"]] == [0.1]
    if name == "capacity":
        assert data["rate"] > 0


def test_an_interrupted_sweep_says_how_much_is_kept(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted_at("3 of 4 done", monkeypatch)
    assert main(COMMANDS["sweep"][0]) == 130
    assert "3 of 4 rows are done and kept in out" in capsys.readouterr().err
    assert main(["sweep", "show", "out"]) == 0
    line = "3 of 4 rows are done: this is the best so far, not the answer. Go on with --resume."
    assert line in capsys.readouterr().out and line in (here / "out" / "report.html").read_text(encoding="utf-8")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert main([*COMMANDS["sweep"][0], "--resume"]) == 0

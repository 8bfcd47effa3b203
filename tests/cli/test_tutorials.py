"""The tutorials as written: their files laid out, every command run, and what they say of the outcome."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from simulator.cli.main import main

DOCS = Path(__file__).resolve().parents[2] / "docs"


def commands(page: str) -> list[str]:
    return re.findall(r"^    (servecast .*)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)


def run(command: str) -> tuple[int, str]:
    """Exit code and output of a command line, `> FILE` followed."""
    line, _, file = command.partition(" > ")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(line)[1:])
    if file:
        Path(file).write_text(out.getvalue(), encoding="utf-8")
    return code, out.getvalue() + err.getvalue()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_hour() -> None:
    said = [run(command) for command in commands("tutorial-first-hour.md")]
    assert [code for code, _ in said] == [0] * 9
    toy, chat, _, _, _, _, load, carries, plan = (text for _, text in said)
    assert "14" in toy and "10" in toy and "TTFT" in chat
    assert "Stable up to" in load and "missing its targets" in load and "carries" in carries
    assert plan.splitlines()[1].startswith("8 GPUs carry most as")
    assert Path("out/first/report.html").is_file()


def test_your_own_trace() -> None:
    page = (DOCS / "tutorial-trace.md").read_text(encoding="utf-8")
    for kind, name in (("csv", "my.csv"), ("yaml", "my-trace.yaml")):
        (text,) = re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)
        Path(name).write_text(text, encoding="utf-8")
    said = [run(command) for command in commands("tutorial-trace.md")]
    assert [code for code, _ in said] == [2, 0, 0, 0, 0, 0, 0]
    assert "line 7" in said[0][1] and "11" in said[1][1]
    assert json.loads(Path("out/trace/summary.json").read_text(encoding="utf-8"))["requests"]["arrived"] == 11
    assert "arrived 3 = completed 3" in said[3][1]
    load = " ".join(said[5][1].split())
    assert "Stable up to 8 requests/s" in load and "At 32 requests/s it is overloaded" in load
    assert json.loads(Path("out/l40s/summary.json").read_text(encoding="utf-8"))["requests"]["arrived"] == 11


def test_reading_a_report() -> None:
    said = [run(command) for command in commands("tutorial-report.md")]
    assert [code for code, _ in said] == [0] * 4
    calm, flooded = (json.loads(Path(f"out/{n}/summary.json").read_text(encoding="utf-8")) for n in ("calm", "flooded"))
    assert flooded["banner"]["verdict"] == "overloaded" and calm["banner"]["verdict"] == "stable"
    assert calm["prefill_s"]["mean"] > 0.5 * calm["ttft_s"]["mean"]
    assert flooded["queue_s"]["mean"] > 0.5 * flooded["ttft_s"]["mean"]
    assert json.loads(said[2][1])["ttft_s"] == calm["ttft_s"]

"""Every servecast command of docs/tutorial-calibrate.md, in order, in an empty folder, the example as result.jsonl."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from calibration.fit import MEASUREMENTS
from simulator.cli.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial-calibrate.md"


def commands() -> list[list[str]]:
    lines = re.findall(r"^    servecast (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [shlex.split(line) for line in lines]


def test_the_tutorial_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    """Each command ends well, also the probe, which sends nothing before --yes; the numbers on the page come out."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(MEASUREMENTS / "examples" / "two-h200.jsonl", tmp_path / "result.jsonl")
    assert len(commands()) == 8
    for words in commands():
        target = words.pop() if ">" in words else ""
        words = [word for word in words if word != ">"]
        code, told = main(words), capsys.readouterr()
        if "--url" in words:
            assert code == 0 and "nothing was sent" in told.err
        else:
            assert code == 0, (words, told.err)
        if target:
            Path(target).write_text(told.out, encoding="utf-8")
        if target == "new-gpu.yaml":
            profile = {key: value for key, value in yaml.safe_load(told.out).items()
                       if key not in ("measured", "engine_runs")}  # fmt: skip
            Path(target).write_text(yaml.safe_dump(profile | {"mark": "datasheet"}), encoding="utf-8")
        if words[:2] == ["calibrate", "engine"] and "--out" in words:
            for sentence in told.out.strip().splitlines()[-2:]:
                assert sentence in PAGE.read_text(encoding="utf-8")
    assert "Content-Security-Policy" in Path("after.html").read_text()
    assert "fitted on these very runs" in Path("after.html").read_text()
    assert "fitted on these very runs" not in Path("before.html").read_text()
    summary = json.loads(Path("out/calibrated/summary.json").read_text())
    assert summary["provenance"]["host"]["name"] == "calibrated" and summary["trust"]["mark"] == "fitted"
    assert "mine/gpu.yaml" in Path("out/calibrated_plan/report.html").read_text()
    assert yaml.safe_load(Path("mine-new/gpu.yaml").read_text())["scaled_from"] == "../new-gpu.yaml"


def test_the_example_is_the_committed_runs() -> None:
    """Made of requests.csv of three runs: the same lengths and times, in vLLM's own format."""
    import pandas as pd

    from calibration.served import read_served

    found = read_served(MEASUREMENTS / "examples" / "two-h200.jsonl")
    for run, name in zip(found, ("batch_b8", "batch_b32", "batch_b128"), strict=True):
        table = pd.read_csv(MEASUREMENTS / "llama8b-h200-tp2" / name / "requests.csv")
        for column in ("ttft_s", "e2e_s", "arrival_s", "prompt_tokens", "output_tokens"):
            assert sorted(run.table[column]) == pytest.approx(sorted(table[column]), abs=2e-6), column

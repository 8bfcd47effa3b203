"""Result folders appear whole or not at all, are equal for equal input, and never cost anybody a file."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from simulator import Result, scenario_from, simulate
from simulator.errors import ConfigError
from simulator.metrics.summary import request_table
from simulator.report import folder as output_folder
from simulator.report import write as output
from simulator.report.compared import compared, overloaded
from simulator.report.folder import check_target, new_folder
from simulator.report.page import render_report
from simulator.report.tables import compare_table, summary_table
from simulator.report.write import load_summary, write_comparison, write_result

ROOT = Path(__file__).resolve().parents[2]


def scenario(output: list[int], **more: Any) -> dict[str, Any]:
    return {
        "name": "tiny",
        "workload": {"requests": {"output": output}},
        "hardware": {"gpu": "unit"},
        "policy": {"name": "chunked", "max_num_seqs": 2},
    } | more


def run(data: dict[str, Any], log: bool = True) -> Result:
    return simulate(scenario_from(data), "reference", log=log)


@pytest.fixture
def result() -> Result:
    return run(scenario([3, 1, 2]))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def alone(folder: Path) -> bool:
    """Nothing, hidden or not, is left beside the folder."""
    return [p.name for p in folder.parent.iterdir()] == [folder.name]


# What is written.


def test_files_of_a_run(result: Result, tmp_path: Path) -> None:
    out = write_result(result, tmp_path / "out", report=False)
    assert set(contents(out)) == {
        ".servecast.json",
        "summary.json",
        "requests.parquet",
        "steps.parquet",
        "trace.json",
    }
    assert load_summary(out) == json.loads(json.dumps(result.summary))
    steps = pd.read_parquet(out / "steps.parquet")
    assert steps["steps"].sum() == 3
    without = write_result(run(scenario([1]), log=False), tmp_path / "plain", report=False)
    assert set(contents(without)) == {".servecast.json", "summary.json", "requests.parquet"}


def test_requests_parquet_holds_the_request_table(tmp_path: Path) -> None:
    refused = run(scenario([3, 1, 50], max_model_len=20))
    out = write_result(refused, tmp_path / "out", report=False)
    read, table = pd.read_parquet(out / "requests.parquet"), request_table(refused)
    pd.testing.assert_frame_equal(read, table, check_dtype=False, check_categorical=False)
    assert read["ttft_s"].isna().tolist() == [False, False, True]
    assert read["status"].tolist()[2] == "rejected: longer than max_model_len"


def test_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    pytest.importorskip("simulator.report.page")
    first = write_result(run(scenario([3, 1, 2])), tmp_path / "a")
    time.sleep(1.1)  # a time stamp of whole seconds would show
    second = write_result(run(scenario([3, 1, 2])), tmp_path / "b")
    assert contents(first) == contents(second)
    assert "report.html" in contents(first) and any(name.startswith("plots/") for name in contents(first))


def test_comparison_folder(result: Result, tmp_path: Path) -> None:
    other = run(scenario([3, 1, 2], name="../evil name"))
    out = write_comparison([result, other], tmp_path / "out", report=False)
    names = set(contents(out))
    assert {"comparison.json", "01-tiny/summary.json", "02-evil-name/requests.parquet"} <= names and alone(
        out
    )
    assert [s["name"] for s in json.loads((out / "comparison.json").read_text())] == ["tiny", "../evil name"]


def test_load_summary_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"summary\.json: cannot be read.*a folder written by servecast run"
    ):
        load_summary(tmp_path)


# What may be replaced.


def test_own_output_is_replaced_whole(result: Result, tmp_path: Path) -> None:
    out = write_result(result, tmp_path / "out", report=False)
    write_result(run(scenario([7]), log=False), out, report=False)
    assert load_summary(out)["makespan_s"] == 7
    assert set(contents(out)) == {".servecast.json", "summary.json", "requests.parquet"} and alone(out)


def test_an_empty_folder_and_missing_parents_are_fine(result: Result, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_result(result, tmp_path / "empty", report=False)
    write_result(result, tmp_path / "a" / "b" / "c", report=False)
    assert (tmp_path / "empty" / "summary.json").exists() and (tmp_path / "a/b/c/summary.json").exists()


def test_a_foreign_folder_is_refused(result: Result, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"mine": 1}')
    with pytest.raises(ConfigError, match="not a result folder of servecast"):
        write_result(result, tmp_path, report=False)
    assert contents(tmp_path) == {"summary.json": b'{"mine": 1}'}


def test_a_file_added_to_our_folder_is_not_lost(result: Result, tmp_path: Path) -> None:
    out = write_result(result, tmp_path / "out", report=False)
    (out / "notes.txt").write_text("keep me")
    with pytest.raises(ConfigError, match=r"notes\.txt was not written by servecast"):
        write_result(result, out, report=False)
    assert (out / "notes.txt").read_text() == "keep me" and alone(out)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("text")
    for target in (tmp_path / "out", tmp_path / "out" / "below"):
        with pytest.raises(ConfigError):
            check_target(target)
    assert (tmp_path / "out").read_text() == "text"


# What can go wrong on the way.


@pytest.mark.parametrize("trouble", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_trouble_leaves_the_old_result_and_nothing_else(
    result: Result, tmp_path: Path, trouble: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = write_result(result, tmp_path / "out", report=False)
    before = contents(out)

    def fail(*_: Any) -> None:
        raise trouble

    monkeypatch.setattr(output, "_write_parquet", fail)  # summary.json is written by then
    with pytest.raises(type(trouble)):
        write_result(run(scenario([9])), out, report=False)
    assert contents(out) == before and alone(out)
    with pytest.raises(type(trouble)):
        write_result(run(scenario([9])), tmp_path / "new", report=False)
    assert not (tmp_path / "new").exists() and alone(out)


def test_two_renames_where_folders_cannot_be_exchanged(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = write_result(result, tmp_path / "out", report=False)
    monkeypatch.setattr(output_folder, "_exchange", lambda a, b: False)
    write_result(run(scenario([7])), out, report=False)
    assert load_summary(out)["makespan_s"] == 7 and alone(out)


def test_a_full_disk_during_the_swap_puts_the_old_result_back(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = write_result(result, tmp_path / "out", report=False)
    monkeypatch.setattr(output_folder, "_exchange", lambda a, b: False)
    rename = Path.rename

    def fail_second(self: Path, target: Path) -> Path:
        if Path(target) == out and not self.name.endswith("-replaced"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_second)
    with pytest.raises(OSError, match="No space"):
        write_result(run(scenario([7])), out, report=False)
    assert load_summary(out)["makespan_s"] == 3 and alone(out)


def test_killed_while_writing(result: Result, tmp_path: Path) -> None:
    """kill -9 leaves the old result untouched; the next write clears up what the killed one left."""
    out = write_result(result, tmp_path / "out", report=False)
    before = contents(out)
    code = (
        "import sys, time\nfrom simulator.report.folder import new_folder\nwith new_folder(sys.argv[1]) as folder:\n"
        "    (folder / 'summary.json').write_text('half')\n"
        "    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert contents(out) == before and not alone(out)
    write_result(result, out, report=False)
    assert contents(out) == before and alone(out)


def test_another_writer_at_work_is_left_alone(result: Result, tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as theirs:
        (theirs / "x.txt").write_text("x")
        write_result(result, tmp_path / "out", report=False)
        assert (theirs / "x.txt").exists()
    assert set(contents(tmp_path / "out")) == {".servecast.json", "x.txt"}


# Tables.


def text_of(renderable: Any) -> str:
    console = Console(width=160, force_terminal=False, color_system=None)
    with console.capture() as seen:
        console.print(renderable)
    return seen.get()


def test_summary_table_shows_the_numbers() -> None:
    text = text_of(summary_table(run(scenario([3, 1, 2], name="[red]x[/red]", slo={"ttft_s": 1.0})).summary))
    assert "[red]x[/red]" in text  # names are text, not markup
    assert "arrived 3 = completed 3 + rejected 0 + unfinished 0" in text
    assert "66.7 % of arrived within TTFT 1 s" in text
    ttft = next(line.split() for line in text.splitlines() if line.startswith("TTFT"))
    assert ttft[:5] == ["TTFT", "1.33", "s", "1", "s"] and ttft[-1] == "3"


def test_summary_table_shows_infinity_and_absence() -> None:
    text = text_of(summary_table(run(scenario([1, 50], max_model_len=20)).summary))
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "∞" in lines["TTFT"] and "–" in lines["ITL"] and "∞" not in lines["ITL"]


def test_compare_table_marks_the_best_and_gives_ratios() -> None:
    """Outputs 4, 4, 10, 10 and two waiting 4s on four slots: 14 static steps, 10 continuous."""
    lengths = [4, 4, 10, 10, 4, 4]
    static = run(
        scenario(lengths, name="static", policy={"name": "static", "max_num_seqs": 4, "stream": True})
    )
    filled = run(scenario(lengths, name="chunked", policy={"name": "chunked", "max_num_seqs": 4}))
    lines = {
        line.split("  ")[0]: line
        for line in text_of(compare_table([static, filled])).splitlines()
    }
    assert lines["makespan"].split() == ["makespan", "14", "s", "10", "s", "(0.71x)", "*"]
    assert lines["steps"].split() == ["steps", "14", "10", "(0.71x)"]
    assert "*" not in lines["rejected"]


def test_compare_table_takes_infinite_as_worst_and_leaves_absent_alone() -> None:
    refused = run(scenario([1, 50], name="short", max_model_len=20))
    served = run(scenario([1, 50], name="long"))
    lines = {
        line.split("  ")[0]: line
        for line in text_of(compare_table([refused, served])).splitlines()
    }
    assert lines["TTFT p99"].split() == ["TTFT", "p99", "∞", "1", "s", "*"]
    assert lines["TPOT mean"].split() == ["TPOT", "mean", "–", "1", "s"]


def test_compare_table_does_not_praise_a_mean_over_fewer_requests() -> None:
    """Two slots, four requests; the run that refuses the two long ones is done sooner, which is no merit."""
    refused = run(scenario([1, 1, 40, 40], name="short", max_model_len=20))
    served = run(scenario([1, 1, 40, 40], name="long"))
    text = text_of(compare_table([served, refused]))
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    for label in ("makespan", "E2E mean", "TTFT mean"):
        assert lines[label].rstrip().endswith(")"), lines[label]
    assert "short: rejected (2 longer than max_model_len)" in text and "long: rejected" not in text


def test_a_latency_that_grows_with_the_trace_is_not_compared() -> None:
    """Every second a request of two steps: one slot serves half of them, so the last waits as long as the trace."""
    load = {"requests": {"output": [2] * 400, "arrival_s": list(range(400))}}
    flooded, steady = (
        run({"workload": load, "hardware": "unit", "name": f"{n} slots", "policy": {"name": "orca", "max_num_seqs": n}})
        for n in (1, 4)
    )
    for results in ([flooded, steady], [steady, flooded]):
        summaries = [result.summary for result in results]
        assert [overloaded(s) for s in summaries].count(True) == 1
        cells = dict(compared(results))
        for label in ("TTFT p99", "E2E mean", "queue mean"):
            assert [cell.ratio for cell in cells[label]] == ["", ""]
            assert [cell.best for cell in cells[label]] == [result is steady for result in results]
        assert cells["requests/s"][1].ratio and cells["TPOT mean"][1].ratio
        assert f"{flooded.scenario.name}: overloaded" in text_of(compare_table(results))
        page = render_report(results)
        assert "they are not compared" in page and f"Lowest p99 TTFT: {steady.scenario.name}" in page


def test_compare_table_writes_small_ratios_as_all_others() -> None:
    """40 steps against 1: 0.025 times."""
    long, short = run(scenario([40], name="long")), run(scenario([1], name="short"))
    text = text_of(compare_table([long, short]))
    assert next(line for line in text.splitlines() if line.startswith("steps")).split()[-1] == "(0.025x)"


def test_a_busy_gpu_at_low_load_is_explained() -> None:
    """A lone stream of answers on a real GPU: always busy, a slot of 128 in use."""
    lone = {"workload": {"requests": {"output": [200] * 30}}, "load": "closed"}
    text = text_of(summary_table(run(lone).summary))
    assert "GPU busy: a step for few sequences" in text
    assert "GPU busy: a" not in text_of(summary_table(run(scenario([3, 1, 2])).summary))

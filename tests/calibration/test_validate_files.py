"""validate of a client's result file, with flags for what it does not say; the page; the marks of intervals."""

import json
import math
from pathlib import Path

import pytest
from calibration_servers import FLAGS, SERVER, answered, traffic, vllm_bench

from calibration.cli_engine import observations
from calibration.fit import MEASUREMENTS
from calibration.measured import find_runs, load_run
from calibration.predict import predict, setup_of
from calibration.validate import predicted, report
from simulator.cli.main import main
from simulator.profiles.host import load_host
from simulator.profiles.uncertainty import load_uncertainty


def test_a_result_file_needs_no_run_yaml(tmp_path: Path) -> None:
    """A server that is exactly as predicted: no error in any metric, all inside; the model's name is in the file."""
    table = traffic(requests=60)
    result = vllm_bench(tmp_path / "result.json", table, answered(table, 1.0, 1.0))
    flags = [flag for flag in FLAGS if flag not in ("--model", "llama-3.1-8b")]
    assert main(["validate", str(result), *flags, "--json", str(tmp_path / "v.json"),
                 "--report", str(tmp_path / "v.html")]) == 0
    told = json.loads((tmp_path / "v.json").read_text())
    (run,) = told["runs"]
    assert run["mark"] == "measured" and set(run["metrics"]) >= {"ttft_mean_s", "tpot_mean_s", "output_tokens_per_s"}
    assert all(abs(cell["error_pct"]) <= 0.01 for cell in run["metrics"].values())
    assert told["inside_interval_pct"] == 100.0


def test_the_page_is_one_of_the_others(tmp_path: Path) -> None:
    """Same frame, colours of light and dark, nothing fetched; every metric with its interval; names are escaped."""
    table = traffic(requests=40)
    folder = tmp_path / "<b>odd"
    folder.mkdir()
    result = vllm_bench(folder / "result.json", table, answered(table, 1.3, 1.3))
    assert main(["validate", str(result), *FLAGS, "--report", str(tmp_path / "v.html")]) == 0
    page = (tmp_path / "v.html").read_text()
    assert "Content-Security-Policy" in page and "prefers-color-scheme: dark" in page and "Made by servecast" in page
    assert "<b>odd" not in page and "&lt;b&gt;odd" in page
    assert page.count("<svg") == 2 and "src=" not in page and "90 % interval" in page and 'class="outside"' in page


def test_calibrated_profiles_take_the_error_away(tmp_path: Path) -> None:
    """calibrate engine, then validate on what it wrote: a server 1.5 and 0.9 times as slow is met within 2 %."""
    table = traffic()
    result = vllm_bench(tmp_path / "result.json", table, answered(table, 1.5, 0.9))
    mine = tmp_path / "mine"
    assert main(["calibrate", "engine", str(result), *FLAGS, "--out", str(mine)]) == 0
    flags = [str(mine / "gpu.yaml") if flag == "h100" else flag for flag in FLAGS]
    errors = {}
    for name, more in (("before", FLAGS), ("after", (*flags, "--host", str(mine / "host.yaml")))):
        assert main(["validate", str(result), *more, "--json", str(tmp_path / "v.json")]) == 0
        errors[name] = json.loads((tmp_path / "v.json").read_text())["mean_abs_error_pct"]
    for metric in ("tpot_mean_s", "ttft_mean_s"):
        assert errors["after"][metric] < 2 < errors["before"][metric]


@pytest.mark.parametrize(("flags", "mark"), [
    ((), "measured"), (("--engine", "vllm-0.15"), "scaled"), (("--host", "fast"), "scaled"),
    (("--tp", "2"), "extrapolated"),
    (("--hardware", "l4", "--max-num-seqs", "16"), "datasheet"), (("--hardware", "l40s"), "fitted")])
def test_intervals_are_as_wide_as_the_weakest_profile(tmp_path: Path, flags: tuple[str, ...], mark: str) -> None:
    """The H100 was run with this model on one GPU and vLLM 0.24 only."""
    table = traffic(rate=1.0, requests=20)
    result = vllm_bench(tmp_path / "result.json", table, answered(table, 1.0, 1.0))
    assert main(["validate", str(result), *FLAGS, *flags, "--json", str(tmp_path / "v.json")]) == 0
    (run,) = json.loads((tmp_path / "v.json").read_text())["runs"]
    cell, known = run["metrics"]["tpot_mean_s"], load_uncertainty()
    assert run["mark"] == mark
    width = math.hypot(known.half_width["tpot_mean_s"], known.host["tpot_mean_s"])
    assert cell["high"] / cell["predicted"] - 1 == pytest.approx(width * known.factor[mark])


def test_the_committed_runs_are_of_listed_engine_runs() -> None:
    for name in ("llama8b-h100/conv_r5", "qwen14b-h200-tp2/batch_b32", "llama8b-h200-tp2/batch_b8"):
        run = load_run(MEASUREMENTS / name)
        (entry,) = report([(run, predict(run))])["runs"]
        assert entry["mark"] == "measured", name
    fast = load_host("fast")
    run = load_run(MEASUREMENTS / "llama8b-h100" / "batch_b8")
    assert report([(run, predict(run, setup_of(run, fast)))], fast)["runs"][0]["mark"] == "scaled"


def test_a_run_named_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder, the folder above and another spelling; a file twice; in validate and in calibrate engine."""
    monkeypatch.chdir(tmp_path)
    table = traffic(requests=10)
    result = vllm_bench(tmp_path / "result.json", table, answered(table, 1.0, 1.0))
    folder = MEASUREMENTS / "llama8b-h100-sync"
    run = next(folder.glob("*/run.yaml")).parent
    once = len(find_runs([folder])) + 1
    given = [folder, run, folder / ".." / folder.name, result, Path("result.json")]
    assert len(predicted(given, server=SERVER)[0]) == once
    assert len(observations(given, SERVER)[0]) == once


def test_how_much_is_done_goes_by_requests_not_by_runs(tmp_path: Path) -> None:
    """After the short one of two files, with a hundredth of the requests, next to nothing is done."""
    files = []
    for name, requests in (("short.json", 4), ("long.json", 400)):
        table = traffic(requests=requests)
        files.append(vllm_bench(tmp_path / name, table, answered(table, 1.0, 1.0)))
    told: list[tuple[int, float]] = []
    predicted(files, server=SERVER, progress=lambda done, share: told.append((done, share)))
    ((done, share),) = told
    assert done == 1 and 0 < share < 0.05


def test_several_inputs_and_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of a run and a file side by side; a file whose GPU nobody named is listed with the reason."""
    table = traffic(requests=10)
    result = vllm_bench(tmp_path / "result.json", table, answered(table, 1.0, 1.0))
    assert SERVER.hardware == "h100-sxm"
    folder = MEASUREMENTS / "llama8b-h100" / "batch_b8"
    assert main(["validate", str(folder), str(result), *FLAGS, "--json", str(tmp_path / "v.json")]) == 0
    assert len(json.loads((tmp_path / "v.json").read_text())["runs"]) == 2
    assert main(["validate", str(folder), str(result)]) == 0
    assert "needed: --hardware" in capsys.readouterr().err
    assert main(["validate", str(result)]) == 2
    assert main(["validate", str(tmp_path / "none.json"), *FLAGS]) == 2
    assert "no such file or folder" in capsys.readouterr().err

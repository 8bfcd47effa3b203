"""calibrate engine: factors put into a made-up server come back; what runs do not tell is said; real hosts differ."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from calibration_servers import FLAGS, SERVER, answered, table_of, traffic, vllm_bench

from calibration.cli_engine import observations
from calibration.fit import MEASUREMENTS
from calibration.measured import load_run
from calibration.observed import RequestMeans
from calibration.scales import fit_scales
from simulator.cli.main import main
from simulator.profiles.gpu import load_gpu
from simulator.profiles.host import load_host


@pytest.mark.parametrize(("cpu", "gpu"), [(1.7, 0.85), (0.7, 0.6)])
def test_known_factors_come_back_within_three_percent(tmp_path: Path, cpu: float, gpu: float) -> None:
    """The command line, from a client's file to the two profiles."""
    table = traffic()
    result = vllm_bench(tmp_path / "result.json", table, answered(table, cpu, gpu))
    out = tmp_path / "mine"
    assert main(["calibrate", "engine", str(result), *FLAGS, "--out", str(out)]) == 0
    assert load_host(out / "host.yaml").cpu_scale == pytest.approx(cpu, rel=0.03)
    assert load_gpu(out / "gpu.yaml").time_scale == pytest.approx(gpu, rel=0.03)
    told = json.loads((out / "calibration.json").read_text())
    for name, truth in (("cpu_scale", cpu), ("gpu_scale", gpu)):
        assert told[name]["known"] and told[name]["low"] < truth < told[name]["high"]
    assert told["inputs"][0]["name"].endswith("result.json") and told["server"]["max_num_seqs"] == 128
    assert yaml.safe_load((out / "host.yaml").read_text())["mark"] == "fitted"


@pytest.mark.nightly
def test_a_closed_load_is_replayed_as_one(tmp_path: Path) -> None:
    """32 requests, 4 at a time: a slower server is sent the next ones later."""
    table = traffic(requests=32)
    done = answered(table, 1.5, 1.1, "closed", 4)
    result = vllm_bench(tmp_path / "closed.json", table, done, max_concurrency=4)
    (observed,), _ = observations([result], SERVER)
    assert isinstance(observed, RequestMeans) and (observed.run.kind, observed.run.width) == ("closed", 4)
    found = fit_scales([observed])
    assert found.cpu.value == pytest.approx(1.5, rel=0.03) and found.gpu.value == pytest.approx(1.1, rel=0.03)


def test_a_run_that_hides_the_cpu_does_not_tell_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Full batches of long contexts, requests of one length: the GPU is the longer clock all the time."""
    table = table_of(np.zeros(96), np.full(96, 3000), np.full(96, 60))
    result = vllm_bench(tmp_path / "full.json", table, answered(table, 0.7, 1.1))
    assert main(["calibrate", "engine", str(result), *FLAGS, "--out", str(tmp_path / "mine")]) == 0
    assert "The CPU scale is not told by these runs" in capsys.readouterr().out
    told = json.loads((tmp_path / "mine" / "calibration.json").read_text())
    assert not told["cpu_scale"]["known"] and told["cpu_scale"]["high"] / told["cpu_scale"]["low"] > 3
    assert told["cpu_scale"]["low"] <= 0.7 <= told["cpu_scale"]["high"]
    assert told["gpu_scale"]["known"] and told["gpu_scale"]["low"] < 1.1 < told["gpu_scale"]["high"]
    assert yaml.safe_load((tmp_path / "mine" / "host.yaml").read_text())["mark"] == "assumed"


@pytest.mark.nightly
def test_a_fast_host_beside_a_slow_gpu_is_bounded_from_above(tmp_path: Path) -> None:
    """Launches end before the GPU's work: how long before, nobody sees."""
    table = traffic()
    result = vllm_bench(tmp_path / "fast.json", table, answered(table, 0.6, 1.2))
    (observed,), _ = observations([result], SERVER)
    found = fit_scales([observed])
    assert not found.cpu.known and found.cpu.low == pytest.approx(0.1) and 0.6 < found.cpu.high < 0.8
    assert found.cpu.value == found.cpu.high and found.gpu.value == pytest.approx(1.2, rel=0.03)


@pytest.mark.nightly
def test_the_slower_host_of_two_pairs_of_h200_is_found() -> None:
    """Of the first series on the other pair the logs say: decode steps 3.96 against 3.89 ms, so its GPUs take 1.02
    times as long; steps of 600-1,200 tokens 30 against 19 ms and scheduling 0.198 against 0.123, so its CPU is slower
    by a half or more."""
    runs = [load_run(MEASUREMENTS / "llama8b-h200-tp2" / name) for name in ("batch_b32", "batch_b128")]
    found = fit_scales([RequestMeans(run) for run in runs])
    assert found.cpu.known and found.cpu.low > 1.0 and 1.2 < found.cpu.value < 1.8
    assert found.gpu.known and found.gpu.value == pytest.approx(3.96 / 3.89, abs=0.05)


def test_the_h100s_own_host_and_gpu_are_found_to_be_themselves() -> None:
    """Traffic on the H100 that the profile comes from, not used for its fit. Its host launched steps without graphs in
    29.9 ms; the profile's host is the mean of five engines, 26.0."""
    found = fit_scales([RequestMeans(load_run(MEASUREMENTS / "llama8b-h100" / "conv_r5"))])
    assert found.cpu.low < 29.9 / 26.0 < found.cpu.high and found.gpu.value == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("name", ["llama8b-h200-eagle/batch_b32", "llama8b-h200-prefix/sessions60"])
def test_the_beginning_of_a_long_run_is_the_same_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its drafts and turns too: the first 40 requests in the order they were sent, all else as in run.yaml."""
    monkeypatch.setattr("calibration.observed.MOST_REQUESTS", 40)
    whole = load_run(MEASUREMENTS / name)
    part = RequestMeans(whole).run
    assert (part.speculation, part.kind, part.engine) == (whole.speculation, whole.kind, whole.engine)
    assert part.requests.arrival_s.tolist() == sorted(whole.requests.arrival_s)[:40]


@pytest.mark.parametrize(("flags", "message"), [
    ((), "does not say the GPU; needed: --hardware"),
    (("--hardware", "h999"), "unknown GPU 'h999'"),
    (("--hardware", "h100", "--model", "llama-2-7b"), "a request has .* tokens, this model has 4096 positions"),
    (("--hardware", "h100", "--engine", "vllm-0.13"), "unknown engine 'vllm-0.13' .the nearest is vllm-0.11."),
    (("--hardware", "h100", "--tp", "3"), "tensor_parallel 3 does not divide")])
def test_flags_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                       flags: tuple[str, ...], message: str) -> None:
    table = table_of(np.zeros(4), np.full(4, 6000), np.full(4, 3))
    result = vllm_bench(tmp_path / "result.json", table, answered(table, 1.0, 1.0))
    assert main(["calibrate", "engine", str(result), *flags]) == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error and re.search(message, error), error


def test_an_outcome_is_no_base_for_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gpu.yaml").write_text("name: mine\nmark: fitted\nscaled_from: h100-sxm\n"
                                       "time_scale: {value: 1.1, unit: '1', source: runs}\n")
    table = traffic(requests=20)
    result = vllm_bench(tmp_path / "result.json", table, answered(table, 1.0, 1.0))
    assert main(["calibrate", "engine", str(result), "--hardware", str(tmp_path / "gpu.yaml")]) == 2
    assert "accepted: the GPU it is scaled from" in capsys.readouterr().err

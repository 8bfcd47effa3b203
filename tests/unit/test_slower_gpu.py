"""A GPU profile scaled from another: every GPU time is so many times as long, CPU times and memory stay."""

from pathlib import Path

import numpy as np
import pytest

from simulator.cost.calibrated import calibrated_cost
from simulator.errors import ConfigError
from simulator.profiles.engine import load_engine
from simulator.profiles.gpu import load_gpu
from simulator.profiles.model import load_model
from simulator.profiles.speculation import Speculation
from simulator.run import simulate
from simulator.scenario.setup import prepare
from simulator.scenario.spec import load_scenario, scenario_from

SCALE = "{value: 1.25, unit: '1', source: own runs}"


def overlay(folder: Path, base: str = "h100-sxm", scale: str = SCALE, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(f"name: mine\nmark: fitted\nscaled_from: {base}\ntime_scale: {scale}\n")
    return path


DRAFTS = Speculation("draft_model", 3, (0.7, 0.5, 0.3), load_model("llama-3.2-1b"))


@pytest.mark.parametrize(("base", "model", "dtype", "drafts"), [
    ("h100-sxm", "llama-3.1-8b", "bf16", None), ("h100-sxm", "qwen3-30b-a3b", "bf16", None),
    ("h100-sxm", "llama-3.1-8b", "fp8", None), ("rtx-4090", "llama-3.1-8b", "bf16", None),
    ("h100-sxm", "llama-3.1-8b", "bf16", DRAFTS)])
def test_every_gpu_time_of_a_step_is_scaled(tmp_path: Path, base: str, model: str, dtype: str,
                                            drafts: Speculation | None) -> None:
    """Steps in graphs, where launches are hidden in no GPU time: all terms to a nanosecond's rounding."""
    engine = load_engine("vllm-0.24")
    slow, plain = (calibrated_cost(gpu, engine, load_model(model), 1, dtype, "bf16", 128, 2048, speculation=drafts)
                   for gpu in (load_gpu(overlay(tmp_path, base)), load_gpu(base)))
    graph = plain.eager == 0
    assert np.all(np.abs(slow.dense_ns - 1.25 * plain.dense_ns)[graph] <= 2)
    for name in ("decode_context_fp", "decode_seq_fp", "prefill_pair_fp", "slope_fp"):
        assert getattr(slow, name) == pytest.approx(1.25 * getattr(plain, name), rel=1e-6)
    assert np.array_equal(slow.cpu_ns, plain.cpu_ns) and np.array_equal(slow.prep_ns, plain.prep_ns)


@pytest.mark.parametrize("base", ["h100-sxm", "l40s"])
def test_all_reduces_are_scaled_measured_or_by_the_link(tmp_path: Path, base: str) -> None:
    """Decode steps of two GPUs in a graph."""
    engine, model = load_engine("vllm-0.24"), load_model("llama-3.1-8b")
    slow, plain = (calibrated_cost(gpu, engine, model, 2, "bf16", "bf16", 128, 2048)
                   for gpu in (load_gpu(overlay(tmp_path, base)), load_gpu(base)))
    assert np.all(np.abs(slow.dense_ns[0, 1:129] - 1.25 * plain.dense_ns[0, 1:129]) <= 2)


def test_a_scenario_names_a_file_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlay(tmp_path)
    path = tmp_path / "scenario.yaml"
    path.write_text("workload: {arrivals: {kind: poisson, rate: 2.0, requests: 20}, prompt: 100, output: 20}\n"
                    "hardware: mine.yaml\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    setup = prepare(load_scenario(path))
    assert setup.gpu.name == "mine" and setup.gpu.time_scale == 1.25
    run = simulate(load_scenario(path))
    assert run.summary["trust"]["mark"] == "fitted"


def test_memory_and_price_are_those_of_the_gpu_it_is_scaled_from(tmp_path: Path) -> None:
    mine, plain = load_gpu(overlay(tmp_path)), load_gpu("h100-sxm")
    assert (mine.memory_mib, mine.price_usd_h, mine.tdp_w) == (plain.memory_mib, plain.price_usd_h, plain.tdp_w)
    assert mine.bandwidth == plain.bandwidth / 1.25 and mine.memory_gbps == plain.memory_gbps


@pytest.mark.parametrize(("base", "scale", "message"), [
    ("mine.yaml", SCALE, "scaled_from must name a profile that is not scaled itself, got 'mine.yaml'"),
    ("h100", "{value: 0, unit: '1', source: own}", "time_scale.value must be a number > 0 and <= 1000, got 0"),
    ("h100", "1.2", "time_scale must be {value, unit, source}, got 1.2"),
    ("h999", SCALE, "unknown GPU 'h999'")])
def test_what_is_wrong_is_said(tmp_path: Path, base: str, scale: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_gpu(overlay(tmp_path, base, scale))
    assert message in str(caught.value)


def test_a_host_fitted_to_runs_is_fitted_until_it_is_scaled(tmp_path: Path) -> None:
    host = tmp_path / "host.yaml"
    host.write_text("name: mine\nmark: fitted\nscaled_from: measured\n"
                    "cpu_scale: {value: 0.8, unit: '1', mark: fitted, source: own runs}\n")
    data = {"workload": {"arrivals": {"kind": "poisson", "rate": 2.0, "requests": 20}, "prompt": 100, "output": 20}}
    marks = [simulate(scenario_from({**data, "host": {"name": str(host), "cpu_scale": scale}})).summary["trust"]["mark"]
             for scale in (1.0, 2.0)]
    assert marks == ["fitted", "scaled"]

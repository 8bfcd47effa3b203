"""Intervals around predictions and notes on what was not measured."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator import scenario_from, simulate
from simulator.cost.gpu_times import UNITS
from simulator.errors import ConfigError
from simulator.metrics.trust import KINDS, gpu_mark, never_run, scaled_line
from simulator.planning.bounds import StepError, step_error
from simulator.profiles.gpu import list_gpus, load_gpu, parse_gpu
from simulator.profiles.host import load_host
from simulator.profiles.uncertainty import load_uncertainty
from simulator.scenario.setup import prepare

ROOT = Path(__file__).resolve().parents[2]

REQUESTS: dict[str, Any] = {"requests": {"output": [20, 30, 40], "prompt": 100, "arrival_s": [0.0, 0.0, 0.0]}}


def asked(**more: Any) -> Any:
    return scenario_from({"workload": REQUESTS, "max_model_len": 4096, **more})


def summary(**more: Any) -> dict[str, Any]:
    return simulate(asked(**more), "reference").summary


def test_interval_holds_the_prediction_and_has_the_width_of_the_file() -> None:
    done = summary(hardware="h100-sxm", policy={"max_num_seqs": 128, "max_num_batched_tokens": 2048})
    low, high = done["trust"]["interval_90"]["ttft_s.mean"]
    assert low < done["ttft_s"]["mean"] < high
    known = load_uncertainty()
    width = math.hypot(known.half_width["ttft_mean_s"], known.host["ttft_mean_s"])  # nobody measured this host
    assert high / done["ttft_s"]["mean"] == pytest.approx(1 + width)
    assert done["trust"]["extrapolated"] == []


def test_lone_requests_are_less_sure_by_what_their_one_launch_hangs_on() -> None:
    """Three that never meet: all of TTFT has the spread of lone prompts, E2E in TTFT's share of it, TPOT one gap of
    the 30 of an answer, where that is more than hosts differ by; on a host of one's own too."""
    apart = {"requests": {"output": [31, 31, 31], "prompt": 100, "arrival_s": [0.0, 5.0, 10.0]}}
    done = summary(workload=apart, hardware="h100-sxm", policy={"max_num_seqs": 128, "max_num_batched_tokens": 2048})
    ttft, stay, known = done["ttft_s"]["mean"], done["e2e_s"]["mean"], load_uncertainty()
    for place, metric, share in (("ttft_s.mean", "ttft_mean_s", 1.0), ("e2e_s.mean", "e2e_mean_s", ttft / stay),
                                 ("tpot_s.mean", "tpot_mean_s", 1 / 30)):
        section, key = place.split(".")
        state = max(known.alone[metric] * share, known.host[metric])
        width = math.hypot(known.half_width[metric], state)
        assert done["trust"]["interval_90"][place][1] / done[section][key] == pytest.approx(1 + width)
        own = math.hypot(known.half_width[metric], known.alone[metric] * share)
        assert known.width(metric, known_host=True, alone=share) == pytest.approx(own)
    assert known.alone["ttft_mean_s"] > known.host["ttft_mean_s"]


def test_weaker_profiles_have_wider_intervals_and_say_what_is_scaled() -> None:
    def width(done: dict[str, Any]) -> float:
        low, high = done["trust"]["interval_90"]["tpot_s.mean"]
        return high / low

    measured, datasheet = summary(hardware="h100-sxm"), summary(hardware="b200")
    other_engine = summary(hardware="h100-sxm", engine="vllm-0.15")
    assert width(measured) < width(other_engine) < width(datasheet)
    assert any("scaled from" in line for line in datasheet["trust"]["extrapolated"])


@pytest.mark.parametrize(("gpu", "model", "tp", "mark"), [
    ("h100-sxm", "llama-3.1-8b", 1, "measured"),
    ("h100-sxm", "qwen2.5-14b", 1, "measured"),
    ("h100-sxm", "llama-3.1-8b", 2, "extrapolated"),
    ("h100-sxm", "llama-3.1-70b", 4, "extrapolated"),
    ("h200-sxm", "llama-3.1-8b", 2, "measured"),
    ("h200-sxm", "qwen2.5-14b", 2, "measured"),
    ("h200-sxm", "qwen2.5-14b", 1, "extrapolated"),
    ("h200-sxm", "qwen3-30b-a3b", 1, "measured"),
    ("l40s", "llama-3.1-8b", 1, "fitted"),
])
def test_only_what_was_run_is_measured(gpu: str, model: str, tp: int, mark: str) -> None:
    """The series of calibration/measurements: their folders are named after model, GPU and tensor parallelism."""
    known = summary(model=model, hardware={"gpu": gpu, "tensor_parallel": tp})["trust"]
    assert known["mark"] == mark
    reasons = [line for line in known["extrapolated"] if line.startswith(f"{model} TP{tp} on vllm 0.24: no such run")]
    assert len(reasons) == (mark == "extrapolated")


def test_listed_runs_are_those_of_the_committed_measurements() -> None:
    """run.yaml of every series names GPU, model, tensor parallelism and version; expert parallel and drafts are other
    set-ups."""
    found = set()
    for path in (ROOT / "calibration" / "measurements").glob("*/*/run.yaml"):
        run = yaml.safe_load(path.read_text())
        engine = run["engine"]
        if engine.get("speculative") is None and not engine.get("enable_expert_parallel"):
            model, version = run["model"].removesuffix(".config.json"), engine["version"].rpartition(".")[0]
            found.add((run["hardware"]["gpu"], model, engine["tensor_parallel_size"], f"vllm-{version}"))
    listed = {(gpu.name, run.model, run.tensor_parallel, run.engine) for gpu in list_gpus() for run in gpu.engine_runs}
    # one engine each, whose traffic the state of its host decides: left extrapolated (docs/calibration.md)
    wide = {"deepseek-v2-lite", "gpt-oss-20b", "qwen3-30b-a3b-fp8", "qwen3-8b-fp8"}
    assert listed == {run for run in found if run[1] not in wide}


@pytest.mark.parametrize(("model", "gpu", "more", "mark"), [
    ("llama-3.1-8b", "h200-sxm", {"weight_dtype": "fp8"}, "measured"),
    ("llama-3.1-8b-fp8", "h200-sxm", {}, "measured"),
    ("llama-3.1-8b-awq", "h200-sxm", {}, "measured"),
    ("llama-3.1-8b-awq", "h200-sxm", {"kv_dtype": "fp8"}, "extrapolated"),
    ("llama-3.1-8b", "h200-sxm", {"kv_dtype": "fp8"}, "measured"),
    ("llama-3.1-8b-awq", "h100-sxm", {}, "extrapolated"),
    ("llama-3.1-8b", "h100-sxm", {"weight_dtype": "fp8"}, "extrapolated"),
    ("gemma-3-27b", "h200-sxm", {}, "measured"),
    ("gemma-3-27b", "h200-sxm", {"weight_dtype": "fp8"}, "extrapolated"),
])
def test_number_formats_that_were_not_run_are_extrapolated(model: str, gpu: str, more: dict[str, str],
                                                           mark: str) -> None:
    """Runs of 8- and 4-bit weights and of 8-bit KV are all of Llama-3.1-8B on the H200."""
    setup = prepare(scenario_from({"workload": {"requests": {"output": [2]}}, "model": model, "max_model_len": 4096,
                                   "hardware": {"gpu": gpu, "weight_dtype": "auto", **more}}))
    assert gpu_mark(setup) == mark
    assert ("not run on" in never_run(setup)) == (mark == "extrapolated")


def test_the_interval_follows_the_weaker_mark() -> None:
    done = summary(model="llama-3.1-70b", hardware={"gpu": "h100-sxm", "tensor_parallel": 4})
    _, high = done["trust"]["interval_90"]["tpot_s.mean"]
    known = load_uncertainty()
    assert known.factor["extrapolated"] > known.factor["measured"]
    assert high / done["tpot_s"]["mean"] == pytest.approx(
        1 + math.hypot(known.half_width["tpot_mean_s"], known.host["tpot_mean_s"]) * known.factor["extrapolated"])


def test_a_host_of_ones_own_narrows_the_interval_to_what_the_model_leaves_open(tmp_path: Path) -> None:
    """The shipped host's times under the user's name: what hosts differ by is no longer part of the width."""
    mine = tmp_path / "mine.yaml"
    mine.write_text(load_host().path.read_text().replace("name: measured", "name: mine"))
    mean = summary()["ttft_s"]["mean"]
    shipped, own = summary()["trust"], summary(host=str(mine))["trust"]
    known = load_uncertainty()
    model, hosts = known.half_width["ttft_mean_s"], known.host["ttft_mean_s"]
    assert own["interval_90"]["ttft_s.mean"][1] / mean == pytest.approx(1 + model * known.factor[own["mark"]])
    assert shipped["interval_90"]["ttft_s.mean"][1] / mean == pytest.approx(
        1 + math.hypot(model, hosts) * known.factor[shipped["mark"]])


def test_a_plan_takes_the_error_of_the_weaker_mark() -> None:
    def error(**more: Any) -> StepError:
        return step_error(prepare(scenario_from({"workload": REQUESTS, "max_model_len": 4096, **more})))

    measured, other = error(hardware="h100-sxm"), error(hardware={"gpu": "h100-sxm", "tensor_parallel": 4})
    assert measured.relative < other.relative and "no such run" not in measured.source
    assert measured.relative == load_uncertainty().half_width["tpot_mean_s"], "hosts are a look of their own"
    assert "is extrapolated" in other.source and "llama-3.1-8b TP4 on vllm 0.24: no such run" in other.source
    assert "is scaled" in error(hardware="h100-sxm", engine="vllm-0.15").source


@pytest.mark.parametrize("rows", [{"model": "x"}, [{"model": "x"}],
                                  [{"model": "x", "tensor_parallel": "2", "engine": "vllm-0.24", "source": "y"}]])
def test_a_bad_list_of_runs_is_refused(rows: object) -> None:
    profile = yaml.safe_load(load_gpu("h100-sxm").path.read_text()) | {"engine_runs": rows}
    with pytest.raises(ConfigError, match=r"mine.yaml: engine_runs.* must be"):
        parse_gpu(profile, Path("mine.yaml"))


def test_textbook_examples_have_no_interval() -> None:
    assert summary(hardware="unit")["trust"]["interval_90"] == {}


def test_scaled_times_are_named_with_whether_this_run_uses_them() -> None:
    """The H200's profile lacks components of experts alone: a dense model uses none of them, one with experts does."""
    assert all(sum(key.startswith(keys) for keys in KINDS.values()) == 1 for key in UNITS)
    dense, mixed = (scaled_line(prepare(asked(hardware="h200-sxm", model=model))) for model in
                    ("llama-3.1-8b", "qwen3-30b-a3b"))  # fmt: skip
    assert dense == "this run uses none of those; the others are of experts"
    assert mixed == "of those this run uses times of experts"
    assert scaled_line(prepare(asked(hardware="h100-sxm"))) == scaled_line(prepare(asked(hardware="b200"))) == ""
    fitted = scaled_line(prepare(asked(hardware={"gpu": "l40s", "kv_dtype": "fp8"})))
    used, _, others = fitted.partition("; ")
    assert "8-bit KV" in used and "matrix products" in used and "experts" in others and "8-bit products" in others

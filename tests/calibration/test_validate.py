"""Predictions against committed runs of a real engine. Limits are the goals the project set itself, in
percent."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from calibration.accepted import NotModelledError
from calibration.classes import class_of
from calibration.fit import MEASUREMENTS
from calibration.measured import MeasuredRun, find_runs, load_run
from calibration.predict import Prediction, predict, setup_of
from calibration.public import load_public_run
from calibration.report import validation_page
from calibration.validate import figures, report, validate
from simulator.profiles.uncertainty import METRICS

GOALS = {
    "output_tokens_per_s": 2.0,
    "tpot_mean_s": 3.0,
    "e2e_mean_s": 3.0,
    "ttft_mean_s": 5.0,
    "ttft_p99_s": 10.0,
    "num_gpu_blocks": 0.5,
}
TRAFFIC = ("conv_", "code_")


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return validate([MEASUREMENTS])


@pytest.mark.parametrize("metric", GOALS)
def test_mean_error_over_unused_runs_meets_the_goal(result: dict[str, Any], metric: str) -> None:
    """Traffic, which the goals are for. Sessions, whose TTFT hangs on prefix hits, are apart: docs/calibration.md says
    how far they are off. Tensor parallelism over PCIe, experts, 8-bit weights and n-gram drafts have bars of their own,
    below and, what a run's own launches make of 8-bit weights and experts, in test_launches."""
    apart = ("/sessions", "-priority/", "-pcie/", "-fp8-traffic/", "-fp8-b/", "-fp8-c/", "-fp8-g/", "-ngram-traffic/",
             *(f"qwen3-30b-a3b-h200-{series}/" for series in ("traffic", "b", "c", "g")), "deepseek-v2-lite-h200/",
             "qwen3-30b-a3b-fp8-h200/", "qwen3-8b-fp8-h200/", "llama70b-fp8-h200")
    unused = [run for run in result["runs"] if not run["used_for_fit"] and not any(a in run["run"] for a in apart)
              and run["run"].split("/")[1].startswith(TRAFFIC)]
    errors = [abs(run["metrics"][metric]["error_pct"]) for run in unused if metric in run["metrics"]]
    assert len(errors) >= 18 and sum(errors) / len(errors) <= GOALS[metric]


def test_means_leave_out_the_runs_used_for_fitting(result: dict[str, Any]) -> None:
    unused = [run for run in result["runs"] if not run["used_for_fit"]]
    errors = [abs(run["metrics"]["ttft_mean_s"]["error_pct"]) for run in unused]
    assert len(unused) == 239
    assert result["mean_abs_error_pct"]["ttft_mean_s"] == pytest.approx(sum(errors) / len(errors), abs=0.01)


def test_intervals_hold_as_often_as_they_say(result: dict[str, Any]) -> None:
    """90 % intervals: 85-95 % of (run, metric) pairs of unused runs inside, lone prompts on idle engines too."""
    assert 85 <= result["inside_interval_pct"] <= 95


OWN_BARS = {
    "traffic, H100": (1.5, 2.0, 2.0, 5.0), "traffic, H200": (1.5, 2.0, 2.0, 5.0),
    "traffic, H200, fp8 weights": (3.0, 4.0, 4.0, 8.0), "traffic, H200, fp8 KV": (3.0, 4.0, 4.0, 8.0),
    "traffic, H200, windows": (1.5, 2.0, 2.0, 5.0),
    "traffic, H200, experts": (3.0, 6.0, 6.0, 12.0), "traffic, H200, eagle3 drafts": (3.0, 6.0, 6.0, 8.0),
}
"""Class as `servecast validate` prints it -> bars in output tokens/s, TPOT, E2E and TTFT."""


def test_classes_meet_their_bars_on_the_hosts_that_the_runs_had() -> None:
    """With CPU times as each run's own launches: what is not the host's state is right. The other classes are in
    docs/calibration.md."""
    series = ("h100/conv_", "h100/code_", "h100-repeat", "h100-s", "qwen14b-h100", "-prefix/conv", "traffic", "-b/conv",
              "fp8kv-", "-c/conv_r6", "-c/conv_r10", "gemma3-27b-h200/conv_", "gemma3-27b-h200-b/code_")
    folders = [path for path in find_runs([MEASUREMENTS])
               if any(part in f"{path.parent.name}/{path.name}" for part in series)]
    found = validate(folders, own_launches=True)
    assert found["own_launches"]
    classes = {part["class"]: part for part in found["classes"]}
    for name, bars in OWN_BARS.items():
        means = classes[name]["mean_abs_error_pct"]
        assert classes[name]["runs"] >= 3
        for metric, bar in zip(("output_tokens_per_s", "tpot_mean_s", "e2e_mean_s", "ttft_mean_s"), bars, strict=True):
            assert means[metric] <= bar, (name, metric)


def test_classes_tell_arrivals_gpus_and_what_is_not_plain() -> None:
    """Each run by what its run.yaml and its requests say."""
    expected = {
        "llama8b-h100/conv_r5": "traffic, H100", "llama8b-h100/batch_b32": "batches, H100",
        "llama8b-h200-tp2-b/pre_p512": "lone requests, 2 x H200",
        "llama8b-h200-prefix/sessions60": "conversations, H200",
        "llama8b-h200-tp2-sync/batch_b8": "batches, 2 x H200, synchronous",
        "llama8b-h200-fp8-b/conv_r5": "traffic, H200, fp8 weights",
        "llama8b-h200-8192x256-traffic/code_r6": "traffic, H200, 8192 tokens x 256",
        "llama8b-h200-pp2/conv_r10": "traffic, 2 x H200, pipeline",
        "qwen3-30b-a3b-h200-tp2ep/batch_b8": "batches, 2 x H200, experts",
        "llama8b-h200-lora/conv_r5_l1": "traffic, H200, LoRA",
        "gpt-oss-120b-h200-b/conv_r5": "traffic, H200, mxfp4 experts",
    }
    assert {name: class_of(load_run(MEASUREMENTS / name)) for name in expected} == expected


def test_class_means_are_those_of_their_runs(result: dict[str, Any]) -> None:
    assert sum(part["runs"] for part in result["classes"]) == 239
    part = next(part for part in result["classes"] if part["class"] == "traffic, H200, fp8 weights")
    chosen = ("llama8b-h200-fp8-traffic/", "llama8b-h200-fp8-b/conv", "llama8b-h200-fp8-g/", "llama8b-h200-fp8-i/conv",
              "llama70b-fp8-h200-b/")
    runs = [run for run in result["runs"] if run["run"].startswith(chosen)]
    errors = [abs(run["metrics"]["tpot_mean_s"]["error_pct"]) for run in runs]
    assert len(errors) == part["runs"] == 16
    assert part["mean_abs_error_pct"]["tpot_mean_s"] == pytest.approx(sum(errors) / 16, abs=0.01)


def test_the_page_has_a_row_for_each_class(result: dict[str, Any]) -> None:
    page = validation_page(result, [], most_figures=0)
    assert "class by class" in page and all(f"<td>{part['class']}</td>" in page for part in result["classes"])
    assert "own step log" not in page
    assert "own step log" in validation_page(result | {"own_launches": True}, [], most_figures=0)


def test_every_kv_block_count_is_within_half_a_percent(result: dict[str, Any]) -> None:
    """Every series, whatever model, format and GPUs, first starts and later ones; experts in mxfp4 within 1 %, the
    goal, for loading converts them into blocks of the allocator that they do not fill."""
    runs = [run for run in result["runs"] if "num_gpu_blocks" in run["metrics"]]
    errors = {run["run"]: abs(run["metrics"]["num_gpu_blocks"]["error_pct"]) for run in runs}
    assert len(errors) == 492
    most = {name: 1.0 if name.startswith("gpt-oss-120b") else 0.5 for name in errors}
    assert {name: error for name, error in errors.items() if error > most[name]} == {}


MOE_TRAFFIC = ("qwen3-30b-a3b-h200-traffic/conv", "qwen3-30b-a3b-h200-b/conv")
CLASSES = {
    "one GPU": (
        ("llama8b-h100/", "llama8b-h100-repeat/", "llama8b-h200-prefix/", "qwen14b-h100/", "llama8b-h200-traffic/",
         "llama8b-h200-b/"),
        (1.5, 2.0, 2.0, 5.0, 8.0),
    ),
    "limits": (("llama8b-h100-seqs32/", "llama8b-h100-smallkv/", "llama8b-h200-8192x256"), (4.0, 4.0, 4.0, 8.0, 8.0)),
    "8-bit KV": (("llama8b-h200-fp8kv-traffic/",), (3.0, 4.0, 4.0, 8.0, 12.0)),
    "8-bit weights": (tuple(f"llama8b-h200-fp8-{series}/" for series in ("traffic", "b", "g", "i")),
                      (3.0, 4.0, 4.0, 8.0, 12.0)),
    "4-bit weights": (("llama8b-h200-awq/",), (3.0, 4.0, 4.0, 8.0, 12.0)),
    "EAGLE drafts": (("llama8b-h200-eagle-traffic/",), (3.0, 6.0, 6.0, 8.0, 12.0)),
    "two GPUs": (("llama8b-h200-tp2/", "llama8b-h200-tp2-b/"), (3.0, 5.0, 5.0, 8.0, 12.0)),
    "two stages": (("llama8b-h200-pp2/",), (3.0, 5.0, 5.0, 8.0, 12.0)),
}
"""Class -> series, and what the mean absolute error [%] over their traffic may be: output tokens/s, TPOT, E2E, TTFT,
p99 TTFT."""


@pytest.mark.parametrize("name", CLASSES)
def test_traffic_runs_of_each_class_meet_its_bars(result: dict[str, Any], name: str) -> None:
    series, bars = CLASSES[name]
    runs = [run for run in result["runs"] if run["run"].startswith(series) and not run["used_for_fit"]]
    runs = [run for run in runs if run["run"].split("/")[1].startswith(TRAFFIC)]
    assert len(runs) >= 2
    metrics = ("output_tokens_per_s", "tpot_mean_s", "e2e_mean_s", "ttft_mean_s", "ttft_p99_s")
    for metric, bar in zip(metrics, bars, strict=True):
        errors = [abs(run["metrics"][metric]["error_pct"]) for run in runs]
        assert sum(errors) / len(errors) <= bar, metric


def test_batches_of_experts_meet_their_bars_on_two_hosts(result: dict[str, Any]) -> None:
    """6 % in TPOT and E2E. The experts' times are public operator data; of these series the launch is fitted, which
    TTFT hangs on, and from run to run it differs by more than that."""
    chosen = ("qwen3-30b-a3b-h200/batch", "qwen3-30b-a3b-h200-b/batch")
    runs = [run for run in result["runs"] if run["run"].startswith(chosen)]
    assert len(runs) == 7
    for metric in ("tpot_mean_s", "e2e_mean_s"):
        assert sum(abs(run["metrics"][metric]["error_pct"]) for run in runs) / 7 <= 6.0, metric


def test_first_tokens_of_experts_under_traffic_meet_their_bar(result: dict[str, Any]) -> None:
    """12 % in TTFT, over two hosts and four loads each; the bars of TPOT and E2E: test_launches."""
    runs = [run for run in result["runs"] if run["run"].startswith(MOE_TRAFFIC)]
    assert len(runs) == 8 and not any(run["used_for_fit"] for run in runs)
    assert sum(abs(run["metrics"]["ttft_mean_s"]["error_pct"]) for run in runs) / 8 <= 12.0


def test_experts_dealt_out_to_two_gpus_meet_the_same_bars(result: dict[str, Any]) -> None:
    """6, 6 and 12 % over the four batch runs; of the series one launch time was fitted, on its lone prompts."""
    runs = [run for run in result["runs"] if "-tp2ep/batch" in run["run"]]
    assert len(runs) == 4 and not any(run["used_for_fit"] for run in runs)
    for metric, bar in (("tpot_mean_s", 6.0), ("e2e_mean_s", 6.0), ("ttft_mean_s", 12.0)):
        assert sum(abs(run["metrics"][metric]["error_pct"]) for run in runs) / 4 <= bar, metric


@pytest.mark.parametrize(("series", "between"), [("llama8b-h200-lora", 5.0), ("llama8b-h200-sampling", 4.0)])
def test_traffic_with_adapters_or_sampling_meets_the_bars_of_variants(
    result: dict[str, Any], series: str, between: float
) -> None:
    """4, 4 and 8 %, as for other variants of the plain engine (with adapters TPOT and E2E 5, as of two GPUs: two runs,
    4.4 and 4.0); what is added was fitted on batches and lone prompts."""
    runs = [run for run in result["runs"] if run["run"].startswith(f"{series}/conv_")]
    assert len(runs) == 2 and not any(run["used_for_fit"] for run in runs)
    for metric, bar in (("tpot_mean_s", between), ("e2e_mean_s", between), ("ttft_mean_s", 8.0)):
        assert sum(abs(run["metrics"][metric]["error_pct"]) for run in runs) / 2 <= bar, metric


def test_tensor_parallelism_over_pcie_meets_the_bars_of_two_gpus(result: dict[str, Any]) -> None:
    """Traffic and batches; the all-reduce was timed alone, no number is from these runs."""
    chosen = ("llama8b-h200-tp2-pcie/conv", "llama8b-h200-tp2-pcie/batch")
    runs = [run for run in result["runs"] if run["run"].startswith(chosen)]
    assert len(runs) == 5 and not any(run["used_for_fit"] for run in runs)
    for metric, bar in (("output_tokens_per_s", 3.0), ("tpot_mean_s", 5.0), ("e2e_mean_s", 5.0), ("ttft_mean_s", 8.0),
                        ("ttft_p99_s", 12.0)):
        assert sum(abs(run["metrics"][metric]["error_pct"]) for run in runs) / 5 <= bar, metric


BATCHES = ("batch_b1", "batch_b8", "batch_b32")


@pytest.mark.parametrize(("series", "metrics"), [
    ("llama8b-h200-eagle", ("tpot_mean_s", "e2e_mean_s")), ("llama8b-h200-ngram", ("tpot_mean_s",)),
])  # fmt: skip
def test_speculation_meets_its_bars(result: dict[str, Any], series: str, metrics: tuple[str, ...]) -> None:
    """6 % in TPOT and E2E, 0.5 % in KV blocks. The time of a pass of the draft, and of a search in the text, are fitted
    on these runs; all else follows the shapes of model and draft."""
    runs = [run for run in result["runs"] if run["run"] in {f"{series}/{batch}" for batch in BATCHES}]
    assert len(runs) == 3
    for metric in metrics:
        assert sum(abs(run["metrics"][metric]["error_pct"]) for run in runs) / 3 <= 6.0, metric
    assert all(abs(run["metrics"]["num_gpu_blocks"]["error_pct"]) <= 0.5 for run in runs)


def run_with(tmp_path: Path, **engine: Any) -> Path:
    """A copy of a measured run with other keys of engine."""
    folder = tmp_path / "models"
    shutil.copytree(MEASUREMENTS / "models", folder)
    series = shutil.copytree(MEASUREMENTS / "llama8b-h100/batch_b1", tmp_path / "series" / "run")
    content = yaml.safe_load((series / "run.yaml").read_text())
    content["engine"] |= engine
    (series / "run.yaml").write_text(yaml.safe_dump(content))
    return series


def test_runs_of_what_is_not_modelled_are_listed_with_the_reason(tmp_path: Path) -> None:
    found = validate([run_with(tmp_path, quantization="awq"), MEASUREMENTS / "llama8b-h100/batch_b8"])
    assert [run["run"] for run in found["runs"]] == ["llama8b-h100/batch_b8"]
    reasons = {entry["run"]: entry["reason"] for entry in found["refused"]}
    assert list(reasons) == ["series/run"] and "engine.quantization 'awq'" in reasons["series/run"]


def test_priorities_decide_who_goes_first_as_in_the_real_engine() -> None:
    """A burst of 300 in four classes with 9 preemptions: first tokens come in the measured order, but for a few
    neighbours; in order of arrival they would not."""
    run = load_run(MEASUREMENTS / "llama8b-h200-priority/conv_burst300_pri")
    prediction = predict(run)
    measured = run.requests.set_index("id").loc[prediction.ids].ttft_s.to_numpy()
    predicted = prediction.first_s - prediction.arrival_s
    moved = np.argsort(np.argsort(measured, kind="stable")) - np.argsort(np.argsort(predicted, kind="stable"))
    assert np.abs(moved).max() <= 2
    assert prediction.preemptions == run.steps.preemptions.max() == 9
    plain = predict(replace(run, engine=replace(run.engine, scheduling_policy="fcfs")))
    first = plain.first_s - plain.arrival_s
    assert np.abs(np.argsort(np.argsort(measured)) - np.argsort(np.argsort(first))).max() > 100


def test_only_runs_of_what_is_not_modelled_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotModelledError, match=r"engine.speculative.method 'medusa' is not modelled"):
        validate([run_with(tmp_path, speculative={"method": "medusa", "num_speculative_tokens": 2})])


def test_result_is_plain_json(result: dict[str, Any]) -> None:
    again = json.loads(json.dumps(result, allow_nan=False))
    assert again == result
    for run in result["runs"]:
        assert set(run["metrics"]) <= set(METRICS)
        for cell in run["metrics"].values():
            assert cell["low"] <= cell["predicted"] <= cell["high"]


def test_preemptions_of_a_small_cache(result: dict[str, Any]) -> None:
    """2,500 blocks: 16 preemptions measured; whole-prompt admission keeps them few."""
    run = next(run for run in result["runs"] if run["run"].startswith("llama8b-h100-smallkv"))
    assert run["preemptions"]["measured"] == 16
    assert 8 <= run["preemptions"]["predicted"] <= 32


def test_step_counts_of_bursts_agree_with_the_engine() -> None:
    """A burst leaves no room for timing: the scheduler's decisions are the engine's, step by step."""
    for name in ("llama8b-h100/batch_b256", "llama8b-h100/ctx_b64_p4k", "llama8b-h100/batch_b64",
                 "llama8b-h200-pp2/batch_b32", "llama8b-h200-pp2/batch_b128", "llama8b-h200-pp2/batch_b256"):
        run = load_run(MEASUREMENTS / name)
        assert run.steps is not None
        assert abs(predict(run).steps - len(run.steps)) <= 1, name


def test_planning_ahead_is_taken_from_the_run() -> None:
    assert setup_of(load_run(MEASUREMENTS / "llama8b-h100-sync/conv_r10")).engine.schedule_ahead == 0
    assert setup_of(load_run(MEASUREMENTS / "llama8b-h100/conv_r5")).engine.schedule_ahead == 1


def test_report_and_figures() -> None:
    run = load_run(MEASUREMENTS / "llama8b-h100/batch_b8")
    assert len(figures(run)) == 2
    page = validation_page(report([(run, predict(run))]) | {"refused": []}, [run])
    assert page.startswith("<!DOCTYPE html>") and "llama8b-h100/batch_b8 (fit)" in page
    assert "src=" not in page and page.count("<svg") == 2


def public(data: Path, case: str) -> tuple[MeasuredRun, Prediction]:
    run = load_public_run(data / "e2e", case)
    return run, predict(run)


def off(ours: Any, theirs: Any) -> float:
    """Mean absolute error per request in percent."""
    return 100 * float(abs(ours / theirs - 1).mean())


CASES = ("rtxpro6000-llama-3.1-8b", "rtx4090-llama-3.1-8b")


@pytest.mark.parametrize("case", CASES)
def test_public_runs_end_to_end_within_two_percent(data_dir: Path, case: str) -> None:
    run, found = public(data_dir, case)
    assert off(found.last_s - found.arrival_s, run.requests.e2e_s.to_numpy()) < 2.0


@pytest.mark.parametrize("case", CASES)
def test_public_runs_mean_tpot_within_two_percent(data_dir: Path, case: str) -> None:
    run, found = public(data_dir, case)
    tpot = (found.last_s - found.first_s) / (run.requests.output_tokens.to_numpy() - 1)
    assert abs(tpot.mean() / run.requests.tpot_s.mean() - 1) < 0.02


@pytest.mark.parametrize(
    "case",
    [
        CASES[0],
        pytest.param(
            CASES[1],
            marks=pytest.mark.xfail(
                strict=True,
                reason="4.0 against 3.8 %: KV is short there and blocks of shared prefixes are counted twice",
            ),
        ),
    ],
)
def test_public_runs_first_token_closer_than_the_peer_in_the_file(data_dir: Path, case: str) -> None:
    run, found = public(data_dir, case)
    peer = off(run.requests.peer_ttft_s, run.requests.ttft_s)
    assert off(found.first_s - found.arrival_s, run.requests.ttft_s.to_numpy()) < peer

"""Loaders of measured runs: the committed ones, vLLM's benchmark JSON, and what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from calibration.accepted import NotModelledError
from calibration.fit import MEASUREMENTS
from calibration.measured import find_runs, load_bench, load_run, measured_metrics
from simulator.errors import CalibrationError


def copy_run(tmp_path: Path, name: str = "llama8b-h100/batch_b8") -> Path:
    target = tmp_path / name
    shutil.copytree(MEASUREMENTS / name, target)
    shutil.copytree(MEASUREMENTS / "models", tmp_path / "models")
    return target


def test_every_committed_run_is_read_and_agrees_with_its_aggregates() -> None:
    """run.yaml carries aggregates computed by whoever measured; ours from requests.csv must agree."""
    folders = find_runs([MEASUREMENTS])
    assert len(folders) == 496
    for folder in folders:
        try:
            run = load_run(folder)
        except NotModelledError:
            continue
        ours, theirs = measured_metrics(run), run.measured
        assert len(run.requests) == theirs["n_requests"]
        assert ours["ttft_mean_s"] == pytest.approx(theirs["ttft_mean"], abs=2e-6), run.name
        assert ours["ttft_p99_s"] == pytest.approx(theirs["ttft_p99"], abs=2e-6), run.name
        assert ours["tpot_mean_s"] == pytest.approx(theirs["tpot_mean"], abs=2e-6), run.name
        assert ours["e2e_p99_s"] == pytest.approx(theirs["e2e_p99"], abs=2e-6), run.name
        assert ours["output_tokens_per_s"] == pytest.approx(theirs["output_token_throughput"], rel=1e-4)


def test_requests_are_sorted_by_arrival_and_keep_their_ids(tmp_path: Path) -> None:
    folder = copy_run(tmp_path)
    lines = (folder / "requests.csv").read_text().splitlines()
    (folder / "requests.csv").write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n")
    run = load_run(folder)
    assert run.requests.arrival_s.is_monotonic_increasing
    assert run.requests.id.tolist() == load_run(MEASUREMENTS / "llama8b-h100/batch_b8").requests.id.tolist()


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("arrivals", "kind", "bursty", "arrivals.kind must be one of open, grouped, closed, sessions, got 'bursty'"),
        ("engine", "max_num_seqs", None, "engine.max_num_seqs is missing"),
        ("arrivals", "kind", "closed", "arrivals.concurrency must be a whole number >= 1, got None"),
    ],
)
def test_bad_run_files_are_refused(
    tmp_path: Path, section: str, key: str, value: object, message: str
) -> None:
    folder = copy_run(tmp_path)
    content = yaml.safe_load((folder / "run.yaml").read_text())
    content[section].pop(key)
    if value is not None:
        content[section][key] = value
    (folder / "run.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(CalibrationError, match=message):
        load_run(folder)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("engine.speculative", {"method": "medusa", "num_speculative_tokens": 4}, "engine.speculative.method 'medusa'"),
        ("engine.speculative", {"method": "eagle3", "num_speculative_tokens": 4, "tree": 1}, "engine.speculative.tree"),
        ("engine.scheduling_policy", "fair", "engine.scheduling_policy 'fair' is not modelled; .* fcfs, priority"),
        ("engine.quantization", "awq", "engine.quantization 'awq' is not modelled; accepted: null, fp8"),
        ("engine.pipeline_parallel_size", 2,
         r"hardware.count must be .*_size \(1\) x engine.pipeline_parallel_size \(2\), got 1"),
        ("engine.enable_chunked_prefill", False, "engine.enable_chunked_prefill False is not modelled"),
        ("engine.data_parallel_size", 2, "engine.data_parallel_size is not modelled; accepted: .*max_num_seqs"),
        ("arrivals.shared_prefix", {"groups": 8}, "arrivals.shared_prefix is not modelled"),
        ("arrivals.group_size", 8, "arrivals.group_size is not modelled"),
        ("hardware.count", 4, r"hardware.count must be engine.tensor_parallel_size \(1\), got 4"),
        ("hardware.power_limit_w", 400, "hardware.power_limit_w is not modelled"),
        ("lora", "adapters.yaml", "run.yaml: lora is not modelled"),
    ],
)
def test_a_setting_that_is_not_modelled_is_refused_by_name(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    """Taken for the plain engine, speculation alone was off by a factor of 2 to 3.8 in TPOT."""
    folder = copy_run(tmp_path)
    content = yaml.safe_load((folder / "run.yaml").read_text())
    section, _, name = key.rpartition(".")
    (content[section] if section else content)[name] = value
    (folder / "run.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(NotModelledError, match=message):
        load_run(folder)


@pytest.mark.parametrize("column", ["priority", "session", "think_s", "lora_id"])
def test_a_column_that_is_not_modelled_is_refused_by_name(tmp_path: Path, column: str) -> None:
    folder = copy_run(tmp_path)
    table = pd.read_csv(folder / "requests.csv").assign(**{column: 1})
    table.to_csv(folder / "requests.csv", index=False)
    with pytest.raises(NotModelledError, match=f"requests.csv: .*column '{column}'.*accepted: id, arrival_s"):
        load_run(folder)


def test_neutral_settings_and_a_compressed_step_log_are_read() -> None:
    """Keys that say no or the default change nothing; fp8 weights and prefix hits are simulated."""
    plain = load_run(MEASUREMENTS / "llama8b-h200-tp2-b/conv_r20")
    assert plain.engine.weight_dtype == "bfloat16" and plain.steps is not None and len(plain.steps) > 1000
    assert load_run(MEASUREMENTS / "llama8b-h200-fp8/batch_b1").engine.weight_dtype == "fp8"
    assert load_run(MEASUREMENTS / "llama8b-h200-prefix/conv_r10").engine.enable_prefix_caching


def test_bad_rows_are_named(tmp_path: Path) -> None:
    folder = copy_run(tmp_path)
    lines = (folder / "requests.csv").read_text().splitlines()
    lines[3] = lines[3].replace("512", "many", 1)
    (folder / "requests.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(CalibrationError, match=r"requests.csv: data row 3: not a number"):
        load_run(folder)


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"no run.yaml in or below it"):
        find_runs([tmp_path])


def bench(**changes: object) -> dict[str, object]:
    """Two requests, the second without output, as vLLM's benchmark writes them."""
    content: dict[str, object] = {
        "input_lens": [10, 20],
        "output_lens": [5, 0],
        "ttfts": [0.5, 0.0],
        "itls": [[0.1, 0.3], []],
        "start_times": [100.0, 101.0],
    }
    return content | changes


def test_benchmark_json_gives_tpot_by_tokens_not_by_events(tmp_path: Path) -> None:
    """Two stream events carried four tokens: TPOT is 0.4 s / 4, not 0.2 s. The failed request is
    dropped."""
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench()))
    table = load_bench(path)
    assert len(table) == 1
    row = table.iloc[0]
    assert (row.arrival_s, row.ttft_s, row.e2e_s, row.tpot_s) == pytest.approx((0.0, 0.5, 0.9, 0.1))


def test_benchmark_json_stands_for_requests_csv(tmp_path: Path) -> None:
    folder = copy_run(tmp_path)
    original = load_run(folder).requests
    (folder / "requests.csv").unlink()
    (folder / "steps.csv").unlink()
    spread = [
        np.full(n - 1, t).tolist() for n, t in zip(original.output_tokens, original.tpot_s, strict=True)
    ]
    (folder / "bench.json").write_text(
        json.dumps(
            {
                "input_lens": original.prompt_tokens.tolist(),
                "output_lens": original.output_tokens.tolist(),
                "ttfts": original.ttft_s.tolist(),
                "itls": spread,
                "start_times": (7.0 + original.arrival_s).tolist(),
            }
        )
    )
    run = load_run(folder)
    assert run.steps is None
    assert run.requests.e2e_s.to_numpy() == pytest.approx(original.e2e_s.to_numpy(), abs=1e-4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"input_lens": [1]}, "not a detailed vLLM benchmark file"),
        (bench(ttfts=[0.5]), "differ in length"),
    ],
)
def test_bad_benchmark_files_are_refused(tmp_path: Path, content: dict[str, object], message: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(content))
    with pytest.raises(CalibrationError, match=message):
        load_bench(path)

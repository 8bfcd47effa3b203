"""Fits recover known parameters from synthetic measurements, and the shipped profiles are what the fit
gives."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from calibration.fit import (
    HARNESS,
    KV_BYTES,
    LIBRARY,
    MEASUREMENTS,
    Calibration,
    calibrate,
    engine_values,
    entry,
    host_values,
    measured_block,
    operator_block,
    operator_values,
    priors,
    used_for_fit,
    write_measured,
)
from calibration.fit_h200 import H200Fit, calibrate_h200, h200_block
from calibration.fit_operators import fit_decode, fit_gemm, fit_prefill
from calibration.fit_steps import fit_steps, with_values
from calibration.measured import MeasuredRun, find_runs, load_run
from calibration.operators import all_reduce_curve, load_operators
from simulator.cost.gemm import GemmTime
from simulator.cost.gpu_times import gpu_times
from simulator.errors import CalibrationError
from simulator.profiles.engine import load_engine
from simulator.profiles.gpu import Gpu, load_gpu
from simulator.profiles.host import load_host

TRUE = GemmTime(start_s=6e-6, bandwidth=2.5e12, rate=600e12, exponent=3.0)
SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))


def products(noise: float) -> list[dict[str, float]]:
    """Products of a known GPU, times with relative noise."""
    rng = np.random.default_rng(7)
    rows = []
    for m in (1, 8, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096):
        for n, k in SHAPES:
            us = float(TRUE.seconds(np.array([float(m)]), n, k)[0]) * 1e6
            rows.append({"m": m, "n": n, "k": k, "us": us * float(np.exp(noise * rng.standard_normal()))})
    return rows


def test_product_parameters_are_recovered() -> None:
    fit = fit_gemm(products(noise=0.0))
    assert fit.gemm.bandwidth == pytest.approx(TRUE.bandwidth, rel=1e-3)
    assert fit.gemm.rate == pytest.approx(TRUE.rate, rel=1e-3)
    assert fit.gemm.start_s == pytest.approx(TRUE.start_s, rel=1e-2)
    assert fit.gemm.exponent == pytest.approx(TRUE.exponent, rel=1e-2)
    assert fit.mean_error < 1e-4


def test_product_parameters_survive_noise_and_an_outlier() -> None:
    rows = products(noise=0.02)
    rows[3]["us"] *= 5
    fit = fit_gemm(rows)
    assert fit.gemm.bandwidth == pytest.approx(TRUE.bandwidth, rel=0.04)
    assert fit.gemm.rate == pytest.approx(TRUE.rate, rel=0.04)


def test_decode_attention_is_recovered() -> None:
    start, sequence, bandwidth = 12e-6, 0.1e-6, 1.5e12
    rows = [
        {"batch": b, "context": c, "us": (start + b * sequence + 4096 * b * c / bandwidth) * 1e6}
        for b in (1, 8, 64)
        for c in (512, 2048, 8192)
    ]
    fit = fit_decode(rows, kv_bytes_per_token=4096)
    assert (fit.start_s, fit.sequence_s, fit.bandwidth) == pytest.approx(
        (start, sequence, bandwidth), rel=1e-6
    )


def test_prefill_attention_is_recovered() -> None:
    rate, token, flops = 400e12, 5e-9, 16384
    rows = [
        {"batch": b, "length": n, "us": (b * n * token + flops * b * n * (n + 1) / 2 / rate) * 1e6}
        for b in (1, 4)
        for n in (512, 2048, 8192)
    ]
    assert fit_prefill(rows, flops)[:2] == pytest.approx((rate, token), rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"m": 1, "n": 2, "k": 3, "us": 4}] * 4, "needs 5 points or more, got 4"),
        ([{"m": 1, "n": 2, "k": 3}] * 6, "'us' is missing or not a number"),
    ],
)
def test_unusable_products_are_refused(rows: list[dict[str, float]], message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        fit_gemm(rows)


def test_unreadable_operator_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ops.json"
    path.write_text("{}")
    with pytest.raises(CalibrationError, match="needs gemm, paged_decode_fa3 and paged_prefill_fa3"):
        load_operators(path)


@pytest.fixture(scope="module")
def fits() -> tuple[Calibration, H200Fit]:
    found = calibrate()
    return found, calibrate_h200(found)


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm"])
def test_shipped_gpus_are_what_the_fit_gives(fits: tuple[Calibration, H200Fit], gpu: str) -> None:
    """The numbers in hwprofiles come from the committed measurements, to their printed digits."""
    block = measured_block(fits[0]) if gpu == "h100-sxm" else h200_block(fits[1])
    shipped = load_gpu(gpu).measured
    assert set(block) == set(shipped)
    for key, one in block.items():
        if "value" in one:
            assert shipped[key]["value"] == pytest.approx(one["value"], rel=1e-3, abs=1e-9), key  # type: ignore[index]
        else:
            assert np.allclose(shipped[key]["points"], one["points"], rtol=1e-3, atol=0.02), key  # type: ignore[index]


def test_shipped_engine_and_host_are_what_the_fit_gives(fits: tuple[Calibration, H200Fit]) -> None:
    fit, second = fits
    engine = yaml.safe_load(load_engine("vllm-0.24").path.read_text())
    host = yaml.safe_load(load_host("measured").path.read_text())
    for key, value in (engine_values(fit) | host_values(fit, second.workers, second.stages)).items():
        assert (engine | host)[key]["value"] == pytest.approx(value, rel=1e-3), key


def test_all_reduce_curve_of_the_engine_lies_between_the_link_and_our_own_kernel() -> None:
    """Up to 8 MiB no faster than 450 GB/s of link, at most a tenth behind our one-shot kernel on two H200 and ahead of
    NCCL; NCCL from there. What a rank waits for the other is apart, and shorter than a product takes to start."""
    path = MEASUREMENTS / "ops-h200-pair.json"
    own, nccl = (all_reduce_curve(path, 2, kernel) for kernel in ("own one-shot over peer memory", "NCCL"))
    assert own is not None and nccl is not None
    times = gpu_times(load_gpu("h200-sxm"))
    assert 0.0 <= times.all_reduce_sync_s < times.gemm.start_s
    times = replace(times, all_reduce_sync_s=0.0)
    for (size, one_shot), (_, library) in zip(own["points"], nccl["points"], strict=False):
        found = times.reduce_s(2, np.array([float(size)]))
        assert found is not None
        if size < 8 * 2**20:
            assert size / 450e3 < float(found[0]) * 1e6 < min(1.1 * one_shot, library)
        else:
            assert float(found[0]) * 1e6 == pytest.approx(library, rel=0.08)


@pytest.fixture(scope="module")
def step_inputs() -> tuple[list[MeasuredRun], Gpu, dict[str, tuple[float, float]]]:
    """Runs, GPU and priors as `calibrate` gives them to the fit of step logs."""
    harness, library = (load_operators(MEASUREMENTS / name) for name in (HARNESS, LIBRARY))
    gemm, decode = fit_gemm(harness.gemm), fit_decode(library.decode, KV_BYTES)
    folders = find_runs([MEASUREMENTS / "llama8b-h100"])
    runs = [load_run(folder) for folder in folders if used_for_fit(f"llama8b-h100/{folder.name}")]
    gpu = with_values(load_gpu("h100-sxm"), operator_values(gemm, decode, harness))
    return runs, gpu, priors(gemm, harness, library)


@pytest.mark.parametrize("side", [-1, 1])
def test_fit_of_step_logs_does_not_depend_on_where_it_starts(step_inputs: Any, side: int) -> None:
    """Four prior widths off in every component: the same minimum, or the fit has a flat direction."""
    runs, gpu, known = step_inputs
    off = {key: value + side * 4 * width for key, (value, width) in known.items()}
    shipped = load_gpu("h100-sxm").measured
    for key, value in fit_steps(runs, gpu, known, start=off).values.items():
        assert value == pytest.approx(shipped[key]["value"], rel=1e-4), key  # type: ignore[index]


def test_fit_of_step_logs_does_not_depend_on_the_order_of_rows(step_inputs: Any) -> None:
    runs, gpu, known = step_inputs
    shipped = load_gpu("h100-sxm").measured
    for key, value in fit_steps(runs[1:] + runs[:1], gpu, known).values.items():
        assert value == pytest.approx(shipped[key]["value"], rel=1e-4), key  # type: ignore[index]


def test_every_fitted_component_is_decided_by_the_logs(step_inputs: Any) -> None:
    """No component keeps its prior's width: what a log cannot tell is not fitted on it."""
    runs, gpu, known = step_inputs
    for key, error in fit_steps(runs, gpu, known).errors.items():
        assert error < known[key][1] / 2, key


def test_fit_is_the_same_without_wide_vector_instructions() -> None:
    """Sums in another order (other BLAS kernels, no AVX): the numbers agree to every printed digit."""
    dispatch = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # type: ignore[index]
    plain = dict(os.environ, OPENBLAS_CORETYPE="Prescott", NPY_DISABLE_CPU_FEATURES=" ".join(dispatch))
    script = (
        "import json; from calibration.fit import calibrate, measured_block as block; fit = calibrate(); "
        "print(json.dumps({k: e['value'] for k, e in block(fit).items() if 'value' in e}))"
    )
    answer = subprocess.run([sys.executable, "-W", "ignore", "-c", script], env=plain, check=True, capture_output=True)
    shipped = load_gpu("h100-sxm").measured
    for key, value in json.loads(answer.stdout).items():
        assert value == pytest.approx(shipped[key]["value"], rel=1e-4), key  # type: ignore[index]


def test_fitted_gpu_respects_physical_limits() -> None:
    """No rate above the datasheet's peak; the H100's decode attention below its measured read ceiling."""
    for name in ("h100-sxm", "h200-sxm", "a100-sxm-80gb", "l40s", "rtx-4090", "rtx-pro-6000"):
        gpu = load_gpu(name)
        times = gpu_times(gpu)
        assert times.gemm.bandwidth < gpu.bandwidth and times.decode_bandwidth < gpu.bandwidth, name
        assert times.gemm.rate < gpu.peak_flops("bf16") and times.prefill_rate < gpu.peak_flops("bf16"), name
    assert gpu_times(load_gpu("h100-sxm")).decode_bandwidth < 3036.2e9


def test_writing_a_block_keeps_the_datasheet_part(tmp_path: Path) -> None:
    source = load_gpu("h100-sxm").path
    path = tmp_path / "h100-sxm.yaml"
    path.write_text(source.read_text())
    entry = {"value": 1.5, "unit": "TB/s", "mark": "fitted", "source": "test: 'quoted', with comma"}
    write_measured(path, {"decode_bandwidth": entry})
    before, after = yaml.safe_load(source.read_text()), yaml.safe_load(path.read_text())
    assert after.pop("measured") == {"decode_bandwidth": entry}
    before.pop("measured")
    assert after == before


def test_fit_runs_are_named() -> None:
    assert used_for_fit("llama8b-h100/batch_b1") and used_for_fit("llama8b-h100-sync/conv_r10")
    assert used_for_fit("llama8b-h200-tp2-b/pre_p512") and used_for_fit("llama8b-h200-fp8kv/ctx_b64_p4k")
    assert used_for_fit("llama8b-h200-lora/batch_b8_l8") and not used_for_fit("llama8b-h200-lora/conv_r10_l8")
    for name in ("llama8b-h200-tp2-b/conv_r20", "llama8b-h200-8192x256/conv_burst600", "llama8b-h200-tp2/batch_b8",
                 "llama8b-h100/conv_r5", "llama8b-h100-repeat/batch_b32", "qwen14b-h100/batch_b32"):
        assert not used_for_fit(name)


def test_operators_alone_make_a_profile_block() -> None:
    """Both layouts; the two measured the same card, so attention and rates agree within their errors."""
    ours = operator_block(MEASUREMENTS / "ops-h100.json")
    library = operator_block(MEASUREMENTS / "operators-h100.json")
    for key in ("gemm_bandwidth", "gemm_rate", "decode_bandwidth"):
        assert ours[key]["value"] == pytest.approx(library[key]["value"], rel=0.1), key
    assert 1.5 < ours["fp8_gain"]["value"] < 2.0
    assert "fp8_gain" not in library


def test_errors_of_components_are_in_per_cent() -> None:
    assert entry(1.0, "gemm_rate", "here", "fitted", 0.0123, "")["error_pct"] == 1.23

"""Quantised weights: kernels timed alone, then an engine with 4-bit weights that nothing was fitted on."""

import csv
import json
from collections import defaultdict

import numpy as np
import pytest

from calibration.classes import class_of
from calibration.fit import EIGHT_BIT_LAUNCHES, MEASUREMENTS, SIXTEEN_BIT_LAUNCHES, runs_named
from calibration.fit_quantised import KERNELS, fit_four_bits, quantised_entries
from calibration.fit_steps import gaps_of, gpu_seconds, step_cost
from calibration.launches import quiet_launch
from calibration.measured import load_run
from simulator.config import read_yaml
from simulator.cost.calibrated import calibrated_cost
from simulator.cost.gpu_times import gpu_times
from simulator.cost.step import Cost
from simulator.errors import CalibrationError, ConfigError
from simulator.profiles.engine import load_engine
from simulator.profiles.gpu import load_gpu, parse_gpu
from simulator.profiles.host import load_host
from simulator.profiles.model import load_model
from simulator.profiles.shape import ModelShape

FILE = json.loads((MEASUREMENTS / KERNELS).read_text())
AWQ = "llama8b-h200-awq"
QUIET_UNUSED = ("llama8b-h200-fp8-b/conv_*", "llama8b-h200-fp8-g/conv_*", "llama8b-h200-fp8-i/conv_*", f"{AWQ}/conv_*")


def h200_cost(model: ModelShape, dtype: str) -> Cost:
    return calibrated_cost(load_gpu("h200-sxm"), load_engine("vllm-0.24"), model, 1, dtype, "auto", 128, 2048)


def products(name: str) -> list[dict]:
    return [row for row in FILE["products"] if row["format"] == name]


def layer_us(model: str, name: str, rows: int) -> float:
    """[us] the four products of a layer, as measured alone."""
    return sum(row["us"] for row in products(name) if row["model"] == model and row["m"] == rows)


@pytest.mark.parametrize("name", ["int4", "int4_zeros", "int4_zeros_marlin"])
def test_formula_of_four_bit_products_meets_the_kernels_measured(name: str) -> None:
    assert fit_four_bits(products(name))[1] < 0.1


def test_decode_steps_of_an_engine_with_four_bit_weights() -> None:
    """Nothing of this engine was used: its kernels were timed alone. A quarter of the bytes at the pace of 16-bit
    products would be 1.4 ms short of 3.9."""
    runs = runs_named(MEASUREMENTS, [f"{AWQ}/batch_*"])
    gaps = gaps_of(runs)
    decode = gaps[(gaps.kind == 0) & (gaps.weight > 0.5)]
    errors = gpu_seconds(step_cost(runs[0], load_gpu("h200-sxm")), decode) / decode.gap_s.to_numpy() - 1
    by_sequences = {int(n): float(np.median(errors[(decode.n_decode == n).to_numpy()]))
                    for n in (1, 8, 32, 64, 128)}
    assert max(map(abs, by_sequences.values())) < 0.12, by_sequences
    assert np.mean(list(map(abs, by_sequences.values()))) < 0.06, by_sequences


def test_four_bit_weights_have_a_class_of_their_own() -> None:
    assert class_of(load_run(MEASUREMENTS / AWQ / "conv_r5")) == "traffic, H200, int4 weights"


def test_hopper_runs_machete_and_other_gpus_marlin() -> None:
    """vLLM 0.24, kernels/linear/mixed_precision/machete.py: compute capability 9.0 only."""
    h200, a100, unnamed = (gpu_times(load_gpu(name)) for name in ("h200-sxm", "a100-sxm-80gb", "mi300x"))
    assert h200.four_bits.start_s > h200.gemm.start_s + 5e-6
    for marlin in (a100, unnamed):
        assert marlin.four_bits.start_s < marlin.gemm.start_s + 3e-6
    assert a100.four_bits.rate == a100.gemm.rate
    assert unnamed.four_bits.rate < 0.6 * unnamed.gemm.rate


def test_half_the_rate_of_marlin_is_what_was_measured_on_hopper() -> None:
    """Prompts of 4,096 tokens through a 70B layer: twice as long as in 16 bits."""
    assert layer_us("70b", "int4_zeros_marlin", 4096) / layer_us("70b", "bf16", 4096) == pytest.approx(2.0, rel=0.1)


def test_tile_classes_of_eight_bit_products_cost_a_larger_layer_more() -> None:
    """From 16 to 17 rows a layer of the 70B loses 91 us, of the 8B 21, measured alone: four times the weights."""
    small, large = (layer_us(model, "fp8", 17) - layer_us(model, "fp8", 16) for model in ("8b", "70b"))
    assert large / small == pytest.approx(4.0, rel=0.15)


def test_tiles_of_the_cost_model_go_with_a_layers_weights() -> None:
    """The 70B: the step from 16 to 17 sequences grows in 2.5 times the layers of four times the weights."""
    def step_up(model: str) -> float:
        cost = h200_cost(load_model(model), "fp8")
        return float(cost.dense_ns[0, 17] - cost.dense_ns[0, 16])

    assert step_up("llama-3.1-70b") / step_up("llama-3.1-8b") == pytest.approx(10.0, rel=0.15)


def test_a_step_of_quantised_weights_is_launched_in_a_share_of_the_time() -> None:
    """2,048 tokens: four fifths of the launch in 16 bits, for fp8 and for a checkpoint in 4 bits; a graph as before."""
    times = {}
    plain = load_model("llama-3.1-8b")
    packed = load_model(MEASUREMENTS / "models" / "llama-3.1-8b-awq.config.json")
    for name, model, dtype in (("16", plain, "auto"), ("fp8", plain, "fp8"), ("int4", packed, "auto")):
        times[name] = h200_cost(model, dtype).cpu_ns[1, [64, 2048]].astype(float)
    for name in ("fp8", "int4"):
        assert times[name][0] == times["16"][0]
        assert times[name][1] / times["16"][1] == pytest.approx(load_host().times.eager_quantised, rel=1e-6)


@pytest.mark.parametrize("runs", QUIET_UNUSED)
def test_quantised_engines_launch_in_four_fifths_of_the_time(runs: str) -> None:
    """Engines that the profile's number was not fitted on; fitted on EIGHT_BIT_LAUNCHES."""
    assert runs not in EIGHT_BIT_LAUNCHES
    sixteen = quiet_launch(runs_named(MEASUREMENTS, SIXTEEN_BIT_LAUNCHES))
    share = quiet_launch(runs_named(MEASUREMENTS, [runs])) / sixteen
    assert share == pytest.approx(load_host().times.eager_quantised, abs=0.05)


def test_a_launch_is_as_long_beside_decoding_sequences_as_on_an_idle_engine() -> None:
    """launches-h200.csv: states of the host, 18 to 35 ms, come and go; parts beside more sequences are not longer."""
    with (MEASUREMENTS / "launches-h200.csv").open() as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    parts: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for part in {row["part"] for row in rows}:
        for weights in ("16 bits", "fp8"):
            found = [float(row["launch_s"]) for row in rows if (row["part"], row["weights"]) == (part, weights)]
            parts[weights, part.startswith("beside")].append(float(np.mean(found)))
    for weights in ("16 bits", "fp8"):
        idle, beside = parts[weights, False], parts[weights, True]
        assert abs(np.mean(beside) - np.mean(idle)) < np.hypot(np.std(idle), np.std(beside))


def test_experts_in_blocks_of_eight_bits_read_half_the_bytes_faster_than_16_bits() -> None:
    """The layer of Qwen3-30B-A3B with all 128 experts touched: 183 us in fp8, 302 in 16 bits."""
    experts = gpu_times(load_gpu("h200-sxm")).experts
    read = 3 * 2048 * 768 * 128
    seconds = {"bf16": 2.0 * read / experts.bandwidth, "fp8_block": read / (experts.bandwidth * experts.fp8_read)}
    for name, part in seconds.items():
        measured = next(row["us"] for row in FILE["experts"]
                        if (row["model"], row["format"], row["m"]) == ("qwen3-30b-a3b", name, 128))
        assert (experts.start_s + part) * 1e6 == pytest.approx(measured, rel=0.12)


def test_missing_kernel_times_are_an_error(tmp_path) -> None:
    with pytest.raises(CalibrationError, match=KERNELS):
        quantised_entries(tmp_path)


@pytest.mark.parametrize("value", ["sm_90", -1, True, 1e9])
def test_compute_capability_must_be_a_number(value: object) -> None:
    path = load_gpu("h200-sxm").path
    with pytest.raises(ConfigError, match="compute_capability"):
        parse_gpu({**read_yaml(path, "GPU profile"), "compute_capability": value}, path)

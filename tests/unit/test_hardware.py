"""GPU profiles: well-formed, sourced, found by name and alias, and physically plausible."""

from pathlib import Path

import pytest
import yaml

from hwprofiles import GPU_DIR
from simulator.errors import ConfigError, UnknownNameError
from simulator.profiles.gpu import Gpu, list_gpus, load_gpu, parse_gpu

GPUS = list_gpus()


def test_the_promised_gpus_are_there() -> None:
    assert {gpu.path.stem for gpu in GPUS} >= {
        "h100-sxm", "h200-sxm", "a100-sxm-80gb", "a100-sxm-40gb", "l40s", "rtx-4090", "rtx-pro-6000", "b200",
        "mi300x", "l4", "a10g", "dgx-spark", "unit", "rtx-3090", "rtx-5090", "rtx-a6000", "a40", "t4",
        "v100-sxm-32gb", "l20", "h20", "a100-pcie-80gb", "a100-pcie-40gb", "h100-pcie", "h100-nvl", "gh200", "b300",
        "mi325x"}


@pytest.mark.parametrize(("name", "gib"), [
    # "total capacity" of PyTorch's out-of-memory messages and "total_gpu_memory" of vLLM's logs; drivers differ by 0.3
    ("a100-80gb", 79.25), ("l40s", 44.42), ("h100", 79.11), ("h100-nvl", 93.10), ("rtx-5090", 31.36), ("h20", 95.0),
    ("rtx-a6000", 47.53), ("rtx-4090", 23.65), ("rtx-3090", 23.69), ("a100-sxm-40gb", 39.59), ("v100", 31.75),
    ("rtx-pro-6000", 94.97), ("l4", 22.03), ("mi300x", 191.98)])
def test_memory_is_what_cuda_reports(name: str, gib: float) -> None:
    """Not nvidia-smi's figure, which is 0.4 to 0.8 GiB more."""
    assert load_gpu(name).memory_bytes / 2**30 == pytest.approx(gib, abs=0.15)


def test_names_and_aliases_are_unique_and_found() -> None:
    claimed: dict[str, str] = {}
    for gpu in GPUS:
        for name in {gpu.path.stem, gpu.name.lower(), *(alias.lower() for alias in gpu.aliases)}:
            assert claimed.setdefault(name, gpu.name) == gpu.name
            assert load_gpu(name.upper()) == gpu


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'h1000' \(did you mean h100-sxm .*\); known: .*unit"):
        load_gpu("h1000")


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.path.stem)
def test_every_number_has_a_source(gpu: Gpu) -> None:
    assert all(gpu.sources.values())
    assert len(gpu.sources) == 6 + len(gpu.peak_tflops)
    assert "assumption" in gpu.sources["price"] or gpu.mark == "textbook"
    assert len(gpu.price_date) == 7


@pytest.mark.parametrize("gpu", [g for g in GPUS if g.mark != "textbook"], ids=lambda gpu: gpu.path.stem)
def test_peaks_are_dense_and_scale_with_width(gpu: Gpu) -> None:
    # Tensor cores double their rate when the operand width halves. A value with 2:4 sparsity would be 4 x.
    # Exceptions: GeForce, whose rate with fp32 accumulation is halved (int8 4 x, fp4 8 x), and Blackwell Ultra, which
    # has more fp4 (6 x).
    ratio = {dtype: peak / gpu.peak_tflops["bf16"] for dtype, peak in gpu.peak_tflops.items()}
    geforce = gpu.path.stem in ("rtx-3090", "rtx-4090", "rtx-5090")
    fp4 = 8.0 if geforce else 6.0 if gpu.path.stem == "b300" else 4.0
    expected = {"bf16": 1.0, "fp16": 1.0, "fp8": 2.0, "int8": 4.0 if geforce else 2.0, "fp4": fp4}
    assert ratio == pytest.approx({dtype: expected[dtype] for dtype in ratio}, rel=0.02)


def test_values_of_the_flagship() -> None:
    gpu = load_gpu("H100")
    # H100 SXM: 132 SMs x 4,096 dense bf16 FLOP/clock at 1.83 GHz; 5 HBM3 stacks
    assert gpu.peak_flops("bf16") == pytest.approx(132 * 4096 * 1.83e9, rel=0.005)
    assert (gpu.memory_bytes, gpu.bandwidth, gpu.link_bandwidth) == (81_080 * 2**20, 3.35e12, 450e9)


def test_a_gpu_without_bf16_runs_models_in_fp16() -> None:
    t4 = load_gpu("Tesla T4")
    assert t4.peak_flops("bf16") == t4.peak_flops("fp16") == 65e12
    assert "fp16" in t4.sources["peak_dense.bf16"]


def test_weights_the_gpu_cannot_multiply_run_weight_only() -> None:
    a100 = load_gpu("a100")
    assert [a100.compute_dtype(dtype) for dtype in ("fp8", "int4", "int8")] == ["bf16", "bf16", "int8"]
    assert a100.peak_flops("fp8") == a100.peak_flops("bf16")


def _profile() -> dict[str, object]:
    content = yaml.safe_load((GPU_DIR / "h100-sxm.yaml").read_text())
    assert isinstance(content, dict)
    content.pop("measured", None)
    return content


def test_measured_block_is_carried_through() -> None:
    block = {"dense": {"points": [1, 2]}}
    assert parse_gpu({**_profile(), "measured": block}, Path("x.yaml")).measured == block
    assert parse_gpu(_profile(), Path("x.yaml")).measured == {}


@pytest.mark.parametrize(("change", "message"), [
    ({"tdp": {"value": 700, "unit": "kW", "source": "s"}}, r"x\.yaml: tdp\.unit must be 'W', got 'kW'"),
    ({"tdp": {"value": -1, "unit": "W", "source": "s"}}, r"tdp\.value must be a number > 0 and <= 1e\+09, got -1"),
    ({"tdp": {"value": 700, "unit": "W"}}, r"tdp must be \{value, unit, source\}"),
    ({"tdp": {"value": 700, "unit": "W", "source": " "}}, r"tdp\.source must not be empty"),
    ({"mark": "guess"}, "mark must be one of measured, fitted, datasheet, textbook, got 'guess'"),
    ({"peak_dense": {"fp64": {"value": 1, "unit": "TFLOP/s", "source": "s"}}}, "peak_dense must hold bf16 or fp16"),
    ({"color": "green"}, r"unknown keys \['color'\]"),
    ({"measured": [1]}, "measured must be a mapping"),
])
def test_profiles_that_cannot_be_used(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_gpu({**_profile(), **change}, Path("x.yaml"))


def test_own_profile_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**_profile(), "name": "mine"}))
    assert load_gpu(path).name == "mine"
    with pytest.raises(ConfigError, match="not a readable GPU profile"):
        load_gpu(tmp_path / "absent.yaml")

"""Engine profiles, uncertainty widths and extrapolation notes: accepted, refused, and saying what they rest
on."""

from pathlib import Path

import pytest
import yaml

from simulator.cost.ranges import extrapolations
from simulator.errors import ConfigError, UnknownNameError
from simulator.profiles.engine import MARKS, list_engines, load_engine, parse_engine
from simulator.profiles.gpu import load_gpu
from simulator.profiles.host import host_times, load_host, parse_host
from simulator.profiles.uncertainty import METRICS, load_uncertainty

NAMES = ("orca", "sglang", "tensorrt-llm", "tgi", "unit", "vllm-0.6", "vllm-0.9", "vllm-0.10", "vllm-0.11", "vllm-0.15",
         "vllm-0.19", "vllm-0.24")


def test_shipped_engines_carry_a_source_and_a_mark_for_every_number() -> None:
    engines = list_engines()
    assert tuple(engine.path.stem for engine in engines) == NAMES
    for engine in engines:
        assert all(engine.sources.values()) and set(engine.marks.values()) <= set(MARKS)
        if engine.mark == "assumed":
            assert "measured" not in engine.marks.values(), f"{engine.path.stem} was never measured"


def test_engine_versions_are_found_with_and_without_patch_level() -> None:
    assert load_engine("vllm-0.24.0") is load_engine("vllm-0.24")
    for name, near in (("vllm-9", "vllm-0.24"), ("vllm-0.28.1", "vllm-0.24"), ("vllm-0.8", "vllm-0.9"),
                       ("vllm-0.12", "vllm-0.11"), ("vllm", "vllm-0.24"), ("sglang-0.5", "sglang")):
        with pytest.raises(UnknownNameError, match=rf"unknown engine '{name}' \(the nearest is {near}\); known:"):
            load_engine(name)
    with pytest.raises(UnknownNameError, match=r"unknown engine 'lmdeploy'; known: orca, sglang"):
        load_engine("lmdeploy")


def test_a_profile_takes_from_its_base_what_it_does_not_say() -> None:
    old, new = load_engine("vllm-0.11"), load_engine("vllm-0.24")
    assert old.launch_work == new.launch_work and old.gpu_memory_utilization == 0.9
    assert (old.marks["launch_work"], old.sources["launch_work"]) == ("assumed", "assumed as for vllm-0.24")
    assert new.compile_copies_table == 1 and old.compile_copies_table == 0 and "compile_copies_table" not in old.marks
    with pytest.raises(ConfigError, match=r"mine.yaml: base: unknown engine 'vllm-1'"):
        parse_engine({"name": "x", "version": "1", "mark": "assumed", "base": "vllm-1"}, Path("mine.yaml"))
    with pytest.raises(ConfigError, match=r"base must be a profile that has no base itself, got 'vllm-0.11'"):
        parse_engine({"name": "x", "version": "1", "mark": "assumed", "base": "vllm-0.11"}, Path("mine.yaml"))


def test_graph_limits_follow_the_batch_limit() -> None:
    engine = load_engine("vllm-0.24")
    assert engine.graph_limits(128) == (256, 256)
    assert engine.graph_limits(32) == (64, 64)
    assert engine.graph_limits(1024) == (512, 512)
    assert load_engine("unit").graph_limits(128) == (0, 0)


@pytest.mark.parametrize(
    ("key", "entry", "message"),
    [
        (
            "block_size",
            {"value": 1.5, "unit": "tokens", "mark": "assumed", "source": "x"},
            "must be a whole number, got 1.5",
        ),
        (
            "cpu_work",
            {"value": -1, "unit": "1", "mark": "assumed", "source": "x"},
            "must be a number >= 0 and <= 1000, got -1",
        ),
        ("cpu_work", {"value": 1, "unit": "s", "mark": "assumed", "source": "x"}, "must have unit '1'"),
        (
            "cpu_work",
            {"value": 1, "unit": "1", "mark": "guess", "source": "x"},
            "a mark of measured, fitted",
        ),
        ("cpu_work", 3, "must be {value, unit, source, mark}, got 3"),
        ("speed", 3, r"unknown keys \['speed'\]"),
    ],
)
def test_bad_engine_profiles_are_refused(key: str, entry: object, message: str) -> None:
    profile = yaml.safe_load(load_engine("vllm-0.24").path.read_text())
    profile[key] = entry
    with pytest.raises(ConfigError, match=message):
        parse_engine(profile, Path("mine.yaml"))


@pytest.mark.parametrize(
    ("key", "entry", "message"),
    [
        ("eager_cpu", {"value": 1, "unit": "s", "mark": "assumed", "source": "x"}, "eager_cpu must have unit 'ms'"),
        ("eager_cpu", {"value": -1, "unit": "ms", "mark": "assumed", "source": "x"}, "eager_cpu.value must be .* >= 0"),
        ("launch_layers", {"value": 0, "unit": "layers", "mark": "assumed", "source": "x"}, "whole number >= 1, got 0"),
        ("speed", 3, r"unknown keys \['speed'\]"),
        ("frontend_in", None, r"missing keys \['frontend_in'\]"),
    ],
)
def test_bad_host_profiles_are_refused(key: str, entry: object, message: str) -> None:
    profile = yaml.safe_load(load_host("measured").path.read_text())
    profile.pop(key, None)
    if entry is not None:
        profile[key] = entry
    with pytest.raises(ConfigError, match=message):
        parse_host(profile, Path("mine.yaml"))


def test_a_host_file_may_scale_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nmark: assumed\nscaled_from: measured\n"
        "cpu_scale: {value: 0.5, unit: '1', mark: assumed, source: 'a lone launch takes half as long'}\n"
    )
    engine, plain = load_engine("vllm-0.24"), host_times(load_host(), load_engine("vllm-0.24"))
    assert host_times(load_host(path), engine).eager_cpu_s == pytest.approx(plain.eager_cpu_s / 2)
    assert host_times(load_host(path).scaled(2), engine) == plain
    with pytest.raises(UnknownNameError, match="unknown host 'mine'; known: fast, measured, slow"):
        load_host("mine")


def test_intervals_widen_with_worse_profiles() -> None:
    widths = load_uncertainty()
    assert set(widths.half_width) == set(METRICS)
    low, high = widths.interval("ttft_mean_s", 1.0, "measured")
    wider = widths.interval("ttft_mean_s", 1.0, "datasheet")
    assert wider[0] < low < 1.0 < high < wider[1]
    with pytest.raises(UnknownNameError, match="unknown metric 'speed'"):
        widths.interval("speed", 1.0)


def test_extrapolation_is_said() -> None:
    assert extrapolations(load_gpu("h100-sxm"), 1, 128, 2048, 9000) == []
    gpu = load_gpu("b200")
    notes = extrapolations(gpu, 2, 512, 16384, 100_000)
    starts = (gpu.name, gpu.name, "batches above 128", "steps above 8192", "contexts above 32768")
    assert len(notes) == len(starts)
    assert all(note.startswith(start) for note, start in zip(notes, starts, strict=True))

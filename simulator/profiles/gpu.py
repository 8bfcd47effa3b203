"""GPUs: hwprofiles/gpu/*.yaml -> frozen `Gpu`. Every number there is {value, unit, source}; units checked.

A profile may also name the GPU it is `scaled_from` and a `time_scale`: the same GPU, whose work takes so many times as
long (what `servecast calibrate engine` writes).
"""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hwprofiles import GPU_DIR
from simulator.config import read_yaml, shown
from simulator.errors import ConfigError, UnknownNameError
from simulator.units import MIB

MARKS: Final = ("measured", "fitted", "datasheet", "textbook")
PEAK_DTYPES: Final = ("bf16", "fp16", "fp8", "int8", "fp4")

HOPPER: Final = 9.0
"""Compute capability of the Hopper generation."""
_UNITS: Final = {"memory": "MiB", "memory_bandwidth": "GB/s", "sm_count": "count",
                 "link_bandwidth": "GB/s per direction", "tdp": "W", "price": "USD/h"}
_TEXTS: Final = ("name", "vendor", "mark", "link_kind")
_OPTIONAL: Final = frozenset({"aliases", "compute_capability", "engine_runs", "measured"})
_SCALED: Final = frozenset({"name", "mark", "scaled_from", "time_scale"})
_KEYS: Final = frozenset({*_UNITS, *_TEXTS, "peak_dense", *_OPTIONAL})
_MOST: Final = 1e9
"""Largest accepted number of a profile, in its unit (MiB, GB/s, TFLOP/s, W, USD)."""
_MOST_SCALE: Final = 1000.0
_MOST_CAPABILITY: Final = 100.0


@dataclass(frozen=True)
class EngineRun:
    """A model, parallelism and engine that were run on a GPU; `model` and `engine` are names of profiles."""

    model: str
    tensor_parallel: int
    engine: str
    source: str
    pipeline_parallel: int = 1
    formats: tuple[str, ...] = ()   # number formats run besides the checkpoint's own: "fp8 weights", "fp8 KV"


@dataclass(frozen=True)
class Gpu:
    """One GPU as its profile has it: rates are peaks of the datasheet; `measured` holds fitted components."""

    name: str
    aliases: tuple[str, ...]
    vendor: str
    mark: str                          # one of MARKS: where the numbers that matter come from
    memory_mib: int                    # as CUDA reports it to the engine; nvidia-smi shows 0.5 to 1 % more
    memory_gbps: float                 # [GB/s]
    peak_tflops: Mapping[str, float] = field(hash=False)   # [TFLOP/s] by dtype, dense
    sm_count: int
    link_kind: str
    link_gbps: float                   # [GB/s] per direction
    tdp_w: float
    price_usd_h: float                 # an example to be overridden
    price_date: str
    sources: Mapping[str, str] = field(hash=False)         # field of the profile -> source
    measured: dict[str, object] = field(default_factory=dict, hash=False)
    engine_runs: tuple[EngineRun, ...] = ()                # what an engine was run with on this GPU
    path: Path = Path()
    compute_capability: float = 0.0                        # of CUDA, decides kernels; 0 where the profile does not say
    time_scale: float = 1.0                                # multiplies every time of its work: 2 is half as fast

    @property
    def memory_bytes(self) -> int:
        """[bytes] as CUDA reports it to the engine."""
        return self.memory_mib * MIB

    @property
    def bandwidth(self) -> float:
        """[B/s] of device memory, peak, at the profile's time scale."""
        return self.memory_gbps * 1e9 / self.time_scale

    @property
    def link_bandwidth(self) -> float:
        """[B/s] to the other GPUs, per direction, peak, at the profile's time scale."""
        return self.link_gbps * 1e9 / self.time_scale

    def compute_dtype(self, weight_dtype: str) -> str:
        """Format the products run in: that of the weights where the GPU has it, else bf16 (weight-only)."""
        return weight_dtype if weight_dtype in self.peak_tflops else "bf16"

    def peak_flops(self, weight_dtype: str) -> float:
        """[FLOP/s] dense peak for weights of a format (see `compute_dtype`), at the profile's time scale."""
        return self.peak_tflops[self.compute_dtype(weight_dtype)] * 1e12 / self.time_scale

    def slower(self, time_scale: float) -> "Gpu":
        """This GPU with every time of its work multiplied once more."""
        return dataclasses.replace(self, time_scale=self.time_scale * time_scale)

    @property
    def unverified(self) -> tuple[str, ...]:
        """Fields whose source is marked unverified."""
        return tuple(key for key, source in self.sources.items() if "(unverified" in source)


def list_gpus() -> tuple[Gpu, ...]:
    """All shipped GPUs, sorted by name."""
    return tuple(sorted((_load(path) for path in GPU_DIR.glob("*.yaml")), key=lambda gpu: gpu.name.lower()))


def over_pcie(gpu: Gpu) -> bool:
    """Whether its GPUs reach each other over PCIe."""
    return gpu.link_kind.startswith("PCIe")


def without_nvlink(gpu: Gpu) -> Gpu:
    """The GPU with its peers behind PCIe 5 x16 (32 GT/s, 64 GB/s per direction): curves of its own link left out."""
    if over_pcie(gpu):
        return gpu
    measured = {key: entry for key, entry in gpu.measured.items() if not key.startswith("all_reduce_") or
                key == "all_reduce_sync"}
    return dataclasses.replace(gpu, link_kind="PCIe 5.0 x16", link_gbps=64.0, measured=measured)


def load_gpu(name_or_path: str | Path) -> Gpu:
    """A shipped GPU by name, alias or file stem (case ignored), or any profile file by path ending in .yaml.

    Raises UnknownNameError with the known names, ConfigError for a profile that cannot be used.
    """
    text = str(name_or_path)
    if text.endswith((".yaml", ".yml")):
        return _load(Path(text))
    key = text.strip().lower()
    if (GPU_DIR / f"{key}.yaml").is_file():
        return _load(GPU_DIR / f"{key}.yaml")
    for gpu in list_gpus():
        if key in {gpu.name.lower(), *(alias.lower() for alias in gpu.aliases)}:
            return gpu
    raise UnknownNameError("GPU", text, [gpu.path.stem for gpu in list_gpus()])


@functools.cache
def _load(path: Path) -> Gpu:
    return parse_gpu(read_yaml(path, "GPU profile"), path)


def parse_gpu(profile: object, path: Path) -> Gpu:
    """A profile's content -> Gpu. Raises ConfigError naming file and key."""
    if not isinstance(profile, dict):
        raise ConfigError(f"{path}: a GPU profile is a mapping, got {type(profile).__name__}")
    if "scaled_from" in profile:
        return _slowed(profile, path)
    unknown = sorted(str(key) for key in profile if key not in _KEYS)
    missing = sorted(key for key in _KEYS - _OPTIONAL if key not in profile)
    if unknown or missing:
        raise ConfigError(f"{path}: unknown keys {shown(unknown)}, missing keys {missing}; accepted: {sorted(_KEYS)}; "
                          "servecast hardware NAME prints a profile to start from")
    numbers = {key: _number(profile[key], key, unit, path) for key, unit in _UNITS.items()}
    sources = {key: str(profile[key]["source"]) for key in _UNITS}
    peaks = _peaks(profile["peak_dense"], path, sources)
    _mark(profile["mark"], path)
    aliases = profile.get("aliases") or []
    if not isinstance(aliases, list) or not all(isinstance(alias, str | int) for alias in aliases):
        raise ConfigError(f"{path}: aliases must be a list of names, got {shown(aliases)}")
    measured = profile.get("measured") or {}
    if not isinstance(measured, dict):
        raise ConfigError(f"{path}: measured must be a mapping, got {type(measured).__name__}")
    return Gpu(
        name=str(profile["name"]), aliases=tuple(str(alias) for alias in aliases),
        vendor=str(profile["vendor"]), mark=str(profile["mark"]), memory_mib=int(numbers["memory"]),
        memory_gbps=numbers["memory_bandwidth"], peak_tflops=peaks, sm_count=int(numbers["sm_count"]),
        link_kind=str(profile["link_kind"]), link_gbps=numbers["link_bandwidth"], tdp_w=numbers["tdp"],
        price_usd_h=numbers["price"], price_date=str(profile["price"].get("date", "")), sources=sources,
        measured=measured, engine_runs=_engine_runs(profile.get("engine_runs") or [], path), path=path,
        compute_capability=_capability(profile.get("compute_capability", 0.0), path))


def _slowed(profile: Mapping[Any, Any], path: Path) -> Gpu:
    """The profile of a GPU `time_scale` times as slow as the one it is `scaled_from`."""
    unknown = sorted(str(key) for key in profile if key not in _SCALED)
    missing = sorted(_SCALED - set(profile))
    if unknown or missing:
        raise ConfigError(f"{path}: unknown keys {shown(unknown)}, missing keys {missing} of a profile that is "
                          f"scaled_from another; accepted: {sorted(_SCALED)}")
    _mark(profile["mark"], path)
    scale = _number(profile["time_scale"], "time_scale", "1", path, _MOST_SCALE)
    base = _base(str(profile["scaled_from"]), path)
    return dataclasses.replace(base.slower(scale), name=str(profile["name"]), aliases=(), mark=str(profile["mark"]),
                               sources={**base.sources, "time_scale": str(profile["time_scale"]["source"])}, path=path,
                               engine_runs=base.engine_runs if profile["mark"] == "measured" else ())


def _base(name: str, path: Path) -> Gpu:
    """The GPU that `path` is scaled from: a shipped one, or a file beside it that is not scaled itself."""
    if not name.endswith((".yaml", ".yml")):
        return load_gpu(name)
    content = read_yaml(path.parent / name, "GPU profile")
    if isinstance(content, dict) and "scaled_from" in content:
        raise ConfigError(f"{path}: scaled_from must name a profile that is not scaled itself, got {shown(name)}")
    return load_gpu(path.parent / name)


def _capability(value: object, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_CAPABILITY:
        raise ConfigError(f"{path}: compute_capability must be a number like 9.0, got {shown(value)}")
    return float(value)


def _mark(mark: object, path: Path) -> None:
    if mark not in MARKS:
        raise ConfigError(f"{path}: mark must be one of {', '.join(MARKS)}, got {shown(mark)}")


def _peaks(block: object, path: Path, sources: dict[str, str]) -> dict[str, float]:
    known = isinstance(block, dict) and set(block) <= set(PEAK_DTYPES) and {"bf16", "fp16"} & set(block)
    if not isinstance(block, dict) or not known:
        raise ConfigError(f"{path}: peak_dense must hold bf16 or fp16 and may hold {', '.join(PEAK_DTYPES)}, "
                          f"got {shown(block)}")
    for dtype, entry in block.items():
        _number(entry, f"peak_dense.{dtype}", "TFLOP/s", path)
        sources[f"peak_dense.{dtype}"] = str(entry["source"])
    peaks = {dtype: float(entry["value"]) for dtype, entry in block.items()}
    if "bf16" not in peaks:  # Volta, Turing
        peaks["bf16"] = peaks["fp16"]
        sources["peak_dense.bf16"] = f"the GPU has no bf16, models run in fp16: {block['fp16']['source']}"
    return peaks


def _engine_runs(rows: object, path: Path) -> tuple[EngineRun, ...]:
    """The runs a profile lists."""
    expected = "must be a list of {model, tensor_parallel, pipeline_parallel (if not 1), engine, source, formats}"
    needed = {"model", "tensor_parallel", "engine", "source"}
    if not isinstance(rows, list):
        raise ConfigError(f"{path}: engine_runs {expected}, got {shown(rows)}")
    for row in rows:
        if not isinstance(row, dict) or set(row) - {"pipeline_parallel", "formats"} != needed:
            raise ConfigError(f"{path}: engine_runs {expected}, got {shown(row)}")
        formats = row.get("formats", [])
        if not isinstance(formats, list) or not all(isinstance(each, str) for each in formats):
            raise ConfigError(f"{path}: engine_runs: formats must be a list of texts, got {shown(formats)}")
        for key in ("tensor_parallel", "pipeline_parallel"):
            value = row.get(key, 1)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{path}: engine_runs: {key} must be a whole number >= 1, got {shown(value)}")
    return tuple(EngineRun(str(row["model"]), row["tensor_parallel"], str(row["engine"]), str(row["source"]),
                           row.get("pipeline_parallel", 1), tuple(row.get("formats", []))) for row in rows)


def _number(entry: object, key: str, unit: str, path: Path, most: float = _MOST) -> float:
    """The value of a {value, unit, source} entry, unit as expected and value positive."""
    if not isinstance(entry, dict) or not {"value", "unit", "source"} <= set(entry):
        raise ConfigError(f"{path}: {key} must be {{value, unit, source}}, got {shown(entry)}")
    value = entry["value"]
    if entry["unit"] != unit:
        raise ConfigError(f"{path}: {key}.unit must be {unit!r}, got {shown(entry['unit'])}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise ConfigError(f"{path}: {key}.value must be a number > 0 and <= {most:g}, got {shown(value)}")
    if not str(entry["source"]).strip():
        raise ConfigError(f"{path}: {key}.source must not be empty")
    return float(value)

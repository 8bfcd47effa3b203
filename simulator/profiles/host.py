"""Hosts: hwprofiles/host/*.yaml -> frozen `Host`: what the CPU beside the GPUs takes to prepare, launch and deliver.

Launch and front-end times are a host's, not an engine's or a GPU's: the same engine on another host of equal GPUs
differs by up to a factor of two (docs/calibration.md). A profile holds them as measured with vLLM 0.24, or names the
host it is scaled from. `host_times` gives those of an engine that does more or less of the work.
"""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hwprofiles import HOST_DIR
from simulator.config import read_yaml, shown
from simulator.errors import ConfigError, UnknownNameError
from simulator.profiles.engine import MARKS, EngineProfile

REFERENCE: Final = "measured"
_LAYERS: Final = "launch_layers"
_QUANTISED: Final = "eager_quantised"
_FURTHER: Final = ("eager_latent_layer", "eager_mxfp4_layer")
"""Times that a profile may leave out: launches of kinds of models that its engines did not run."""
_MOST_MS: Final = 1e6
"""[ms] largest accepted time, 17 minutes."""
_MOST_SCALE: Final = 1000.0


@dataclass(frozen=True)
class HostTimes:
    """CPU times in seconds, of a model of `launch_layers` layers; the `_layer` times are added per further layer."""

    decode_prep_s: float  # before the GPU can start, pure decode (full graph)
    prefill_prep_s: float  # the same for a step with prefill
    launch_tail_s: float  # rest of the launch of a full graph
    sequence_cpu_s: float  # per scheduled sequence, before the GPU can start
    piecewise_cpu_s: float  # launch of a step in piecewise graphs, preparation included
    piecewise_layer_s: float  # of it per layer
    eager_cpu_s: float  # launch of a step without graphs, planned ahead of the GPU
    eager_cpu_sync_s: float  # the same without planning ahead
    decode_prep_worker_s: float  # decode_prep with worker processes (tensor parallelism)
    prefill_prep_worker_s: float  # prefill_prep with worker processes
    sequence_cpu_worker_s: float  # sequence_cpu with worker processes
    piecewise_cpu_worker_s: float  # piecewise_cpu with worker processes
    eager_cpu_worker_s: float  # launch of a step without graphs in a worker process, planned ahead of the GPU
    eager_cpu_worker_sync_s: float  # the same without planning ahead
    eager_cpu_worker_old_s: float  # the same by the older of two model runners
    eager_layer_s: float  # of it per layer
    eager_expert_layer_s: float  # on top of it per layer with experts
    eager_expert_layer_worker_s: float  # the same in worker processes, experts dealt out
    eager_lora_layer_s: float  # on top of it per layer with LoRA adapters
    eager_stall_s: float  # GPU idle per eager step planned ahead: some launches wait for the GPU
    stage_plan_s: float  # pipelines: the scheduler's part of a step
    stage_plan_sequence_s: float  # of it per scheduled sequence
    stage_sequence_s: float  # of a stage's worker per scheduled sequence
    stage_decode_s: float  # what its worker takes longer for a pure decode step than one of tensor parallelism
    stage_prefill_s: float  # the same for a step with prefill
    collective_launch_s: float  # per all-reduce launched without graphs
    frontend_in_s: float  # submission -> waiting queue
    frontend_each_s: float  # of it serial, per request: a burst queues here
    frontend_out_s: float  # step output -> client
    eager_latent_layer_s: float = 0.0  # of a launch without graphs per layer with latent attention, on top
    eager_mxfp4_layer_s: float = 0.0  # eager_expert_layer of experts in mxfp4, where that is longer
    eager_quantised: float = 1.0  # launch of a step without graphs with fp8 or 4-bit weights, relative to 16 bits
    launch_layers: int = 32  # layers of the model the launch times stand for

    def replace(self, **changes: float) -> "HostTimes":
        """A copy with some times changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


_TIMES: Final = tuple(f.name.removesuffix("_s") for f in dataclasses.fields(HostTimes)
                      if f.name not in (_LAYERS, _QUANTISED))
"""Keys of a profile that are times in ms."""
_LAUNCH: Final = tuple(key for key in _TIMES if key.startswith("eager"))
_FRONT: Final = ("frontend_in", "frontend_each", "frontend_out")


@dataclass(frozen=True)
class Host:
    """One host. `cpu_scale` multiplies all times: 2 is a CPU half as fast."""

    name: str
    mark: str
    times: HostTimes = field(hash=False)
    cpu_scale: float = 1.0
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    marks: Mapping[str, str] = field(default_factory=dict, hash=False)
    path: Path = Path()

    @property
    def known(self) -> bool:
        """Whether it is the user's own, measured or described in a file, and not a shipped one that stands for any."""
        return self.path.parent != HOST_DIR

    def scaled(self, cpu_scale: float) -> "Host":
        """This host with its CPU times multiplied once more."""
        return dataclasses.replace(self, cpu_scale=self.cpu_scale * cpu_scale)


def host_times(host: Host, engine: EngineProfile) -> HostTimes:
    """CPU times of `engine` on `host`."""
    changes = {}
    for key in _TIMES:
        work = engine.cpu_work
        if key in _LAUNCH:
            work = engine.launch_work
        elif key in _FRONT:
            work = engine.frontend_work
        changes[f"{key}_s"] = getattr(host.times, f"{key}_s") * host.cpu_scale * work
    return host.times.replace(**changes)


def list_hosts() -> tuple[Host, ...]:
    """All shipped hosts, fastest first."""
    hosts = (_load(path) for path in HOST_DIR.glob("*.yaml"))
    return tuple(sorted(hosts, key=lambda host: host.cpu_scale * host.times.eager_cpu_s))


def load_host(name_or_path: str | Path = REFERENCE) -> Host:
    """A shipped host by name (`fast`, `measured`, `slow`) or any profile by path ending in .yaml.

    Raises UnknownNameError with the known names, ConfigError for a profile that cannot be used.
    """
    text = str(name_or_path)
    if text.endswith((".yaml", ".yml")):
        return _load(Path(text))
    path = HOST_DIR / f"{text.strip().lower()}.yaml"
    if not path.is_file():
        raise UnknownNameError("host", text, [each.stem for each in HOST_DIR.glob("*.yaml")])
    return _load(path)


@functools.cache
def _load(path: Path) -> Host:
    return parse_host(read_yaml(path, "host profile"), path)


def parse_host(profile: object, path: Path) -> Host:
    """A profile's content -> Host. Raises ConfigError naming file and key."""
    if not isinstance(profile, dict):
        raise ConfigError(f"{path}: a host profile is a mapping, got {type(profile).__name__}")
    scaled = "scaled_from" in profile
    needed = {"name", "mark"} | ({"scaled_from", "cpu_scale"} if scaled else {*_TIMES, _LAYERS} - {*_FURTHER})
    accepted = needed if scaled else {*needed, *_FURTHER, _QUANTISED}
    unknown = sorted(str(key) for key in profile if key not in accepted)
    missing = sorted(key for key in needed if key not in profile)
    if unknown or missing:
        raise ConfigError(f"{path}: unknown keys {unknown}, missing keys {missing}; accepted: {sorted(accepted)}")
    if profile["mark"] not in MARKS:
        raise ConfigError(f"{path}: mark must be one of {', '.join(MARKS)}, got {profile['mark']!r}")
    keys = ("cpu_scale",) if scaled else tuple(key for key in (*_TIMES, _LAYERS, _QUANTISED) if key in profile)
    numbers = {key: _number(profile[key], key, path) for key in keys}
    about: dict[str, Any] = {
        "name": str(profile["name"]),
        "mark": str(profile["mark"]),
        "sources": {key: str(profile[key]["source"]) for key in keys},
        "marks": {key: str(profile[key]["mark"]) for key in keys},
        "path": path,
    }
    if scaled:
        base = load_host(str(profile["scaled_from"]))
        return Host(**about, times=base.times, cpu_scale=base.cpu_scale * numbers["cpu_scale"])
    times = {f"{key}_s": numbers.get(key, 0.0) * 1e-3 for key in _TIMES}
    return Host(**about, times=HostTimes(**times, launch_layers=int(numbers[_LAYERS]),
                                         eager_quantised=numbers.get(_QUANTISED, 1.0)))


def _number(entry: object, key: str, path: Path) -> float:
    """The value of a {value, unit, source, mark} entry in its unit."""
    unit = {"cpu_scale": "1", _QUANTISED: "1", _LAYERS: "layers"}.get(key, "ms")
    if not isinstance(entry, dict) or not {"value", "unit", "source", "mark"} <= set(entry):
        raise ConfigError(f"{path}: {key} must be {{value, unit, source, mark}}, got {entry!r}")
    if entry["unit"] != unit or entry["mark"] not in MARKS or not str(entry["source"]).strip():
        raise ConfigError(
            f"{path}: {key} must have unit {unit!r}, a mark of {', '.join(MARKS)} and a source, got {entry!r}"
        )
    value, most = entry["value"], _MOST_SCALE if key == "cpu_scale" else _MOST_MS
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ConfigError(f"{path}: {key}.value must be a number >= 0 and <= {most:g}, got {shown(value)}")
    if (key == "cpu_scale" and value == 0) or (key == _LAYERS and (value != int(value) or value < 1)):
        raise ConfigError(f"{path}: {key}.value must be {'> 0' if key == 'cpu_scale' else 'a whole number >= 1'}, "
                          f"got {shown(value)}")
    return float(value)

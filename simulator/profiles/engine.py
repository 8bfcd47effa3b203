"""Serving engines: hwprofiles/engine/*.yaml -> frozen `EngineProfile`.

A profile says how an engine behaves beside the GPU: its scheduling policy, how far it plans ahead, how much CPU
work it does per step, which batches have CUDA graphs, what memory it keeps back.
Every number there is `{value, unit, source, mark}`; a mark is measured, fitted, documented or assumed.
"""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from hwprofiles import ENGINE_DIR
from simulator.config import shown
from simulator.errors import ConfigError, UnknownNameError

MARKS: Final = ("measured", "fitted", "documented", "assumed")

_UNITS: Final[Mapping[str, tuple[str, float]]] = {
    "schedule_ahead": ("steps", 1),
    "block_size": ("tokens", 1),
    "gpu_memory_utilization": ("1", 1),
    "watermark": ("1", 1),
    "reserve_prompt": ("flag", 1),
    "prefix_caching": ("flag", 1),
    "worker_processes": ("flag", 1),
    "max_num_seqs": ("sequences", 1),
    "max_num_batched_tokens": ("tokens", 1),
    "graph_tokens_per_sequence": ("tokens", 1),
    "graph_tokens_max": ("tokens", 1),
    "cpu_work": ("1", 1),
    "launch_work": ("1", 1),
    "frontend_work": ("1", 1),
    "graph_layer_memory": ("MiB", 2**20),
    "workspace_per_hidden": ("KiB", 2**10),
}
"""Number -> (unit in the profile, factor to SI, bytes or counts)."""
_INTEGERS: Final = (
    "schedule_ahead",
    "block_size",
    "reserve_prompt",
    "prefix_caching",
    "worker_processes",
    "max_num_seqs",
    "max_num_batched_tokens",
    "graph_tokens_max",
)
_MOST: Final = {
    "schedule_ahead": 8,
    "block_size": 4096,
    "gpu_memory_utilization": 1,
    "watermark": 1,
    "reserve_prompt": 1,
    "prefix_caching": 1,
    "worker_processes": 1,
    "max_num_seqs": 65_536,
    "max_num_batched_tokens": 2**22,
    "graph_tokens_max": 2**22,
    "cpu_work": 1000,
    "launch_work": 1000,
    "frontend_work": 1000,
}
"""Largest accepted value of a number in its unit; 1e6 for all others."""
_TEXTS: Final = ("name", "version", "policy", "mark", "notes", "new_runner")
_OPTIONAL: Final = ("notes", "new_runner")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class EngineProfile:
    """Behaviour of one engine version. Memory in bytes. Its CPU times are the host's (simulator.profiles.host) times
    the work it does there."""

    name: str
    version: str
    policy: str  # default scheduling policy (policies.registry)
    mark: str
    schedule_ahead: int  # steps planned before the oldest output is seen
    block_size: int  # [tokens] per KV block
    gpu_memory_utilization: float  # share of the GPU's memory the engine may use
    watermark: float  # share of KV blocks kept free when admitting
    reserve_prompt: int  # 1: admit a request only when its whole prompt fits
    prefix_caching: int  # 1: blocks of earlier requests are used again where the tokens are the same
    worker_processes: int  # 1: with tensor parallelism the launch runs beside the scheduler
    max_num_seqs: int  # default batch limit
    max_num_batched_tokens: int  # [tokens] default token budget
    graph_tokens_per_sequence: float  # piecewise graphs up to so many tokens per sequence of the batch limit,
    graph_tokens_max: int  # [tokens] but no further than this; 0: no graphs
    cpu_work: float  # CPU work of a step before the GPU can start, and of graph launches, relative to vLLM 0.24
    launch_work: float  # that of a launch kernel by kernel
    frontend_work: float  # that of the front end
    graph_layer_memory_bytes: float  # kept back per layer and captured graph size
    workspace_per_hidden_bytes: float  # kept back per unit of hidden size: contexts, libraries, fragmentation
    notes: str = ""
    new_runner: str = ""  # model types that the newer of two model runners takes, "": there is one
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    marks: Mapping[str, str] = field(default_factory=dict, hash=False)
    path: Path = Path()

    def graph_limits(self, max_num_seqs: int) -> tuple[int, int]:
        """[tokens] the largest graph of (pure decode steps, steps with prefill) under a batch limit."""
        piecewise = min(int(self.graph_tokens_per_sequence * max_num_seqs), self.graph_tokens_max)
        return max(piecewise, min(max_num_seqs, self.graph_tokens_max)), piecewise

    def replace(self, **changes: object) -> "EngineProfile":
        """A copy with some fields changed, e.g. `schedule_ahead=0`."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def list_engines() -> tuple[EngineProfile, ...]:
    """All shipped engine profiles, sorted by name."""
    return tuple(
        sorted((_load(path) for path in ENGINE_DIR.glob("*.yaml")), key=lambda engine: engine.path.stem)
    )


def load_engine(name_or_path: str | Path) -> EngineProfile:
    """A shipped engine by file stem (`vllm-0.24`, also `vllm-0.24.0`) or any profile by path ending in .yaml.

    Raises UnknownNameError with the known names, ConfigError for a profile that cannot be used.
    """
    text = str(name_or_path)
    if text.endswith((".yaml", ".yml")):
        return _load(Path(text))
    key = text.strip().lower()
    for candidate in (key, key.rpartition(".")[0]):
        if candidate and (ENGINE_DIR / f"{candidate}.yaml").is_file():
            return _load(ENGINE_DIR / f"{candidate}.yaml")
    raise UnknownNameError("engine", text, [path.stem for path in ENGINE_DIR.glob("*.yaml")])


@functools.cache
def _load(path: Path) -> EngineProfile:
    try:
        with path.open(encoding="utf-8") as stream:
            profile = yaml.load(stream, Loader=_Loader)  # a safe loader in both cases
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a readable engine profile: {error}") from error
    return parse_engine(profile, path)


def parse_engine(profile: object, path: Path) -> EngineProfile:
    """A profile's content -> EngineProfile. Raises ConfigError naming file and key."""
    if not isinstance(profile, dict):
        raise ConfigError(f"{path}: an engine profile is a mapping, got {type(profile).__name__}")
    accepted = {*_UNITS, *_TEXTS}
    unknown = sorted(str(key) for key in profile if key not in accepted)
    missing = sorted(key for key in accepted - {*_OPTIONAL} if key not in profile)
    if unknown or missing:
        raise ConfigError(
            f"{path}: unknown keys {unknown}, missing keys {missing}; accepted: {sorted(accepted)}"
        )
    if profile["mark"] not in MARKS:
        raise ConfigError(f"{path}: mark must be one of {', '.join(MARKS)}, got {profile['mark']!r}")
    values: dict[str, Any] = {_field(key): _number(profile[key], key, path) for key in _UNITS}
    values |= {key: str(profile.get(key, "")) for key in _TEXTS}
    return EngineProfile(
        **values,
        sources={key: str(profile[key]["source"]) for key in _UNITS},
        marks={key: str(profile[key]["mark"]) for key in _UNITS},
        path=path,
    )


def _field(key: str) -> str:
    unit = _UNITS[key][0]
    return key + {"MiB": "_bytes", "KiB": "_bytes"}.get(unit, "")


def _number(entry: object, key: str, path: Path) -> float | int:
    """The value of a {value, unit, source, mark} entry in SI units; whole where the field is a count."""
    unit, factor = _UNITS[key]
    if not isinstance(entry, dict) or set(entry) != {"value", "unit", "source", "mark"}:
        raise ConfigError(f"{path}: {key} must be {{value, unit, source, mark}}, got {entry!r}")
    value = entry["value"]
    if entry["unit"] != unit or entry["mark"] not in MARKS or not str(entry["source"]).strip():
        raise ConfigError(
            f"{path}: {key} must have unit {unit!r}, a mark of {', '.join(MARKS)} and a source, got {entry!r}"
        )
    most = _MOST.get(key, 1e6)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ConfigError(f"{path}: {key}.value must be a number >= 0 and <= {most:g}, got {shown(value)}")
    if key in _INTEGERS:
        if value != int(value):
            raise ConfigError(f"{path}: {key}.value must be a whole number, got {value!r}")
        return int(value)
    return float(value) * factor

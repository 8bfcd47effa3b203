"""Serving engines: hwprofiles/engine/*.yaml -> frozen `EngineProfile`.

A profile says how an engine behaves beside the GPU: its scheduling policy, how far it plans ahead, how much CPU
work it does per step, which batches have CUDA graphs, what memory it keeps back.
Every number there is `{value, unit, source, mark}`; a mark is measured, fitted, documented or assumed. A profile
may name a `base`: what it does not say itself is assumed to be as there.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hwprofiles import ENGINE_DIR
from simulator.config import read_yaml, shown
from simulator.errors import ConfigError, UnknownNameError
from simulator.profiles.gpu import Gpu

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
    "large_memory": ("GiB", 2**30),
    "max_num_seqs_large": ("sequences", 1),
    "max_num_batched_tokens_large": ("tokens", 1),
    "graph_memory_counted": ("flag", 1),
    "graph_layer_memory": ("MiB", 2**20),
    "sampler_logit": ("bytes", 1),
    "workspace": ("GiB", 2**30),
    "compile_copies_table": ("flag", 1),
    "new_sampler_logit": ("bytes", 1),
    "collective_workspace": ("GiB", 2**30),
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
    "max_num_seqs_large",
    "max_num_batched_tokens_large",
    "graph_memory_counted",
    "graph_tokens_max",
    "compile_copies_table",
)
_OWN: Final = ("compile_copies_table", "new_sampler_logit", "collective_workspace")
"""Numbers that a profile need not have and does not take from its base: 0 where it does not say them."""
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
    "max_num_seqs_large": 65_536,
    "max_num_batched_tokens_large": 2**22,
    "graph_memory_counted": 1,
    "compile_copies_table": 1,
    "graph_tokens_max": 2**22,
    "cpu_work": 1000,
    "launch_work": 1000,
    "frontend_work": 1000,
}
"""Largest accepted value of a number in its unit; 1e6 for all others."""
ACCOUNTING: Final = {
    "profiled": "the share of the GPU's memory less weights, activations and workspace (vLLM)",
    "static": "the share of the GPU's memory less weights and workspace (SGLang, mem_fraction_static)",
    "free": "the share of what weights, activations and workspace leave free (TensorRT-LLM)",
}
"""How an engine sizes its KV cache from gpu_memory_utilization."""
OLDER_RUNNER_DRAFTS: Final = ("ngram",)
"""Of the ways to draft that are modelled, those that the newer model runner does not know (vLLM 0.24, VllmConfig
._get_v2_model_runner_unsupported_features)."""
_TEXTS: Final = ("name", "version", "policy", "mark", "notes", "accounting", "new_runner", "large_graphs")
_OPTIONAL: Final = ("notes", "base", "new_runner", "large_graphs")


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
    gpu_memory_utilization: float  # share of the GPU's memory the engine may use, see ACCOUNTING
    watermark: float  # share of KV blocks kept free when admitting
    reserve_prompt: int  # 1: admit a request only when its whole prompt fits
    prefix_caching: int  # 1: blocks of earlier requests are used again where the tokens are the same
    worker_processes: int  # 1: with tensor parallelism the launch runs beside the scheduler
    max_num_seqs: int  # default batch limit
    max_num_batched_tokens: int  # [tokens] default token budget
    large_memory_bytes: float  # from this GPU memory on, unless an A100, the two defaults below hold; 0: never
    max_num_seqs_large: int
    max_num_batched_tokens_large: int
    graph_tokens_per_sequence: float  # piecewise graphs up to so many tokens per sequence of the batch limit,
    graph_tokens_max: int  # [tokens] but no further than this; 0: no graphs
    cpu_work: float  # CPU work of a step before the GPU can start, and of graph launches, relative to vLLM 0.24
    launch_work: float  # that of a launch kernel by kernel
    frontend_work: float  # that of the front end
    graph_memory_counted: int  # 1: the engine takes the memory of its graphs off the KV cache
    graph_layer_memory_bytes: float  # per layer and graph
    sampler_logit_bytes: float  # per logit of the largest batch while sampling; of two model runners the older's
    workspace_bytes: float  # kept back besides: contexts, libraries, fragmentation
    compile_copies_table: int = 0  # 1: torch.compile copies the embedding table on a first start (profiles.reserve)
    new_sampler_logit_bytes: float = 0.0  # sampler_logit of the newer of two model runners
    collective_workspace_bytes: float = 0.0  # kept back beside the workspace with tensor parallelism
    accounting: str = "profiled"  # key of ACCOUNTING
    notes: str = ""
    new_runner: str = ""  # model classes that the newer of two model runners takes, "": there is one
    large_graphs: str = ""  # model classes and, behind each, the [tokens] of its largest graph whatever the batch limit
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    marks: Mapping[str, str] = field(default_factory=dict, hash=False)
    path: Path = Path()

    def graph_limits(self, max_num_seqs: int, architectures: Iterable[str] = ()) -> tuple[int, int]:
        """[tokens] the largest graph of (pure decode steps, steps with prefill) of a model of these classes under a
        batch limit."""
        if self.graph_tokens_max == 0:
            return 0, 0
        words = self.large_graphs.split()
        own = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        for each in set(architectures) & set(own):
            return max(own[each], max_num_seqs), own[each]
        piecewise = min(int(self.graph_tokens_per_sequence * max_num_seqs), self.graph_tokens_max)
        return max(piecewise, min(max_num_seqs, self.graph_tokens_max)), piecewise

    def older_runner(self, architectures: Iterable[str], drafts: str = "") -> bool:
        """Whether a model of these classes, with `drafts` proposed this way, runs on the older of two model runners."""
        if not self.new_runner:
            return False
        return drafts in OLDER_RUNNER_DRAFTS or not set(architectures) & set(self.new_runner.split())

    def default_limits(self, gpu: Gpu) -> tuple[int, int]:
        """(max_num_seqs, max_num_batched_tokens) that the server takes on `gpu` when none are set."""
        if 0 < self.large_memory_bytes <= gpu.memory_bytes and "a100" not in gpu.name.lower():
            return self.max_num_seqs_large, self.max_num_batched_tokens_large
        return self.max_num_seqs, self.max_num_batched_tokens

    def replace(self, **changes: object) -> "EngineProfile":
        """A copy with some fields changed, e.g. `schedule_ahead=0`."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def capture_sizes(limit: int) -> list[int]:
    """Token counts with a CUDA graph, up to `limit`: 1, 2, 4, then by 8 below 256 and by 16 from 256 on.

    vLLM's default list (vllm/config/compilation.py, cudagraph_capture_sizes): 35 sizes for 256, 11 for 64.
    """
    sizes = [*(1, 2, 4), *range(8, min(limit + 1, 256), 8), *range(256, limit + 1, 16)]
    return [size for size in sizes if size <= limit]


def list_engines() -> tuple[EngineProfile, ...]:
    """All shipped engine profiles, sorted by name."""
    return tuple(
        sorted((_load(path) for path in ENGINE_DIR.glob("*.yaml")),
               key=lambda engine: (engine.name, _number_of(engine.version)))
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
    known = sorted(path.stem for path in ENGINE_DIR.glob("*.yaml"))
    near = _nearest(key, known)
    raise UnknownNameError("engine", text, known, hint=f"the nearest is {near}" if near else "")


def _nearest(name: str, known: list[str]) -> str | None:
    """The known version of the same engine closest to the one in `name`, the older of two."""
    engine, _, version = name.rpartition("-") if re.search(r"-\d", name) else (name, "", "")
    same = [each for each in known if each == engine or each.rpartition("-")[0] == engine]
    if not same or not version:
        return max(same, key=lambda each: _number_of(each.rpartition("-")[2]), default=None)
    return min(same, key=lambda each: abs(_number_of(each.rpartition("-")[2]) - _number_of(version)))


def _number_of(version: str) -> float:
    """0.19.1 -> 19.01, 1.2 -> 1002: versions as numbers that keep their order."""
    parts = [int(part) for part in re.findall(r"\d+", version)[:3]] + [0, 0, 0]
    return parts[0] * 1000 + parts[1] + parts[2] / 100


@functools.cache
def _load(path: Path) -> EngineProfile:
    return parse_engine(_read(path), path)


def _read(path: Path) -> Any:
    return read_yaml(path, "engine profile")


def parse_engine(profile: object, path: Path) -> EngineProfile:
    """A profile's content -> EngineProfile. Raises ConfigError naming file and key."""
    if not isinstance(profile, dict):
        raise ConfigError(f"{path}: an engine profile is a mapping, got {type(profile).__name__}")
    accepted = {*_UNITS, *_TEXTS, "base"}
    profile = _based(profile, path)
    unknown = sorted(str(key) for key in profile if key not in accepted)
    missing = sorted(key for key in accepted - {*_OPTIONAL, *_OWN} if key not in profile)
    if unknown or missing:
        raise ConfigError(
            f"{path}: unknown keys {shown(unknown)}, missing keys {missing}; accepted: {sorted(accepted)}"
        )
    if profile["mark"] not in MARKS:
        raise ConfigError(f"{path}: mark must be one of {', '.join(MARKS)}, got {shown(profile['mark'])}")
    if profile["accounting"] not in ACCOUNTING:
        accepted_here = ", ".join(ACCOUNTING)
        raise ConfigError(f"{path}: accounting must be one of {accepted_here}, got {shown(profile['accounting'])}")
    numbers = [key for key in _UNITS if key in profile]
    values: dict[str, Any] = {_field(key): _number(profile[key], key, path) for key in numbers}
    values |= {key: str(profile.get(key, "")) for key in _TEXTS}
    return EngineProfile(
        **values,
        sources={key: str(profile[key]["source"]) for key in numbers},
        marks={key: str(profile[key]["mark"]) for key in numbers},
        path=path,
    )


def _based(profile: dict[Any, Any], path: Path) -> dict[Any, Any]:
    """The profile filled up from its `base`, whose numbers are marked assumed."""
    if "base" not in profile:
        return profile
    name = str(profile["base"])
    base_path = ENGINE_DIR / f"{name}.yaml"
    if not base_path.is_file():
        raise UnknownNameError("engine", name, [each.stem for each in ENGINE_DIR.glob("*.yaml")], f"{path}: base")
    base = read_yaml(base_path, "engine profile")
    if "base" in base:
        raise ConfigError(f"{path}: base must be a profile that has no base itself, got {name!r}")
    taken = {key: {**base[key], "mark": "assumed", "source": f"assumed as for {name}"}
             for key in _UNITS if key not in _OWN}
    return {**taken, "policy": base["policy"], "accounting": base["accounting"], **profile}


def _field(key: str) -> str:
    unit = _UNITS[key][0]
    return key + {"MiB": "_bytes", "GiB": "_bytes", "bytes": "_bytes"}.get(unit, "")


def _number(entry: object, key: str, path: Path) -> float | int:
    """The value of a {value, unit, source, mark} entry in SI units; whole where the field is a count."""
    unit, factor = _UNITS[key]
    if not isinstance(entry, dict) or set(entry) != {"value", "unit", "source", "mark"}:
        raise ConfigError(f"{path}: {key} must be {{value, unit, source, mark}}, got {shown(entry)}")
    value = entry["value"]
    if entry["unit"] != unit or entry["mark"] not in MARKS or not str(entry["source"]).strip():
        raise ConfigError(
            f"{path}: {key} must have unit {unit!r}, a mark of {', '.join(MARKS)} and a source, got {shown(entry)}"
        )
    most = _MOST.get(key, 1e6)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ConfigError(f"{path}: {key}.value must be a number >= 0 and <= {most:g}, got {shown(value)}")
    if key in _INTEGERS:
        if value != int(value):
            raise ConfigError(f"{path}: {key}.value must be a whole number, got {value!r}")
        return int(value)
    return float(value) * factor

"""What a plan asks: workload, service levels, candidates, prices and how hard to look, as typed YAML.

`load_plan` is the door. Errors name file, line, key, value and what is accepted.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from simulator.config import Document, Section, placed, validate
from simulator.errors import ServecastError
from simulator.planning.names import check_names, gpu_name, scenario_keys
from simulator.planning.slo import SloSpec
from simulator.scenario.limits import asked_back
from simulator.scenario.spec import EngineSpec, HostSpec, KvSpec, Scenario, scenario_from
from simulator.workload.spec import parse_workload

OBJECTIVES: Final = ("min_cost", "min_gpus", "max_goodput_per_gpu", "min_energy")
MAX_REPLICAS: Final = 4096


class ReplicaRange(Section):
    """Serving replicas that may be tried, both ends included."""

    min: int = Field(default=1, ge=1, le=MAX_REPLICAS)
    max: int = Field(default=64, ge=1, le=MAX_REPLICAS)

    @model_validator(mode="after")
    def _ordered(self) -> "ReplicaRange":
        if self.max < self.min:
            raise ValueError(f"replicas.max must be >= replicas.min ({self.min}), got {self.max}")
        return self


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str | int | float) else tuple(value) if isinstance(value, list) else value


class Candidates(Section):
    """Every combination of these is a candidate. A single value may stand for a list of one."""

    gpu: tuple[str, ...] = ("h100-sxm",)
    tensor_parallel: tuple[int, ...] = (1,)
    policy: tuple[str | None, ...] = (None,)
    max_num_seqs: tuple[int | None, ...] = (None,)
    max_num_batched_tokens: tuple[int | None, ...] = (None,)
    weight_dtype: tuple[str, ...] = ("bf16",)
    kv_dtype: tuple[str, ...] = ("bf16",)
    router: tuple[str, ...] = ("round_robin",)
    replicas: ReplicaRange | tuple[int, ...] = ReplicaRange()
    total_gpus: tuple[int, ...] | None = Field(default=None, description="only layouts of exactly these sizes")

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        return {k: _listed(v) for k, v in data.items()} if isinstance(data, Mapping) else data

    @field_validator("gpu", mode="after")
    @classmethod
    def _own_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(gpu_name(name) for name in value)

    @field_validator("*", mode="after")
    @classmethod
    def _filled(cls, value: Any) -> Any:
        if isinstance(value, tuple):
            if not value:
                raise ValueError("must hold at least one value")
            if any(isinstance(v, int) and v < 1 for v in value):
                raise ValueError(f"must be >= 1, got {min(v for v in value if isinstance(v, int))}")
            if len(set(value)) < len(value):
                raise ValueError(f"must not repeat a value, got {list(value)}")
        return value

    def allowed(self, tensor_parallel: int) -> tuple[int, ...]:
        """Numbers of serving replicas to choose from, rising."""
        given = self.replicas
        counts = range(given.min, given.max + 1) if isinstance(given, ReplicaRange) else sorted(given)
        if self.total_gpus is None:
            return tuple(counts)
        return tuple(n for n in counts if n * tensor_parallel in self.total_gpus)


class SearchSpec(Section):
    """How hard to look."""

    confidence: float = Field(default=0.9, gt=0.5, lt=1)
    replications: int = Field(default=4, ge=2, le=64)
    most_replications: int = Field(default=16, ge=2, le=256, description="added until every level is clear")
    max_simulations: int = Field(default=2000, ge=1)
    calibration_error: float | None = Field(default=None, ge=0, lt=1, description="relative error of step times")
    max_rate_scale: float = Field(default=1024.0, gt=1, description="where the search for the wall ends")


class PlanSpec(Section):
    """One question to the planner, whole."""

    name: str = "plan"
    description: str = ""
    seed: int = Field(default=0, ge=0)
    workload: dict[str, Any]
    growth: float = Field(default=1.0, gt=0, le=1000, description="traffic as a multiple of the workload's")
    model: str = "llama-3.1-8b"
    engine: EngineSpec = EngineSpec()
    host: HostSpec = HostSpec()
    kv: KvSpec = KvSpec()
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    step_s: float | None = Field(default=None, ge=0, description="time of every step [s]; gpu: unit only")
    max_model_len: int | None = Field(default=None, ge=2)
    cost_model: Literal["calibrated", "roofline"] = "calibrated"
    slo: SloSpec
    candidates: Candidates = Candidates()
    prices: dict[str, float] = Field(default_factory=dict, description="USD per GPU and hour, by GPU name")
    survive: int = Field(default=0, ge=0, description="replicas that may fail with the SLO still met")
    objective: Literal["min_cost", "min_gpus", "max_goodput_per_gpu", "min_energy"] = "min_cost"
    warmup_fraction: float = Field(default=0.0, ge=0, lt=1)
    search: SearchSpec = SearchSpec()
    _base: Path = PrivateAttr(default=Path())

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            short = ("engine", "host")
            return {k: {"name": v} if k in short and isinstance(v, str) else v for k, v in data.items()}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> "PlanSpec":
        for gpu, price in self.prices.items():
            if gpu_name(gpu) not in self.candidates.gpu:
                raise ValueError(
                    f"prices.{gpu} has no effect: no such GPU among candidates.gpu ({', '.join(self.candidates.gpu)})"
                )
            if not price > 0:
                raise ValueError(f"prices.{gpu} must be > 0, got {price}")
        for key, metric, limit in self.slo.written():
            question = asked_back(key, metric, limit)
            if question and "unit" not in self.candidates.gpu:
                raise ValueError(question)
        if self.step_s is not None and self.candidates.gpu != ("unit",):
            raise ValueError("step_s has no effect on a real GPU; it belongs to candidates.gpu: unit")
        return self

    @property
    def base(self) -> Path:
        """Folder that relative paths are taken from."""
        return self._base


@dataclass(frozen=True)
class Candidate:
    """One configuration of a replica and its router; how many of them is the question."""

    gpu: str
    tensor_parallel: int
    policy: str | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    weight_dtype: str
    kv_dtype: str
    router: str

    @property
    def label(self) -> str:
        """Short text that tells candidates apart."""
        parts = [
            self.gpu,
            f"TP{self.tensor_parallel}" if self.tensor_parallel > 1 else "",
            self.policy or "",
            f"seqs {self.max_num_seqs}" if self.max_num_seqs else "",
            f"tokens {self.max_num_batched_tokens}" if self.max_num_batched_tokens else "",
            self.weight_dtype if self.weight_dtype != "bf16" else "",
            f"{self.kv_dtype} KV" if self.kv_dtype != "bf16" else "",
            self.router.replace("_", " ") if self.router != "round_robin" else "",
        ]
        return ", ".join(part for part in parts if part)


def candidates_of(spec: PlanSpec) -> tuple[Candidate, ...]:
    """Every combination, in the order of the lists."""
    c = spec.candidates
    grid = itertools.product(
        c.gpu,
        c.tensor_parallel,
        c.policy,
        c.max_num_seqs,
        c.max_num_batched_tokens,
        c.weight_dtype,
        c.kv_dtype,
        c.router,
    )
    return tuple(Candidate(*point) for point in grid)


def scenario_of(spec: PlanSpec, candidate: Candidate, replicas: int = 1) -> Scenario:
    """The simulation of a fleet of `replicas`. Raises ConfigError for a value that is not accepted."""
    hardware: dict[str, Any] = {
        "gpu": candidate.gpu,
        "tensor_parallel": candidate.tensor_parallel,
        "weight_dtype": candidate.weight_dtype,
        "kv_dtype": candidate.kv_dtype,
    }
    if spec.gpu_memory_utilization is not None:
        hardware["gpu_memory_utilization"] = spec.gpu_memory_utilization
    if spec.step_s is not None:
        hardware["step_s"] = spec.step_s
    policy = {k: getattr(candidate, k) for k in ("max_num_seqs", "max_num_batched_tokens")}
    policy = {k: v for k, v in policy.items() if v is not None}
    if candidate.policy:
        policy["name"] = candidate.policy
    data: dict[str, Any] = {
        "name": f"{spec.name}: {candidate.label}",
        "seed": spec.seed,
        "workload": spec.workload,
        "model": spec.model,
        "hardware": hardware,
        "engine": spec.engine.model_dump(),
        "host": spec.host.model_dump(),
        "kv": spec.kv.model_dump(),
        "policy": policy,
        "cluster": {"replicas": replicas, "router": candidate.router},
        "cost_model": spec.cost_model,
        "slo": {f"{m}_s": v for m, v in spec.slo.request_limits().items()},
        "warmup_fraction": spec.warmup_fraction,
    }
    if spec.max_model_len is not None:
        data["max_model_len"] = spec.max_model_len
    return scenario_from(data, spec.base, spec.name)


def load_plan(path: str | Path, overrides: Iterable[str] = ()) -> PlanSpec:
    """Read a plan file; `overrides` are `key=value` assignments that beat it. Raises ConfigError."""
    return _finish(Document.of_file(path, overrides), Path(path).parent)


def plan_from(data: Mapping[str, Any], base: str | Path = ".", name: str = "plan") -> PlanSpec:
    """A plan from plain data. Raises ConfigError."""
    return _finish(Document.of_data(data, name), Path(base))


def _finish(document: Document, base: Path) -> PlanSpec:
    scenario_keys(document)
    _drop_prices(document)
    spec = validate(PlanSpec, document)
    spec._base = base
    path = base / spec.model
    model: Path | str = path if path.suffix == ".json" or path.is_dir() else spec.model
    named = {f"candidates.{key}": getattr(spec.candidates, key) for key in ("gpu", "policy", "router")}
    named |= {f"candidates.{key}": getattr(spec.candidates, key) for key in ("weight_dtype", "kv_dtype")}
    host = base / spec.host.name
    named |= {"host.name": [host if host.suffix in (".yaml", ".yml") and host.is_file() else spec.host.name]}
    check_names(document, model, named | {"engine.name": [spec.engine.name], "model": [spec.model]})
    try:
        parse_workload(spec.workload, base)
    except ServecastError as error:
        raise placed(document, error, "workload") from None
    return spec


def _drop_prices(document: Document) -> None:
    """`--set candidates.gpu=...` leaves prices of the other GPUs in the file: they are not asked for then."""
    candidates, prices = document.data.get("candidates"), document.data.get("prices")
    if ("candidates", "gpu") in document.overridden and isinstance(candidates, dict) and isinstance(prices, dict):
        wanted = {gpu_name(str(name)) for name in _listed(candidates["gpu"]) or ()}
        document.data["prices"] = {k: v for k, v in prices.items() if gpu_name(str(k)) in wanted}

"""What a plan asks: workload, service levels, candidates, prices and how hard to look, as typed YAML.

`load_plan` is the door. Errors name file, line, key, value and what is accepted.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from simulator.config import Document, Section, placed, shown, validate
from simulator.errors import ConfigError, ServecastError
from simulator.planning.flexible import PlanSpotSpec, ScaledSpec
from simulator.planning.names import check_names, check_prices, gpu_name, scenario_keys
from simulator.planning.price_list import DEFAULT_GPU, drop_prices
from simulator.planning.slo import SloSpec
from simulator.planning.unlike import BesideSpec, check_beside
from simulator.profiles.beside import beside
from simulator.scenario.limits import LONGEST_S, asked_back
from simulator.scenario.sections import EngineSpec, HostSpec, KvSpec, LinkSpec
from simulator.workload.spec import parse_workload

WITHIN_BUDGET: Final = ("max_traffic", "best_slo")
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

    gpu: tuple[str, ...] = (DEFAULT_GPU,)
    tensor_parallel: tuple[int, ...] = (1,)
    policy: tuple[str | None, ...] = (None,)
    max_num_seqs: tuple[int | None, ...] = (None,)
    max_num_batched_tokens: tuple[int | None, ...] = (None,)
    weight_dtype: tuple[str, ...] = ("bf16",)
    kv_dtype: tuple[str, ...] = ("bf16",)
    router: tuple[str, ...] = ("round_robin",)
    model: tuple[str | None, ...] = (None,)
    prefix_caching: tuple[bool | None, ...] = (None,)
    expert_parallel: tuple[bool, ...] = (False,)
    draft_tokens: tuple[int | None, ...] = Field(default=(None,), description="drafted a step by engine.speculation, "
                                                 "0: none")
    prefill_replicas: tuple[int, ...] = Field(default=(0,), description="of the fleet's, so many compute prompts and "
                                              "the rest go on from there; 0: each does both")
    tbt_s: tuple[float | None, ...] = Field(default=(None,), description="[s] between tokens, kept by policy sarathi; "
                                            "the other policies go without")
    pipeline_parallel: tuple[int, ...] = Field(default=(1,), description="stages of tensor_parallel GPUs each that the "
                                               "model's layers are dealt out to")
    max_loras: tuple[int | None, ...] = Field(default=(None,), description="slots of engine.lora in GPU "
                                              "memory, at least one an adapter")
    beside: tuple[BesideSpec | None, ...] = Field(default=(None,), description="other replicas behind the same router; "
                                                  "replicas then counts the candidate's own")
    replicas: ReplicaRange | tuple[int, ...] = ReplicaRange()
    total_gpus: tuple[int, ...] | None = Field(default=None, description="only layouts of exactly these sizes")

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {k: (v,) if k == "beside" and isinstance(v, Mapping) else _listed(v) for k, v in data.items()}

    @field_validator("gpu", mode="after")
    @classmethod
    def _own_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(gpu_name(name) for name in value)

    @field_validator("*", mode="after")
    @classmethod
    def _filled(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, tuple):
            if not value:
                raise ValueError("must hold at least one value")
            counts = [v for v in value if isinstance(v, int) and not isinstance(v, bool)]
            if info.field_name == "tbt_s" and not all(v is None or 0 < v <= LONGEST_S for v in value):
                raise ValueError(f"must be numbers of seconds > 0, got {list(value)}")
            least = 0 if info.field_name in ("draft_tokens", "prefill_replicas") else 1
            if counts and min(counts) < least:
                raise ValueError(f"must be >= {least}, got {min(counts)}")
            most = {"replicas": MAX_REPLICAS, "max_loras": 1024}.get(info.field_name or "")
            if counts and most and max(counts) > most:
                raise ValueError(f"must be <= {most}, got {shown(max(counts))}")
            if len(set(value)) < len(value):
                twice = next(v for k, v in enumerate(value) if v in value[:k])
                raise ValueError(f"must not repeat a value, got {getattr(twice, 'label', twice)} twice")
        return value

    @property
    def gpus_beside(self) -> tuple[str, ...]:
        """GPUs of other replicas whose price is looked up."""
        return tuple(each.gpu for each in self.beside if each is not None and each.price is None)

    def allowed(self, gpus: int, more_than: int = 0, beside: BesideSpec | None = None) -> tuple[int, ...]:
        """Numbers of serving replicas of `gpus` each to choose from, rising, those `more_than` some; with others beside
        them the numbers of both, from none of its own on where no least number is given."""
        given, others, taken = self.replicas, 0, 0
        counts = range(given.min, given.max + 1) if isinstance(given, ReplicaRange) else sorted(given)
        if beside is not None:
            others, taken = beside.replicas, beside.gpus
            if isinstance(given, ReplicaRange) and "min" not in given.model_fields_set:
                counts = range(given.max + 1)
        elif more_than:
            counts = [n for n in counts if n > more_than]
        return tuple(n + others for n in counts if self.total_gpus is None or n * gpus + taken in self.total_gpus)


class SearchSpec(Section):
    """How hard to look."""

    confidence: float = Field(default=0.9, gt=0.5, lt=1)
    replications: int = Field(default=4, ge=2, le=64)
    most_replications: int = Field(default=16, ge=2, le=256, description="added until every level is clear")
    max_simulations: int = Field(default=2000, ge=1)
    calibration_error: float | None = Field(default=None, ge=0, lt=1, description="relative error of step times")
    batch_limits: bool = Field(default=True, description="try other max_num_seqs and max_num_batched_tokens for the "
                               "leading candidates, where candidates does not name them")
    max_rate_scale: float = Field(default=1024.0, gt=1, description="where the search for the wall ends")


class BudgetSpec(Section):
    """What there is to spend, spares included: dollars an hour, GPUs, or replicas that are there already."""

    usd_per_hour: float | None = Field(default=None, gt=0, le=1e9)
    gpus: int | None = Field(default=None, ge=1, le=2**20)
    replicas: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)

    @model_validator(mode="after")
    def _one(self) -> "BudgetSpec":
        given = [name for name in ("usd_per_hour", "gpus", "replicas") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"budget must hold one of usd_per_hour, gpus, replicas; got {', '.join(given) or 'none'}")
        return self


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
    link: LinkSpec | None = Field(default=None, description="over which candidates.prefill_replicas send KV")
    step_s: float | None = Field(default=None, ge=0, description="time of every step [s]; gpu: unit only")
    max_model_len: int | None = Field(default=None, ge=2)
    cost_model: Literal["calibrated", "roofline"] = "calibrated"
    slo: SloSpec
    candidates: Candidates = Candidates()
    prices: dict[str, float] = Field(default_factory=dict, description="USD per GPU and hour, by GPU name")
    reserved_prices: dict[str, float] = Field(default_factory=dict, description="USD per GPU and hour, of GPUs that "
                                              "are paid for every hour; prices are then on demand")
    autoscale: ScaledSpec | None = Field(default=None, description="an autoscaled fleet beside the fixed one")
    spot: PlanSpotSpec | None = Field(default=None, description="a fleet partly on spot capacity beside the fixed one")
    survive: int = Field(default=0, ge=0, lt=MAX_REPLICAS, description="replicas that may fail with the SLO still met")
    objective: Literal["min_cost", "min_gpus", "max_goodput_per_gpu", "min_energy", "max_traffic", "best_slo"] = (
        "min_cost"
    )
    budget: BudgetSpec | None = Field(default=None, description="for objective max_traffic or best_slo")
    growth_pct_per_month: tuple[float, ...] = Field(default=(), description="of the step table of a budget")
    warmup_fraction: float = Field(default=0.0, ge=0, lt=1)
    search: SearchSpec = SearchSpec()
    _base: Path = PrivateAttr(default=Path())

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        data = {k: {"name": v} if k in ("engine", "host") and isinstance(v, str) else v for k, v in data.items()}
        if isinstance(data.get("growth_pct_per_month"), list | int | float):
            data["growth_pct_per_month"] = _listed(data["growth_pct_per_month"])
        return data if data.get("budget") is None or "objective" in data else {**data, "objective": WITHIN_BUDGET[0]}

    @model_validator(mode="after")
    def _consistent(self) -> "PlanSpec":
        if (self.budget is None) != (self.objective not in WITHIN_BUDGET):
            wants = "needs a budget" if self.budget is None else f"and budget: accepted is {' or '.join(WITHIN_BUDGET)}"
            raise ValueError(f"objective {self.objective} {wants}")
        if self.growth_pct_per_month and (self.budget is None or min(self.growth_pct_per_month) <= 0):
            raise ValueError("growth_pct_per_month must be > 0, and belongs to a budget")
        for key in ("prices", "reserved_prices"):
            check_prices(key, getattr(self, key), self.candidates.gpu + self.candidates.gpus_beside)
        if self.reserved_prices and self.budget is not None:
            raise ValueError("reserved_prices has no effect with a budget")
        if self.reserved_prices and max(self.candidates.prefill_replicas):
            raise ValueError("reserved_prices is not modelled with candidates.prefill_replicas")
        for key, metric, limit in self.slo.written():
            question = asked_back(key, metric, limit)
            if question and "unit" not in self.candidates.gpu:
                raise ValueError(question)
        self._check_spares()
        self._check_drafts()
        self._check_adapters()
        self._check_split()
        check_beside(self.candidates.beside, self.candidates.router, {
            "candidates.prefill_replicas": max(self.candidates.prefill_replicas), "survive": self.survive,
            "autoscale": self.autoscale, "spot": self.spot, "reserved_prices": self.reserved_prices})
        self._check_pace()
        self._check_flexible()
        kinds = {*self.candidates.gpu, *(each.gpu for each in self.candidates.beside if each is not None)}
        if self.step_s is not None and kinds != {"unit"}:
            raise ValueError("step_s has no effect on a real GPU; it belongs to candidates.gpu: unit")
        return self

    def _check_spares(self) -> None:
        given = self.candidates.replicas
        most = given.max if isinstance(given, ReplicaRange) else max(given)
        if most + self.survive > MAX_REPLICAS:
            raise ValueError(f"survive must be <= {MAX_REPLICAS - most}: candidates.replicas goes to {most}, and a "
                             f"fleet has at most {MAX_REPLICAS} replicas, got {self.survive}")

    def _check_drafts(self) -> None:
        counts = [n for n in self.candidates.draft_tokens if n is not None]
        drafts = self.engine.speculation
        if counts and drafts is None:
            raise ValueError("candidates.draft_tokens needs engine.speculation, which says who drafts and how many "
                             "drafts are right")
        if drafts is not None:
            given = {0, drafts.tokens} if drafts.tokens_per_step is not None else range(drafts.tokens + 1)
            wrong = next((n for n in counts if n not in given), None)
            if wrong is not None:
                raise ValueError(f"candidates.draft_tokens: engine.speculation does not say how many of {wrong} drafts "
                                 f"are right; accepted: {', '.join(map(str, given))}")

    def _check_adapters(self) -> None:
        counts = [n for n in self.candidates.max_loras if n is not None]
        lora = self.engine.lora
        if counts and lora is None:
            raise ValueError("candidates.max_loras needs engine.lora, which says how many adapters requests ask for")
        if counts and lora is not None and min(counts) < lora.adapters:
            raise ValueError(f"candidates.max_loras must be >= engine.lora.adapters ({lora.adapters}; loading them in "
                             f"turn is not modelled), got {min(counts)}")

    def _check_split(self) -> None:
        split = max(self.candidates.prefill_replicas) > 0
        if split != (self.link is not None):
            raise ValueError("link has no effect without candidates.prefill_replicas" if self.link else
                             "candidates.prefill_replicas needs link: {gb_per_s: ..., latency_s: ...}, which sends KV")
        if split and self.survive:
            raise ValueError("survive is not modelled with candidates.prefill_replicas")

    def _check_pace(self) -> None:
        paced = "sarathi" in self.candidates.policy
        if paced != (self.candidates.tbt_s != (None,)) or (paced and None in self.candidates.tbt_s):
            raise ValueError("candidates.policy sarathi needs candidates.tbt_s, the time between tokens" if paced
                             else "candidates.tbt_s has no effect without candidates.policy sarathi")

    def _check_flexible(self) -> None:
        for key in ("autoscale", "spot"):
            if getattr(self, key) is None:
                continue
            if self.budget is not None:
                raise ValueError(f"{key} is not modelled with a budget")
            if max(self.candidates.prefill_replicas):
                raise ValueError(f"{key} is not modelled with candidates.prefill_replicas")
        if self.spot is not None and self.survive:
            raise ValueError("spot is not modelled with survive: replicas that are taken back are lost already")
        if self.autoscale is not None and self.survive and self.autoscale.min <= self.survive:
            raise ValueError(f"autoscale.min must be > survive ({self.survive}), so that somebody is left, got "
                             f"{self.autoscale.min}")
        if self.autoscale is not None and self.spot is not None:
            raise ValueError("spot is not modelled with autoscale: the autoscaler would order replicas in place of "
                             "those taken back, at the price on demand; ask for each in a plan of its own")
        if self.spot is not None:
            check_prices("spot.prices", self.spot.prices, self.candidates.gpu)

    @property
    def base(self) -> Path:
        """Folder that relative paths are taken from."""
        return self._base


def load_plan(path: str | Path, overrides: Iterable[str] = ()) -> PlanSpec:
    """Read a plan file; `overrides` are `key=value` assignments that beat it. Raises ConfigError."""
    document = Document.of_file(path, overrides)
    if "deployments" in document.data:
        raise ConfigError(f"{document.where(('deployments',))}: deployments are planned by `servecast plan` "
                          "(planning.deployments); here a plan of one model is accepted")
    return plan_of(document, Path(path).parent)


def plan_from(data: Mapping[str, Any], base: str | Path = ".", name: str = "plan") -> PlanSpec:
    """A plan from plain data. Raises ConfigError."""
    return plan_of(Document.of_data(data, name), Path(base))


def plan_of(document: Document, base: Path) -> PlanSpec:
    """The plan that a document holds, names looked up. Raises ConfigError."""
    scenario_keys(document)
    drop_prices(document)
    spec = validate(PlanSpec, document)
    spec._base = base
    named = {f"candidates.{key}": getattr(spec.candidates, key) for key in ("gpu", "policy", "router")}
    named |= {f"candidates.{key}": getattr(spec.candidates, key) for key in ("weight_dtype", "kv_dtype")}
    others = [each for each in spec.candidates.beside if each is not None]
    named |= {f"candidates.beside.{key}": [getattr(each, key) for each in others]
              for key in ("gpu", "weight_dtype", "kv_dtype")}  # fmt: skip
    named |= {"host.name": [beside(base, spec.host.name)], "engine.name": [spec.engine.name], "model": [spec.model]}
    check_names(document, base, named | {"candidates.model": spec.candidates.model})
    try:
        parse_workload(spec.workload, base)
    except ServecastError as error:
        raise placed(document, error, "workload") from None
    return spec

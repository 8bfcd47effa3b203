"""A scenario: what is simulated, as typed YAML. `load_scenario` is the door; every key is listed here.

Everything not given follows the engine profile (policy, batch limits, block size, memory share). An option
that has no effect under the chosen policy is refused, not ignored.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PrivateAttr, model_validator

from policies.registry import Policy, policy_named
from policies.routers import ROUTERS
from simulator.config import SHORT_FORMS, Document, Section, placed, validate
from simulator.errors import ConfigError, ServecastError, UnknownNameError
from simulator.scenario.limits import LONGEST_S, RequestLimits, asked_back
from simulator.scenario.speculation import SpeculationSpec
from simulator.state import LARGEST_COUNT
from simulator.workload.build import inline_trace
from simulator.workload.spec import Inline, Workload, parse_workload

LOOKED_UP = ("workload", "policy", "model", "engine.name", "engine.speculation", "host.name", "hardware.gpu",
             "hardware.weight_dtype", "hardware.kv_dtype", "hardware.tensor_parallel", "max_model_len",
             "hardware.expert_parallel", "hardware.expert_skew", "hardware.expert_shares", "kv.prefix_caching",
             "policy.file")
"""Keys whose values are looked up or read later (setup.prepare, build_workload); their lines are kept for the
messages."""
MOST: Final = 2**40
"""Largest accepted count of requests: products with other counts stay inside int64."""


class LoadSpec(Section):
    """How clients submit. open: at the trace's times; closed: `width` in flight; grouped: `width` at a time,
    the next group when every request of the last has ended."""

    kind: Literal["open", "closed", "grouped"] = "open"
    width: int = Field(default=1, ge=1, le=MOST)


class HardwareSpec(Section):
    """One replica's GPUs and number formats."""

    gpu: str = "h100-sxm"
    tensor_parallel: int = Field(default=1, ge=1)
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    expert_parallel: bool = Field(default=False, description="deal whole experts out to the tensor-parallel GPUs "
                                  "instead of splitting each")
    expert_skew: float = Field(default=0.0, ge=0, le=4, description="exponent of Zipf's law for how often experts are "
                               "picked, 0: all alike")
    expert_shares: list[Annotated[float, Field(ge=0, le=1)]] | None = Field(
        default=None, max_length=4096, description="how often each expert is picked, in order of placement, instead")
    step_s: float | None = Field(default=None, ge=0, le=1e6,
                                 description="time of every step, default 1; gpu: unit only")


class EngineSpec(Section):
    """The serving engine whose habits are simulated (hwprofiles/engine)."""

    name: str = "vllm-0.24"
    schedule_ahead: int | None = Field(default=None, ge=0, le=8)
    cuda_graphs: bool = True
    speculation: SpeculationSpec | None = None


class HostSpec(Section):
    """The host whose CPU prepares and launches steps and runs the front end (hwprofiles/host)."""

    name: str = "measured"
    cpu_scale: float = Field(default=1.0, gt=0, le=100, description="multiplies all CPU times: 2 is half as fast")


class PolicySpec(Section):
    """The scheduling policy and its knobs; `servecast policies` lists which knob belongs to which."""

    name: str | None = None
    file: str | None = Field(default=None, description="a policy of your own, a Python file; run with --allow-code")
    max_num_seqs: int | None = Field(default=None, ge=1, le=65536)
    max_num_batched_tokens: int | None = Field(default=None, ge=1, le=2**22)
    long_prefill_token_threshold: int | None = Field(default=None, ge=0, le=LARGEST_COUNT)
    watermark: float | None = Field(default=None, ge=0, lt=1)
    reserve_full_prompt: bool | None = None
    batch_window_s: float | None = Field(default=None, ge=0, le=1e6)
    length_bucket: int | None = Field(default=None, ge=1, le=LARGEST_COUNT)
    stream: bool | None = None
    padding: Literal["naive", "fastertransformer", "removed"] | None = None
    aging_s: float | None = Field(default=None, gt=0, le=1e6)
    prediction_error: float | None = Field(default=None, ge=0, le=5)
    tenant_weights: dict[str, Annotated[float, Field(ge=1e-3, le=1e3)]] | None = None


class KvSpec(Section):
    """KV memory: paged blocks on demand, or one contiguous reservation a request."""

    layout: Literal["paged", "contiguous"] = "paged"
    block_size: int | None = Field(default=None, ge=1, le=4096)
    num_gpu_blocks: int | None = Field(default=None, ge=2, le=2**30)
    reserve_tokens: int | None = Field(default=None, ge=1, le=LARGEST_COUNT)
    prefix_caching: bool | None = Field(default=None, description="use blocks of earlier requests again where the "
                                        "tokens are the same; default: as the engine does")


class ServesSpec(Section):
    """Which requests a pool takes; all of them by default."""

    classes: list[str] | None = Field(default=None, min_length=1)
    min_prompt_tokens: int | None = Field(default=None, ge=1, le=LARGEST_COUNT)
    max_prompt_tokens: int | None = Field(default=None, ge=1, le=LARGEST_COUNT)


class PoolSpec(Section):
    """Replicas that are alike. Sections and keys not given are those of the scenario."""

    replicas: int = Field(default=1, ge=1, le=4096)
    role: Literal["both", "prefill", "decode"] = Field(default="both", description="prefill: hands requests over to a "
                                                       "decode pool with their first token")
    serves: ServesSpec = ServesSpec()
    model: str | None = None
    hardware: HardwareSpec | None = None
    engine: EngineSpec | None = None
    host: HostSpec | None = None
    policy: PolicySpec | None = None
    kv: KvSpec | None = None
    max_model_len: int | None = Field(default=None, ge=2, le=LARGEST_COUNT)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        return short_forms(data)


class LinkSpec(Section):
    """The link over which each replica of a prefill pool sends KV."""

    gb_per_s: float = Field(gt=0, le=1e6, description="[10^9 bytes/s] of one replica, all its GPUs together")
    latency_s: float = Field(default=0.0, ge=0, le=1e3)


class ClusterSpec(Section):
    """Identical replicas behind a router, or pools of them."""

    replicas: int = Field(default=1, ge=1, le=4096)
    router: str = "round_robin"
    pools: dict[str, PoolSpec] = Field(default={}, description="unlike replicas behind one router, by name")
    link: LinkSpec | None = Field(default=None, description="from prefill to decode pools")
    disaggregate_from_tokens: int | None = Field(
        default=None, ge=1, le=LARGEST_COUNT,
        description="shorter prompts are served whole, by pools with role: both if there are any")

    @property
    def hands_over(self) -> bool:
        """Whether requests begin in one pool and go on in another."""
        return any(pool.role == "prefill" for pool in self.pools.values())

    @model_validator(mode="after")
    def _roles_fit(self) -> "ClusterSpec":
        roles = {pool.role for pool in self.pools.values()}
        if ("prefill" in roles) != ("decode" in roles):
            raise ValueError("cluster.pools: role: prefill and role: decode belong together, got only one of them")
        for key in ("link", "disaggregate_from_tokens"):
            if getattr(self, key) is not None and "prefill" not in roles:
                raise ValueError(f"cluster.{key} has no effect without a pool with role: prefill")
        if "prefill" in roles and self.link is None:
            raise ValueError("cluster.link must be given where a pool has role: prefill; accepted: "
                             "{gb_per_s: ..., latency_s: ...}")
        if {"prefill", "both"} <= roles and self.disaggregate_from_tokens is None:
            raise ValueError("cluster.pools: role: both beside prefill and decode pools takes prompts below "
                             "cluster.disaggregate_from_tokens, which is not given")
        return self

    @property
    def size(self) -> int:
        """Replicas of all pools."""
        return sum(pool.replicas for pool in self.pools.values()) if self.pools else self.replicas


def short_forms(data: Any) -> Any:
    """`engine: vllm-0.24` for `engine: {name: vllm-0.24}`; policy, host, hardware (its gpu), load (its kind)."""
    if isinstance(data, Mapping):
        short = SHORT_FORMS
        return {k: {short[k]: v} if k in short and isinstance(v, str) else v for k, v in data.items()}
    return data


class Scenario(Section):
    """One simulation, whole. `workload` is described in docs/scenarios.md (simulator.workload.spec)."""

    name: str = "scenario"
    description: str = ""
    seed: int = Field(default=0, ge=0, lt=2**64)
    workload: dict[str, Any]
    load: LoadSpec = LoadSpec()
    model: str = "llama-3.1-8b"
    hardware: HardwareSpec = HardwareSpec()
    engine: EngineSpec = EngineSpec()
    host: HostSpec = HostSpec()
    policy: PolicySpec = PolicySpec()
    kv: KvSpec = KvSpec()
    cluster: ClusterSpec = ClusterSpec()
    max_model_len: int | None = Field(default=None, ge=2, le=LARGEST_COUNT)
    cost_model: Literal["calibrated", "roofline"] = "calibrated"
    slo: RequestLimits = RequestLimits()
    warmup_fraction: float = Field(default=0.0, ge=0, lt=1)
    horizon_s: float | None = Field(default=None, gt=0, le=LONGEST_S)
    _base: Path = PrivateAttr(default=Path())
    _parsed: Workload | None = PrivateAttr(default=None)
    _places: dict[str, str] = PrivateAttr(default_factory=dict)
    _own_policy: Policy | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        return short_forms(data)

    @model_validator(mode="after")
    def _consistent(self) -> "Scenario":
        if self.cluster.router not in ROUTERS:
            raise ValueError(f"cluster.router: unknown router {self.cluster.router!r}; known: {', '.join(ROUTERS)}")
        if self.load.kind == "open" and self.load.width != 1:
            raise ValueError("load.width has no effect on an open load; it belongs to closed and grouped")
        if self.kv.layout == "paged" and self.kv.reserve_tokens is not None:
            raise ValueError("kv.reserve_tokens has no effect on paged memory; it belongs to layout: contiguous")
        if self.cluster.pools and "replicas" in self.cluster.model_fields_set:
            raise ValueError("cluster.replicas has no effect beside cluster.pools, which have their own")
        if self.hardware.expert_parallel and self.hardware.tensor_parallel == 1:
            raise ValueError("hardware.expert_parallel has no effect on one GPU; it needs tensor_parallel of 2 or more")
        if self.hardware.expert_shares and self.hardware.expert_skew:
            raise ValueError("hardware.expert_skew has no effect beside expert_shares; give one of them")
        if self.hardware.gpu != "unit" and self.hardware.step_s is not None:
            raise ValueError("hardware.step_s has no effect on a real GPU; it belongs to gpu: unit")
        for metric, limit in self.slo.limits.items():
            question = asked_back(f"slo.{metric}_s", metric, limit)
            if question and self.hardware.gpu != "unit":
                raise ValueError(question)
        drafts = self.engine.speculation
        if drafts and (self.engine.schedule_ahead or 0) > (0 if drafts.method == "ngram" else 1):
            raise ValueError(f"engine.schedule_ahead must be {'0' if drafts.method == 'ngram' else '0 or 1'} with "
                             f"{drafts.method} drafts, got {self.engine.schedule_ahead}")
        if drafts and drafts.draft and self.hardware.gpu == "unit":
            raise ValueError("engine.speculation.draft has no effect on gpu: unit")
        if self.hardware.gpu == "unit":
            self._only_what_a_textbook_gpu_has()
        return self

    def _only_what_a_textbook_gpu_has(self) -> None:
        """Raise ValueError for a key that changes nothing where every step takes the same time."""
        plain = {"model": Scenario.model_fields["model"].default, "cost_model": "calibrated"}
        given = {name: getattr(self, name) for name in plain}
        for section, spec in (("hardware", self.hardware), ("engine", self.engine), ("host", self.host)):
            for key, field in type(spec).model_fields.items():
                if key not in ("gpu", "step_s", "schedule_ahead", "speculation"):
                    plain[f"{section}.{key}"] = field.default
                    given[f"{section}.{key}"] = getattr(spec, key)
        for name, value in given.items():
            if value != plain[name]:
                raise ValueError(f"{name} has no effect on gpu: unit, got {value!r}")

    @property
    def base(self) -> Path:
        """Folder that relative paths are taken from."""
        return self._base

    def place(self, key: str) -> str:
        """`file:line: key` of one of LOOKED_UP, for the start of a message; the key alone for plain data."""
        return f"{self._places[key]}: {key}" if key in self._places else key

    def chosen_policy(self, default: str) -> Policy:
        """The policy named or, allowed when the scenario was loaded, read from a file; else the one called `default`.

        Raises UnknownNameError, ConfigError for a file that was not allowed.
        """
        if self.policy.file is not None and self._own_policy is None:
            raise _not_allowed(self.place("policy.file"), self.policy.file)
        return self._own_policy or policy_named(self.policy.name or default)

    def parsed_workload(self) -> Workload:
        """The workload section as typed description."""
        if self._parsed is None:
            self._parsed = parse_workload(self.workload, self._base)
        return self._parsed

    def updated(self, changes: Mapping[str, Any]) -> "Scenario":
        """A copy with dotted keys changed, e.g. {"cluster.replicas": 2}. Raises ConfigError."""
        document = Document.of_data(self.model_dump(mode="python", exclude_unset=True), f"{self.name} (changed)")
        for key, value in changes.items():
            document.assign(tuple(key.split(".")), value)
        made = _finish(document, self._base, self._own_policy is not None)
        made._places |= {key: place for key, place in self._places.items()
                         if not any(key == changed or key.startswith(f"{changed}.") for changed in changes)}
        return made


def load_scenario(path: str | Path, overrides: Iterable[str] = (), allow_code: bool = False) -> Scenario:
    """Read a scenario file; `overrides` are `key=value` assignments that beat it. `allow_code` runs policy.file.

    Raises ConfigError (also for the workload section) with file, line, key, value and what is accepted.
    """
    return _finish(Document.of_file(path, overrides), Path(path).parent, allow_code)


def scenario_from(data: Mapping[str, Any], base: str | Path = ".", name: str = "scenario",
                  allow_code: bool = False) -> Scenario:
    """A scenario from plain data, e.g. a dict written in Python; `allow_code` runs policy.file. Raises ConfigError."""
    return _finish(Document.of_data(data, name), Path(base), allow_code)


def _finish(document: Document, base: Path, allow_code: bool) -> Scenario:
    scenario = validate(Scenario, document)
    scenario._base = base
    scenario._places = {key: document.where(tuple(key.split("."))) for key in LOOKED_UP}
    _check_policy(scenario, document, allow_code)
    try:
        workload = scenario.parsed_workload()
        if isinstance(workload, Inline):
            inline_trace(workload)
    except ServecastError as error:
        raise placed(document, error, "workload") from None
    return scenario


def _not_allowed(place: str, file: str) -> ConfigError:
    return ConfigError(f"{place}: {file} is Python code, which is run only when you allow it: servecast run "
                       "--allow-code, in Python allow_code=True")


def _check_policy(scenario: Scenario, document: Document, allow_code: bool) -> None:
    name, file = scenario.policy.name, scenario.policy.file
    if file is not None:
        place = f"{document.where(('policy', 'file'))}: policy.file"
        if name is not None:
            raise ConfigError(f"{place} has no effect beside policy.name; remove one of them")
        if not allow_code:
            raise _not_allowed(place, file)
        from simulator.scenario.own import load_policy

        scenario._own_policy = load_policy(scenario.base / file)
    elif name is None:
        return
    try:
        policy = scenario.chosen_policy("")
    except UnknownNameError as error:
        raise ConfigError(f"{document.where(('policy', 'name'))}: policy.name: {error}") from None
    for knob, value in scenario.policy.model_dump(exclude={"name", "file"}).items():
        if value is not None and knob not in policy.knobs:
            raise ConfigError(f"{document.where(('policy', knob))}: policy.{knob} has no effect under {policy.name}; "
                              f"its knobs: {', '.join(policy.knobs)}")

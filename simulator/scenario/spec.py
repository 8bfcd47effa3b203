"""A scenario: what is simulated, as typed YAML. `load_scenario` is the door; every key is listed here.

Everything not given follows the engine profile (policy, batch limits, block size, memory share). An option
that has no effect under the chosen policy is refused, not ignored.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from policies.registry import Policy, policy_named
from policies.routers import ROUTERS
from simulator.config import Document, Section, placed, validate
from simulator.errors import ConfigError, ServecastError, UnknownNameError
from simulator.scenario.limits import LONGEST_S, RequestLimits, asked_back
from simulator.scenario.load import AdmissionSpec, LoadSpec
from simulator.scenario.sections import ClusterSpec, EngineSpec, HardwareSpec, HostSpec, KvSpec, PolicySpec, short_forms
from simulator.state import LARGEST_COUNT
from simulator.workload.build import inline_trace
from simulator.workload.sessions import Sessions
from simulator.workload.spec import Inline, Workload, parse_workload

LOOKED_UP = ("workload", "policy", "model", "engine.name", "engine.speculation", "host.name", "hardware.gpu",
             "hardware.weight_dtype", "hardware.kv_dtype", "hardware.tensor_parallel", "max_model_len",
             "hardware.expert_parallel", "hardware.expert_skew", "hardware.expert_shares", "kv.prefix_caching",
             "kv.swap", "kv.offload", "hardware.pipeline_parallel", "hardware.interconnect", "hardware.compile_cache",
             "engine.sampling", "engine.lora", "policy.tbt_s", "cluster.autoscale", "cluster.events", "cluster.spot",
             "cluster.pools", "policy.file", "load.turns", "load.timeout_s", "load.ttft_timeout_s",
             "admission.predicted_ttft_s", "admission.shed")
"""Keys whose values are looked up or read later (setup.prepare, build_workload); their lines are kept for the
messages."""


class Scenario(Section):
    """One simulation, whole. `workload` is described in docs/scenarios.md (simulator.workload.spec)."""

    name: str = "scenario"
    description: str = ""
    seed: int = Field(default=0, ge=0, lt=2**64)
    workload: dict[str, Any]
    load: LoadSpec = LoadSpec()
    admission: AdmissionSpec = AdmissionSpec()
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
        if self.kv.layout == "paged" and self.kv.reserve_tokens is not None:
            raise ValueError("kv.reserve_tokens has no effect on paged memory; it belongs to layout: contiguous")
        if self.cluster.pools and self.cluster.replicas != 1:
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
                got = value.model_dump() if isinstance(value, Section) else value
                raise ValueError(f"{name} has no effect on gpu: unit, got {got!r}")

    @property
    def base(self) -> Path:
        """Folder that relative paths are taken from."""
        return self._base

    def place(self, key: str) -> str:
        """`file:line: key` of one of LOOKED_UP, for the start of a message; the key alone for plain data."""
        return f"{self._places[key]}: {key}" if key in self._places else key

    def has_place(self, message: str) -> bool:
        """Whether a message begins with the place of one of LOOKED_UP."""
        return any(message.startswith(f"{place}: {key}") for key, place in self._places.items())

    def placed(self, error: ConfigError) -> ConfigError:
        """The error with `file:line: ` in front where it begins with one of LOOKED_UP or a key below it."""
        place = next((place for key, place in self._places.items() if str(error).startswith(key)), "")
        return ConfigError(f"{place}: {error}") if place else error

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
    if isinstance(workload, Sessions) and (scenario.load.turns == "as_given" or scenario.load.max_in_flight):
        key = "turns" if scenario.load.turns else "max_in_flight"
        raise ConfigError(f"{document.where(('load', key))}: load.{key} has no effect on workload.sessions: its turns "
                          "have no times of their own")
    if isinstance(workload, Sessions) and scenario.load.think_s is not None:
        raise ConfigError(f"{document.where(('load', 'think_s'))}: load.think_s: give workload.sessions.think_s")
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
    idle = without_effect(scenario.policy, policy)
    if idle:
        raise ConfigError(f"{document.where(('policy', idle.split()[0].split('.')[1]))}: {idle}")


def without_effect(spec: PolicySpec, policy: Policy) -> str:
    """What to say of the first knob given that the policy has not; empty where there is none."""
    given = spec.model_dump(exclude={"name", "file"}, exclude_none=True)
    return next((f"policy.{knob} has no effect under {policy.name}; its knobs: {', '.join(policy.knobs)}"
                 for knob in given if knob not in policy.knobs), "")

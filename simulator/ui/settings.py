"""What can be set on the local page, where it starts from, and the scenario that a setting is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulator.config import Document
from simulator.errors import ConfigError
from simulator.planning.candidate import candidates_of, scenario_of
from simulator.planning.spec import PlanSpec, load_plan
from simulator.planning.traffic import Traffic, mean_rate
from simulator.profiles.model import load_model
from simulator.scenario.setup import prepare
from simulator.scenario.spec import Scenario, load_scenario, scenario_from
from simulator.workload.inspect import variation
from simulator.workload.trace import Trace

LENGTH: Final = 16_384
"""max_model_len where the file has none: room for the longest requests (8,000 + 4,000 tokens), cut to the model's
positions."""
SET_HERE: Final = ("name", "description", "seed", "workload", "cluster", "slo")
"""Sections of a file that the page makes itself."""
PLAN_KEYS: Final = ("candidates", "budget", "objective", "prices")
LONGEST: Final = {"prompt": 8000, "output": 4000}
SEED: Final = 1
DRAWN: Final = ("Requests are drawn with the mean and the spread of those of the file; classes, sessions and shared "
                "prefixes are left aside.")


@dataclass(frozen=True)
class Settings:
    """What can be set on the page. `start` are the other settings of the file it was opened with, `folder` where that
    file is, `lengths` and `arrivals` its distributions, whose mean is set here, `prefixes` how many system prompts
    there are and how popular."""

    rate: float = 20.0  # [requests/s] over the fleet
    ttft_ms: float = 500.0  # limit on p99
    tpot_ms: float = 50.0  # limit on p99
    gpu: str = "h100-sxm"
    policy: str = "chunked"
    replicas: int = 2
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 0  # 0: the engine's own
    prompt: int = 1150  # [tokens] mean
    output: int = 210  # [tokens] mean
    prefix: int = 0  # [tokens] of the system prompt that comes before the prompt, 0: none
    prefix_caching: bool = True
    model: str = "llama-3.1-8b"
    tensor_parallel: int = 1
    weight_dtype: str = "bf16"
    price: float | None = None  # [USD per GPU and hour], None = the profile's example
    start: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    lengths: Mapping[str, Any] = field(default_factory=dict)
    arrivals: Mapping[str, Any] = field(default_factory=dict)
    prefixes: Mapping[str, Any] = field(default_factory=lambda: {"groups": 1})
    caches: bool | None = True  # whether the engine keeps a prefix cache unasked; None: the file asks
    note: str = ""

    def workload(self, rate: float, requests: int) -> dict[str, Any]:
        """Requests drawn at `rate`; lengths as the file has them, with the means set here."""
        drawn: dict[str, Any] = {"arrivals": {**(self.arrivals or {"kind": "poisson"}), "rate": rate,
                                              "requests": requests}}  # fmt: skip
        for name, mean, cv in (("prompt", self.prompt, 1.0), ("output", self.output, 0.9)):
            own = self.lengths.get(name) or {"kind": "lognormal", "cv": cv, "max": LONGEST[name]}
            drawn[name] = {**own, "mean": float(mean)}
        if self.prefix:
            drawn["prefix"] = {**self.prefixes, "length": self.prefix}
        return drawn

    def kv(self) -> dict[str, Any]:
        """The file's, with or without a prefix cache; nothing is said where the engine has it so by itself."""
        own = {key: value for key, value in self.start.get("kv", {}).items() if key != "prefix_caching"}
        return own if self.prefix_caching == self.caches else {**own, "prefix_caching": self.prefix_caching}

    def plain(self, rate: float, requests: int) -> dict[str, Any]:
        """The scenario as plain data: one replica at `rate`."""
        start = {key: value for key, value in self.start.items() if key not in SET_HERE}
        policy = {**start.get("policy", {}), "name": self.policy, "max_num_seqs": self.max_num_seqs}
        policy.pop("max_num_batched_tokens", None)
        if self.max_num_batched_tokens:
            policy["max_num_batched_tokens"] = self.max_num_batched_tokens
        own = start.get("hardware", {})
        hardware = {**own, "gpu": self.gpu, "tensor_parallel": self.tensor_parallel, "weight_dtype": self.weight_dtype}
        return {
            "name": f"{self.gpu}, {self.policy}",
            "seed": SEED,
            "max_model_len": min(LENGTH, load_model(self.model).max_positions),
            **start,
            "model": self.model,
            "hardware": hardware,
            "kv": self.kv(),
            "workload": self.workload(rate, requests),
            "policy": policy,
            "cluster": {"replicas": 1, "router": self.router},
            "slo": {"ttft_s": self.ttft_ms / 1000, "tpot_s": self.tpot_ms / 1000},
        }

    @property
    def gpus(self) -> int:
        """GPUs of a replica, in as many pipeline stages as the file has."""
        stages: int = self.start.get("hardware", {}).get("pipeline_parallel", 1)
        return self.tensor_parallel * stages

    @property
    def router(self) -> str:
        """The file's."""
        found: str = self.start.get("cluster", {}).get("router", "round_robin")
        return found

    def scenario(self, rate: float, requests: int) -> Scenario:
        """One replica at `rate`. Raises ConfigError for what is not accepted."""
        return scenario_from(self.plain(rate, requests), self.folder, "page")


def settings_from(path: Path | None) -> tuple[Settings, dict[str, float]]:
    """Where the page starts: a plan (its traffic, limits and the first of each candidate list) or a scenario, with all
    their other settings; and the plan's prices. Raises ConfigError for what the page does not show."""
    if path is None:
        return Settings(), {}
    document = Document.of_file(path)
    slo = document.data.get("slo")
    asked = isinstance(slo, Mapping) and any("_p" in str(key) or "_mean" in str(key) for key in slo)
    if asked or any(key in document.data for key in PLAN_KEYS):
        spec = load_plan(path)
        return _of_plan(spec), dict(spec.prices)
    return _of_scenario(load_scenario(path), Settings()), {}


def _of_plan(spec: PlanSpec) -> Settings:
    candidate = candidates_of(spec)[0]
    if candidate.prefill_replicas:
        raise ConfigError(f"{spec.name}: candidates.prefill_replicas is not shown on the page, put 0 first")
    if candidate.beside is not None:
        raise ConfigError(f"{spec.name}: candidates.beside is not shown on the page, put null first")
    limits = {t.metric: 1000 * t.max_s for t in spec.slo.targets}
    allowed = spec.candidates.allowed(candidate.gpus) or (1,)
    start = Settings()
    first = replace(start, ttft_ms=limits.get("ttft", start.ttft_ms), tpot_ms=limits.get("tpot", start.tpot_ms),
                    price=spec.prices.get(candidate.gpu))  # fmt: skip
    made = _of_scenario(scenario_of(spec, candidate, allowed[0]), first)
    return replace(made, rate=round(made.rate * spec.growth, 2))


def _of_scenario(scenario: Scenario, start: Settings) -> Settings:
    """A scenario's settings, those that the page sets among them."""
    _check_shown(scenario)
    trace, setup = Traffic(scenario).trace(0), prepare(scenario)
    workload, hardware = scenario.workload, scenario.hardware
    lengths = {name: part for name in ("prompt", "output") if _has_mean(part := workload.get(name))}
    arrivals = dict(workload.get("arrivals", {}))
    drawn = len(lengths) == 2 and arrivals.get("kind") in ("poisson", "gamma") and arrivals.get("rate") is not None
    prefix = _prefix(trace) if drawn and "prefix" in workload else 0
    given = scenario.kv.prefix_caching
    limits = {name: 1000 * value for name, value in scenario.slo.model_dump(exclude_none=True).items()}
    return replace(
        start,
        rate=round(mean_rate(trace), 2) or start.rate,
        ttft_ms=limits.get("ttft_s", start.ttft_ms),
        tpot_ms=limits.get("tpot_s", start.tpot_ms),
        gpu=hardware.gpu,
        policy=setup.policy.name,
        replicas=scenario.cluster.size,
        max_num_seqs=setup.limits.max_num_seqs,
        max_num_batched_tokens=scenario.policy.max_num_batched_tokens or 0,
        prompt=max(1, round(float(trace.prompt.mean())) - prefix),
        output=max(1, round(float(trace.output.mean()))),
        prefix=prefix,
        prefix_caching=bool(setup.limits.prefix),
        prefixes={k: v for k, v in workload["prefix"].items() if k != "length"} if prefix else start.prefixes,
        caches=bool(setup.limits.prefix) if given is None else None,
        model=scenario.model,
        tensor_parallel=hardware.tensor_parallel,
        weight_dtype=hardware.weight_dtype,
        start=scenario.model_dump(mode="json", exclude_unset=True),
        folder=scenario.base,
        lengths=lengths if drawn else _like(trace),
        arrivals={k: v for k, v in arrivals.items() if k in ("kind", "cv")} if drawn else {},
        note="" if drawn else DRAWN,
    )


def _has_mean(part: Any) -> bool:
    return isinstance(part, Mapping) and "mean" in part


def _prefix(trace: Trace) -> int:
    """[tokens] that the prompts begin with, on average."""
    length = trace.extras.opening_tokens
    return 0 if length is None else round(float(length.mean()))


def _like(trace: Trace) -> dict[str, Any]:
    """Lognormal lengths as spread as the trace's."""
    found = {}
    for name, column in (("prompt", trace.prompt), ("output", trace.output)):
        found[name] = {"kind": "lognormal", "cv": round(max(0.01, variation(column)), 3), "max": int(np.max(column))}
    return found


def _check_shown(scenario: Scenario) -> None:
    """Raise ConfigError for a fleet or clients of which one replica's share of open traffic is not the picture."""
    cluster = scenario.cluster
    for key, there in (("cluster.pools", cluster.pools), ("cluster.autoscale", cluster.autoscale), ("cluster.spot",
                       cluster.spot), ("cluster.events", cluster.events)):  # fmt: skip
        if there:
            raise ConfigError(f"{scenario.place(key)}: {key} is not shown on the page; `servecast run` simulates it")
    if scenario.load.kind != "open":
        raise ConfigError(f"{scenario.place('load.kind')}: the page shows load.kind: open, got {scenario.load.kind}")

"""One configuration of a replica and its router, from a plan's lists: its name, and the scenario that simulates it."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from policies.registry import policy_named
from simulator.planning.names import gpu_words, limit_words
from simulator.planning.spec import PlanSpec
from simulator.planning.unlike import BESIDE, OWN, BesideSpec
from simulator.scenario.spec import Scenario, scenario_from

PREFILL: Final = "prefill"
DECODE: Final = "decode"
"""Pools of a fleet with candidates.prefill_replicas."""


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
    model: str | None = None
    prefix_caching: bool | None = None
    expert_parallel: bool = False
    draft_tokens: int | None = None
    prefill_replicas: int = 0
    tbt_s: float | None = None
    pipeline_parallel: int = 1
    max_loras: int | None = None
    beside: BesideSpec | None = None

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.tensor_parallel * self.pipeline_parallel

    def own(self, replicas: int) -> int:
        """How many of a fleet's replicas are the candidate's own."""
        return replicas - (self.beside.replicas if self.beside else 0)

    def gpus_of(self, replicas: int) -> int:
        """GPUs of a fleet of so many replicas."""
        return self.own(replicas) * self.gpus + (self.beside.gpus if self.beside else 0)

    def counts(self, spec: PlanSpec) -> tuple[int, ...]:
        """Numbers of serving replicas of the whole fleet to choose from, rising."""
        return spec.candidates.allowed(self.gpus, self.prefill_replicas, self.beside)

    def said(self, replicas: int, noun: str = "") -> str:
        """`3 replicas`, of which the `noun` is given in its plural; `1 l40s beside 2 a100-sxm-80gb` of unlike ones."""
        own, other = self.own(replicas), self.beside
        if other is None:
            return f"{replicas}{noun.replace('replicas', 'replica', 1) if replicas == 1 else noun}"
        others = f"{other.replicas} {other.gpu}"
        return f"{own} {self.gpu} beside {others}" if own else f"{others} alone"

    @property
    def kinds(self) -> frozenset[str]:
        """The GPUs of the fleet."""
        return frozenset((self.gpu, self.beside.gpu) if self.beside else (self.gpu,))

    @property
    def label(self) -> str:
        """Short text that tells candidates apart."""
        return f"{self.kind}, {self.beside.label}" if self.beside else self.kind

    @property
    def kind(self) -> str:
        """The same without what stands beside it."""
        parts = [
            *gpu_words(self.gpu, self.tensor_parallel, self.pipeline_parallel),
            self.policy or "",
            *limit_words(self.max_num_seqs, self.max_num_batched_tokens),
            self.weight_dtype if self.weight_dtype != "bf16" else "",
            f"{self.kv_dtype} KV" if self.kv_dtype != "bf16" else "",
            self.router.replace("_", " ") if self.router != "round_robin" else "",
            self.model or "",
            "" if self.prefix_caching is None else "prefix caching" if self.prefix_caching else "no prefix caching",
            "expert parallel" if self.expert_parallel else "",
            _drafts(self.draft_tokens),
            f"{self.prefill_replicas} for prefill" if self.prefill_replicas else "",
            f"{1000 * self.tbt_s:g} ms a token" if self.tbt_s else "",
            "" if self.max_loras is None else f"{self.max_loras} adapter slots" if self.max_loras else "no adapters",
        ]
        return ", ".join(part for part in parts if part)


def _drafts(count: int | None) -> str:
    return "" if count is None else "1 draft" if count == 1 else f"{count or 'no'} drafts"


def candidates_of(spec: PlanSpec) -> tuple[Candidate, ...]:
    """Every combination, in the order of the lists."""
    c = spec.candidates
    grid: Iterable[tuple[Any, ...]] = itertools.product(
        c.gpu,
        c.tensor_parallel,
        c.policy,
        c.max_num_seqs,
        c.max_num_batched_tokens,
        c.weight_dtype,
        c.kv_dtype,
        c.router,
        c.model,
        c.prefix_caching,
        c.expert_parallel,
        c.draft_tokens,
        c.prefill_replicas,
        c.tbt_s,
        c.pipeline_parallel,
        c.max_loras,
        c.beside,
    )
    asked = (Candidate(*point) for point in grid)
    return tuple(dict.fromkeys(each if _paced(each) else replace(each, tbt_s=None) for each in asked))


def _paced(candidate: Candidate) -> bool:
    """Whether its policy keeps a time between tokens."""
    return candidate.policy is not None and "tbt_s" in policy_named(candidate.policy).knobs


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
    if candidate.expert_parallel:
        hardware["expert_parallel"] = True
    if candidate.pipeline_parallel > 1:
        hardware["pipeline_parallel"] = candidate.pipeline_parallel
    policy = {k: getattr(candidate, k) for k in ("max_num_seqs", "max_num_batched_tokens", "tbt_s")}
    policy = {k: v for k, v in policy.items() if v is not None}
    if candidate.policy:
        policy["name"] = candidate.policy
    cached = candidate.prefix_caching
    data: dict[str, Any] = {
        "name": f"{spec.name}: {candidate.label}",
        "seed": spec.seed,
        "workload": spec.workload,
        "model": candidate.model or spec.model,
        "hardware": hardware,
        "engine": _engine(spec, candidate),
        "host": spec.host.model_dump(),
        "kv": spec.kv.model_dump() | ({} if cached is None else {"prefix_caching": cached}),
        "policy": policy,
        "cluster": _cluster(spec, candidate, replicas),
        "cost_model": spec.cost_model,
        "slo": {f"{m}_s": v for m, v in spec.slo.request_limits().items()},
        "warmup_fraction": spec.warmup_fraction,
    }
    if spec.max_model_len is not None:
        data["max_model_len"] = spec.max_model_len
    return scenario_from(data, spec.base, spec.name)


def _engine(spec: PlanSpec, candidate: Candidate) -> dict[str, Any]:
    """The engine with as many drafts a step, and slots for adapters, as the candidate has."""
    engine, count = spec.engine.model_dump(), candidate.draft_tokens
    if candidate.max_loras is not None:
        engine["lora"] = engine["lora"] | {"max_loras": candidate.max_loras} if candidate.max_loras else None
    drafts = engine["speculation"]
    if count == 0:
        engine["speculation"] = None
    elif count is not None:
        right = drafts["acceptance"]
        drafts |= {"tokens": count, "acceptance": right[:count] if isinstance(right, list) else right}
    return engine


def _cluster(spec: PlanSpec, candidate: Candidate, replicas: int) -> dict[str, Any]:
    """Replicas alike, those that compute prompts and, at least one, those that go on from there, or, at least one, the
    candidate's own and others beside them."""
    if candidate.beside is not None:
        own = {"replicas": max(1, candidate.own(replicas))}
        return {"router": candidate.router, "pools": {OWN: own, BESIDE: candidate.beside.pool()}}
    first = candidate.prefill_replicas
    if not first or spec.link is None:
        return {"replicas": replicas, "router": candidate.router}
    pools = {PREFILL: {"replicas": first, "role": "prefill"},
             DECODE: {"replicas": max(1, replicas - first), "role": "decode"}}  # fmt: skip
    return {"router": candidate.router, "link": spec.link.model_dump(), "pools": pools}

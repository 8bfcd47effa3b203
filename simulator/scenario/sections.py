"""Sections of a scenario: what one replica is, and the cluster of them. `spec` puts them together."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from simulator.config import SHORT_FORMS, Section
from simulator.scenario.autoscale import AutoscaleSpec
from simulator.scenario.limits import LONGEST_S
from simulator.scenario.speculation import SpeculationSpec
from simulator.state import LARGEST_COUNT


class HardwareSpec(Section):
    """One replica's GPUs and number formats."""

    gpu: str = "h100-sxm"
    tensor_parallel: int = Field(default=1, ge=1)
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    compile_cache: bool = Field(default=False, description="torch.compile's cache is there from an earlier start, "
                                "and more KV blocks with it than on a first start; vllm-0.24")
    pipeline_parallel: int = Field(default=1, ge=1, description="stages that a replica's layers are dealt out to, of "
                                   "tensor_parallel GPUs each")
    interconnect: Literal["pcie"] | None = Field(default=None, description="the GPUs of a host reach each other over "
                                                  "PCIe 5 x16 through host memory, whatever link the GPU could have")
    expert_parallel: bool = Field(default=False, description="deal whole experts out to the tensor-parallel GPUs "
                                  "instead of splitting each")
    expert_skew: float = Field(default=0.0, ge=0, le=4, description="exponent of Zipf's law for how often experts are "
                               "picked, 0: all alike")
    expert_shares: list[Annotated[float, Field(ge=0, le=1)]] | None = Field(
        default=None, max_length=4096, description="how often each expert is picked, in order of placement, instead")
    step_s: float | None = Field(default=None, ge=0, le=1e6,
                                 description="time of every step, default 1; gpu: unit only")

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.tensor_parallel * self.pipeline_parallel



class LoraSpec(Section):
    """LoRA adapters that requests ask for, one each, all as often."""

    max_loras: int = Field(default=1, ge=1, le=1024, description="adapters that are in GPU memory at the same time")
    rank: int = Field(default=16, ge=1, le=512)
    adapters: int = Field(default=1, ge=0, le=1024, description="that requests ask for; 0: none does")

    @model_validator(mode="after")
    def _all_in_memory(self) -> "LoraSpec":
        if self.adapters > self.max_loras:
            raise ValueError(f"adapters must be <= max_loras ({self.max_loras}; loading them in turn is not modelled), "
                             f"got {self.adapters}")
        return self



class EngineSpec(Section):
    """The serving engine whose habits are simulated (hwprofiles/engine)."""

    name: str = "vllm-0.24"
    schedule_ahead: int | None = Field(default=None, ge=0, le=8)
    cuda_graphs: bool = True
    speculation: SpeculationSpec | None = None
    sampling: Literal["greedy", "top_p", "top_k", "top_k_top_p"] = Field(
        default="greedy", description="how tokens are drawn, of all requests alike; costs time, changes no length")
    lora: LoraSpec | None = None



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
    preferred_batch_sizes: list[Annotated[int, Field(ge=1, le=65536)]] | None = Field(
        default=None, min_length=1, max_length=3, description="sizes of batches that need not wait for batch_window_s")
    length_bucket: int | None = Field(default=None, ge=1, le=LARGEST_COUNT)
    stream: bool | None = None
    padding: Literal["naive", "fastertransformer", "removed"] | None = None
    aging_s: float | None = Field(default=None, gt=0, le=1e6)
    prediction_error: float | None = Field(default=None, ge=0, le=5)
    waiting_served_ratio: float | None = Field(default=None, ge=0, le=1000,
                                               description="default 0.3, as the launcher's")
    max_waiting_tokens: int | None = Field(default=None, ge=0, le=LARGEST_COUNT,
                                           description="default 20, as the launcher's")
    tbt_s: float | None = Field(default=None, gt=0, le=1e6, description="[s] between two tokens of an answer that no "
                                "step may exceed")
    quantum_s: float | None = Field(default=None, gt=0, le=1e4, description="[s] of the first level; default 0.01")
    starvation_s: float | None = Field(default=None, gt=0, le=1e6, description="[s] without a step after which a "
                                       "request goes up to the first level; default 3")
    max_batch_size: int | None = Field(default=None, ge=1, le=LARGEST_COUNT, description="most requests of a step; "
                                       "default max_num_seqs")
    tenant_weights: dict[str, Annotated[float, Field(ge=1e-3, le=1e3)]] | None = None



class SwapSpec(Section):
    """Host memory for the KV of preempted sequences, and the link to it."""

    gib: float = Field(gt=0, le=1e5, description="[GiB] for each GPU, vLLM's --swap-space")
    gb_per_s: float = Field(ge=1e-3, le=1e6, description="[10^9 bytes/s] of each GPU's link to host memory, either way")


class OffloadSpec(Section):
    """Host memory behind the prefix cache, and the link to it."""

    gib: float = Field(gt=0, le=1e5, description="[GiB] for each GPU")
    gb_per_s: float = Field(ge=1e-3, le=1e6, description="[10^9 bytes/s] of each GPU's link from host memory")


class KvSpec(Section):
    """KV memory: paged blocks on demand, or one contiguous reservation a request."""

    layout: Literal["paged", "contiguous"] = "paged"
    block_size: int | None = Field(default=None, ge=1, le=4096)
    num_gpu_blocks: int | None = Field(default=None, ge=2, le=2**30)
    reserve_tokens: int | None = Field(default=None, ge=1, le=LARGEST_COUNT)
    prefix_caching: bool | None = Field(default=None, description="use blocks of earlier requests again where the "
                                        "tokens are the same; default: as the engine does")
    swap: SwapSpec | None = Field(default=None, description="preempt by swap to host memory, not by recomputation")
    offload: OffloadSpec | None = Field(default=None, description="host memory behind the prefix cache: blocks found "
                                        "there are copied back instead of computed again")



class ServesSpec(Section):
    """Which requests a pool takes; all of them by default."""

    classes: list[str] | None = Field(default=None, min_length=1)
    min_prompt_tokens: int | None = Field(default=None, ge=1, le=LARGEST_COUNT)
    max_prompt_tokens: int | None = Field(default=None, ge=1, le=LARGEST_COUNT)



class SpotSpec(Section):
    """Capacity that the provider takes back: times drawn, exponential, for each replica on its own."""

    reclaims_per_hour: float = Field(gt=0, le=1000, description="of each replica")
    notice_s: float = Field(default=120.0, gt=0, le=LONGEST_S, description="from the notice until it is gone")
    replace_s: float = Field(gt=0, le=LONGEST_S, description="from its end until another one serves")



class PoolSpec(Section):
    """Replicas that are alike. Sections and keys not given are those of the scenario."""

    replicas: int = Field(default=1, ge=1, le=4096)
    role: Literal["both", "prefill", "decode"] = Field(default="both", description="prefill: hands requests over to a "
                                                       "decode pool with their first token")
    serves: ServesSpec = ServesSpec()
    spot: SpotSpec | None = None
    autoscale: AutoscaleSpec | None = Field(default=None, description="replicas is then the most there can be")
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
    overlap: Literal["none", "layerwise"] = Field(default="none", description="layerwise: each layer is sent when the "
                                                  "last chunk of the prompt has passed it, none: all when all are done")


class EventSpec(Section):
    """What happens to a replica, to those of a pool, or to all."""

    at_s: float = Field(ge=0, le=LONGEST_S)
    kind: Literal["crash", "drain", "slow", "hang"]
    for_s: float = Field(gt=0, le=LONGEST_S, description="until it is back: from the crash, from the end of the last "
                         "request of a drained replica, from the health check that finds a hanging one; slow: how long")
    factor: float | None = Field(default=None, ge=1, le=100, description="kind: slow, of GPU times")
    pool: str | None = None
    replica: int | None = Field(default=None, ge=0, lt=4096, description="its number in the pool or fleet, from 0")
    apart_s: float = Field(default=0.0, ge=0, le=LONGEST_S, description="from one replica to the next: rolling restart")

    @model_validator(mode="after")
    def _factor_of_slow(self) -> "EventSpec":
        if (self.factor is None) == (self.kind == "slow"):
            raise ValueError(f"factor belongs to kind: slow, which needs it; got {self.kind} and {self.factor}")
        return self


class PrefixRouterSpec(Section):
    """What router: prefix_aware goes by (policies/signals.py)."""

    knows: Literal["sent", "caches"] = Field(default="sent", description="what it sent where, or the caches themselves")
    capacity_blocks: int | None = Field(default=None, ge=1, le=LARGEST_COUNT,
                                        description="of what it sent, a replica; default 31250")
    share: float = Field(default=0.5, ge=0, lt=1, description="of a prompt's blocks, above which it goes there")
    most_apart: int = Field(default=32, ge=0, le=LARGEST_COUNT,
                            description="requests by which loads may differ, and by a factor, before only they count")
    factor: float = Field(default=1.1, ge=1, le=1000)

    @model_validator(mode="after")
    def _index(self) -> "PrefixRouterSpec":
        if self.capacity_blocks is not None and self.knows == "caches":
            raise ValueError("cluster.prefixes.capacity_blocks has no effect with knows: caches")
        return self


MANY_RETRIES: Final = 1000
"""Times that a lost request is submitted again before a run that might go on for ever gives it up."""


class ClusterSpec(Section):
    """Identical replicas behind a router, or pools of them."""

    replicas: int = Field(default=1, ge=1, le=4096)
    router: str = "round_robin"
    staleness_s: float = Field(default=0.0, ge=0, le=1e6, description="for which the router goes by the load that it "
                               "saw last")
    prefixes: PrefixRouterSpec | None = Field(default=None, description="of router: prefix_aware")
    pools: dict[str, PoolSpec] = Field(default={}, description="unlike replicas behind one router, by name")
    link: LinkSpec | None = Field(default=None, description="from prefill to decode pools")
    disaggregate_from_tokens: int | None = Field(
        default=None, ge=1, le=LARGEST_COUNT,
        description="shorter prompts are served whole, by pools with role: both if there are any")
    autoscale: AutoscaleSpec | None = Field(default=None, description="replicas is then the most there can be")
    spot: SpotSpec | None = None
    events: list[EventSpec] = Field(default=[], max_length=10_000, description="crashes and restarts")
    health_check_s: float = Field(default=0.0, ge=0, le=LONGEST_S, description="until the router knows of a crash")
    retry_s: float = Field(default=1.0, ge=1e-3, le=LONGEST_S, description="until a lost request is submitted again")
    retries: int | None = Field(default=None, ge=0, le=LARGEST_COUNT, description="times that a lost request is "
                                "submitted again, 0 = never; default: until it is answered, with autoscale.grace_s at "
                                "most 1000 times")

    @property
    def submissions_again(self) -> int | None:
        """`retries`; MANY_RETRIES where none are given and an autoscaler may cut answers off, each time perhaps."""
        return MANY_RETRIES if self.retries is None and self._cuts_off else self.retries

    @property
    def _cuts_off(self) -> bool:
        """Whether an autoscaler may take a replica away before its answers have ended."""
        return any(spec.grace_s for spec in self.autoscales.values())

    @property
    def hands_over(self) -> bool:
        """Whether requests begin in one pool and go on in another."""
        return any(pool.role == "prefill" for pool in self.pools.values())

    @model_validator(mode="after")
    def _something_happens(self) -> "ClusterSpec":
        for key in ("health_check_s", "retry_s", "retries"):
            used = self.events or ((self._cuts_off or self.spots) and key != "health_check_s")
            if not used and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"cluster.{key} has no effect without cluster.events")
        if self.retries == 0 and "retry_s" in self.model_fields_set:
            raise ValueError("cluster.retry_s has no effect with cluster.retries: 0")
        return self

    @model_validator(mode="after")
    def _router_looks(self) -> "ClusterSpec":
        if self.staleness_s and self.router in ("round_robin", "random"):
            raise ValueError(f"cluster.staleness_s has no effect with router: {self.router}, which looks at no load")
        if self.prefixes is not None and self.router != "prefix_aware":
            raise ValueError("cluster.prefixes has no effect without router: prefix_aware")
        return self

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

    @model_validator(mode="after")
    def _room_to_scale(self) -> "ClusterSpec":
        for key in ("autoscale", "spot"):
            if getattr(self, key) is not None and self.pools:
                raise ValueError(f"cluster.{key} has no effect beside cluster.pools; give it in a pool")
        if len({spot.notice_s for spot in self.spots.values()}) > 1:
            raise ValueError("cluster.pools: one spot.notice_s for all pools is modelled")
        if not self.health_check_s and any(event.kind == "hang" for event in self.events):
            raise ValueError("cluster.health_check_s must be > 0 for kind: hang: nothing else ends it")
        for name, spec in self.autoscales.items():
            spec.check_most(pool_key(name, "autoscale"), len(self.members(name)))
        return self

    @property
    def ranges(self) -> dict[str, range]:
        """Which replicas each pool has, counted through all pools; {} for a fleet of one kind."""
        sizes = [pool.replicas for pool in self.pools.values()]
        return {name: range(end - size, end)
                for name, size, end in zip(self.pools, sizes, accumulate(sizes), strict=True)}

    def members(self, pool: str) -> range:
        """The replicas of a pool, of "" all of them."""
        return self.ranges[pool] if pool else range(self.size)

    @property
    def spots(self) -> dict[str, SpotSpec]:
        """Spot capacity by pool, "" for a fleet of one kind."""
        found = {"": self.spot} | {name: pool.spot for name, pool in self.pools.items()}
        return {name: spot for name, spot in found.items() if spot is not None}

    @property
    def autoscales(self) -> dict[str, AutoscaleSpec]:
        """Autoscalers by pool, "" for a fleet of one kind."""
        found = {"": self.autoscale} | {name: pool.autoscale for name, pool in self.pools.items()}
        return {name: spec for name, spec in found.items() if spec is not None}

    @property
    def least(self) -> int:
        """Fewest replicas that autoscalers may leave, over all pools."""
        return self.size - sum(len(self.members(name)) - spec.min for name, spec in self.autoscales.items())

    @property
    def size(self) -> int:
        """Replicas of all pools."""
        return sum(pool.replicas for pool in self.pools.values()) if self.pools else self.replicas


def pool_key(pool: str, key: str) -> str:
    """How a key of a pool is written, of "" that of a fleet of one kind."""
    return f"cluster.{f'pools.{pool}.' if pool else ''}{key}"


def short_forms(data: Any) -> Any:
    """`engine: vllm-0.24` for `engine: {name: vllm-0.24}`; policy, host, hardware (its gpu), load (its kind)."""
    if isinstance(data, Mapping):
        short = SHORT_FORMS
        return {k: {short[k]: v} if k in short and isinstance(v, str) else v for k, v in data.items()}
    return data

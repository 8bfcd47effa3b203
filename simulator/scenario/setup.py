"""Scenario + trace -> a Job: profiles are looked up, KV memory counted, step times filled in."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from policies import fastserve, tgi
from policies.registry import ORDERS, POLICIES, Policy
from policies.static import PADDINGS, SIZES
from simulator.cost.calibrated import calibrated_cost
from simulator.cost.engine_times import EngineTimes
from simulator.cost.moe import Routing
from simulator.cost.roofline import roofline_cost
from simulator.cost.step import Cost
from simulator.cost.unit import unit_cost
from simulator.errors import ConfigError, ServecastError
from simulator.profiles.beside import beside, model_beside
from simulator.profiles.capacity import KvCapacity, kv_capacity
from simulator.profiles.engine import EngineProfile, load_engine
from simulator.profiles.gpu import Gpu, load_gpu, without_nvlink
from simulator.profiles.host import Host, host_times, load_host
from simulator.profiles.model import KV_BYTES, ModelShape, dtype_name, load_model
from simulator.profiles.speculation import Speculation
from simulator.scenario import speculation as drafting
from simulator.scenario.fleet import (
    alike_in_front,
    check_pools,
    named_pool,
    pool_scenario,
)
from simulator.scenario.handover import Kind, with_roles
from simulator.scenario.length import check_fits, check_positions, kv_tokens, longest_that_fits, safe_tokens
from simulator.scenario.pace import paced
from simulator.scenario.pipeline import GPUS_A_HOST, check_pipeline, in_stages
from simulator.scenario.serving import check_serving, lora_of
from simulator.scenario.spec import Scenario, without_effect
from simulator.scenario.swap import offload_limits, swap_limits
from simulator.scenario.windowed import refuse_beside_windows, window_limits
from simulator.state import LARGEST_COUNT, Limits
from simulator.units import to_ticks
from simulator.workload.unequal import unequal


@dataclass(frozen=True)
class Setup:
    """A scenario with everything looked up; `capacity` is None for the textbook GPU."""

    scenario: Scenario
    gpu: Gpu
    engine: EngineProfile
    host: Host
    model: ModelShape
    policy: Policy
    capacity: KvCapacity | None
    limits: Limits
    cost: Cost
    speculation: Speculation | None = None
    pools: "dict[str, Setup]" = field(default_factory=dict)
    """The setup of each pool, by name; empty for a fleet of one kind. The rest is then that of the first."""
    token_budget: int = 0
    """[tokens] max_num_batched_tokens as it is set; what drafts keep back of it is not in the limits."""
    contexts: float = 1.0
    """How unequal those of a step are, from 0 to 1 (workload.unequal)."""


def prepare(scenario: Scenario, shorten: bool = False, contexts: float | None = None) -> Setup:
    """Look up the profiles and derive limits and step times. Raises ConfigError, CapacityError.

    `shorten` chooses the longest max_model_len that fits the GPUs where the scenario gives none; it is in the
    scenario of the setup then. `contexts`: how unequal they are (workload.unequal), where another workload than the
    scenario's will run.
    """
    if contexts is None:
        contexts = unequal(scenario.parsed_workload())
    if not scenario.cluster.pools:
        return _prepare_pool(scenario, shorten, contexts)
    pools: dict[str, Setup] = {}
    for name in scenario.cluster.pools:
        own = pool_scenario(scenario, name)
        with named_pool(name):
            pools[name] = _prepare_pool(own, shorten, contexts)
    drafting.check_pools(scenario.place("engine.speculation"), [pool.speculation for pool in pools.values()])
    check_pools({name: pool.limits for name, pool in pools.items()}, {p.policy.name for p in pools.values()})
    first = next(iter(pools.values()))
    pools |= {name: replace(pool, cost=alike_in_front(pool.cost, first.cost)) for name, pool in pools.items()}
    limits = with_roles(scenario.cluster, {
        name: Kind(pool.limits, pool.policy.name, pool.scenario.model, pool.scenario.hardware.kv_dtype)
        for name, pool in pools.items()})
    pools = {name: replace(pool, limits=limits[name]) for name, pool in pools.items()}
    return replace(first, limits=next(iter(limits.values())), scenario=scenario, pools=pools)


def _prepare_pool(scenario: Scenario, shorten: bool, contexts: float) -> Setup:
    with _named(scenario, "hardware.gpu"):
        gpu = load_gpu(beside(scenario.base, scenario.hardware.gpu))
        gpu = without_nvlink(gpu) if scenario.hardware.interconnect else gpu
    with _named(scenario, "engine.name"):
        engine = load_engine("unit" if gpu.name == "unit" else scenario.engine.name)
    if scenario.engine.schedule_ahead is not None:
        engine = engine.replace(schedule_ahead=scenario.engine.schedule_ahead)
    if not scenario.engine.cuda_graphs:
        engine = engine.replace(graph_tokens_max=0)
    host, model = _host(scenario), _model(scenario)
    check_serving(scenario, engine, model)
    policy = scenario.chosen_policy(engine.policy)
    idle = without_effect(scenario.policy, policy)
    if idle:
        raise scenario.placed(ConfigError(idle))
    check_pipeline(scenario, engine, model, policy)
    default_seqs, default_budget = engine.default_limits(gpu)
    seqs = scenario.policy.max_num_seqs or default_seqs
    with _named(scenario, "engine.speculation"):
        speculation = drafting.chosen(scenario.engine.speculation, scenario.base, engine.name, policy, model,
                                      scenario.kv.layout, scenario.cost_model, scenario.hardware.tensor_parallel)
        drafting.check_budget(speculation, scenario.policy.max_num_batched_tokens or default_budget, seqs)
    if speculation and not speculation.ahead:
        engine = engine.replace(schedule_ahead=0)

    def limits_at(length: int) -> tuple[KvCapacity | None, Limits]:
        # a policy that does not chunk needs room for the longest prompt: vLLM v0's default is max(max_model_len, 2048)
        default = max(length, 2048) if policy.whole_prompt else default_budget
        budget = scenario.policy.max_num_batched_tokens or default
        sizes = (seqs, budget, length)
        capacity = None if gpu.name == "unit" else _capacity(scenario, gpu, engine, model, *sizes, speculation)
        limits = _limits(scenario, engine, model, policy, *sizes, capacity)
        return capacity, in_stages(drafting.with_drafts(limits, speculation), scenario.hardware.pipeline_parallel)

    if shorten and scenario.max_model_len is None and gpu.name != "unit":
        with _named(scenario, "model"):
            given = scenario.kv.num_gpu_blocks is not None
            chosen = longest_that_fits(model.max_positions, lambda n: safe_tokens(limits_at(n)[1], gpu, given))
        scenario = scenario.updated({"max_model_len": chosen})
    length = scenario.max_model_len or min(model.max_positions, LARGEST_COUNT)
    if gpu.name != "unit":
        _refuse_uncosted(scenario, model, length)
    with _named(scenario, "model"):
        capacity, limits = limits_at(length)
    if capacity:
        with _named(scenario, "max_model_len"):
            check_positions(model, length)
            check_fits(length, kv_tokens(limits), capacity, scenario.max_model_len is not None)
    try:
        cost = _cost(scenario, gpu, engine, host, model, seqs, limits.max_num_batched_tokens, limits.window > 0,
                     speculation, contexts)
    except ConfigError as error:
        if str(error).startswith("cost."):  # a term nobody set: what a profile of the user's own leads to
            raise ConfigError(f"{scenario.place('hardware.gpu')}: {gpu.path}: {gpu.name} is too slow for {model.name} "
                              "to be simulated: check memory_bandwidth and peak_dense") from error
        raise
    limits = paced(scenario, cost, limits, policy.name == "sarathi")
    return Setup(scenario, gpu, engine, host, model, policy, capacity, limits, cost, speculation,
                 token_budget=limits.max_num_batched_tokens + drafting.kept_back(speculation, seqs), contexts=contexts)


def cost_on(setup: Setup, host: Host) -> Cost:
    """Step times of a scenario already looked up, on another host."""
    limits = setup.limits
    return _cost(setup.scenario, setup.gpu, setup.engine, host, setup.model, limits.max_num_seqs,
                 limits.max_num_batched_tokens, limits.window > 0, setup.speculation, setup.contexts)


FRONT_TIMES: Final = ("frontend_in_ns", "frontend_each_ns", "frontend_out_ns")
HOST_TIMES: Final = ("cpu_ns", "prep_ns", "cpu_seq_ns", "prep_seq_ns", "plan_ns", "plan_seq_ns", *FRONT_TIMES)


def on_host(setup: Setup, factor: float) -> Cost:
    """Step times with a host whose CPU takes `factor` times as long: looked up again, since launches in worker
    processes are part of the GPU's times; of a setup whose times are not a profile's, those of the CPU scaled."""
    cost = setup.cost
    if setup.gpu.name != "unit":
        usual = cost_on(setup, setup.host)
        if all(np.array_equal(one, other) for one, other in zip(usual, cost, strict=True)):
            return cost_on(setup, setup.host.scaled(factor))
    return cost._replace(**{key: np.rint(np.asarray(getattr(cost, key)) * factor).astype(np.int64)
                            for key in HOST_TIMES})


def _host(scenario: Scenario) -> Host:
    """The host whose CPU prepares and launches steps, at the scenario's speed."""
    with _named(scenario, "host.name"):
        host = load_host(beside(scenario.base, scenario.host.name))
    return host.scaled(scenario.host.cpu_scale)


@contextmanager
def _named(scenario: Scenario, key: str) -> Iterator[None]:
    """Put file, line and key in front of what goes wrong inside."""
    try:
        yield
    except OSError as error:  # a name that cannot be a file's
        raise ConfigError(f"{scenario.place(key)}: cannot be read: {error.strerror or error}") from error
    except ServecastError as error:
        if not scenario.has_place(str(error)):
            error.args = (f"{scenario.place(key)}: {error}",)
        raise


def _model(scenario: Scenario) -> ModelShape:
    """The model, with number formats and tensor-parallel size checked against it."""
    hardware = scenario.hardware
    with _named(scenario, "model"):
        model = load_model(model_beside(scenario.base, scenario.model))
    with _named(scenario, "hardware.weight_dtype"):
        model.weight_format(hardware.weight_dtype)
    with _named(scenario, "hardware.kv_dtype"):
        dtype_name(hardware.kv_dtype, KV_BYTES)
    with _named(scenario, "hardware.tensor_parallel"):
        model.check_tp(hardware.tensor_parallel)
        if hardware.tensor_parallel > GPUS_A_HOST and hardware.gpu != "unit":
            raise ConfigError(f"must be <= {GPUS_A_HOST}, the GPUs of one host (tensor parallelism over a network is "
                              f"not modelled), got {hardware.tensor_parallel}")
    return model


def _refuse_uncosted(scenario: Scenario, model: ModelShape, max_model_len: int) -> None:
    """Raise ConfigError for a model whose memory is counted but whose step times are not modelled, and for keys of
    experts that it has not."""
    beyond = model.beyond_step_costs(max_model_len)
    if scenario.cost_model == "roofline":
        beyond += [f"{name} (cost_model: roofline)" for name in model.beyond_roofline(max_model_len)]
    if beyond:
        raise ConfigError(f"{scenario.place('model')}: {model.name} has {' and '.join(beyond)}: step times are not "
                          "modelled; servecast kv counts its memory")
    for key in ("expert_parallel", "expert_skew", "expert_shares"):
        if getattr(scenario.hardware, key) and not model.experts:
            raise ConfigError(f"{scenario.place(f'hardware.{key}')} has no effect on {model.name}: it has no experts")
    if model.experts:
        key = next((key for key in ("expert_shares", "expert_skew") if getattr(scenario.hardware, key)),
                   "expert_parallel")
        with _named(scenario, f"hardware.{key}"):
            _routing(scenario).slowest(np.ones(1), model.experts)


def _routing(scenario: Scenario) -> Routing:
    hardware = scenario.hardware
    return Routing(hardware.tensor_parallel if hardware.expert_parallel else 1, hardware.expert_skew,
                   tuple(hardware.expert_shares or ()))


def _capacity(scenario: Scenario, gpu: Gpu, engine: EngineProfile, model: ModelShape, seqs: int,
              budget: int, max_model_len: int, speculation: Speculation | None) -> KvCapacity:
    hardware = scenario.hardware
    return kv_capacity(gpu, engine, model, hardware.tensor_parallel, hardware.weight_dtype, hardware.kv_dtype,
                       seqs, budget, hardware.gpu_memory_utilization, scenario.kv.block_size, max_model_len,
                       speculation.draft if speculation else None, speculation.tokens if speculation else 0,
                       lora_of(scenario.engine.lora), hardware.pipeline_parallel, hardware.compile_cache)


def _limits(scenario: Scenario, engine: EngineProfile, model: ModelShape, policy: Policy, seqs: int, budget: int,
            max_model_len: int, capacity: KvCapacity | None) -> Limits:
    knobs, kv = scenario.policy, scenario.kv
    block_size = kv.block_size or engine.block_size
    contiguous = kv.layout == "contiguous"
    limits_of_windows = {} if capacity is None else window_limits(model, max_model_len)
    if limits_of_windows:
        refuse_beside_windows(scenario, model, policy)
    reserve = max(max_model_len, kv.reserve_tokens or 0)
    if kv.num_gpu_blocks:
        blocks = kv.num_gpu_blocks
    elif capacity:
        blocks = capacity.num_gpu_blocks
        if not limits_of_windows:  # windows longer than any request: all groups alike
            blocks //= capacity.layer_groups
    else:
        blocks = seqs * -(-reserve // block_size) + 1
    if blocks > LARGEST_COUNT:
        key = "kv.reserve_tokens" if kv.reserve_tokens else "max_model_len"
        raise ConfigError(f"{scenario.place(key)}: {seqs} sequences of {reserve} tokens in blocks of {block_size} are "
                          f"{blocks} KV blocks; accepted: up to {LARGEST_COUNT}")
    # a paged engine keeps one block to point unused entries at, vLLM v0 does not
    usable = blocks if contiguous or policy.whole_prompt else blocks - 1
    default = engine.watermark if policy.watermark is None else policy.watermark
    watermark = default if knobs.watermark is None else knobs.watermark
    prefix = _prefix_cache(scenario, engine, policy)
    full = engine.reserve_prompt if knobs.reserve_full_prompt is None else int(knobs.reserve_full_prompt)
    return Limits(
        max_num_seqs=seqs, max_num_batched_tokens=budget,
        long_prefill_token_threshold=knobs.long_prefill_token_threshold or 0,
        watermark_blocks=int(watermark * blocks) if "watermark" in policy.knobs else 0,
        reserve_prompt=full, block_size=block_size, num_blocks=usable, max_model_len=max_model_len,
        contiguous=int(contiguous), reserve_tokens=kv.reserve_tokens or 0,
        batch_window=to_ticks(knobs.batch_window_s or 0.0), length_bucket=knobs.length_bucket or 0,
        stream=int(policy.streams if knobs.stream is None else knobs.stream),
        schedule_ahead=engine.schedule_ahead, whole_prompt=int(policy.whole_prompt),
        prefix=int(prefix and not limits_of_windows), **limits_of_windows,
        padding=PADDINGS[knobs.padding or "naive"], order=ORDERS.get(policy.name, 0),
        aging=to_ticks(knobs.aging_s or 0.0),
        preferred_sizes=_preferred(scenario, seqs),
        served_ratio=round((0.3 if knobs.waiting_served_ratio is None else knobs.waiting_served_ratio) * tgi.ONE),
        max_waiting_tokens=20 if knobs.max_waiting_tokens is None else knobs.max_waiting_tokens,
        quantum=max(1, to_ticks(knobs.quantum_s or fastserve.QUANTUM_S)),
        starvation=max(1, to_ticks(knobs.starvation_s or fastserve.STARVATION_S)), max_batch=knobs.max_batch_size or 0,
        max_waiting=scenario.admission.max_waiting or 0,
        predicted_ttft=to_ticks(scenario.admission.predicted_ttft_s or 0.0),
        shed_waiting=scenario.admission.shed.waiting if scenario.admission.shed else 0,
        shed_priority=scenario.admission.shed.from_priority if scenario.admission.shed else 0,
        **swap_limits(scenario, model, policy, block_size),
        **offload_limits(scenario, model, prefix, bool(limits_of_windows), block_size))


def _preferred(scenario: Scenario, seqs: int) -> int:
    """policy.preferred_batch_sizes as one number. Raises ConfigError for a size beyond the batch."""
    sizes = sorted(set(scenario.policy.preferred_batch_sizes or ()), reverse=True)
    if sizes and sizes[0] > seqs:
        raise ConfigError(f"{scenario.place('policy')}: policy.preferred_batch_sizes must be <= max_num_seqs ({seqs}), "
                          f"got {sizes[0]}")
    return sum(size * SIZES**k for k, size in enumerate(sizes))


def _prefix_cache(scenario: Scenario, engine: EngineProfile, policy: Policy) -> bool:
    """Whether KV blocks are used again. Raises ConfigError when that is asked of who cannot."""
    able = policy.prefix_cache and scenario.kv.layout == "paged"
    if scenario.kv.prefix_caching and not able:
        names = ", ".join(p.name for p in POLICIES.values() if p.prefix_cache)
        raise ConfigError(f"{scenario.place('kv.prefix_caching')} needs layout: paged and a policy that looks for "
                          f"known blocks ({names}), got {scenario.kv.layout} and {policy.name}")
    wanted = scenario.kv.prefix_caching
    return able and bool(engine.prefix_caching if wanted is None else wanted)


def _cost(scenario: Scenario, gpu: Gpu, engine: EngineProfile, host: Host, model: ModelShape, seqs: int,
          budget: int, windowed: bool, speculation: Speculation | None, contexts: float) -> Cost:
    hardware = scenario.hardware
    if gpu.name == "unit":
        return unit_cost(to_ticks(1.0 if hardware.step_s is None else hardware.step_s))
    if scenario.cost_model == "roofline":
        cpu, graphs = host_times(host, engine), engine.graph_limits(seqs, model.architectures)
        times = EngineTimes(
            cpu_step_s=cpu.decode_prep_s + cpu.launch_tail_s, cpu_seq_s=cpu.sequence_cpu_s,
            prep_step_s=cpu.decode_prep_s, prep_seq_s=cpu.sequence_cpu_s,
            eager_cpu_s=cpu.eager_cpu_s, frontend_in_s=cpu.frontend_in_s,
            frontend_each_s=cpu.frontend_each_s, frontend_out_s=cpu.frontend_out_s,
            graph_max_tokens=graphs[1], decode_graph_max=graphs[0])
        weights = model.weight_format(hardware.weight_dtype).dtype
        return roofline_cost(gpu, model, hardware.tensor_parallel, weights, hardware.kv_dtype, times,
                             seqs, budget)
    return calibrated_cost(gpu, engine, model, hardware.tensor_parallel, hardware.weight_dtype, hardware.kv_dtype,
                           seqs, budget, host, _routing(scenario), windowed, speculation, scenario.engine.sampling,
                           lora_of(scenario.engine.lora), hardware.pipeline_parallel, contexts)



"""Scenario + trace -> a Job: profiles are looked up, KV memory counted, step times filled in."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policies.registry import Policy, policy_named
from policies.routers import RANDOM, ROUTERS
from simulator.cost.calibrated import calibrated_cost
from simulator.cost.engine_times import EngineTimes
from simulator.cost.roofline import roofline_cost
from simulator.cost.step import Cost
from simulator.cost.unit import unit_cost
from simulator.engines.clients import CLOSED, GROUPED, OPEN
from simulator.engines.job import Job, array_job, list_job, request_columns
from simulator.errors import ConfigError, ServecastError
from simulator.profiles.capacity import KvCapacity, kv_capacity
from simulator.profiles.engine import EngineProfile, load_engine
from simulator.profiles.gpu import Gpu, load_gpu
from simulator.profiles.model import KV_BYTES, ModelShape, dtype_name, load_model
from simulator.scenario.spec import Scenario
from simulator.state import Limits
from simulator.units import NEVER, to_ticks
from simulator.workload.streams import stream
from simulator.workload.trace import Trace

LOADS = {"open": OPEN, "closed": CLOSED, "grouped": GROUPED}


@dataclass(frozen=True)
class Setup:
    """A scenario with everything looked up; `capacity` is None for the textbook GPU."""

    scenario: Scenario
    gpu: Gpu
    engine: EngineProfile
    model: ModelShape
    policy: Policy
    capacity: KvCapacity | None
    limits: Limits
    cost: Cost


def prepare(scenario: Scenario) -> Setup:
    """Look up the profiles and derive limits and step times. Raises ConfigError, CapacityError."""
    with _named(scenario, "hardware.gpu"):
        gpu = load_gpu(scenario.hardware.gpu)
    with _named(scenario, "engine.name"):
        engine = load_engine("unit" if gpu.name == "unit" else scenario.engine.name)
    if scenario.engine.schedule_ahead is not None:
        engine = engine.replace(schedule_ahead=scenario.engine.schedule_ahead)
    if not scenario.engine.cuda_graphs:
        engine = engine.replace(graph_tokens_max=0)
    model = _model(scenario)
    policy = policy_named(scenario.policy.name or engine.policy)
    default_seqs, default_budget = engine.default_limits(gpu)
    seqs = scenario.policy.max_num_seqs or default_seqs
    max_model_len = scenario.max_model_len or model.max_positions
    # a policy that does not chunk needs room for the longest prompt: vLLM v0's default is max(max_model_len, 2048)
    default = max(max_model_len, 2048) if policy.whole_prompt else default_budget
    budget = scenario.policy.max_num_batched_tokens or default
    if gpu.name != "unit":
        _refuse_uncosted(scenario, model, max_model_len)
    with _named(scenario, "model"):
        capacity = None if gpu.name == "unit" else _capacity(scenario, gpu, engine, model, seqs, budget, max_model_len)
    limits = _limits(scenario, engine, policy, seqs, budget, max_model_len, capacity)
    try:
        cost = _cost(scenario, gpu, engine, model, seqs, budget)
    except ConfigError as error:
        if str(error).startswith("cost."):  # a term nobody set: what a profile of the user's own leads to
            raise ConfigError(f"{scenario.place('hardware.gpu')}: {gpu.path}: {gpu.name} is too slow for {model.name} "
                              "to be simulated: check memory_bandwidth and peak_dense") from error
        raise
    return Setup(scenario, gpu, engine, model, policy, capacity, limits, cost)


@contextmanager
def _named(scenario: Scenario, key: str) -> Iterator[None]:
    """Put file, line and key in front of what goes wrong inside."""
    try:
        yield
    except OSError as error:  # a name that cannot be a file's
        raise ConfigError(f"{scenario.place(key)}: cannot be read: {error.strerror or error}") from error
    except ServecastError as error:
        error.args = (f"{scenario.place(key)}: {error}",)
        raise


def _model(scenario: Scenario) -> ModelShape:
    """The model, with number formats and tensor-parallel size checked against it."""
    hardware, path = scenario.hardware, scenario.base / scenario.model
    with _named(scenario, "model"):
        model = load_model(path if path.suffix == ".json" or path.is_dir() else scenario.model)
    with _named(scenario, "hardware.weight_dtype"):
        model.weight_format(hardware.weight_dtype)
    with _named(scenario, "hardware.kv_dtype"):
        dtype_name(hardware.kv_dtype, KV_BYTES)
    with _named(scenario, "hardware.tensor_parallel"):
        model.check_tp(hardware.tensor_parallel)
    return model


def _refuse_uncosted(scenario: Scenario, model: ModelShape, max_model_len: int) -> None:
    """Raise ConfigError for a model whose memory is counted but whose step times are not modelled."""
    beyond = model.beyond_dense(max_model_len)
    if beyond:
        raise ConfigError(f"{scenario.place('model')}: {model.name} has {' and '.join(beyond)}: step times are not "
                          "modelled; servecast kv counts its memory")


def _capacity(scenario: Scenario, gpu: Gpu, engine: EngineProfile, model: ModelShape, seqs: int,
              budget: int, max_model_len: int) -> KvCapacity:
    hardware = scenario.hardware
    return kv_capacity(gpu, engine, model, hardware.tensor_parallel, hardware.weight_dtype, hardware.kv_dtype,
                       seqs, budget, hardware.gpu_memory_utilization, scenario.kv.block_size, max_model_len)


def _limits(scenario: Scenario, engine: EngineProfile, policy: Policy, seqs: int, budget: int, max_model_len: int,
            capacity: KvCapacity | None) -> Limits:
    knobs, kv = scenario.policy, scenario.kv
    block_size = kv.block_size or engine.block_size
    contiguous = kv.layout == "contiguous"
    if kv.num_gpu_blocks:
        blocks = kv.num_gpu_blocks
    elif capacity:
        blocks = capacity.num_gpu_blocks // capacity.layer_groups  # windows longer than any request: all groups alike
    else:
        reserve = max(max_model_len, kv.reserve_tokens or 0)
        blocks = seqs * -(-reserve // block_size) + 1
    usable = blocks if contiguous else blocks - 1  # a paged engine keeps one block to point unused entries at
    watermark = engine.watermark if knobs.watermark is None else knobs.watermark
    full = engine.reserve_prompt if knobs.reserve_full_prompt is None else int(knobs.reserve_full_prompt)
    return Limits(
        max_num_seqs=seqs, max_num_batched_tokens=budget,
        long_prefill_token_threshold=knobs.long_prefill_token_threshold or 0,
        watermark_blocks=int(watermark * usable) if "watermark" in policy.knobs else 0,
        reserve_prompt=full, block_size=block_size, num_blocks=usable, max_model_len=max_model_len,
        contiguous=int(contiguous), reserve_tokens=kv.reserve_tokens or 0,
        batch_window=to_ticks(knobs.batch_window_s or 0.0), length_bucket=knobs.length_bucket or 0,
        stream=0 if policy.name == "static" and not knobs.stream else 1,
        schedule_ahead=engine.schedule_ahead, whole_prompt=int(policy.whole_prompt))


def _cost(scenario: Scenario, gpu: Gpu, engine: EngineProfile, model: ModelShape, seqs: int, budget: int) -> Cost:
    hardware = scenario.hardware
    if gpu.name == "unit":
        return unit_cost(to_ticks(1.0 if hardware.step_s is None else hardware.step_s))
    weights = model.weight_format(hardware.weight_dtype).dtype
    if scenario.cost_model == "roofline":
        times = EngineTimes(
            cpu_step_s=engine.decode_prep_s + engine.launch_tail_s, cpu_seq_s=engine.sequence_cpu_s,
            prep_step_s=engine.decode_prep_s, prep_seq_s=engine.sequence_cpu_s,
            eager_cpu_s=engine.eager_cpu_s, frontend_in_s=engine.frontend_in_s,
            frontend_each_s=engine.frontend_each_s, frontend_out_s=engine.frontend_out_s,
            graph_max_tokens=engine.graph_limits(seqs)[1], decode_graph_max=engine.graph_limits(seqs)[0])
        return roofline_cost(gpu, model, hardware.tensor_parallel, weights, hardware.kv_dtype, times,
                             seqs, budget)
    return calibrated_cost(gpu, engine, model, hardware.tensor_parallel, weights, hardware.kv_dtype,
                           seqs, budget)


def in_submission_order(trace: Trace, load: str) -> Trace:
    """Open loads replay by arrival; closed and grouped clients submit in order of id."""
    if load == "open":
        return trace
    return trace.take(np.argsort(trace.id, kind="stable"))


def build_job(setup: Setup, trace: Trace, compiled: bool, log: bool, replication: int = 0) -> Job:
    """The job an engine runs; `trace` must be in submission order."""
    scenario, limits = setup.scenario, setup.limits
    if len(trace) == 0:
        raise ConfigError("the trace holds no request")
    router = ROUTERS[scenario.cluster.router]
    pick: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    if router == RANDOM:
        pick = stream(scenario.seed, "router", replication).integers(0, 2**62, size=len(trace))
    req = request_columns(trace.arrival_ns, trace.prompt, trace.output, trace.max_tokens, trace.cached, pick)
    make = array_job if compiled else list_job
    job = make(req, limits, setup.cost, scenario.cluster.replicas, log)
    job.router, job.load, job.width = router, LOADS[scenario.load.kind], scenario.load.width
    job.until = NEVER if scenario.horizon_s is None else to_ticks(scenario.horizon_s)
    return job

"""Predict a measured run from its settings alone: profiles, scheduler, KV blocks; the compiled engine replays it."""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.accepted import NotModelledError
from calibration.extras import check_extras, lora_of, sampler_of
from calibration.measured import MeasuredRun, metrics_of
from policies.registry import Policy, policy_named
from simulator.cost.calibrated import calibrated_cost
from simulator.cost.moe import Routing
from simulator.cost.step import Cost
from simulator.engines.fast import run_fast
from simulator.engines.job import Job, array_job, request_columns
from simulator.errors import CalibrationError
from simulator.profiles.capacity import KvCapacity, kv_capacity
from simulator.profiles.engine import EngineProfile, load_engine
from simulator.profiles.gpu import Gpu, load_gpu, without_nvlink
from simulator.profiles.host import Host, load_host
from simulator.profiles.model import ModelShape, load_model
from simulator.scenario.job import LOADS
from simulator.scenario.pipeline import in_stages
from simulator.scenario.speculation import acceptance_of, with_drafts
from simulator.scenario.windowed import window_limits
from simulator.state import FINISHED, Limits
from simulator.units import column_to_ticks, to_seconds
from simulator.workload.extras import Extras
from simulator.workload.shared import shared_blocks
from simulator.workload.trace import make_trace
from simulator.workload.unequal import spread

Seconds = npt.NDArray[np.float64]
SEED = 0
"""Of the draws of which drafts are right."""


@dataclass(frozen=True)
class Prediction:
    """What the simulator makes of a run; arrays have one row a request, in the order given to the engine."""

    metrics: dict[str, float]
    num_gpu_blocks: int  # by the memory model, whatever the run used
    preemptions: int
    steps: int
    found_tokens: int  # prompt tokens found in the prefix cache, as simulated
    ids: npt.NDArray[np.int64]
    arrival_s: Seconds
    first_s: Seconds
    last_s: Seconds
    log: npt.NDArray[np.void] | None


@dataclass(frozen=True)
class Profiles:
    """What a run stands on, as its run.yaml names it."""

    gpu: Gpu
    engine: EngineProfile
    model: ModelShape
    host: Host = field(default_factory=load_host)

    def slower(self, cpu_scale: float, gpu_scale: float) -> "Profiles":
        """With all CPU and all GPU times multiplied."""
        return replace(self, gpu=self.gpu.slower(gpu_scale), host=self.host.scaled(cpu_scale))


def setup_of(run: MeasuredRun, host: Host | None = None) -> Profiles:
    """Profiles named by run.yaml, on `host` (default: the measured one). Raises UnknownNameError for a GPU or engine
    without one, NotModelledError for a model whose step times are not modelled."""
    engine = load_engine(run.engine.profile)
    if run.engine.async_scheduling is not None:
        engine = engine.replace(schedule_ahead=int(run.engine.async_scheduling))
    if not run.engine.cuda_graphs:
        engine = engine.replace(graph_tokens_max=0)
    model = load_model(run.model)
    beyond = model.beyond_step_costs(_length(run, model))
    if beyond:
        raise NotModelledError(f"{run.model}: {model.name} has {' and '.join(beyond)}: step times are not modelled")
    e = run.engine
    check_extras(e.sampling, e.lora, model, e.tensor_parallel_size, e.profile, run.path)
    gpu = without_nvlink(load_gpu(run.gpu)) if run.pcie else load_gpu(run.gpu)
    return Profiles(gpu, engine, model, host or load_host())


def cost_of(run: MeasuredRun, setup: Profiles) -> Cost:
    """Calibrated cost under the run's settings."""
    e = run.engine
    return calibrated_cost(
        setup.gpu,
        setup.engine,
        setup.model,
        e.tensor_parallel_size,
        setup.model.weight_format(e.weight_dtype).dtype,
        e.kv_cache_dtype,
        e.max_num_seqs,
        e.max_num_batched_tokens,
        setup.host,
        Routing(e.tensor_parallel_size if e.enable_expert_parallel else 1),
        bool(windows_of(run, setup)),
        run.speculation,
        sampler_of(run.engine.sampling, run.path),
        lora_of(run.engine.lora),
        e.pipeline_parallel_size,
        spread(run.requests.prompt_tokens.to_numpy(), run.requests.output_tokens.to_numpy(), run.kind == "grouped"),
        e.deep_gemm,
    )


def capacity_of(run: MeasuredRun, setup: Profiles) -> KvCapacity:
    """GPU memory under the run's settings, by the memory model."""
    e = run.engine
    return kv_capacity(
        setup.gpu,
        setup.engine,
        setup.model,
        e.tensor_parallel_size,
        e.weight_dtype,
        e.kv_cache_dtype,
        e.max_num_seqs,
        e.max_num_batched_tokens,
        e.gpu_memory_utilization,
        e.block_size,
        e.max_model_len,
        run.speculation.draft if run.speculation else None,
        run.speculation.tokens if run.speculation else 0,
        lora_of(run.engine.lora),
        e.pipeline_parallel_size,
        e.compile_cache,
    )


def predict(
    run: MeasuredRun, setup: Profiles | None = None, cost: Cost | None = None, log: bool = False
) -> Prediction:
    """Simulate the run. The KV blocks are the run's override, else the memory model's.

    Raises CalibrationError when a request cannot run under the settings.
    """
    setup = setup_of(run) if setup is None else setup
    blocks = capacity_of(run, setup).num_gpu_blocks
    job = _job(
        run,
        setup,
        cost_of(run, setup) if cost is None else cost,
        run.engine.num_gpu_blocks_override or blocks,
        log,
    )
    run_fast(job, _policy(run, setup))
    refused = np.flatnonzero(job.req.status != FINISHED)
    if refused.size:
        raise CalibrationError(f"{run.name}: request {refused[0]} does not finish under the run's settings")
    arrival, first, last = (to_seconds(column) for column in (job.req.arrival, job.req.first, job.req.last))
    metrics = metrics_of(arrival, first, last, job.req.output.astype(np.int64))
    return Prediction(
        metrics,
        blocks,
        int(job.req.preempted.sum()),
        int(job.stats["steps"][0]),
        int(job.req.found.sum()),
        ordered(run).id.to_numpy(dtype=np.int64),
        arrival,
        first,
        last,
        job.log if log else None,
    )


def _policy(run: MeasuredRun, setup: Profiles) -> Policy:
    """The engine's policy, or its queue in order of priority."""
    return policy_named("priority" if run.engine.scheduling_policy == "priority" else setup.engine.policy)


def ordered(run: MeasuredRun) -> pd.DataFrame:
    """Requests in the order they are submitted: by arrival, or by id where the client's habit decides."""
    return (
        run.requests
        if run.kind in ("open", "sessions")
        else run.requests.sort_values("id", kind="stable", ignore_index=True)
    )


def _job(run: MeasuredRun, setup: Profiles, cost: Cost, blocks: int, log: bool) -> Job:
    table = ordered(run)
    arrival = column_to_ticks(table.arrival_s.to_numpy() - table.arrival_s.min())
    output = table.output_tokens.to_numpy(dtype=np.int64)
    prompt = table.prompt_tokens.to_numpy(dtype=np.int64)
    nothing = np.zeros(len(table), dtype=np.int64)
    talks = run.engine.enable_prefix_caching and run.kind == "sessions"
    cached = table.cached_tokens.to_numpy(dtype=np.int64) if "cached_tokens" in table and not talks else nothing
    extras = Extras(session=table.session.to_numpy(np.int64), turn=table.turn.to_numpy(np.int64)) if talks else Extras()
    known = run.engine.enable_prefix_caching and not cached.any()  # else what was found is given, not what it was
    windows = windows_of(run, setup)
    limits = limits_of(run, setup.engine, blocks)._replace(prefix=int(known and not windows), **windows)
    shared = shared_blocks(make_trace(arrival, prompt, output, extras=extras), limits.block_size)
    policy = _policy(run, setup)
    asks = {name: table[name].to_numpy(dtype=np.int64) for name in policy.needs}
    columns = request_columns(arrival, prompt, output, output, cached, np.zeros(0, dtype=np.int64),
                              shared.ends if limits.prefix else None, asks=asks, ordered=policy.ordered)
    job = array_job(columns, limits, cost, 1, log, shared.numbers)
    if run.speculation:
        job.acceptance = acceptance_of(run.speculation, SEED, 0, arrays=True)
    job.load, job.width = LOADS["open" if run.kind == "sessions" else run.kind], run.width
    return job


def _length(run: MeasuredRun, model: ModelShape) -> int:
    """[tokens] longest request the engine took."""
    return run.engine.max_model_len or model.max_positions


def windows_of(run: MeasuredRun, setup: Profiles) -> dict[str, int]:
    """Limits of windowed attention; empty where no request is longer than the model's windows."""
    return window_limits(setup.model, _length(run, setup.model))


def limits_of(run: MeasuredRun, engine: EngineProfile, blocks: int) -> Limits:
    """The policy's limits under the run's settings; one block is the engine's null block, but for policies that take
    whole prompts (vLLM v0)."""
    e = run.engine
    longest = int((run.requests.prompt_tokens + run.requests.output_tokens).max())
    whole = int(policy_named(engine.policy).whole_prompt)
    limits = Limits(
        max_num_seqs=e.max_num_seqs,
        max_num_batched_tokens=e.max_num_batched_tokens,
        long_prefill_token_threshold=0,
        watermark_blocks=int(engine.watermark * blocks),
        reserve_prompt=engine.reserve_prompt,
        block_size=e.block_size,
        num_blocks=blocks if whole else blocks - 1,
        max_model_len=e.max_model_len or longest,
        contiguous=0,
        reserve_tokens=0,
        batch_window=0,
        length_bucket=0,
        stream=1,
        schedule_ahead=engine.schedule_ahead,
        whole_prompt=whole,
    )
    return in_stages(with_drafts(limits, run.speculation), e.pipeline_parallel_size)

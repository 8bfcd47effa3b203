"""Fit the engine's CPU side on its step logs: preparation, launch, front end.

Without asynchronous scheduling a step lasts preparation + GPU, or its launch where that is longer, so the
GPU times fitted before tell the rest. With it, an output that comes later than its GPU work shows the
launch of the next step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.fit_operators import least_squares
from calibration.fit_steps import step_table
from calibration.measured import MeasuredRun
from calibration.predict import setup_of
from simulator.profiles.gpu import Gpu

Array = npt.NDArray[np.float64]

IDLE_S: Final = 0.003
"""[s] a pause longer than this between output and next schedule means that nothing was to be done."""
EAGER_TOKENS: Final = 520
"""[tokens] up to here a step without graphs is launched for longer than the GPU needs."""
LATE_S: Final = 0.002
"""[s] an output this much later than its GPU work waited for the next launch."""
SHORT_TOKENS: Final = 128
"""[tokens] up to here a step in piecewise graphs is launched for longer than the GPU needs."""
FULL_TOKENS: Final = 2048
PAUSE_S: Final = 0.0005
COLD_STEPS: Final = 4
"""[steps] at the start of a run: one-off kernel selection."""
BLOCKED_S: Final = 0.045
"""[s] launches beyond this waited for the GPU inside (they end with it), so they are no launch times."""


@dataclass(frozen=True)
class HostFit:
    """CPU times of the engine [s]; names as in its profile."""

    decode_prep_s: float
    sequence_cpu_s: float
    prefill_prep_s: float
    eager_cpu_sync_s: float
    eager_cpu_s: float
    piecewise_cpu_s: float
    frontend_in_s: float
    frontend_out_s: float


def fit_host(
    sync: Sequence[MeasuredRun], ahead: Sequence[MeasuredRun], gpu: Gpu
) -> HostFit:
    """CPU times from runs without (`sync`) and with (`ahead`) asynchronous scheduling, given the GPU's times."""
    table = pd.concat([_sync_steps(run, gpu) for run in sync], ignore_index=True)
    limit = setup_of(sync[0]).engine.graph_limits(sync[0].engine.max_num_seqs)[1]
    decode = table[(table.kind == 0) & table.exposed_s.between(0, 0.02)]
    prep, per_sequence = robust_line(decode.rows.to_numpy(), decode.exposed_s.to_numpy())
    piecewise = table[(table.kind == 1) & (table.tokens <= limit)]
    prefill_prep = float(np.median(piecewise.exposed_s - per_sequence * piecewise.rows))
    eager = table[(table.kind == 1) & (table.tokens > limit) & (table.tokens <= EAGER_TOKENS)]
    busy = eager[eager.rows > 4]
    launches = np.concatenate([_launches(run, limit, prefill_prep, gpu) for run in ahead])
    single = table[(table.kind == 1) & (table.tokens <= 64) & (table.rows == 1)]
    delay_in, delay_out = _frontend(sync)
    return HostFit(
        decode_prep_s=prep,
        sequence_cpu_s=per_sequence,
        prefill_prep_s=prefill_prep,
        eager_cpu_sync_s=float(busy.cycle_s.mean()),
        eager_cpu_s=float(launches.mean()),
        piecewise_cpu_s=float(single.lasted_s.min()),
        frontend_in_s=delay_in,
        frontend_out_s=delay_out,
    )


def _sync_steps(run: MeasuredRun, gpu: Gpu) -> pd.DataFrame:
    """Steps that were not followed by a pause: how long they lasted and what of it was not the GPU."""
    table = step_table(run, gpu)
    table = table.assign(
        rows=table.n_decode + table.n_prefill,
        lasted_s=table.t_output_s - table.t_schedule_s,
        cycle_s=table.t_schedule_s.shift(-1) - table.t_schedule_s,
        run=run.name,
    )
    table = table.assign(exposed_s=table.cycle_s - table.gpu_s)
    return table[table.t_schedule_s.shift(-1) - table.t_output_s < IDLE_S]


def robust_line(x: Array, y: Array) -> tuple[float, float]:
    """Intercept and slope of y over x, outliers damped."""
    start = np.array([float(np.median(y)), 1e-5])
    found = least_squares(
        lambda p: (p[0] + p[1] * x - y) / 2e-4, start, loss="soft_l1", x_scale=np.array([1e-3, 1e-5])
    )
    return float(found.x[0]), float(found.x[1])


def _launches(run: MeasuredRun, limit: int, prep: float, gpu: Gpu) -> Array:
    """[s] launches of eager steps that an output waited for."""
    table = step_table(run, gpu)
    scheduled, output = table.t_schedule_s.to_numpy(), table.t_output_s.to_numpy()
    kind, tokens, work = table.kind.to_numpy(), table.tokens.to_numpy(), table.gpu_s.to_numpy()
    found, free = [], 0.0
    for i in range(len(table)):
        late = i > 0 and output[i - 1] > free + LATE_S and scheduled[i] < output[i - 1]
        if late and kind[i] == 1 and tokens[i] > limit and output[i - 1] - scheduled[i] < BLOCKED_S:
            found.append(output[i - 1] - scheduled[i])
        free = min(max(free, scheduled[i] + prep) + work[i], output[i])
    return np.array(found)


def _frontend(runs: Sequence[MeasuredRun]) -> tuple[float, float]:
    """(submission -> schedule of an idle engine, output of a step -> first token at the client) [s].

    The first from lone prompts; the second, which grows with the sequences of a step (1.0 ms alone, 2.5 ms at 25), as
    the middle of the runs' means.
    """
    waits, delays = [], []
    for run in runs:
        assert run.steps is not None
        output, scheduled = run.steps.t_output_s.to_numpy(), run.steps.t_schedule_s.to_numpy()
        arrival = run.requests.arrival_s.to_numpy()
        seen = arrival + run.requests.ttft_s.to_numpy()
        delays.append(float(np.mean(seen - output[np.searchsorted(output, seen, side="right") - 1])))
        if len(run.requests) == 1:
            waits.append(float(scheduled[0] - arrival[0]))
    return float(np.median(waits)), float(np.median(delays))


@dataclass(frozen=True)
class WorkerFit:
    """CPU times with tensor parallelism [s]: worker processes launch, the scheduler runs beside them."""

    decode_prep_worker_s: float
    prefill_prep_worker_s: float
    sequence_cpu_worker_s: float
    piecewise_cpu_worker_s: float
    eager_cpu_worker_s: float
    eager_cpu_worker_sync_s: float
    eager_cpu_worker_old_s: float


def fit_workers(
    ahead: Sequence[MeasuredRun],
    sync: Sequence[MeasuredRun],
    old: Sequence[MeasuredRun],
    gpu: Gpu,
    collective_s: float,
    layer_s: float,
) -> WorkerFit:
    """CPU times of two GPUs from lone prompts and decode steps: runs planned ahead, runs without, and runs of a model
    on the older model runner. `collective_s` per all-reduce and `layer_s` per layer above 32 are the launch's parts."""
    steps = pd.concat([_sync_steps(run, gpu) for run in sync], ignore_index=True)
    decode = steps[(steps.kind == 0) & steps.exposed_s.between(0, 0.02)]
    prep, per_sequence = robust_line(decode.rows.to_numpy(), decode.exposed_s.to_numpy())
    lone = pd.concat([_lone_prompts(run, gpu) for run in ahead])
    short = lone[lone.tokens <= SHORT_TOKENS]
    long = lone[lone.gpu_s > short.lasted_s.mean() - prep]
    long = long[(long.tokens <= setup_of(ahead[0]).engine.graph_limits(ahead[0].engine.max_num_seqs)[1])
                | (long.tokens >= FULL_TOKENS)]

    def eager(table: pd.DataFrame) -> pd.Series:
        part = table[(table.tokens > SHORT_TOKENS * 2) & (table.tokens <= EAGER_TOKENS)]
        return part.groupby("run").lasted_s.median()

    waiting = pd.concat([_lone_prompts(run, gpu) for run in sync])
    before = pd.concat([_lone_prompts(run, gpu) for run in old])
    deeper = setup_of(old[0]).model.layers - 32
    return WorkerFit(
        decode_prep_worker_s=prep,
        prefill_prep_worker_s=float((long.lasted_s - long.gpu_s).median()),
        sequence_cpu_worker_s=per_sequence,
        piecewise_cpu_worker_s=float(short.lasted_s.mean()),
        eager_cpu_worker_s=float(eager(lone).median()) - 64 * collective_s,
        eager_cpu_worker_sync_s=float(eager(waiting).mean()) - 64 * collective_s,
        eager_cpu_worker_old_s=float(eager(before).median()) - 2 * (32 + deeper) * collective_s - deeper * layer_s,
    )


def _lone_prompts(run: MeasuredRun, gpu: Gpu) -> pd.DataFrame:
    """Steps of one prompt and nothing else on an idle engine; the first steps of a run, cold, are left out."""
    table = step_table(run, gpu)
    table = table.assign(lasted_s=table.t_output_s - table.t_schedule_s, run=run.name)
    pause = table.t_schedule_s - table.t_output_s.shift(1)
    return table[(table.kind == 1) & (table.n_decode == 0) & (table.n_prefill == 1) & (pause > PAUSE_S)
                 & (table.index >= COLD_STEPS)]

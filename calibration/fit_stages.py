"""Fit the CPU side of pipeline stages on the step logs of two: the scheduler's part, the workers' launches.

Lone prompts whose launch outlasts their GPU work take the scheduler's part and one launch a stage, one after the other;
where batches take turns and decode, outputs come as far apart as a worker takes for a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from calibration.fit_host import IDLE_S, PAUSE_S, robust_line
from calibration.measured import MeasuredRun
from calibration.predict import setup_of
from simulator.cost.launch import Launch
from simulator.profiles.host import host_times

FOLLOWING: Final = 3
"""Decode steps that a decode step must follow: by then no prompt is in flight."""
LAUNCH_BOUND: Final = 520
"""[tokens] up to here half the layers of a prompt take longer to launch than to compute."""


@dataclass(frozen=True)
class StageFit:
    """CPU times of pipeline stages [s]; names as in the host's profile."""

    stage_plan_s: float
    stage_plan_sequence_s: float
    stage_sequence_s: float
    stage_decode_s: float
    stage_prefill_s: float


def fit_stages(runs: Sequence[MeasuredRun]) -> StageFit:
    """CPU times from batches and lone prompts of two stages, those of tensor-parallel workers given."""
    logs = pd.concat([_steps(run) for run in runs], ignore_index=True)
    setup, stages = setup_of(runs[0]), runs[0].engine.pipeline_parallel_size
    times = host_times(setup.host, setup.engine)
    launch = Launch(times, -(-setup.model.layers // stages), 1, True, True, stages=stages)
    plan = float(logs[logs.at_once].apart_s.median())
    decode = logs[logs.decoding]
    _, sequence = robust_line(decode.n_decode.to_numpy(), decode.schedule_s.to_numpy())
    turns = decode[decode.n_running > decode.n_decode]
    each, worker = robust_line(turns.n_decode.to_numpy(), turns.gap_s.to_numpy())
    lone = logs[logs.lone & (logs.prefill_tokens <= LAUNCH_BOUND)]
    limit = setup.engine.graph_limits(runs[0].engine.max_num_seqs)[1]
    alone = np.where(lone.prefill_tokens > limit, launch.eager_s(), launch.piecewise_s())
    more = (lone.lasted_s - plan - sequence) / stages - worker - (alone - plan)
    return StageFit(plan, sequence, worker, each - (times.decode_prep_worker_s - plan) - times.launch_tail_s,
                    float(more.groupby(lone.run).median().median()))


def _steps(run: MeasuredRun) -> pd.DataFrame:
    """The log with what is asked of it: gap_s, lasted_s and apart_s, how long after the last output or schedule."""
    assert run.steps is not None
    table = run.steps
    pure = table.n_prefill == 0
    for before in range(1, FOLLOWING + 1):
        pure &= table.n_prefill.shift(before, fill_value=1) == 0
    seen = table.t_output_s.shift(1)
    idle = table.t_schedule_s - seen.fillna(-1.0) > PAUSE_S
    nothing_before = (table.n_prefill == 1) & (table.n_decode == 0) & (table.n_running == 1)
    following = (table.n_decode == 0) & (table.n_decode.shift(1) == 0) & (table.t_schedule_s.diff() < IDLE_S)
    return table.assign(
        run=run.name, gap_s=table.t_output_s.diff(), lasted_s=table.t_output_s - table.t_schedule_s,
        apart_s=table.t_schedule_s.diff(), decoding=pure, lone=idle & nothing_before, at_once=following)

"""Launches above the largest graph as a step log shows them: the state that a host was in during a run.

An engine that plans one step ahead sees the output of a step when its GPU work and the launch of the next are done, so
where the GPU had little to do, output of k - 1 minus schedule of k is the launch of k. A step that finds an idle engine
is launched when the next is scheduled.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from calibration.measured import MeasuredRun
from calibration.predict import cost_of, setup_of
from calibration.steplog import step_times, with_kinds
from simulator.errors import CalibrationError
from simulator.profiles.host import Host, host_times

Array = npt.NDArray[np.float64]

QUIET: Final = 0.01
"""Share of launches that are shorter than a quiet host's."""
HIDDEN: Final = 0.5
"""Of a launch: GPU work of the step before that ends well before it."""


def own_host(run: MeasuredRun, host: Host) -> Host:
    """`host` with all its CPU times scaled by the run's own launches (launch_scale), or as it is where the run shows
    none. Nothing else of a run's times is used: what is left of an error is not the host's state."""
    try:
        return host.scaled(launch_scale(run) / host.cpu_scale)
    except CalibrationError:
        return host


def launch_scale(run: MeasuredRun) -> float:
    """Mean launch of a run over the shipped host's, of steps above the largest graph right behind one in a graph (of a
    few ms on the GPU: it hides nothing of the launch); where there are none, as in a burst, of all behind a step whose
    GPU work takes less than half a launch. To be given to Host.scaled.

    Raises CalibrationError for a run without steps, without asynchronous scheduling or without such launches.
    """
    taken, modelled, behind = _launches(run)
    if not behind.any():
        raise CalibrationError(f"{run.name}: no launch above the largest graph behind a step in a graph")
    return float(taken[behind].mean() / modelled[behind].mean())


def mean_launch(runs: Iterable[MeasuredRun]) -> float:
    """[s] launch above the largest graph: mean of runs, a state of a host lasting longer than one."""
    return float(np.mean([_launches(run)[0].mean() for run in runs]))


def median_launch(run: MeasuredRun) -> float:
    """[s] launch above the largest graph: median of a run."""
    return float(np.median(_launches(run)[0]))


def quiet_launch(runs: Iterable[MeasuredRun]) -> float:
    """[s] launch above the largest graph right behind a step in a graph, when nothing disturbs the host: the first of a
    hundred by length (QUIET), mean of series. Other work on the host's cores only adds to a launch."""
    found: dict[str, list[Array]] = {}
    for run in runs:
        taken, _, behind = _launches(run)
        found.setdefault(run.name.split("/")[0], []).append(taken[behind])
    return float(np.mean([np.quantile(np.concatenate(each), QUIET) for each in found.values()]))


def base_launches(runs: Iterable[MeasuredRun]) -> dict[str, float]:
    """Series -> [s] launch of a step above the largest graph without what the profile adds by sequences: mean over its
    runs, of steps right behind one in a graph. To be averaged over series, each a process on a host of its own."""
    found: dict[str, list[float]] = {}
    for run in runs:
        taken, modelled, behind = _launches(run)
        setup = setup_of(run)
        added = float(modelled[behind].mean()) - host_times(setup.host, setup.engine).eager_cpu_s
        found.setdefault(run.name.split("/")[0], []).append(float(taken[behind].mean()) - added)
    return {series: float(np.mean(means)) for series, means in found.items()}


def layer_launch(runs: Iterable[MeasuredRun], usual_s: float, quantised: float) -> float:
    """[s] by which a launch above the largest graph is longer for each layer beyond the 32 of Llama-3.1-8B, whose own
    takes `usual_s`: lone prompts of deeper models, each series an engine whose mean counts by its layers. Those of
    quantised weights are brought to 16 bits (`quantised`)."""
    found: dict[str, list[float]] = {}
    deeper: dict[str, int] = {}
    for run in runs:
        setup, series = setup_of(run), run.name.split("/")[0]
        shorter = quantised if setup.model.weight_format(run.engine.weight_dtype).quantised else 1.0
        found.setdefault(series, []).append(float(_launches(run)[0].mean()) / shorter)
        deeper[series] = setup.model.layers - 32
    more = sum(float(np.mean(each)) - usual_s for each in found.values())
    return more / sum(deeper.values())


def _launches(run: MeasuredRun) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """([s] measured, [s] of the profile, whether right behind a step in a graph) of all such launches."""
    setup = setup_of(run)
    if run.steps is None or setup.engine.schedule_ahead != 1 or run.engine.pipeline_parallel_size > 1:
        raise CalibrationError(f"{run.name}: launches are read from the log of an engine that plans one step ahead, "
                               "without pipeline stages")
    steps = with_kinds(run.steps)
    gpu, _, modelled, eager = step_times(cost_of(run, setup), steps)
    scheduled, output = (steps[name].to_numpy(dtype=np.float64) for name in ("t_schedule_s", "t_output_s"))
    before, after = np.concatenate([[-np.inf], output[:-1]]), np.concatenate([scheduled[1:], [np.inf]])
    idle = eager & (scheduled > before) & (after < output)
    busy = eager & (scheduled < before)
    taken = np.where(idle, after - scheduled, before - scheduled)
    found = idle | busy
    behind = busy & ~np.concatenate([[True], eager[:-1]])
    if not behind.any():
        behind = busy & (np.concatenate([[np.inf], gpu[:-1]]) < HIDDEN * modelled)
    return taken[found], modelled[found], behind[found]

"""Launches above the largest graph as a step log shows them: the state that a host was in during a run.

An engine that plans one step ahead sees the output of a step when its GPU work and the launch of the next are done, so
where the GPU had little to do, output of k - 1 minus schedule of k is the launch of k. A step that finds an idle engine
is launched when the next is scheduled.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from calibration.measured import MeasuredRun
from calibration.predict import cost_of, setup_of
from calibration.steplog import step_times, with_kinds
from simulator.errors import CalibrationError

Array = npt.NDArray[np.float64]


def launch_scale(run: MeasuredRun) -> float:
    """Mean launch of a run over the profile's, of steps above the largest graph right behind one in a graph (of a few
    ms on the GPU: it hides nothing of the launch). To be given to Host.scaled.

    Raises CalibrationError for a run without steps, without asynchronous scheduling or without such launches.
    """
    taken, modelled, behind = _launches(run)
    if not behind.any():
        raise CalibrationError(f"{run.name}: no launch above the largest graph behind a step in a graph")
    return float(taken[behind].mean() / modelled[behind].mean())


def mean_launch(runs: Iterable[MeasuredRun]) -> float:
    """[s] launch above the largest graph: mean of runs, a state of a host lasting longer than one."""
    return float(np.mean([_launches(run)[0].mean() for run in runs]))


def _launches(run: MeasuredRun) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """([s] measured, [s] of the profile, whether right behind a step in a graph) of all such launches."""
    setup = setup_of(run)
    if run.steps is None or setup.engine.schedule_ahead != 1:
        raise CalibrationError(f"{run.name}: launches are read from the log of an engine that plans one step ahead")
    steps = with_kinds(run.steps)
    _, _, modelled, eager = step_times(cost_of(run, setup), steps)
    scheduled, output = (steps[name].to_numpy(dtype=np.float64) for name in ("t_schedule_s", "t_output_s"))
    before, after = np.concatenate([[-np.inf], output[:-1]]), np.concatenate([scheduled[1:], [np.inf]])
    idle = eager & (scheduled > before) & (after < output)
    busy = eager & (scheduled < before)
    taken = np.where(idle, after - scheduled, before - scheduled)
    found = idle | busy
    behind = busy & ~np.concatenate([[True], eager[:-1]])
    return taken[found], modelled[found], behind[found]

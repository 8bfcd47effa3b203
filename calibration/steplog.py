"""A step log alone -> mean step times: of pure decode by sequences, of steps with prefill by tokens.

The log has the columns of steps.csv (calibration/measurements/README.md): what a step held, when it was scheduled, when
its output came back. Its batches are run through the engine's two clocks again (docs/architecture.md): with one step
planned ahead the output of a step is seen when its GPU work and the launch of the next are done; a pause of the log is
kept.
"""

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.accepted import NotModelledError
from calibration.fit_host import COLD_STEPS, IDLE_S
from calibration.fit_steps import gpu_seconds
from calibration.measured import STEP_COLUMNS, read_table
from calibration.observed import Mean, quantile_groups, span_text
from calibration.predict import cost_of, setup_of, windows_of
from calibration.served import Served
from calibration.server import Server
from simulator.cost.step import Cost
from simulator.errors import CalibrationError
from simulator.units import NS_PER_S

Array = npt.NDArray[np.float64]

MOST_STEPS: Final = 3000
"""Steps of the log that are looked at."""
_FLOOR_S: Final = 1e-5
_LEAST: Final = 30
_BLOCKS: Final = 20


def is_step_log(path: Path) -> bool:
    """Whether a file is named as a step log."""
    return path.name.endswith((".csv", ".csv.gz"))


class StepMeans:
    """Means of the logarithm of the gap between two outputs."""

    def __init__(self, path: Path, given: Server) -> None:
        """Raises CalibrationError for a log that cannot be read or holds too few steps, with two planned ahead, or of
        windowed attention."""
        self.name = path.name
        steps = read_table(path, STEP_COLUMNS).head(MOST_STEPS)
        self._steps = with_kinds(steps)
        longest = int(max(steps.decode_context_tokens.max() / max(steps.n_decode.max(), 1), 2))
        self._run = given.run(Served(path, "open", 0, _one(longest)))
        self._setup = setup_of(self._run)
        if self._setup.engine.schedule_ahead > 1:
            raise CalibrationError(f"{path}: an engine that plans {self._setup.engine.schedule_ahead} steps ahead; "
                                   "accepted: 0 or 1")
        if windows_of(self._run, self._setup):
            model = self._setup.model
            raise NotModelledError(f"{path}: {model.name} has windowed attention of {model.window} tokens: a step log "
                                   f"does not say what its layers see; accepted: --max-model-len up to {model.window}")
        schedule, output = (steps[name].to_numpy(dtype=np.float64) for name in ("t_schedule_s", "t_output_s"))
        self._schedule = schedule
        last = np.concatenate([[-np.inf], output[:-1]])
        self._fresh = schedule - last > IDLE_S
        busy = np.flatnonzero(~self._fresh & (np.arange(len(steps)) >= COLD_STEPS))
        if len(busy) < _LEAST:
            raise CalibrationError(f"{path}: {len(busy)} steps follow another at once; accepted: {_LEAST} or more")
        tokens, prefill = self._steps.tokens.to_numpy(dtype=np.float64), steps.n_prefill.to_numpy() > 0
        self._rows = [*quantile_groups(busy[~prefill[busy]], tokens), *quantile_groups(busy[prefill[busy]], tokens)]
        names = [("ttft", "with prefill") if prefill[rows[0]] else ("tpot", "of decode") for rows in self._rows]
        self.means = [Mean(metric, f"steps {what}, {span_text(tokens[rows])} tokens", len(rows))
                      for (metric, what), rows in zip(names, self._rows, strict=True)]
        self._measured = self._gaps(output)
        self.measured = self._means(self._measured)

    def predicted(self, cpu_scale: float, gpu_scale: float) -> Array:
        return self._means(self._simulated(cpu_scale, gpu_scale))

    def spread(self, cpu_scale: float, gpu_scale: float) -> Array:
        """Of the means over twenty stretches of the log."""
        off = self._measured - self._simulated(cpu_scale, gpu_scale)
        block = np.arange(len(off)) * _BLOCKS // len(off)
        sd = []
        for rows in self._rows:
            parts = [off[rows[block[rows] == k]].mean() for k in np.unique(block[rows])]
            sd.append(np.std(parts, ddof=1) / np.sqrt(len(parts)) if len(parts) > 1 else 0.0)
        return np.diag(np.square(sd))

    def _means(self, gaps: Array) -> Array:
        return np.array([gaps[rows].mean() for rows in self._rows])

    def _simulated(self, cpu_scale: float, gpu_scale: float) -> Array:
        return self._gaps(self._outputs(cost_of(self._run, self._setup.slower(cpu_scale, gpu_scale))))

    def _gaps(self, output: Array) -> Array:
        result: Array = np.log(np.maximum(np.diff(output, prepend=output[0]), _FLOOR_S))
        return result

    def _outputs(self, cost: Cost) -> Array:
        """[s] when the output of every step is seen, by the two clocks."""
        gpu, prep, cpu, eager = step_times(cost, self._steps)
        ahead = self._setup.engine.schedule_ahead > 0
        seen = np.zeros(len(gpu))
        free = done = 0.0  # of the scheduler, of the GPU
        for k, fresh in enumerate(self._fresh):
            start = self._schedule[k] if fresh else free
            launched = start + cpu[k]
            if ahead and not fresh:
                seen[k - 1] = free = max(done, launched)
            done = max(done, start + prep[k]) + gpu[k]
            done = max(done, launched) if eager[k] else done
            seen[k] = max(done, launched)
            free = launched if ahead and fresh else free if ahead else seen[k]
        return seen


def with_kinds(steps: pd.DataFrame) -> pd.DataFrame:
    """A step log with what `step_times` asks of its rows: kind (1 = with prefill) and tokens."""
    return steps.assign(kind=(steps.n_prefill > 0).astype(np.int64), tokens=steps.n_decode + steps.prefill_tokens)


def step_times(cost: Cost, steps: pd.DataFrame) -> tuple[Array, Array, Array, npt.NDArray[np.bool_]]:
    """([s] GPU, preparation, CPU; eager or not) of every step."""
    kind, rows = steps.kind.to_numpy(), steps.n_decode.to_numpy() + steps.n_prefill.to_numpy()
    place = np.minimum(steps.tokens.to_numpy(dtype=np.int64), cost.dense_ns.shape[1] - 1)
    prep = cost.prep_ns[kind, place] + rows * cost.prep_seq_ns
    cpu = cost.cpu_ns[kind, place] + rows * cost.cpu_seq_ns
    return gpu_seconds(cost, steps), prep / NS_PER_S, cpu / NS_PER_S, cost.eager[kind, place] > 0


def _one(longest: int) -> pd.DataFrame:
    """A request, for the settings to be checked against."""
    return pd.DataFrame({"id": [0], "arrival_s": [0.0], "prompt_tokens": [max(longest - 1, 1)], "output_tokens": [1],
                         "ttft_s": [1.0], "tpot_s": [1.0], "e2e_s": [1.0]})

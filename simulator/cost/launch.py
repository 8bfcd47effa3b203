"""CPU side of a step: how long it is prepared and launched, by the number of batched tokens.

A step is prepared (the GPU can start when that is done), then launched: as one full graph (pure decode), as
piecewise graphs, or kernel by kernel (eager) above the largest graph.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.profiles.host import HostTimes

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

LAUNCH_FLOOR_S: Final = 0.3e-3
"""[s] least preparation left before the GPU when the launch itself is the longer part."""


@dataclass(frozen=True)
class Launch:
    """Times in seconds. `ahead`: steps are planned ahead of the GPU; `workers`: worker processes launch."""

    times: HostTimes
    layers: int
    tp: int
    ahead: bool
    workers: bool

    @property
    def more_layers(self) -> int:
        return self.layers - self.times.launch_layers

    @property
    def in_workers(self) -> bool:
        return self.tp > 1 and self.workers

    def eager_s(self) -> float:
        """[s] to launch a step kernel by kernel."""
        times = self.times
        base = times.eager_cpu_s if self.ahead else times.eager_cpu_sync_s
        if self.in_workers:
            base = times.eager_cpu_worker_s
        collectives = 2 * self.layers * times.collective_launch_s if self.tp > 1 else 0.0
        return max(times.prefill_prep_s, base + times.eager_layer_s * self.more_layers + collectives)

    def piecewise_s(self) -> float:
        """[s] to launch a step in piecewise graphs."""
        times = self.times
        return max(times.prefill_prep_s, times.piecewise_cpu_s + times.piecewise_layer_s * self.more_layers)

    def tables(self, dense: Array, eager: Flags) -> tuple[Array, Array, Array, Flags]:
        """(cpu, prep, dense, eager), each (2, T+1), after the engine's process layout."""
        times, width = self.times, dense.shape[1]
        prep = np.stack([np.full(width, times.decode_prep_s), np.full(width, times.prefill_prep_s)])
        cpu = np.stack([np.full(width, times.decode_prep_s + times.launch_tail_s), np.full(width, self.piecewise_s())])
        cpu = np.where(eager, self.eager_s(), cpu)
        if self.ahead:
            dense = dense + np.where(eager, times.eager_stall_s, 0.0)
        if self.in_workers:
            return self._in_workers(cpu, prep, dense, eager)
        return cpu, np.minimum(prep, cpu), dense, eager

    def _in_workers(self, cpu: Array, prep: Array, dense: Array, eager: Flags) -> tuple[Array, Array, Array, Flags]:
        """Launches run in worker processes: the scheduler is free after the preparation, and launches queue
        behind each other as GPU work does, so a launch longer than the GPU's work takes its place."""
        launch = np.where(eager, cpu, 0.0)
        exposed = np.maximum(0.0, launch - dense)
        short = np.where(exposed > 0.0, np.maximum(LAUNCH_FLOOR_S, prep - exposed), prep)
        return short, short, np.maximum(dense, launch), np.zeros_like(eager)

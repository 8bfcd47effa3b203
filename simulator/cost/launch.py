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
JOIN: Final = 4.0
"""Exponent that joins launch and GPU work of an eager step in a worker: small kernels of a layer wait for the launch,
large ones for the GPU, so near equal times a step is longer than both. A lone 1,024-token prompt on two H200 lasts
20.4 ms, its launch being 17.3 and its GPU work about 16 ms (calibration/measurements/llama8b-h200-tp2-b/pre_p1024)."""


@dataclass(frozen=True)
class Launch:
    """Times in seconds. `ahead`: steps are planned ahead of the GPU; `workers`: worker processes launch; `old_runner`:
    the older of the engine's two model runners."""

    times: HostTimes
    layers: int
    tp: int
    ahead: bool
    workers: bool
    old_runner: bool = False
    expert_layers: int = 0
    adapters: bool = False  # steps apply LoRA adapters
    quantised: bool = False  # products of fp8 or 4-bit weights, which an engine launches by operators of its own
    latent: bool = False  # layers have latent attention
    mxfp4: bool = False  # experts in mxfp4, which have kernels of their own
    stages: int = 1  # of a pipeline; `layers` and `expert_layers` are then those of the longest

    @property
    def more_layers(self) -> int:
        return self.layers - self.times.launch_layers

    @property
    def in_workers(self) -> bool:
        return (self.tp > 1 or self.stages > 1) and self.workers

    @property
    def prep_s(self) -> tuple[float, float]:
        """[s] before the GPU can start: (pure decode, with prefill)."""
        times = self.times
        if self.in_workers:
            return times.decode_prep_worker_s, times.prefill_prep_worker_s
        return times.decode_prep_s, times.prefill_prep_s

    @property
    def sequence_s(self) -> float:
        """[s] of the preparation per scheduled sequence."""
        times = self.times
        if self.stages > 1:
            return times.stage_sequence_s
        return times.sequence_cpu_worker_s if self.in_workers else times.sequence_cpu_s

    def eager_s(self) -> float:
        """[s] to launch a step kernel by kernel."""
        times = self.times
        base = times.eager_cpu_s if self.ahead else times.eager_cpu_sync_s
        if self.in_workers:
            base = times.eager_cpu_worker_s if self.ahead else times.eager_cpu_worker_sync_s
            base = max(base, times.eager_cpu_worker_old_s) if self.old_runner else base
        collectives = 2 * self.layers * times.collective_launch_s if self.tp > 1 else 0.0
        dense = base + times.eager_layer_s * self.more_layers
        if self.quantised:
            dense *= times.eager_quantised
        return max(self.prep_s[1], dense + self._parts_s() + collectives)

    def _parts_s(self) -> float:
        """[s] to launch, kernel by kernel, what layers have beside those of Llama-3.1-8B."""
        times = self.times
        each = times.eager_expert_layer_worker_s if self.in_workers else times.eager_expert_layer_s
        if self.mxfp4:
            each = max(each, times.eager_mxfp4_layer_s)
        adapters = times.eager_lora_layer_s if self.adapters else 0.0
        latent = times.eager_latent_layer_s if self.latent else 0.0
        return each * self.expert_layers + (adapters + latent) * self.layers

    def piecewise_s(self) -> float:
        """[s] to launch a step in piecewise graphs."""
        times = self.times
        base = times.piecewise_cpu_worker_s if self.in_workers else times.piecewise_cpu_s
        return max(self.prep_s[1], base + times.piecewise_layer_s * self.more_layers)

    def tables(self, dense: Array, eager: Flags) -> tuple[Array, Array, Array, Flags]:
        """(cpu, prep, dense, eager), each (2, T+1), after the engine's process layout."""
        if self.stages > 1:
            return self._of_a_stage(dense, eager)
        width, (decode, prefill) = dense.shape[1], self.prep_s
        prep = np.stack([np.full(width, decode), np.full(width, prefill)])
        cpu = np.stack([np.full(width, decode + self.times.launch_tail_s), np.full(width, self.piecewise_s())])
        cpu = np.where(eager, self.eager_s(), cpu)
        if self.ahead and not self.in_workers:
            dense = dense + np.where(eager, self.times.eager_stall_s, 0.0)
        if self.in_workers:
            return self._in_workers(cpu, prep, dense, eager)
        return cpu, np.minimum(prep, cpu), dense, eager

    def _in_workers(self, cpu: Array, prep: Array, dense: Array, eager: Flags) -> tuple[Array, Array, Array, Flags]:
        """Launches run in worker processes: the scheduler is free after the preparation, and launches queue
        behind each other as GPU work does, so a launch longer than the GPU's work takes its place (JOIN). Of a step in
        piecewise graphs the launch begins during the preparation."""
        launch = np.where(eager, cpu, 0.0)
        both = (dense**JOIN + launch**JOIN) ** (1.0 / JOIN)
        launch[1] = np.where(eager[1], launch[1], cpu[1] - prep[1])
        launch[:, 0] = 0.0
        exposed = np.where(eager, np.maximum(0.0, launch - dense), 0.0)
        short = np.where(exposed > 0.0, np.maximum(LAUNCH_FLOOR_S, prep - exposed), prep)
        return short, short, np.where(eager, both, np.maximum(dense, launch)), np.zeros_like(eager)

    def _of_a_stage(self, dense: Array, eager: Flags) -> tuple[Array, Array, Array, Flags]:
        """What one stage's worker does; the scheduler's part of a preparation is told apart. Each worker receives
        and sends on what its layers need besides, taken to be after the GPU can start."""
        times, width = self.times, dense.shape[1]
        decode, prefill = (max(0.0, prep - times.stage_plan_s) for prep in self.prep_s)
        more = times.stage_prefill_s - times.stage_plan_s
        prep = np.stack([np.full(width, decode), np.full(width, prefill)])
        graph = decode + times.launch_tail_s + times.stage_decode_s
        cpu = np.stack([np.full(width, graph), np.full(width, self.piecewise_s() + more)])
        cpu = np.where(eager, self.eager_s() + more, cpu)
        return cpu, np.minimum(prep, cpu), dense, eager

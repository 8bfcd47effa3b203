"""The traffic a plan is tried on: replications, rate, time window, and the share of one replica.

A fleet of n identical replicas behind a round-robin router is n independent replicas, each with every n-th
request; behind a random router, each with the requests drawn for it. So one replica on its share of the trace
stands for the fleet, exactly, and its siblings are further replications.
"""

import functools
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from policies.routers import RANDOM, ROUND_ROBIN, ROUTERS
from simulator.errors import TraceError
from simulator.units import NS_PER_S, to_ticks
from simulator.workload.build import build_trace, is_random, turns_copies
from simulator.workload.generate import Generated
from simulator.workload.spec import TraceFile, parse_workload
from simulator.workload.streams import stream
from simulator.workload.trace import Trace, content_sha256, freeze
from simulator.workload.transform import scale_rate, superpose

SYMMETRIC: Final = (ROUND_ROBIN, RANDOM)
"""Routers that look at no replica: one replica stands for all."""
HOUR_NS: Final = 3600 * NS_PER_S


def is_symmetric(router: str) -> bool:
    """Whether a replica's traffic does not depend on the others."""
    return ROUTERS[router] in SYMMETRIC


class Described(Protocol):
    """What a plan and a scenario have in common."""

    @property
    def seed(self) -> int:
        """Seed of every stream."""

    @property
    def workload(self) -> dict[str, Any]:
        """The workload section."""

    @property
    def base(self) -> Path:
        """Folder of relative paths."""


class Traffic:
    """Traces of a plan by replication; built on first use, the latest few kept.

    replicable  another replication is another trace; a plain file is one sample, whatever is done
    turns       it is that of one file whose copies are turned by other times
    """

    def __init__(self, spec: Described) -> None:
        self.seed = spec.seed
        self._workload = parse_workload(spec.workload, spec.base)
        self._base_folder = spec.base
        load = getattr(spec, "load", None)  # a plan has none: its traffic arrives by the clock
        self._by_clock = load is None or load.kind == "open"
        self.turns = turns_copies(self._workload)
        self.replicable = is_random(self._workload)
        self.trace = functools.lru_cache(maxsize=8)(self._trace)
        self._single = functools.cache(self._read_single)
        self.identity = functools.cache(self._identity)

    @property
    def _copies(self) -> int:
        return self._workload.copies if isinstance(self._workload, TraceFile) else 1

    def _read_single(self) -> Trace:
        assert isinstance(self._workload, TraceFile)
        return self._checked(build_trace(replace(self._workload, copies=1), self.seed, 0, self._base_folder))

    def _checked(self, trace: Trace) -> Trace:
        if self._by_clock and trace.meta.untimed:
            raise TraceError(trace.meta.untimed)
        return trace

    def _trace(self, replication: int) -> Trace:
        if self.turns:
            return superpose(self._single(), self._copies, None, self.seed, replication)
        built = build_trace(self._workload, self.seed, replication if self.replicable else 0, self._base_folder)
        return self._checked(built)

    def _identity(self, replication: int) -> str:
        """Names the content of a replication's trace, for the cache of simulated points."""
        if self.turns:
            single = self._single()
            return f"{content_sha256(single)} x{self._copies} seed {self.seed} rotation {replication}"
        return content_sha256(self.trace(replication))

    def samples(self, replicas: int, symmetric: bool, wanted: int) -> int:
        """How many replications there are for a fleet of `replicas`, at most `wanted`."""
        if self.replicable:
            return wanted
        return min(wanted, replicas) if symmetric else 1


def share_of_replica(trace: Trace, router: str, replicas: int, index: int, seed: int, replication: int) -> Trace:
    """Requests that replica `index` of `replicas` gets. Raises TraceError when that is none."""
    if replicas == 1:
        return trace
    if ROUTERS[router] == ROUND_ROBIN:
        rows: npt.NDArray[np.int64] = np.arange(index, len(trace), replicas)
    else:
        drawn = stream(seed, "router", replication).integers(0, 2**62, size=len(trace))
        rows = np.flatnonzero(drawn % replicas == index)
    if rows.size == 0:
        raise TraceError(
            f"{replicas} replicas are more than the {len(trace)} requests can keep busy: "
            f"replica {index} gets none; accepted: a longer trace or fewer replicas"
        )
    return trace.take(rows)


def hours_of(trace: Trace) -> list[tuple[int, int]]:
    """Row ranges [start, end) of the trace's clock hours, empty ones left out."""
    count = int(trace.span_ns // HOUR_NS) + 1
    edges = np.searchsorted(trace.arrival_ns, trace.arrival_ns[0] + HOUR_NS * np.arange(count + 1), side="left")
    edges[-1] = len(trace)
    return [(int(a), int(b)) for a, b in itertools.pairwise(edges) if b > a]


def busiest_hour_rate(trace: Trace) -> float:
    """[requests/s] of the busiest whole hour; the mean rate of a shorter trace."""
    if trace.span_ns < 2 * HOUR_NS:
        return mean_rate(trace)
    counts = np.bincount((trace.arrival_ns - trace.arrival_ns[0]) // HOUR_NS)
    return float(counts.max()) / 3600


def mean_rate(trace: Trace) -> float:
    """[requests/s] over the span of the trace; 0 for a trace that arrives at once."""
    return (len(trace) - 1) * NS_PER_S / trace.span_ns if trace.span_ns > 0 else 0.0


def asked_rate(spec: Described) -> float | None:
    """[requests/s] that random arrivals were asked to have, of which a draw has a little more or less; else None."""
    workload = parse_workload(spec.workload, spec.base)
    if not isinstance(workload, Generated) or workload.arrivals.kind not in ("poisson", "gamma"):
        return None
    return workload.arrivals.rate


def at_rate(trace: Trace, factor: float) -> Trace:
    """The same requests `factor` times as fast."""
    return scale_rate(trace, factor)


def from_zero(trace: Trace) -> Trace:
    """The same arrivals, counted from the first."""
    return replace(trace, arrival_ns=freeze(trace.arrival_ns - trace.arrival_ns[0] + to_ticks(0.0)))

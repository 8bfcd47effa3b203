"""Simulated points: one simulation each, cached by content, several at a time on the machine's cores."""

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from simulator.errors import ConfigError, TraceError
from simulator.jit import source_hash
from simulator.planning.bounds import Ready, ready
from simulator.planning.cache import PointCache, content_key
from simulator.planning.candidate import Candidate
from simulator.planning.fleets import relieved, resized, stretched
from simulator.planning.measure import MEASURE_VERSION, Beside, Wanted, measure, wanted_of
from simulator.planning.news import Teller
from simulator.planning.spec import PlanSpec
from simulator.planning.traffic import Traffic, at_rate, from_zero, is_symmetric, share_of_replica
from simulator.planning.ways import AUTOSCALED, SPOT, Way, changed_setup, changed_trace, fleet_setup, of_fleet
from simulator.run import simulate
from simulator.scenario.setup import Setup
from simulator.units import NS_PER_S
from simulator.workload.trace import Trace

PARALLEL_FROM: Final = 20_000
"""[requests] a batch of points below this is faster in one process than started in several."""


@dataclass(frozen=True)
class Point:
    """One simulation. `rate` multiplies the workload's traffic; `full` simulates every replica of the fleet,
    else one replica stands for all. `step_factor` stretches step times. `rows` is a part of the trace; `goodput`
    counts requests within all limits (always done where the plan asks for attainment). `way`: see planning.ways."""

    candidate: Candidate
    replicas: int
    rate: float = 1.0
    replication: int = 0
    step_factor: float = 1.0
    full: bool = False
    relief: str | None = None
    rows: tuple[int, int] | None = None
    goodput: bool = False
    way: Way | None = None
    part: bool = False  # `rows` stand for the whole trace, the rest of it being answered at once (measure.Beside)


class Bench:
    """Runs points for one plan in this process."""

    def __init__(self, spec: PlanSpec) -> None:
        self.spec = spec
        self.traffic = Traffic(spec)
        self.wanted = wanted_of(spec)
        self._setups: dict[tuple[Candidate, str | None], Setup] = {}
        self._fleets: dict[tuple[Candidate, int, Way], Setup] = {}
        self._ways: dict[tuple[Candidate, str | None, Way], Setup] = {}
        self._shares: dict[Candidate, dict[str, float]] = {}
        self._requests = functools.lru_cache(maxsize=1)(self._changed)

    def ready(self, candidate: Candidate) -> Ready:
        """The candidate looked up, its max_model_len held against the longest request of the traffic."""
        return ready(self.spec, candidate, self.longest)

    @functools.cached_property
    def longest(self) -> int:
        """[tokens] of the longest request, prompt and max_tokens, over the replications; 0 where none is asked for."""
        if self.spec.max_model_len is not None:
            return 0
        count = self.spec.search.replications if self.traffic.replicable and not self.traffic.turns else 1
        traces = (self.traffic.trace(k) for k in range(count))
        return max(int((trace.prompt + trace.max_tokens).max()) for trace in traces)

    def setup(self, candidate: Candidate, relief: str | None = None) -> Setup:
        """The candidate's setup. Raises ConfigError when it cannot run."""
        key = (candidate, relief)
        if key not in self._setups:
            found = ready(self.spec, candidate)
            if found.setup is None:
                raise ConfigError(found.reason)
            self._setups[key] = found.setup if relief is None else relieved(found.setup, relief)
            most = found.error.relative
            self._shares[candidate] = {name: error.relative / most for name, error in found.errors.items() if most > 0}
        return self._setups[key]

    def setup_of(self, point: Point) -> Setup:
        """What a point runs on, with its relief, its way and its step times; of how many replicas is left open where
        they are alike."""
        way = point.way
        if way is not None and of_fleet(way):
            key = (point.candidate, point.replicas, way)
            if key not in self._fleets:
                self._fleets[key] = fleet_setup(self.spec, *key)
            return stretched(self._fleets[key], point.step_factor)
        setup = self.setup(point.candidate, point.relief)
        if way is not None:
            changed = (point.candidate, point.relief, way)
            if changed not in self._ways:
                self._ways[changed] = changed_setup(setup, way)
            setup = self._ways[changed]
        return stretched(setup, point.step_factor, self._shares[point.candidate])

    def trace(self, point: Point) -> Trace:
        """The requests of a point: the whole fleet's, or the share of one replica."""
        whole = self._requests(self.trace_number(point), point.rows, point.way)
        if point.full:
            return at_rate(whole, point.rate)
        share = share_of_replica(
            whole,
            point.candidate.router,
            point.replicas,
            point.replication % point.replicas,
            self.spec.seed,
            self.trace_number(point),
        )
        return at_rate(share, point.rate)

    def _changed(self, number: int, rows: tuple[int, int] | None, way: Way | None) -> Trace:
        """A trace, or a part of it, as a way changes it: the same at every rate."""
        whole = self.traffic.trace(number)
        if rows is not None:
            whole = from_zero(whole.take(slice(*rows)))
        return whole if way is None else changed_trace(whole, way, self.spec.seed)

    def size(self, point: Point) -> int:
        """Requests of a point."""
        first, end = point.rows or (0, len(self.traffic.trace(self.trace_number(point))))
        return (end - first) // (1 if point.full else point.replicas)

    def wanted_at(self, point: Point) -> Wanted:
        """What to record of a point: its limits only where they are used, so that others keep their key."""
        needed = point.goodput or self.spec.slo.counts
        return self.wanted if needed else replace(self.wanted, limits=(), own_limits=())

    def trace_number(self, point: Point) -> int:
        """Replication of the trace; of a plain file there is one."""
        return point.replication if self.traffic.replicable else 0

    def key(self, point: Point) -> str:
        """Hash of everything that decides the record."""
        setup = self.setup_of(point)
        drafts, way = setup.speculation, point.way[0] if point.way else ""
        flexible = {AUTOSCALED: self.spec.autoscale, SPOT: self.spec.spot}.get(way)
        whole = {k: v for k, v in asdict(point).items() if k not in ("candidate", "step_factor", "relief")}
        return content_key(
            {
                "point": whole,
                "router": point.candidate.router,
                "prefill": (point.candidate.prefill_replicas, self.spec.link and self.spec.link.model_dump()),
                "flexible": flexible and flexible.model_dump(),
                "drafts": drafts and (drafts.method, drafts.tokens, drafts.chances),
                "policy": setup.policy.name,
                "trace": self.traffic.identity(self.trace_number(point)),
                "seed": self.spec.seed,
                "limits": setup.limits._asdict(),
                "wanted": asdict(self.wanted_at(point)),
                "warmup": self.spec.warmup_fraction,
                "code": (source_hash(), MEASURE_VERSION),
                **{f"cost.{k}": v for k, v in setup.cost._asdict().items()},
                **_of_pools(setup),
            }
        )

    def run(self, point: Point) -> dict[str, Any]:
        """Simulate a point and measure it."""
        setup = self.setup_of(point)
        if point.full and not of_fleet(point.way):
            setup = resized(setup, point.replicas)
        try:
            trace = self.trace(point)
        except TraceError:
            return {"idle": True}
        result = simulate(setup.scenario, trace=trace, setup=setup, replication=self.trace_number(point))
        return {"idle": False, **measure(result, self.wanted_at(point), self.beside(point))}

    def beside(self, point: Point) -> Beside | None:
        """What is left out of the trace where a part of it stands for all; of one replica its share of that."""
        if not point.part or point.rows is None:
            return None
        whole, (first, end) = self.traffic.trace(self.trace_number(point)), point.rows
        left = len(whole) - (end - first)
        after_s = (whole.arrival_ns[first] - whole.arrival_ns[0]) / NS_PER_S / point.rate
        return Beside(left if point.full else -(-left // point.replicas), float(after_s))


def _of_pools(setup: Setup) -> dict[str, Any]:
    """Limits and step times of every pool."""
    return {f"{name}.{part}.{key}": value for name, pool in setup.pools.items()
            for part, own in (("limits", pool.limits), ("cost", pool.cost)) for key, value in own._asdict().items()}


_benches: dict[str, Bench] = {}


def run_elsewhere(name: str, spec: PlanSpec, point: Point) -> dict[str, Any]:
    """`Bench.run` in a worker process, which keeps the bench of plan `name` for its next point."""
    if name not in _benches:
        _benches.clear()
        _benches[name] = Bench(spec)
    return _benches[name].run(point)


class Runner:
    """Cache in front, worker processes behind. Counts what was simulated."""

    def __init__(
        self,
        spec: PlanSpec,
        jobs: int | None = None,
        cache: PointCache | None = None,
        teller: Teller | None = None,
    ) -> None:
        self.bench = Bench(spec)
        self.spec = spec
        self.jobs = max(1, jobs if jobs is not None else os.cpu_count() or 1)
        self.cache = cache
        self.simulated = 0
        self.reused = 0
        self.requests = 0
        self.teller = teller or Teller(None, 1)
        self._seen: dict[str, dict[str, Any]] = {}

    def symmetric(self, candidate: Candidate) -> bool:
        """Whether one replica can stand for all."""
        return is_symmetric(candidate.router) and not candidate.prefill_replicas and candidate.beside is None

    def run(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        """Records of the points, in order."""
        keys = [self.bench.key(point) for point in points]
        missing: dict[str, Point] = {}
        for key, point in zip(keys, points, strict=True):
            if key in self._seen or key in missing:
                continue
            stored = self.cache.get(key) if self.cache else None
            if stored is None:
                missing[key] = point
            else:
                self._seen[key] = stored
                self.reused += 1
        for key, record in zip(missing, self._simulate(list(missing.values())), strict=True):
            self._seen[key] = record
            if self.cache:
                self.cache.put(key, record)
        return [self._seen[key] for key in keys]

    def _simulate(self, points: list[Point]) -> Iterator[dict[str, Any]]:
        """Records in order, each as soon as it is there."""
        self.simulated += len(points)
        sizes = [self.bench.size(p) for p in points]
        self.requests += sum(sizes)
        one_by_one = self.jobs == 1 or len(points) <= 1 or sum(sizes) < PARALLEL_FROM
        for record in map(self.bench.run, points) if one_by_one else self._many(points):
            self.teller.count()
            yield record

    def _many(self, points: list[Point]) -> Iterator[dict[str, Any]]:
        from joblib import Parallel, delayed  # type: ignore[import-untyped]

        from simulator.engine_choice import announce

        announce(self.bench.setup_of(point).policy for point in points)
        name = content_key({"spec": self.spec.model_dump(mode="json"), "base": str(self.spec.base)})
        tasks = (delayed(run_elsewhere)(name, self.spec, point) for point in points)
        yield from Parallel(n_jobs=self.jobs, batch_size=1, return_as="generator")(tasks)

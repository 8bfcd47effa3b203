"""Around the recommended fleet: headroom, bottleneck, next change, curves, growth, hourly resizing."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from simulator.errors import ConfigError
from simulator.planning.adapters import adapted
from simulator.planning.alternatives import Alternatives
from simulator.planning.bounds import RELIEF, gains
from simulator.planning.candidate import Candidate
from simulator.planning.edge import RATE_STEP, TIE
from simulator.planning.hosts import on_other_hosts
from simulator.planning.loss import lost
from simulator.planning.mix import mixed
from simulator.planning.names import gpu_name
from simulator.planning.points import Point
from simulator.planning.price import Fleet, pools_of, price_of, usd_of
from simulator.planning.purchases import Purchases
from simulator.planning.search import Outcome, Search
from simulator.planning.sensitivity import Sensitivity
from simulator.planning.statistics import Judgement, first_broken, value_of
from simulator.planning.traffic import HOUR_NS, hours_of, mean_rate
from simulator.planning.walls import NEARBY
from simulator.profiles.gpu import load_gpu

GROWTHS: Final = (1.5, 2.0, 4.0)
CURVE: Final = (0.25, 0.5, 0.7, 0.85, 1.0, 1.1, 1.2, 1.35, 1.5)
"""Rates of the goodput curve, as multiples of the rate at the wall."""
DAY_HOURS: Final = 20
"""A trace of at least this many hours can say what resizing by the hour saves."""
SMALL_GAIN: Final = 1.02
"""A change that moves the wall by less than this is not worth naming."""


@dataclass(frozen=True)
class Answer:
    """Everything said about the recommended fleet. Rates in requests/s over the whole fleet; infinite = no wall."""

    bought: Judgement  # every replica up, spares too, step times slower by the profile's error
    wall_rate: float = 0.0
    headroom_pct: float = 0.0  # all serving replicas up, spares lost
    headroom_range: tuple[float, float] = (0.0, 0.0)  # [%] over the profile's error and the replications
    wall_with_spares: float = 0.0
    breaks: str = ""  # the level that breaks first above the wall, or `overload`
    bottleneck: str = ""
    relief: list[dict[str, Any]] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    changes: list[dict[str, Any]] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)
    growth: list[dict[str, Any]] = field(default_factory=list)
    hourly: dict[str, Any] | None = None
    loss: dict[str, Any] | None = None
    autoscaled: dict[str, Any] | None = None
    spot: dict[str, Any] | None = None
    sensitivity: list[dict[str, Any]] = field(default_factory=list)
    hosts: list[dict[str, Any]] = field(default_factory=list)
    adapters: dict[str, Any] | None = None
    explained: bool = False


def bottleneck(relief: Sequence[dict[str, Any]]) -> str:
    """The resource of which more moves the wall furthest; several where what the search can tell does not part them."""
    most = max((row["wall_gain_pct"] for row in relief), default=0.0)
    if not most > 100 * (SMALL_GAIN - 1):
        return "none stands out"
    return " and ".join(row["resource"] for row in relief if row["wall_gain_pct"] >= most - TIE)


PARTS: Final = ("the fleet that is bought", "headroom", "the bottleneck", "single changes of the settings",
                "what it hangs on", "other hosts", "goodput", "more traffic", "hours of the day")  # fmt: skip
"""What is simulated about the recommended fleet, in order."""


class Explain:
    """Fills an Answer by more simulations of one fleet."""

    def __init__(self, search: Search, fleet: Fleet, outcome: Outcome, rate: float) -> None:
        self.search, self.fleet, self.outcome, self.rate = search, fleet, outcome, rate
        self.candidate, self.serving = fleet.candidate, fleet.serving
        self.per_unit = mean_rate(search.runner.bench.traffic.trace(0))
        self.error = search.runner.bench.ready(self.candidate).error.relative

    def answer(self, explain: bool) -> Answer:
        """The whole answer, or only the fleet that is bought and the loss of its spares; each part is one method."""
        fleet = self.candidate.said(self.fleet.replicas, f" replicas of {self.candidate.label}")
        part = (f"{fleet}, {name}" for name in PARTS)
        begin = self.search.runner.teller.begin
        begin(next(part))
        bought = self.search.verdict(self.candidate, self.fleet.replicas, self.rate, 1 + self.error)
        loss = lost(self.search, self.fleet, self.rate) if self.fleet.spare else None
        other = Alternatives(self.search, self.fleet, self.rate, self.error)
        scaled, spot = other.autoscaled(), other.spot()
        lora = adapted(self.search, self.fleet, self.outcome, self.rate)
        if not explain:
            return Answer(bought, loss=loss, autoscaled=scaled, spot=spot, adapters=lora)
        begin(next(part))
        wall = self.search.wall(self.candidate, self.serving, self.rate)
        spare = wall
        if self.fleet.spare and math.isfinite(wall):
            near = wall * self.fleet.replicas / self.serving
            spare = self.search.wall(self.candidate, self.fleet.replicas, near, first=NEARBY)
        standing = math.isfinite(wall)
        headroom = self.headroom(wall)
        begin(next(part))
        above = self.search.judged(self.candidate, self.serving, wall * (1 + RATE_STEP), count=2) if standing else None
        relief = list(self.relief(wall, above)) if above else []
        shares = self.shares(wall) if standing else {}
        begin(next(part))
        changes = list(self.changes(wall)) if standing else []
        begin(next(part))
        sure = self.rate * (1 + headroom[0] / 100)
        hangs = Sensitivity(self.search, self.fleet, self.rate, wall, self.error, sure, self.outcome.range)
        sensitive = hangs.rows() if standing else []
        begin(next(part))
        hosts = on_other_hosts(self.search, self.fleet, self.rate, self.error)
        begin(next(part))
        curve = list(self.curve(wall)) if standing else []
        begin(next(part))
        growth = list(self.growth())
        begin(next(part))
        return Answer(
            bought,
            wall * self.per_unit,
            100 * (wall / self.rate - 1),
            headroom,
            spare * self.per_unit,
            first_broken(above) if above else "",
            bottleneck(relief),
            relief,
            shares,
            changes,
            curve,
            growth,
            self.hourly(),
            loss,
            scaled,
            spot,
            sensitive,
            hosts,
            lora,
            True,
        )

    def headroom(self, wall: float) -> tuple[float, float]:
        """[%] interval: where the limits surely hold with slower steps, where they possibly hold with faster ones."""
        if not math.isfinite(wall):
            return math.inf, math.inf
        low, high = self.search.walls_within(self.candidate, self.serving, wall, self.error)
        low = max(self.rate, min(low, wall))  # the traffic itself was decided on more replications
        return 100 * (low / self.rate - 1), 100 * (max(high, wall) / self.rate - 1)

    def relief(self, wall: float, above: Judgement) -> Iterator[dict[str, Any]]:
        """How far the wall moves with RELIEF times as much of each resource, the bottleneck first."""
        setup = self.search.runner.bench.setup(self.candidate)

        def moved(resource: str) -> float:
            return wall * self.search.moved(self.candidate, self.serving, wall, relief=resource)

        for resource, gain in gains(above.records, setup, wall, moved).items():
            yield {"resource": resource, "more_pct": 100 * (RELIEF - 1), "wall_gain_pct": gain}

    def shares(self, wall: float) -> dict[str, float]:
        """Where a replica's time and room go at the wall."""
        records = [r for r in self.search.judged(self.candidate, self.serving, wall, count=2).records if not r["idle"]]
        keys = (
            "compute_share",
            "bandwidth_share",
            "cpu_share",
            "kv_mean",
            "kv_peak",
            "slots_mean",
            "slots_peak",
        )
        return {key: float(sum(r[key] for r in records) / max(1, len(records))) for key in keys}

    def changes(self, wall: float) -> Iterator[dict[str, Any]]:
        """Single changes of the settings, by what they do to requests per dollar at the wall; best first."""
        rows: list[dict[str, Any]] = []
        price = usd_of(self.search.spec, self.candidate, self.serving)
        for name, changed, note in self._single_changes():
            found = self.search.runner.bench.ready(changed)
            if found.setup is None:
                continue
            moved = wall * self.search.moved(self.candidate, self.serving, wall, changed)
            cost = usd_of(self.search.spec, changed, self.serving)
            dearer = cost / price if price else 1.0  # replicas that are paid for cost nothing however they are set
            rows.append(
                {
                    "change": name,
                    "note": note,
                    "wall_gain_pct": 100 * (moved / wall - 1),
                    "per_dollar_gain_pct": 100 * (moved / wall / dearer - 1),
                }
            )
        yield from sorted(rows, key=lambda row: row["per_dollar_gain_pct"], reverse=True)

    def _single_changes(self) -> Iterator[tuple[str, Candidate, str]]:
        c, setup = self.candidate, self.search.runner.bench.setup(self.candidate)
        seqs, budget = setup.limits.max_num_seqs, setup.limits.max_num_batched_tokens
        if c.gpu != "unit":
            peaks = load_gpu(c.gpu).peak_tflops
            if not setup.model.weight_format(c.weight_dtype).quantised and "fp8" in peaks:
                yield (
                    "fp8 weights",
                    replace(c, weight_dtype="fp8"),
                    "changes the model's outputs: check quality",
                )
            if c.kv_dtype in ("bf16", "fp16") and "fp8" in peaks:
                yield "fp8 KV cache", replace(c, kv_dtype="fp8"), "changes the model's outputs: check quality"
            if c.own(self.serving):
                yield (
                    f"tensor parallel {2 * c.tensor_parallel}",
                    replace(c, tensor_parallel=2 * c.tensor_parallel),
                    "twice the GPUs per replica",
                )
        yield f"max_num_seqs {2 * seqs}", replace(c, max_num_seqs=2 * seqs), ""
        if seqs > 1:
            yield f"max_num_seqs {seqs // 2}", replace(c, max_num_seqs=seqs // 2), ""
        if "max_num_batched_tokens" in setup.policy.knobs:
            for tokens in (2 * budget, budget // 2):
                if tokens >= seqs:
                    yield f"max_num_batched_tokens {tokens}", replace(c, max_num_batched_tokens=tokens), ""
        if c.router != "least_outstanding" and self.serving > 1:
            yield "least-outstanding router", replace(c, router="least_outstanding"), ""

    def curve(self, wall: float) -> Iterator[dict[str, Any]]:
        """Goodput (requests that meet every limit) against rate, around the wall."""
        points = [
            Point(
                self.candidate,
                self.serving,
                wall * x,
                0,
                full=not self.search.shares(self.candidate, self.serving),
                goodput=True,
            )
            for x in CURVE
        ]
        for x, record in zip(CURVE, self.search.runner.run(points), strict=True):
            if not record["idle"]:
                rate = wall * x * self.per_unit
                yield {
                    "requests_per_s": rate,
                    "goodput_per_s": rate * record["attained_every"],
                    "overloaded": record["overloaded"],
                    **{t.name: value_of(record, t) for t in self.search.spec.slo.targets},
                }

    def growth(self) -> Iterator[dict[str, Any]]:
        """The same configuration at more traffic."""
        found = self.search.runner.bench.ready(self.candidate)
        for factor in GROWTHS:
            need = self.search.needed(found, self.rate * factor, math.ceil(self.serving * factor))
            got = None if need else self.search.solve(found, self.rate * factor)
            replicas = need + self.fleet.spare if need else None
            yield {
                "factor": factor,
                "status": got.status if got else "feasible",
                "reason": got.reason if got else "",
                "replicas": replicas,
                **(pools_of(self.search.spec, self.candidate, replicas) if replicas else {}),
                "usd_per_hour": usd_of(self.search.spec, self.candidate, replicas) if replicas else None,
            }

    def hourly(self) -> dict[str, Any] | None:
        """Replicas hour by hour against the constant fleet; None for a trace shorter than most of a day."""
        trace = self.search.runner.bench.traffic.trace(0)
        windows = any(t.window_s for t in self.search.spec.slo.targets)
        asked = self.search.runner.symmetric(self.candidate) or self.search.spec.reserved_prices
        if trace.span_ns < DAY_HOURS * HOUR_NS or windows or not asked:
            return None
        hourly = hours_of(trace)
        busiest = max(end - start for start, end in hourly)
        need = [self._hour(rows, busiest) for rows in hourly]
        price = price_of(self.search.spec, self.candidate.gpu).usd_per_hour * self.candidate.gpus
        hours = int(trace.span_ns // HOUR_NS) + 1
        sized = [min(n, self.serving) + self.fleet.spare for n in need] + [1 + self.fleet.spare] * (hours - len(need))
        constant = self.fleet.replicas * hours
        return {
            "hours": hours,
            "replicas": sized,
            "replica_hours": sum(sized),
            "constant_replica_hours": constant,
            "saving_pct": 100 * (1 - sum(sized) / constant),
            "usd_per_day_saved": (constant - sum(sized)) * price * 24 / hours,
            "mix": self.mix(sized, price),
            "purchases": self.purchases(hourly, need, hours, price),
        }

    def reserved_price(self) -> float | None:
        """[USD per replica and hour] of one that is paid for every hour; None where the plan has no price for that."""
        given = {gpu_name(name): price for name, price in self.search.spec.reserved_prices.items()}
        return given[self.candidate.gpu] * self.candidate.gpus if self.candidate.gpu in given else None

    def mix(self, sized: list[int], on_demand: float) -> dict[str, Any] | None:
        """What reserving some of the replicas costs."""
        reserved = self.reserved_price()
        return None if reserved is None else mixed(sized, reserved, on_demand)

    def purchases(
        self, hourly: Sequence[tuple[int, int]], need: Sequence[int], hours: int, on_demand: float
    ) -> dict[str, Any] | None:
        """Reserving some, and some on spot capacity."""
        reserved = self.reserved_price()
        if reserved is None:
            return None
        buy = Purchases(self.search, self.candidate, self.rate, self.error)
        return buy.day(hourly, [min(n, self.serving) for n in need], hours, reserved, on_demand)

    def _hour(self, rows: tuple[int, int], busiest: int) -> int:
        """Fewest replicas for one hour, not more than the constant fleet; slower step times, means."""
        start = max(1, round(self.serving * (rows[1] - rows[0]) / busiest))
        counts = range(1, self.serving + 1)
        try:
            found = self.search.smallest(
                self.candidate, counts, self.rate, 1 + self.error, start, clear=False, rows=rows
            )
        except ConfigError:  # an hour without a request that a level is about: nothing to size it by
            return self.serving
        return found or self.serving

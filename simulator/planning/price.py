"""What a fleet costs: per hour, month, million tokens, in GPUs and (estimated) watts; and the ranking."""

from dataclasses import dataclass
from typing import Any, Final

from simulator.planning.candidate import Candidate
from simulator.planning.names import gpu_name
from simulator.planning.search import Outcome
from simulator.planning.spec import PlanSpec
from simulator.profiles.gpu import load_gpu

HOURS_PER_MONTH: Final = 730.0
"""[h] 365 days x 24 h / 12."""


@dataclass(frozen=True)
class Price:
    """USD per GPU and hour, and where it comes from."""

    usd_per_hour: float
    source: str
    assumed: bool


def price_of(spec: PlanSpec, gpu: str) -> Price:
    """The plan's price, else the profile's example, marked as assumed."""
    given = {gpu_name(name): price for name, price in spec.prices.items()}
    if gpu in given:
        return Price(given[gpu], "given in the plan", False)
    profile = load_gpu(gpu)
    return Price(profile.price_usd_h, f"{profile.sources.get('price', 'profile')}; {profile.price_date}", True)


def price_beside(spec: PlanSpec, candidate: Candidate) -> Price | None:
    """That of the GPUs beside the candidate's own; None where there are none."""
    if candidate.beside is None:
        return None
    given = candidate.beside.price
    return price_of(spec, candidate.beside.gpu) if given is None else Price(given, "given in the plan", False)


def usd_of(spec: PlanSpec, candidate: Candidate, replicas: int) -> float:
    """[USD/h] of a fleet of so many replicas."""
    own = price_of(spec, candidate.gpu).usd_per_hour * candidate.gpus * candidate.own(replicas)
    other = price_beside(spec, candidate)
    return own if other is None or candidate.beside is None else own + other.usd_per_hour * candidate.beside.gpus


def watts_of(candidate: Candidate, replicas: int) -> float:
    """[W] of its GPUs at their rated maximum."""
    own = load_gpu(candidate.gpu).tdp_w * candidate.gpus * candidate.own(replicas)
    return own if candidate.beside is None else own + load_gpu(candidate.beside.gpu).tdp_w * candidate.beside.gpus


@dataclass(frozen=True)
class Fleet:
    """A fleet to buy: `serving` replicas carry the load, `spare` more may fail."""

    candidate: Candidate
    serving: int
    spare: int
    usd_per_hour: float
    usd_range: tuple[float, float]  # over the profile's error
    usd_per_million_output: float
    usd_per_million_total: float
    watts: float  # GPUs x TDP: an upper estimate, hosts not counted
    kwh_per_million_output: float

    @property
    def replicas(self) -> int:
        """All of them."""
        return self.serving + self.spare

    @property
    def gpus(self) -> int:
        """GPUs to buy."""
        return self.candidate.gpus_of(self.replicas)

    @property
    def usd_per_month(self) -> float:
        """At HOURS_PER_MONTH."""
        return self.usd_per_hour * HOURS_PER_MONTH

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "candidate": plain_candidate(self.candidate),
            "label": self.candidate.label,
            "replicas": self.replicas,
            "serving": self.serving,
            "spare": self.spare,
            "gpus": self.gpus,
            "usd_per_hour": self.usd_per_hour,
            "usd_per_hour_range": list(self.usd_range),
            "usd_per_month": self.usd_per_month,
            "usd_per_million_output_tokens": self.usd_per_million_output,
            "usd_per_million_tokens": self.usd_per_million_total,
            "watts_estimate": self.watts,
            "kwh_per_million_output_tokens_estimate": self.kwh_per_million_output,
        }


def plain_candidate(candidate: Candidate) -> dict[str, Any]:
    """For JSON."""
    return vars(candidate) | {"beside": candidate.beside and candidate.beside.model_dump()}


def pools_of(spec: PlanSpec, candidate: Candidate, replicas: int) -> dict[str, Any]:
    """`beside` of a fleet's JSON: both pools in numbers, nothing for a fleet of one kind."""
    other, price = candidate.beside, price_beside(spec, candidate)
    if other is None or price is None:
        return {}
    return {"beside": {"own": candidate.own(replicas), "own_kind": candidate.kind, "gpu": other.gpu, "kind": other.kind,
                       "replicas": other.replicas, "gpus": other.gpus, "price_usd_per_gpu_hour": price.usd_per_hour,
                       "price_source": price.source, "price_assumed": price.assumed}}  # fmt: skip


def fleet_of(spec: PlanSpec, outcome: Outcome, tokens_per_s: tuple[float, float]) -> Fleet:
    """Price a feasible outcome; `tokens_per_s` = (output, all) of the whole traffic."""
    candidate, replicas = outcome.candidate, outcome.replicas + spec.survive
    hourly = usd_of(spec, candidate, replicas)
    low, high = (usd_of(spec, candidate, n + spec.survive) for n in outcome.range)
    watts = watts_of(candidate, replicas)
    output, total = (max(rate, 1e-12) * 3600 / 1e6 for rate in tokens_per_s)
    return Fleet(
        candidate,
        outcome.replicas,
        spec.survive,
        hourly,
        (low, high),
        hourly / output,
        hourly / total,
        watts,
        watts / 1000 / output,
    )


def rank_key(spec: PlanSpec, fleet: Fleet, goodput_per_gpu: float) -> tuple[float, ...]:
    """Smaller is better under the plan's objective; ties go to the cheaper, then to the fewer GPUs."""
    first = {
        "min_cost": fleet.usd_per_hour,
        "min_gpus": float(fleet.gpus),
        "min_energy": fleet.watts,
        "max_goodput_per_gpu": -goodput_per_gpu,
    }[spec.objective]
    return (first, fleet.usd_per_hour, float(fleet.gpus))


def bound_key(spec: PlanSpec, candidate: Candidate, bound: int) -> float | None:
    """The objective at the proved lower bound on replicas; None where there is no bound on the objective."""
    replicas = bound + spec.survive
    if spec.objective == "min_cost":
        return usd_of(spec, candidate, replicas)
    if spec.objective == "min_gpus":
        return float(candidate.gpus_of(replicas))
    if spec.objective == "min_energy":
        return watts_of(candidate, replicas)
    return None

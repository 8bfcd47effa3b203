"""What the local page shows for a setting of its sliders: numbers, cost, charts and the slot picture as SVG text.

Small runs, so that an answer comes within a second: one replica on its share of Poisson traffic stands for the
fleet (round robin splits a Poisson stream a little more evenly than that, so waits are not understated).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from simulator.errors import ConfigError, ServecastError
from simulator.planning.measure import Wanted, key_of, measure
from simulator.planning.price import HOURS_PER_MONTH
from simulator.planning.spec import PlanSpec, load_plan
from simulator.planning.statistics import finite
from simulator.planning.traffic import Traffic, mean_rate
from simulator.profiles.gpu import load_gpu
from simulator.profiles.model import load_model
from simulator.report.plan.charts import Series, chart
from simulator.run import Result, simulate
from simulator.scenario.spec import scenario_from
from simulator.text import bounded, share

REQUESTS: Final = 1500
CURVE_REQUESTS: Final = 500
CURVE: Final = (0.3, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0)
"""Rates of the latency curve, as multiples of the rate set."""
SLOT_REQUESTS: Final = 80
SLOTS_SHOWN: Final = 16
"""Requests and slots of the slot picture, few enough to be read."""
PERCENTILE: Final = 99.0


@dataclass(frozen=True)
class Settings:
    """What can be set on the page."""

    rate: float = 20.0  # [requests/s] over the fleet
    ttft_ms: float = 500.0  # limit on p99
    tpot_ms: float = 50.0  # limit on p99
    gpu: str = "h100-sxm"
    policy: str = "chunked"
    replicas: int = 2
    max_num_seqs: int = 128
    prompt: int = 1150  # [tokens] mean
    output: int = 210  # [tokens] mean
    model: str = "llama-3.1-8b"
    tensor_parallel: int = 1
    price: float | None = None  # [USD per GPU and hour], None = the profile's example


@dataclass(frozen=True)
class View:
    """What is shown; `error` instead of everything else when a setting cannot run."""

    ttft_s: float = 0.0
    tpot_s: float = 0.0
    meets: bool = False
    overloaded: bool = False
    usd_per_hour: float = 0.0
    usd_per_million: float = 0.0
    lines: tuple[tuple[str, str], ...] = ()
    curve: str = ""
    slots: str = ""
    error: str = ""


def settings_from(path: Path | None) -> tuple[Settings, PlanSpec | None]:
    """Slider positions from a plan file: traffic, lengths, limits and the first of each candidate list."""
    if path is None:
        return Settings(), None
    spec = load_plan(path)
    trace = Traffic(spec).trace(0)
    limits = {t.metric: 1000 * t.max_s for t in spec.slo.targets}
    c, start = spec.candidates, Settings()
    allowed = c.allowed(c.tensor_parallel[0]) or (1,)
    return Settings(
        rate=round(mean_rate(trace) * spec.growth, 2) or start.rate,
        ttft_ms=limits.get("ttft", start.ttft_ms),
        tpot_ms=limits.get("tpot", start.tpot_ms),
        gpu=c.gpu[0],
        policy=c.policy[0] or start.policy,
        replicas=allowed[0],
        max_num_seqs=c.max_num_seqs[0] or start.max_num_seqs,
        prompt=max(1, round(trace.prompt.mean())),
        output=max(1, round(trace.output.mean())),
        model=c.model[0] or spec.model,
        tensor_parallel=c.tensor_parallel[0],
        price=spec.prices.get(c.gpu[0]),
    ), spec


LENGTH: Final = 16_384
"""max_model_len: room for the longest requests (8,000 + 4,000 tokens), cut to the model's positions."""


def _simulated(s: Settings, rate: float, requests: int) -> Result:
    """One replica's share of the traffic."""
    return simulate(
        scenario_from(
            {
                "name": f"{s.gpu}, {s.policy}",
                "seed": 1,
                "model": s.model,
                "hardware": {"gpu": s.gpu, "tensor_parallel": s.tensor_parallel},
                "max_model_len": min(LENGTH, load_model(s.model).max_positions),
                "workload": {
                    "arrivals": {"kind": "poisson", "rate": rate / s.replicas, "requests": requests},
                    "prompt": {"kind": "lognormal", "mean": float(s.prompt), "cv": 1.0, "max": 8000},
                    "output": {"kind": "lognormal", "mean": float(s.output), "cv": 0.9, "max": 4000},
                },
                "policy": {"name": s.policy, "max_num_seqs": s.max_num_seqs},
                "slo": {"ttft_s": s.ttft_ms / 1000, "tpot_s": s.tpot_ms / 1000},
            }
        ),
        engine="auto",
    )


def _measured(s: Settings, result: Result) -> dict[str, Any]:
    wanted = tuple((metric, None, p) for metric in ("ttft", "tpot", "e2e") for p in (50.0, PERCENTILE))
    return measure(result, Wanted(wanted, (("tpot", s.tpot_ms / 1000), ("ttft", s.ttft_ms / 1000))))


def evaluate(s: Settings, pictures: bool = True) -> View:
    """Simulate a setting. What cannot run becomes a message, not an exception."""
    try:
        _check(s)
        result = _simulated(s, s.rate, REQUESTS)
        return _view(s, result, pictures)
    except ServecastError as error:
        return View(error=str(error))


def _check(s: Settings) -> None:
    for name in ("rate", "ttft_ms", "tpot_ms", "replicas", "max_num_seqs", "prompt", "output", "tensor_parallel"):
        value = getattr(s, name)
        if value is None or not 0 < value < float("inf"):
            raise ConfigError(f"{name} must be a number > 0, got {value!r}")


def _view(s: Settings, result: Result, pictures: bool) -> View:
    record = _measured(s, result)
    values = record["values"]
    ttft, tpot = values[key_of("ttft", None, PERCENTILE)], values[key_of("tpot", None, PERCENTILE)]
    price = load_gpu(s.gpu).price_usd_h if s.price is None else s.price
    hourly = price * s.replicas * s.tensor_parallel
    per_million = hourly / max(1e-9, s.rate * s.output * 3600 / 1e6)
    meets = not record["overloaded"] and ttft <= s.ttft_ms / 1000 and tpot <= s.tpot_ms / 1000
    lines = (
        ("p99 TTFT", bounded(finite(ttft))),
        ("p99 TPOT", "whole batch" if tpot != tpot else bounded(finite(tpot))),
        ("median E2E", bounded(finite(values[key_of("e2e", None, 50.0)]))),
        ("within both limits", share(record["attained"])),
        ("refused", share(record["rejected"] / record["arrived"])),
        ("slots in use", share(record["slots_mean"])),
        ("KV memory in use", share(record["kv_mean"])),
        ("cost", f"{hourly:.2f} USD/h"),
        ("cost a month", f"{hourly * HOURS_PER_MONTH:,.0f} USD"),
        ("per million output tokens", f"{per_million:.3g} USD"),
    )
    return View(
        ttft,
        tpot,
        meets,
        record["overloaded"],
        hourly,
        per_million,
        lines,
        _curve(s) if pictures else "",
        _slots(s) if pictures else "",
    )


def _curve(s: Settings) -> str:
    """p99 TTFT and TPOT in per cent of their limits, against the fleet's rate."""
    points: dict[str, list[tuple[float, float, str]]] = {"p99 TTFT": [], "p99 TPOT": []}
    for factor in CURVE:
        values = _measured(s, _simulated(s, s.rate * factor, CURVE_REQUESTS))["values"]
        for name, metric, limit in (("p99 TTFT", "ttft", s.ttft_ms), ("p99 TPOT", "tpot", s.tpot_ms)):
            value = values[key_of(metric, None, PERCENTILE)]
            if value == value:
                hover = f"{name} {bounded(finite(value))} at {s.rate * factor:.3g} requests/s"
                points[name].append((s.rate * factor, 1e5 * value / limit, hover))
    series = [Series(name, rows) for name, rows in points.items() if rows]
    return chart(
        series,
        "requests/s",
        "share of the limit [%]",
        "latency against rate",
        y_max=200.0,
        verticals=[(s.rate, "now")],
        horizontals=[(100.0, "limit")],
    )


def _slots(s: Settings) -> str:
    """The slot picture of the first requests, on at most SLOTS_SHOWN slots."""
    from simulator.report.slots import slot_figure
    from simulator.report.svg import to_svg

    few = replace(s, max_num_seqs=min(SLOTS_SHOWN, s.max_num_seqs))
    return to_svg(slot_figure([_simulated(few, s.rate, SLOT_REQUESTS)]), "slots over time", "slots")

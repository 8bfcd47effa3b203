"""What the local page shows for a setting of its sliders: numbers, cost, charts and the slot picture as SVG text.

Small runs, so that an answer comes within a second: one replica on its share of Poisson traffic stands for the
fleet (round robin splits a Poisson stream a little more evenly than that, so waits are not understated).
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from simulator.errors import ConfigError, ServecastError
from simulator.planning.measure import Wanted, key_of, measure
from simulator.planning.price import HOURS_PER_MONTH
from simulator.planning.statistics import finite
from simulator.profiles.gpu import load_gpu
from simulator.report.plan.charts import Series, chart
from simulator.run import Result, simulate
from simulator.text import bounded, share
from simulator.ui.settings import Settings

REQUESTS: Final = 1500
CURVE_REQUESTS: Final = 500
CURVE: Final = (0.3, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0)
"""Rates of the latency curve, as multiples of the rate set."""
SLOT_REQUESTS: Final = 80
SLOTS_SHOWN: Final = 16
"""Requests and slots of the slot picture, few enough to be read."""
PERCENTILE: Final = 99.0


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


def _simulated(s: Settings, rate: float, requests: int) -> Result:
    """One replica's share of the traffic."""
    return simulate(s.scenario(rate / s.replicas, requests), engine="auto")


def shared(s: Settings) -> str:
    """The scenario of the numbers on the page as YAML: one replica and its share of the traffic."""
    _check(s)
    data = s.plain(s.rate / s.replicas, REQUESTS)
    about = (f"# One of {s.replicas} replicas with its share of {s.rate:g} requests/s, as the local page has it.\n"
             "# servecast run scenario.yaml\n")  # fmt: skip
    return about + yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


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
    hourly = price * s.replicas * s.gpus
    per_million = hourly / max(1e-9, s.rate * s.output * 3600 / 1e6)
    meets = not record["overloaded"] and ttft <= s.ttft_ms / 1000 and tpot <= s.tpot_ms / 1000
    lines = (
        ("p99 TTFT", bounded(finite(ttft))),
        ("p99 TPOT", "whole batch" if tpot != tpot else bounded(finite(tpot))),
        ("median E2E", bounded(finite(values[key_of("e2e", None, 50.0)]))),
        ("within both limits", share(record["attained"])),
        ("refused", share(record["rejected"] / record["arrived"])),
        ("prompt tokens from the cache", share(result.summary["kv"]["prefix_cache"]["hit_rate"])),
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

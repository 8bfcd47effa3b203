"""Numbers by hand where a small slip would not show: histogram bins, makespan, prices, the one word for a run."""

from typing import Any

import numpy as np
import pytest

from simulator import scenario_from, simulate
from simulator.engines.booking import itl_bin
from simulator.metrics.latency import histogram_quantiles
from simulator.metrics.readings import banner
from simulator.planning.candidate import candidates_of
from simulator.planning.price import fleet_of
from simulator.planning.search import Outcome
from simulator.planning.spec import plan_from
from simulator.profiles.gpu import load_gpu
from simulator.state import ITL_BINS, log_bin_edges


def test_a_bin_begins_at_each_power_of_two() -> None:
    edges = log_bin_edges()
    for k in range(1, 40):
        assert edges[itl_bin(2**k)] == 2**k
        assert itl_bin(2**k - 1) == itl_bin(2**k) - 1


def test_the_only_value_of_a_bin_is_in_its_middle_and_the_top_bin_ends_at_the_largest_gap() -> None:
    """Bins [4096, 4112) and [8192, 8224) hold one gap each; the largest is 8200: middles at 4104 and 8196."""
    counts = np.zeros(ITL_BINS, dtype=np.int64)
    counts[[itl_bin(4096), itl_bin(8192)]] = 1
    assert log_bin_edges()[itl_bin(4096) + 1] == 4112 and log_bin_edges()[itl_bin(8192) + 1] == 8224
    assert histogram_quantiles(counts, [0.0, 0.5, 1.0], 6000.0, 8200.0) == [4104.0, 6150.0, 8196.0]


def test_makespan_begins_with_the_first_submission() -> None:
    """Submitted at 100 s, two tokens of 1 s: 2 s and 1 token/s, whenever the clock began."""
    requests = {"output": [2], "arrival_s": [100.0]}
    data = {"workload": {"requests": requests}, "hardware": {"gpu": "unit"}, "policy": {"name": "orca"}}
    got = simulate(scenario_from(data), "reference").summary
    assert got["makespan_s"] == 2.0 and got["throughput"]["output_tokens_per_s"] == 1.0


def test_a_fleet_is_priced_with_its_spares() -> None:
    """3 serve and 1 is spare, 2 GPUs each at 2 USD/h: 16 USD/h. 1,000 output tokens/s are 3.6 million an hour: 4.44 USD
    a million; 8 GPUs at rated power use watts x 1 h / 3.6 million = 1/3600 kWh a million and watt."""
    spec = plan_from(
        {
            "workload": {"requests": {"output": [1]}},
            "slo": {"ttft_p50_s": 1},
            "candidates": {"gpu": "l40s", "tensor_parallel": 2},
            "prices": {"l40s": 2.0},
            "survive": 1,
        }
    )
    got = fleet_of(spec, Outcome(candidates_of(spec)[0], "feasible", replicas=3, range=(2, 3)), (1000.0, 4000.0))
    assert (got.usd_per_hour, got.usd_range, got.gpus) == (16.0, (12.0, 16.0), 8)
    assert got.usd_per_million_output == pytest.approx(16 / 3.6)
    assert got.usd_per_million_total == pytest.approx(4 / 3.6)
    watts = 8 * load_gpu("l40s").tdp_w
    assert got.watts == watts and got.kwh_per_million_output == pytest.approx(watts / 3600)


def summary(
    rejected: int = 0, attained: float | None = None, verdict: str = "stable", aborted: int = 0,
    lost: int = 0
) -> dict[str, Any]:
    return {
        "stability": {"verdict": verdict, "reason": "why"},
        "requests": {"arrived": 100, "rejected": rejected, "aborted": aborted, "lost": lost},
        "goodput": {"attained": attained},
    }


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (summary(), "stable"),
        (summary(rejected=23), "rejecting"),
        (summary(aborted=23), "rejecting"),
        (summary(lost=23), "rejecting"),
        (summary(attained=0.21), "missing its targets"),
        (summary(attained=0.995, rejected=1), "stable"),
        (summary(rejected=23, verdict="overloaded"), "overloaded"),
        (summary(attained=0.9, verdict="undecided"), "missing its targets"),
    ],
)
def test_the_word_for_a_run(given: dict[str, Any], word: str) -> None:
    assert banner(given)["verdict"] == word


def test_percentiles_of_few_requests_are_named() -> None:
    data = {"workload": {"requests": {"output": [3] * 30}}, "hardware": {"gpu": "unit"}, "policy": {"name": "orca"}}
    got = simulate(scenario_from(data), "reference").summary
    assert got["few_requests"]["ttft_s"] == ["p95", "p99", "p999"]

"""Stability verdict, Little's law, warm-up and intervals against theory and worked numbers."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from simulator import Result, Scenario, scenario_from, simulate
from simulator.errors import ConfigError
from simulator.metrics.intervals import interval, paired, t_cdf, t_quantile
from simulator.metrics.stability import backlog_verdict, little, mser, number_in_system, stability
from simulator.replicate import replicate, replicate_until, value_at
from simulator.units import NEVER


def queue(rate: float, requests: int = 2000, kind: str = "poisson", **more: Any) -> Scenario:
    """A single server with service of exactly 1 s."""
    workload = {
        "arrivals": {"kind": kind, "rate": rate, "requests": requests},
        "prompt": {"kind": "fixed", "value": 1},
        "output": {"kind": "fixed", "value": 1},
    }
    return scenario_from(
        {
            "name": "M/D/1",
            "workload": workload,
            "hardware": {"gpu": "unit"},
            "policy": {"name": "chunked", "max_num_seqs": 1},
        }
        | more
    )


def run(scenario: Scenario, replication: int = 0) -> Result:
    return simulate(scenario, replication=replication)


# Verdict.


@pytest.mark.parametrize("replication", range(8))
def test_md1_below_and_above_capacity(replication: int) -> None:
    assert stability(run(queue(0.7), replication)).verdict == "stable"
    over = stability(run(queue(1.4), replication))
    assert over.verdict == "overloaded"
    assert over.slope_per_s == pytest.approx(
        0.4, abs=3 * math.sqrt(1.2 * 1.4 / 1100)
    )  # rate - 1, random walk error


@pytest.mark.parametrize(("rate", "verdict"), [(0.7, "stable"), (1.4, "overloaded")])
def test_verdict_does_not_depend_on_the_horizon(rate: float, verdict: str) -> None:
    """Arrivals last 2000 / rate s; the run may stop with them, later, at the end, or well before."""
    window = 2000 / rate
    for horizon in (0.5 * window, window, 1.1 * window, 50 * window, None):
        assert stability(run(queue(rate, horizon_s=horizon))).verdict == verdict
    full = stability(run(queue(rate)))
    assert stability(run(queue(rate, horizon_s=1.1 * window))).slope_per_s == full.slope_per_s


def test_a_long_queue_just_below_capacity_is_not_called_overloaded() -> None:
    verdicts = [stability(run(queue(0.95, 20_000), k)).verdict for k in range(10)]
    assert "overloaded" not in verdicts and verdicts.count("stable") >= 8


def test_regular_arrivals_show_a_slight_overload() -> None:
    """D/D/1 at 1.05 requests/s: the backlog grows by exactly 0.05 a second."""
    seen = stability(run(queue(1.05, kind="constant")))
    assert seen.verdict == "overloaded" and seen.slope_per_s == pytest.approx(0.05, rel=0.02)


def test_no_verdict_without_evidence() -> None:
    burst = scenario_from({"workload": {"requests": {"output": [3] * 80}}, "hardware": {"gpu": "unit"}})
    assert stability(run(burst)).verdict == "undecided"
    assert stability(run(queue(0.5, 20))).verdict == "undecided"
    slow = queue(
        100.0, 200, hardware={"gpu": "unit", "step_s": 1.0}, policy={"name": "chunked", "max_num_seqs": 200}
    )
    assert "filling" in stability(run(slow)).reason  # 2 s of arrivals, 1 s of service


def test_closed_loads_are_bounded() -> None:
    closed = queue(1.0, 100, load={"kind": "closed", "width": 3})
    assert stability(run(closed)).verdict == "stable"
    assert run(closed).summary["stability"]["backlog_slope_per_s"] is None


def test_number_in_system_by_hand() -> None:
    """In at 0, 10, 20, 35; out at 15, 40, never, 36."""
    arrivals, ends = np.array([0, 10, 20, 35]), np.array([15, 40, NEVER, 36])
    assert number_in_system(arrivals, ends, 0, 40, points=4).tolist() == [2, 2, 2, 1]


def test_judge_on_given_paths() -> None:
    assert backlog_verdict(np.full(256, 7.0), 100.0, 1000).verdict == "stable"
    grown = backlog_verdict(np.linspace(0, 500, 256), 100.0, 1000)
    assert grown.verdict == "overloaded" and grown.slope_per_s == pytest.approx(5, rel=0.01)
    assert backlog_verdict(np.linspace(500, 0, 256), 100.0, 1000).verdict == "stable"


# Little's law.


def test_little_by_hand() -> None:
    """D/D/1, 51 arrivals 2 s apart, 1 s of service, up to the last: L = 50/100, lambda = 51/100, W = 1."""
    got = little(run(queue(0.5, 51, kind="constant")))
    assert got["mean_in_system"] == pytest.approx(0.5) and got["mean_time_in_system_s"] == pytest.approx(1.0)
    assert got["arrival_rate"] == pytest.approx(0.51) and got["relative_gap"] == pytest.approx(0.02)


def test_little_counts_arrivals_that_never_end() -> None:
    """Twice the capacity up to a horizon at the last of 51 arrivals, 25 s after the first: 51 / 25 a second arrived."""
    got = little(run(queue(2.0, 51, kind="constant", horizon_s=25.5)))
    assert got["arrival_rate"] == pytest.approx(51 / 25)


def test_little_gap_is_small_when_stable_and_large_under_overload() -> None:
    """At twice the capacity request k waits k/2 s: W = n/4, lambda W = n/2; N(t) = t until n/2 s: L = n/4."""
    stable, over = little(run(queue(0.8))), little(run(queue(2.0)))
    assert stable["relative_gap"] is not None and abs(stable["relative_gap"]) < 0.02
    assert over["relative_gap"] == pytest.approx(1.0, abs=0.1)


# Warm-up.


def test_mser_cuts_the_transient() -> None:
    noise = np.random.default_rng(1).normal(size=1000)
    assert 45 <= mser(noise + np.where(np.arange(1000) < 50, 20.0, 0.0)) <= 60
    assert mser(np.ones(100)) == 0 and mser([1.0, 2.0]) == 0


def test_mser_by_hand() -> None:
    """0, 0, 1, 3: squares about the mean 6, 14/3 and 2 over 4^2, 3^2 and 2^2: 0.375, 0.519, 0.5, so nothing is cut.
    Variances alone, over 4, 3 and 2, would be least for the last two."""
    assert mser([0, 0, 1, 3], batch=1) == 0
    assert mser([9, 1, 0, 2], batch=1) == 1  # 50 / 16, 2 / 9, 2 / 4


# Intervals.


@pytest.mark.parametrize("df", [1, 2, 3, 4, 7, 10, 29, 60])
def test_student_t_agrees_with_scipy(df: int) -> None:
    for t in (-3.0, -0.4, 0.0, 1.0, 5.0):
        assert t_cdf(t, df) == pytest.approx(stats.t.cdf(t, df), abs=1e-12)
    for p in (0.01, 0.5, 0.9, 0.975, 0.995):
        assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), abs=1e-9)


def test_interval_by_hand() -> None:
    """1, 2, 3: mean 2, deviation 1, t(0.975, 2) = 4.3027 (tables)."""
    got = interval([1, 2, 3], 0.95)
    assert got.mean == 2 and got.half_width == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert got.against(5.0) == "below" and got.against(-1.0) == "above" and got.against(2.0) == "open"


def test_too_little_knowledge_bounds_nothing() -> None:
    assert interval([1.0]).against(100.0) == "open"
    assert interval([1.0, math.inf]).against(100.0) == "open"
    assert interval([math.inf, math.inf]).against(100.0) == "above"
    for bad in ([], [math.nan]):
        with pytest.raises(ConfigError):
            interval(bad)


def test_interval_covers_as_often_as_it_says() -> None:
    """90 % intervals of 5 normal values: hits among 2,000 lie within 3 standard errors of 1,800."""
    rng = np.random.default_rng(7)
    sets = [interval(rng.normal(size=5), 0.9) for _ in range(2000)]
    hits = sum(one.low <= 0 <= one.high for one in sets)
    assert abs(hits - 1800) < 3 * math.sqrt(2000 * 0.9 * 0.1)


# Replications.


def test_replications_are_common_random_numbers() -> None:
    slow, fast = queue(0.8, 400), queue(0.8, 400).updated({"hardware.step_s": 0.9})
    a = replicate(slow, 4, "e2e_s.mean", "requests.arrived")
    b = replicate(fast, 4, lambda result: result.summary["e2e_s"]["mean"])
    assert a.shape == (4, 2) and (a[:, 1] == 400).all() and len(set(a[:, 0])) == 4
    assert (replicate(slow, 1, "e2e_s.mean", start=2)[0, 0]) == a[2, 0]
    difference = paired(a[:, 0], b[:, 0])
    assert difference.high < 0
    assert difference.half_width < interval(a[:, 0]).half_width + interval(b[:, 0]).half_width


def test_replications_that_would_be_equal_are_refused() -> None:
    fixed = scenario_from(
        {"name": "fixed", "workload": {"requests": {"output": [1, 2]}}, "hardware": {"gpu": "unit"}}
    )
    assert replicate(fixed, 1, "e2e_s.mean")[0, 0] == 1.5
    with pytest.raises(ConfigError, match="fixed: its workload is the same"):
        replicate(fixed, 2, "e2e_s.mean")
    with pytest.raises(ConfigError, match="at least one metric"):
        replicate(fixed, 1)


def test_stopping_rule() -> None:
    asked: list[int] = []

    def draw(k: int) -> float:
        asked.append(k)
        return 1.0 + 0.01 * (k % 2)

    assert replicate_until(draw, limit=2.0)[1] == "below" and asked == [0, 1, 2]
    assert replicate_until(draw, limit=0.5)[1] == "above"
    assert replicate_until(draw, relative=0.05)[1] == "precise"
    undecided, why = replicate_until(lambda k: float(k % 2), limit=0.5, most=8)
    assert why == "most" and undecided.n == 8 and undecided.against(0.5) == "open"
    with pytest.raises(ConfigError):
        replicate_until(draw, least=1)


def test_value_at() -> None:
    summary = {"ttft_s": {"p99": None, "mean": 2}, "name": "x"}
    assert value_at(summary, "ttft_s.mean") == 2 and value_at(summary, "ttft_s.p99") == math.inf
    with pytest.raises(ConfigError, match=r"no 'p98' in the summary; known here: p99, mean"):
        value_at(summary, "ttft_s.p98")
    with pytest.raises(ConfigError, match="is not a number"):
        value_at(summary, "name")

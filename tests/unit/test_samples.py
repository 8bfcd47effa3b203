"""How far one sample carries: Wilks' numbers, an interval from within a run, worst windows by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from simulator.metrics.intervals import interval
from simulator.metrics.samples import needed, percentile, within_run, worst_window
from tests.queueing.lindley import mm1, wait_quantile


@pytest.mark.parametrize(
    ("share", "level", "count"), [(0.95, 0.9, 59), (0.99, 0.9, 299), (0.9, 0.9, 29), (0.5, 0.9, 5)]
)
def test_requests_that_a_percentile_needs(share: float, level: float, count: int) -> None:
    """59 and 299 are the tabulated sizes of one-sided 95 % tolerance limits (Wilks 1941)."""
    assert needed(share, level) == count
    assert stats.binom.pmf(count, count, share) <= (1 - level) / 2 < stats.binom.pmf(count - 1, count - 1, share)


def test_a_percentile_of_too_few_has_no_upper_end() -> None:
    values = np.random.default_rng(1).exponential(size=298)
    assert math.isinf(within_run(values, 0.99, 0.9).high)
    assert math.isfinite(within_run(np.random.default_rng(1).exponential(size=5000), 0.99, 0.9).high)


def test_within_run_interval_covers_independent_values() -> None:
    """90 % intervals of the median of 500 exponentials: at least 85 of 100 hold ln 2, and not all are wide."""
    found = [within_run(np.random.default_rng(k).exponential(size=500), 0.5, 0.9) for k in range(100)]
    assert sum(one.low <= math.log(2) <= one.high for one in found) >= 85
    assert np.median([one.high - one.low for one in found]) < 0.3


def test_within_run_interval_is_wider_for_a_queue_than_for_as_many_independent_values() -> None:
    waits = mm1(0.9, 20_000, 3).waits
    mixed = np.random.default_rng(0).permutation(waits)
    own, other = within_run(waits, 0.9, 0.9), within_run(mixed, 0.9, 0.9)
    assert own.mean == other.mean and own.high - own.low > 2 * (other.high - other.low)


def test_a_trend_over_the_day_is_no_error() -> None:
    """Values that rise through the day: every block differs from the next by the trend, not by chance."""
    noise = np.random.default_rng(5).normal(scale=0.01, size=10_000)
    found = within_run(np.linspace(0, 1, 10_000) + noise, 0.5, 0.9)
    assert found.high - found.low < 0.35 and found.low < 0.5 < found.high


def test_worst_window_by_hand() -> None:
    """Windows of 10 s start every 5 s: [5, 15) holds 3, 9 and 8 with median 8; [0, 10) has 1 and 3; [10, 20) is 8.5."""
    at = np.array([0.0, 6.0, 11.0, 12.0, 21.0])
    values = np.array([1.0, 3.0, 9.0, 8.0, 2.0])
    found = worst_window(at, values, 10.0, 0.5, 3)
    assert found is not None and (found.value, found.start_s, found.requests) == (8.0, 5.0, 3)
    two = worst_window(at, values, 10.0, 0.5, 2)
    assert two is not None and (two.value, two.start_s) == (8.5, 10.0)
    assert worst_window(at, values, 10.0, 0.5, 4) is None
    unsorted = worst_window(at[::-1], values[::-1], 10.0, None, 3)
    assert unsorted is not None and unsorted.value == pytest.approx(20 / 3)


def test_failed_requests_are_infinite() -> None:
    assert percentile(np.array([1.0, math.inf, 2.0]), 0.5) == 2.0
    assert percentile(np.array([1.0, math.inf, 2.0]), 0.75) == math.inf
    assert math.isnan(percentile(np.zeros(0), 0.5))


@pytest.mark.nightly
@pytest.mark.parametrize("rho", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("share", [None, 0.95, 0.99])
def test_intervals_of_replications_cover_theory(rho: float, share: float | None) -> None:
    """M/M/1 waits, 4 replications of 40,000 requests each, ten times 40 seeds: nominal 90 % intervals hold theory in
    85 % or more."""
    theory = rho / (1 - rho) if share is None else wait_quantile(rho, share)
    hits = 0
    for seed in range(400):
        runs = [mm1(rho, 40_000, [seed, k]).waits for k in range(4)]
        found = interval([w.mean() if share is None else percentile(w, share) for w in runs], 0.9)
        hits += found.low <= theory <= found.high
    assert hits >= 0.85 * 400


@pytest.mark.nightly
@pytest.mark.parametrize(("rho", "requests"), [(0.5, 10_000), (0.8, 40_000), (0.9, 150_000)])
def test_intervals_from_within_one_run_cover_theory(rho: float, requests: int) -> None:
    """p95 of M/M/1 waits over 40 seeds; the run must be long against the queue's memory (1 / (1 - rho)^2 services)."""
    found = [within_run(mm1(rho, requests, seed).waits, 0.95, 0.9) for seed in range(40)]
    assert sum(one.low <= wait_quantile(rho, 0.95) <= one.high for one in found) >= 34

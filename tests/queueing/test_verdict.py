"""The stability verdict on single-server queues of known load: how often it is wrong, over many seeds."""

from collections import Counter

import numpy as np
import pytest

from simulator.metrics.stability import FILL_SHARE, backlog_verdict, number_in_system, walk_error
from tests.queueing.lindley import Queue, mm1, single_server

REQUESTS, SEEDS = 10_000, 300


def verdict(queue: Queue) -> str:
    """As simulator.metrics.stability does it on a run: the first fifth of the arrivals is left out."""
    arrivals, ends = (np.rint(1e9 * column).astype(np.int64) for column in (queue.arrivals, queue.ends))
    begin, end = int(arrivals[0]), int(arrivals[-1])
    begin += int(FILL_SHARE * (end - begin))
    seen = int(np.count_nonzero((arrivals > begin) & (arrivals <= end)))
    return backlog_verdict(number_in_system(arrivals, ends, begin, end), (end - begin) / 1e9, seen).verdict


def spread(load: float, seed: int) -> Queue:
    """Services four times as variable as exponential ones (lognormal, squared coefficient of variation 4)."""
    rng = np.random.default_rng([seed, 4])
    sigma = np.sqrt(np.log(5.0))
    services = rng.lognormal(-(sigma**2) / 2, sigma, REQUESTS)
    return single_server(np.cumsum(rng.exponential(1 / load, REQUESTS)), services)


def test_below_capacity_it_is_not_called_overloaded() -> None:
    """Load 0.95: at most 2 % false alarms, and at 0.9 nearly always stable."""
    seen = Counter(verdict(mm1(0.95, REQUESTS, seed)) for seed in range(SEEDS))
    assert seen["overloaded"] <= 0.02 * SEEDS
    assert Counter(verdict(mm1(0.9, REQUESTS, seed)) for seed in range(SEEDS))["stable"] >= 0.95 * SEEDS


def test_above_capacity_it_is_not_called_stable() -> None:
    """Load 1.05: at most 5 % called stable, and at 1.1 nearly always overloaded."""
    seen = Counter(verdict(mm1(1.05, REQUESTS, seed)) for seed in range(SEEDS))
    assert seen["stable"] <= 0.05 * SEEDS
    assert Counter(verdict(mm1(1.1, REQUESTS, seed)) for seed in range(SEEDS))["overloaded"] >= 0.95 * SEEDS


@pytest.mark.nightly
def test_variable_services_do_not_fool_it() -> None:
    below = Counter(verdict(spread(0.95, seed)) for seed in range(SEEDS))
    above = Counter(verdict(spread(1.05, seed)) for seed in range(SEEDS))
    assert below["overloaded"] <= 0.02 * SEEDS and above["stable"] <= 0.05 * SEEDS


def test_the_error_of_a_walks_slope_is_that_of_walks() -> None:
    """4,000 walks without drift: the spread of their slopes is what `walk_error` says of each, within 5 %."""
    rng = np.random.default_rng(1)
    means = rng.normal(size=(4000, 256)).cumsum(axis=1).reshape(4000, 16, 16).mean(axis=2)
    time = np.arange(16) - 7.5
    slopes = means @ time / (time @ time)
    said = np.sqrt(np.mean([walk_error(row) ** 2 for row in means]))
    assert said == pytest.approx(slopes.std(), rel=0.05)

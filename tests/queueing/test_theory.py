"""Degenerate scenarios whose mean waiting times queueing theory knows.

A request of n output tokens and a prompt of one token needs n steps, so its service time is n steps. One at
a time this is exact. With several slots services are about a thousand steps long: that a newcomer waits for
the running step to end moves the mean by less than 0.1 % of a service.
Every claim: |mean - theory| < 3 standard errors; the standard error, from independent replications, < 2 %.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import poisson

from simulator import scenario_from, simulate
from simulator.cost.unit import unit_cost
from simulator.run import Result
from simulator.workload.trace import make_trace

STEP_NS = 1 << 20
MEAN = 1000
"""[steps] mean service time."""
SHORT = 100
"""[steps] the same where one is served at a time."""
Lengths = Callable[[np.random.Generator, int, int], npt.NDArray[np.int64]]


def exponential(rng: np.random.Generator, n: int, mean: int) -> npt.NDArray[np.int64]:
    """Geometric on 1, 2, ...: the exponential cut into steps. Second moment (2 - 1 / mean) mean^2."""
    return rng.geometric(1 / mean, n)


def fixed(rng: np.random.Generator, n: int, mean: int) -> npt.NDArray[np.int64]:
    """Every service alike. Second moment mean^2."""
    return np.full(n, mean, dtype=np.int64)


def two_point(rng: np.random.Generator, n: int, mean: int) -> npt.NDArray[np.int64]:
    """0.2 means four times of five, else 4.2: second moment 0.8 x 0.04 + 0.2 x 17.64 = 3.56 mean^2."""
    return np.where(rng.random(n) < 0.8, mean // 5, 21 * mean // 5)


def runs(policy: dict[str, Any], lengths: Lengths, load: float, n: int, replications: int, cost: Any = None,
         mean: int = MEAN, **cluster: Any) -> list[Result]:  # fmt: skip
    """Independent runs of n Poisson arrivals, `load` arrivals a mean service."""
    base = {"workload": {"requests": {"output": [1]}}, "hardware": "unit", "max_model_len": 10**6,
            "policy": {"max_num_batched_tokens": 10**6, **policy} if policy["name"] == "chunked" else policy,
            "cluster": cluster or {"replicas": 1}}  # fmt: skip
    found = []
    for seed in range(replications):
        rng = np.random.default_rng([20, seed])
        arrival = np.cumsum(rng.exponential(mean * STEP_NS / load, n)).astype(np.int64)
        trace = make_trace(arrival, 1, lengths(rng, n, mean))
        found.append(
            simulate(scenario_from(base), trace=trace, cost=cost or unit_cost(STEP_NS), replication=seed)
        )
    return found


def waits(results: list[Result], mean: int = MEAN) -> list[float]:
    """Mean wait of each run, in mean services."""
    return [float((r.requests.scheduled - r.requests.queued).mean()) / (mean * STEP_NS) for r in results]


def check(samples: list[float], theory: float, most: float = 0.02) -> None:
    """The two conditions at the top of this file; `most`: relative standard error."""
    mean, error = float(np.mean(samples)), float(np.std(samples, ddof=1) / np.sqrt(len(samples)))
    assert error < most * theory
    assert abs(mean - theory) < 3 * error, f"mean {mean:.4f}, theory {theory:.4f}, standard error {error:.4f}"


def pollaczek_khinchine(load: float, second_moment: float) -> float:
    """Mean wait of M/G/1 in mean services (second moment: squared). Kleinrock, Queueing Systems I, 5.7."""
    return load * second_moment / (2 * (1 - load))


def erlang_wait(load: float, c: int) -> float:
    """Mean wait of M/M/c in mean services; load = arrivals per mean service. Kleinrock I, 3.5 (Erlang C)."""
    blocked = 1.0
    for k in range(1, c + 1):
        blocked = load * blocked / (k + load * blocked)
    queued = blocked / (1 - load / c * (1 - blocked))
    return queued / (c - load)


def crommelin_wait(load: float, c: int) -> float:
    """Mean wait of M/D/c in services. Crommelin, Post Office El. Eng. Journal 25 (1932), 41-50."""
    i = np.arange(1, 3000)
    terms = poisson.sf(i * c - 1, i * load) - (c / load) * poisson.sf(i * c, i * load)
    return float(terms.sum())


ONE_AT_A_TIME = {"name": "static", "max_num_seqs": 1}
SINGLE = [(fixed, 1.0), (exponential, 2 - 1 / SHORT), (two_point, 3.56)]


@pytest.mark.parametrize(("lengths", "second_moment"), SINGLE)
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_at_a_time_is_m_g_1(lengths: Lengths, second_moment: float, load: float) -> None:
    done = runs(ONE_AT_A_TIME, lengths, load, 60_000, 24, mean=SHORT)
    check(waits(done, SHORT), pollaczek_khinchine(load, second_moment))


def test_formulas_agree_where_they_meet() -> None:
    """One server: Erlang and Crommelin are Pollaczek-Khinchine."""
    assert erlang_wait(0.7, 1) == pytest.approx(pollaczek_khinchine(0.7, 2.0))
    assert crommelin_wait(0.7, 1) == pytest.approx(pollaczek_khinchine(0.7, 1.0))


@pytest.mark.parametrize("policy", ["orca", "chunked", "vllm_v0"])
def test_slots_are_servers_m_m_c(policy: str) -> None:
    """Steps last the same however full they are: c slots are c servers. vllm_v0 stalls decodes for the step
    of a prefill, one step an arrival, so its services are stretched by load / MEAN."""
    c, load = 4, 3.2
    stretch = 1 + load / MEAN if policy == "vllm_v0" else 1.0
    check(waits(runs({"name": policy, "max_num_seqs": c}, exponential, load, 40_000, 20)),
          erlang_wait(load * stretch, c) * stretch)  # fmt: skip


@pytest.mark.parametrize("c", [2, 6])
def test_slots_are_servers_m_d_c(c: int) -> None:
    load = 0.85 * c
    check(waits(runs({"name": "orca", "max_num_seqs": c}, fixed, load, 40_000, 20)), crommelin_wait(load, c))


def test_random_router_splits_into_m_m_1() -> None:
    """A Poisson stream split at random is as many Poisson streams."""
    split = runs(ONE_AT_A_TIME, exponential, 3 * 0.6, 90_000, 16, mean=SHORT, replicas=3, router="random")
    check(waits(split, SHORT), pollaczek_khinchine(0.6, 2 - 1 / SHORT))


def test_round_robin_splits_into_erlang_arrivals() -> None:
    """Every second arrival of a Poisson stream: E2/M/1, whose wait is s / (1 - s), s the root of
    s = (2 a / (2 a + 1 - s))^2 with a arrivals a service and server (Kleinrock I, 6.4)."""
    a = 0.7
    root = 0.5
    for _ in range(200):
        root = (2 * a / (2 * a + 1 - root)) ** 2
    split = runs(ONE_AT_A_TIME, exponential, 2 * a, 80_000, 16, mean=300, replicas=2, router="round_robin")
    check(waits(split, 300), root / (1 - root))


def sharing_cost() -> Any:
    """A step of T tokens lasts T ticks of STEP_NS: every sequence gets an equal share of one server."""
    shared = np.tile(np.arange(201, dtype=np.int64) * STEP_NS, (2, 1))
    return unit_cost(STEP_NS)._replace(dense_ns=shared)


@pytest.mark.parametrize("lengths", [fixed, exponential, two_point])
def test_processor_sharing(lengths: Lengths) -> None:
    """M/G/1-PS: mean time in system 1 / (1 - load) services whatever the distribution (Kleinrock II, 4.4)."""
    load = 0.7
    done = runs({"name": "chunked", "max_num_seqs": 200}, lengths, load, 30_000, 24, sharing_cost())
    times = [float((r.requests.last - r.requests.arrival).mean()) / (MEAN * STEP_NS) for r in done]
    check(times, 1 / (1 - load))


def test_processor_sharing_slows_all_sizes_alike() -> None:
    """E[time | size] = size / (1 - load): short and long requests have the same mean slowdown."""
    load = 0.7
    done = runs({"name": "chunked", "max_num_seqs": 200}, two_point, load, 30_000, 24, sharing_cost())
    for size in (200, 4200):
        slow = []
        for r in done:
            spent = (r.requests.last - r.requests.arrival)[r.trace.output == size]
            slow.append(float(spent.mean()) / (size * STEP_NS))
        check(slow, 1 / (1 - load))


def test_little() -> None:
    """Waiting requests x time, summed step by step, is the sum of all waits, but for the rest
    of the step that each arrives in (< 1 step a request). Steps of 2^20 ns: sums in 1,024 ns lose nothing."""
    result = runs(ONE_AT_A_TIME, exponential, 0.8, 50_000, 1)[0]
    by_request = int((result.requests.scheduled - result.requests.queued).sum())
    by_step = int(result.totals["waiting"][0]) << 10
    assert 0 <= by_request - by_step <= 50_000 * STEP_NS
    assert int(result.totals["wall_short"][0]) << 10 == int(result.trace.output.sum()) * STEP_NS


def test_each_pool_is_its_own_m_m_c() -> None:
    """Two pools of slots behind one router, each with a class of its own; each is M/M/c with its share of a Poisson
    stream, whatever the other does. (A class has part of the requests: its standard error is below 3 %.)"""
    slots, share, load, n = {"a": 4, "b": 2}, 0.65, 4.2, 50_000
    found: dict[str, list[float]] = {"a": [], "b": []}
    pools = {name: {"policy": {"name": "chunked", "max_num_seqs": c, "max_num_batched_tokens": 10**6},
                    "serves": {"classes": [name]}} for name, c in slots.items()}
    base = scenario_from({"workload": {"requests": {"output": [1]}}, "cluster": {"pools": pools},
                          "hardware": {"gpu": "unit", "step_s": STEP_NS / 1e9}, "max_model_len": 10**6})
    for seed in range(16):
        rng = np.random.default_rng([21, seed])
        arrival = np.cumsum(rng.exponential(MEAN * STEP_NS / load, n)).astype(np.int64)
        trace = make_trace(arrival, 1, exponential(rng, n, MEAN), class_names=("a", "b"),
                           cls=(rng.random(n) >= share).astype(np.int64))
        done = simulate(base, trace=trace, replication=seed)
        wait = (done.requests.scheduled - done.requests.queued) / (MEAN * STEP_NS)
        for k, name in enumerate(slots):
            found[name].append(float(wait[done.trace.cls == k].mean()))
    check(found["a"], erlang_wait(load * share, 4), 0.03)
    check(found["b"], erlang_wait(load * (1 - share), 2), 0.03)


def test_two_choices_are_the_supermarket_model() -> None:
    """Of many servers, each arrival joins the shorter queue of two drawn: the share of servers with k or more is
    load^(2^k - 1), so an arrival finds k or more at its server with chance load^(2^(k + 1) - 2) and waits
    load^2 + load^6 + load^14 + ... services (Mitzenmacher, IEEE TPDS 12(10), 2001; for infinitely many servers: table 1
    has 2.6454 services in the system with 100, 2.6141 with infinitely many, and the excess falls as 1 / servers).
    With one choice it would be load^k: 0.9, 0.81, 0.73, 0.66."""
    load, servers = 0.9, 400
    mean, tail = [], {k: [] for k in (1, 2, 3, 4)}  # type: dict[int, list[float]]
    for done in runs(ONE_AT_A_TIME, exponential, load * servers, 250_000, 4, mean=SHORT, replicas=servers,
                     router="power_of_two"):
        req = done.requests
        wait = (req.scheduled - req.queued)[50_000:]
        mean.append(float(wait.mean()) / (SHORT * STEP_NS))
        found = np.zeros(len(req.arrival), dtype=np.int64)
        for r in range(servers):
            own = np.flatnonzero(req.replica == r)
            found[own] = np.arange(len(own)) - np.searchsorted(req.last[own], req.queued[own], side="right")
        for k in tail:
            tail[k].append(float((found[50_000:] >= k).mean()))
    excess = (2.6454 - 2.6141) * 100 / servers
    theory = {k: load ** (2 ** (k + 1) - 2) for k in tail}  # 0.81, 0.53, 0.23, 0.04
    for samples, known in [(mean, sum(load ** (2**i - 2) for i in range(2, 9))), *((tail[k], theory[k]) for k in tail)]:
        error = float(np.std(samples, ddof=1) / np.sqrt(len(samples)))
        assert error < max(0.02 * known, 0.01)
        assert abs(np.mean(samples) - known) < excess + 3 * error, (known, np.mean(samples), error)

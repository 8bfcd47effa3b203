"""Queues that lose customers, and closed ones, against theory: full queues, impatient clients, clients who think.

As in test_theory: services are steps of equal length, geometric lengths stand for exponential ones, and every claim is
|mean - theory| < 3 standard errors over independent replications, the standard error < 2 %.
"""

import math
from typing import Any

import numpy as np

from simulator import scenario_from, simulate
from simulator.cost.unit import unit_cost
from simulator.run import Result
from simulator.state import ABORTED, FINISHED, REJECTED_QUEUE
from simulator.units import NS_PER_S
from simulator.workload.asks import Asks
from simulator.workload.trace import make_trace
from tests.queueing.test_theory import MEAN, ONE_AT_A_TIME, STEP_NS, check, exponential

STEP_S = STEP_NS / NS_PER_S


def runs(sections: dict[str, Any], load: float, n: int, replications: int, mean: int = MEAN) -> list[Result]:
    """Independent runs of n Poisson arrivals, `load` of them a mean service of `mean` steps."""
    base = {"workload": {"requests": {"output": [1]}}, "hardware": "unit", "max_model_len": 10**6, **sections}
    found = []
    for seed in range(replications):
        rng = np.random.default_rng([22, seed])
        arrival = np.cumsum(rng.exponential(mean * STEP_NS / load, n)).astype(np.int64)
        trace = make_trace(arrival, 1, exponential(rng, n, mean))
        found.append(simulate(scenario_from(base), trace=trace, cost=unit_cost(STEP_NS), replication=seed))
    return found


def shares(results: list[Result], status: int) -> list[float]:
    return [float((r.requests.status == status).mean()) for r in results]


def test_a_limited_queue_is_m_m_1_k() -> None:
    """Loss of M/M/1/K: (1 - rho) rho^K / (1 - rho^(K + 1)) (Kleinrock, Queueing Systems I, 3.6)."""
    load, k = 0.9, 5
    done = runs({"policy": ONE_AT_A_TIME, "admission": {"max_waiting": k - 1}}, load, 40_000, 24, 100)
    check(shares(done, REJECTED_QUEUE), (1 - load) * load**k / (1 - load ** (k + 1)))


def test_shedding_the_less_urgent_is_a_birth_and_death_chain() -> None:
    """M/M/1 at 1.2 services a service: urgent requests (0.6) all enter, others (0.6) while fewer than three wait. With
    four or more there only urgent ones come: p_n = p_0 1.2^n up to four, then 0.6 times the last (Kleinrock I, 3.1).
    Of the others P(n >= 4) = 0.49 are shed, and the overload is none for the urgent."""
    load, urgent, waiting, n = 1.2, 0.6, 3, 20_000
    full = load ** (waiting + 1)
    shed = full / (1 - urgent) / ((1 - full) / (1 - load) + full / (1 - urgent))
    scenario = scenario_from({"workload": {"requests": {"output": [1]}}, "hardware": "unit", "max_model_len": 10**6,
                              "policy": ONE_AT_A_TIME, "admission": {"shed": {"waiting": waiting}}})
    found = []
    for seed in range(10):
        rng = np.random.default_rng([23, seed])
        arrival = np.cumsum(rng.exponential(100 * STEP_NS / load, n)).astype(np.int64)
        less = rng.integers(0, 2, n)
        trace = make_trace(arrival, 1, exponential(rng, n, 100), asks=Asks(priority=less))
        status = simulate(scenario, trace=trace, cost=unit_cost(STEP_NS), replication=seed).requests.status
        assert (status[less == 0] == FINISHED).all()
        found.append(float((status[less == 1] == REJECTED_QUEUE).mean()))
    check(found, shed)


def test_slots_without_a_queue_are_erlangs_loss_system() -> None:
    """Clients who wait no longer than the running step, and one for their token: Erlang B (Kleinrock I, 3.6)."""
    c, load = 4, 3.2
    policy = {"name": "chunked", "max_num_seqs": c, "max_num_batched_tokens": 10**6}
    done = runs({"policy": policy, "load": {"ttft_timeout_s": 2 * STEP_S}}, load, 40_000, 16)
    blocked = 1.0
    for k in range(1, c + 1):
        blocked = load * blocked / (k + load * blocked)
    check(shares(done, ABORTED), blocked)


def test_clients_of_fixed_patience() -> None:
    """M/M/1 whose customers leave when they have waited d services: loss (1 - rho) rho a / (1 - rho^2 a) with
    a = exp(-(1 - rho) d) (Barrer, Operations Research 5, 1957, doi 10.1287/opre.5.5.644). The first token is one step
    after the wait."""
    load, patience = 0.9, 2.0
    policy = {"name": "chunked", "max_num_seqs": 1, "max_num_batched_tokens": 10**6}
    limit = (patience * MEAN + 1) * STEP_S
    done = runs({"policy": policy, "load": {"ttft_timeout_s": limit}}, load, 40_000, 24)
    a = math.exp(-(1 - load) * patience)
    check(shares(done, ABORTED), (1 - load) * load * a / (1 - load**2 * a))


def thinking(width: int, think: float, n: int, replications: int) -> list[Result]:
    """Closed clients, one slot, exponential services of MEAN steps, exponential pauses of `think` services."""
    pause = {"kind": "exponential", "mean": think * MEAN * STEP_S}
    base = {"workload": {"requests": {"output": [1]}}, "hardware": "unit", "max_model_len": 10**6,
            "policy": {"name": "chunked", "max_num_seqs": 1, "max_num_batched_tokens": 10**6},
            "load": {"kind": "closed", "width": width, "think_s": pause}}  # fmt: skip
    found = []
    for seed in range(replications):
        trace = make_trace(np.zeros(n, np.int64), 1, exponential(np.random.default_rng([23, seed]), n, MEAN))
        scenario = scenario_from({**base, "seed": seed})
        found.append(simulate(scenario, trace=trace, cost=unit_cost(STEP_NS)))
    return found


def test_clients_who_think_are_repairmens_machines() -> None:
    """M/M/1//N: idle share p0 = 1 / sum N! / (N - k)! z^-k, throughput X = 1 - p0 a service, and by Little's law
    N = X (R + Z) the time in system R (Kleinrock I, 3.8; response time law, Denning and Buzen 1978)."""
    width, think, n = 5, 6.0, 20_000
    done = thinking(width, think, n, 16)
    idle = 1 / sum(math.factorial(width) / math.factorial(width - k) * think**-k for k in range(width + 1))
    rate = 1 - idle
    stays = [float((r.requests.last - r.requests.arrival).mean()) / (MEAN * STEP_NS) for r in done]
    check(stays, width / rate - think)
    spans = [float(r.requests.last.max() - r.requests.arrival.min()) / (MEAN * STEP_NS) for r in done]
    check([n / span for span in spans], rate)

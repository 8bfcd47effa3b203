"""The planner against queueing theory: textbook GPU, one step = 1 ms, a request of n output tokens = n steps.

References: Kleinrock, Queueing Systems I (1975): M/M/1 waiting time (3.2), Erlang C (3.5),
Pollaczek-Khinchine (5.7); Allen-Cunneen for M/G/c (Allen, Probability, Statistics and Queueing Theory,
1990, 5.3).
"""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from simulator.planning.measure import key_of
from simulator.planning.plan import Plan, plan
from simulator.planning.slo import MEAN
from simulator.planning.spec import plan_from

STEP = 0.001


def solve(
    rate: float,
    output: Mapping[str, Any],
    slo: Mapping[str, float],
    candidates: Mapping[str, Any],
    requests: int,
) -> Plan:
    """Plan for Poisson arrivals of one-token prompts."""
    spec = plan_from(
        {
            "workload": {
                "arrivals": {"kind": "poisson", "rate": rate, "requests": requests},
                "prompt": 1,
                "output": dict(output),
            },
            "slo": dict(slo),
            "step_s": STEP,
            "max_model_len": 100_000,
            "warmup_fraction": 0.1,
            "candidates": {"gpu": "unit", **candidates},
            "search": {"replications": 8},
        }
    )
    return plan(spec, jobs=1, explain=False)


def wait_tail_mm1(rate: float, service_s: float, percentile: float) -> float:
    """[s] percentile of the wait in M/M/1: P(W > t) = rho exp(-(mu - lambda) t)."""
    rho = rate * service_s
    return max(0.0, math.log(rho / (1 - percentile / 100)) / (1 / service_s - rate))


def erlang_c(c: int, load: float) -> float:
    """Probability of waiting in M/M/c with load = lambda / mu."""
    blocking = 1.0
    for k in range(1, c + 1):
        blocking = load * blocking / (k + load * blocking)
    return blocking / (1 - load / c * (1 - blocking))


def test_random_split_is_mm1_and_the_fewest_replicas_are_those_of_theory() -> None:
    rate, mean = 30.0, 100
    service = mean * STEP
    limit = 0.53
    theory = {n: wait_tail_mm1(rate / n, service, 95) for n in range(4, 9)}
    need = min(n for n, wait in theory.items() if wait <= limit)
    assert theory[need] < 0.9 * limit and theory[need - 1] > 1.1 * limit  # not a matter of luck
    found = solve(
        rate,
        {"kind": "exponential", "mean": mean},
        {"queue_p95_s": limit},
        {"policy": "static", "max_num_seqs": 1, "router": "random"},
        60_000,
    )
    assert found.best is not None
    assert found.best.outcome.replicas == need
    measured = found.best.outcome.judgement.levels[0].interval  # type: ignore[union-attr]
    assert measured.mean == pytest.approx(theory[need], rel=0.05)


def test_slots_are_servers_and_each_verdict_is_that_of_erlang_c() -> None:
    """One replica, c slots stepped together: M/M/c. Slots are the candidates, replicas stay at one."""
    rate, mean, limit = 60.0, 100, 0.14
    load = rate * mean * STEP
    slots = [7, 8, 9, 10]
    theory = {}
    for c in slots:
        wait = erlang_c(c, load)
        theory[c] = max(0.0, math.log(wait / 0.05) / (c / (mean * STEP) - rate)) if wait > 0.05 else 0.0
    found = solve(
        rate,
        {"kind": "exponential", "mean": mean},
        {"queue_p95_s": limit},
        {"policy": "orca", "max_num_seqs": slots, "replicas": [1]},
        60_000,
    )
    for outcome in found.outcomes:
        c = outcome.candidate.max_num_seqs
        assert c is not None
        assert abs(theory[c] - limit) > 0.15 * limit
        assert (outcome.status == "feasible") == (theory[c] <= limit), (c, theory[c], outcome)


@pytest.mark.parametrize(
    "output,cv2",
    [({"kind": "fixed", "value": 100}, 0.0), ({"kind": "lognormal", "mean": 100, "cv": 1.5}, 2.25)],
)
def test_mean_wait_of_mg1_is_pollaczek_khinchine(output: Mapping[str, Any], cv2: float) -> None:
    rate, service = 5.0, 0.1
    rho = rate * service
    theory = rho * service * (1 + cv2) / (2 * (1 - rho))
    found = solve(
        rate,
        output,
        {"queue_mean_s": 10.0},
        {"policy": "static", "max_num_seqs": 1, "replicas": [1]},
        200_000,
    )
    assert found.best is not None and found.best.outcome.judgement is not None
    got = found.best.outcome.judgement.levels[0].interval
    error = (got.high - got.low) / 2 / 1.895  # half width over t(0.95, 7): the standard error
    assert error < 0.02 * theory
    assert abs(got.mean - theory) < 3 * error + STEP  # a request waits for the next step at most 1 ms more


def test_mean_wait_of_mgc_is_near_allen_cunneen() -> None:
    """(C_a^2 + C_s^2) / 2 times the M/M/c wait; an approximation, known to a few per cent at this load."""
    rate, c, cv2 = 32.0, 4, 0.25
    mmc = erlang_c(c, rate * 0.1) / (c / 0.1 - rate)
    found = solve(
        rate,
        {"kind": "lognormal", "mean": 100, "cv": 0.5},
        {"queue_mean_s": 10.0},
        {"policy": "orca", "max_num_seqs": c, "replicas": [1]},
        400_000,
    )
    assert found.best is not None and found.best.outcome.judgement is not None
    record = found.best.outcome.judgement.records
    got = sum(r["values"][key_of("queue", None, MEAN)] for r in record) / len(record)
    assert got == pytest.approx((1 + cv2) / 2 * mmc, rel=0.08)

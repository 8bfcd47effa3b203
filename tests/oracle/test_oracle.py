"""Both engines against the oracle: every request's times, on scenarios full of ties and short of memory."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle.plain import Oracle
from oracle.sequence import Seq
from parity.cases import Case, as_told, cases, run

from simulator import state
from simulator.engines.job import Job
from simulator.engines.signals import KNOWS_ALL
from simulator.units import NEVER

TIMES = ("arrival", "queued", "scheduled", "first", "last")
COUNTS = ("done", "preempted", "replica", "slot")
STATES = {
    "future": state.FUTURE,
    "waiting": state.WAITING,
    "running": state.RUNNING,
    "finished": state.FINISHED,
    "rejected: length": state.REJECTED_LENGTH,
    "rejected: memory": state.REJECTED_KV,
    "rejected: budget": state.REJECTED_BUDGET,
}
TOTALS = {
    "steps": "steps",
    "tokens_out": "output",
    "prefilled": "prefill",
    "wasted": "wasted",
    "gpu_ns": "gpu",
    "peak_waiting": "peak_waiting",
    "eager_steps": "eager",
    "peak_blocks": "peak_blocks",
    "out_blocks": "swapped_out",
    "in_blocks": "swapped_in",
    "most_on_host": "peak_host",
    "loaded": "loaded",
}
KNOWN = ("chunked", "fastserve", "guaranteed_no_evict", "max_utilization", "orca", "splitfuse", "static", "tgi",
         "vllm_v0")  # fmt: skip
"""Policies that the oracle knows."""
UNKNOWN = {"window": 0, "draft_tokens": 0, "stages": 0, "knows": KNOWS_ALL}
"""What the oracle does not know; judged in tests/unit/test_windows.py, test_routing.py and tests/scheduler."""
COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


def oracle(case: Case) -> Oracle:
    """The oracle's run of a case."""
    columns = (case.arrival, case.prompt, case.output, case.limit, case.cached, case.pick)
    chains = case.chains or ((),) * len(case.arrival)
    levels = dict(case.asks).get("joins", (0,) * len(case.arrival))
    seqs = [Seq(i, *(column[i] for column in columns), chain=chains[i], level=levels[i])
            for i in range(len(case.arrival))]  # fmt: skip
    return Oracle(
        seqs,
        case.policy,
        case.limits,
        case.cost,
        case.replicas,
        case.router,
        case.load,
        case.width,
        case.until,
    ).run()


def expected(truth: Oracle) -> dict[str, list[Any]]:
    """The oracle's run in the words of the engines' columns."""
    found = {name: [NEVER if getattr(s, name) is None else getattr(s, name) for s in truth.seqs] for name in TIMES}
    for name in COUNTS:
        found[name] = [-1 if getattr(s, name) is None else getattr(s, name) for s in truth.seqs]
    found["status"] = [STATES[s.state] for s in truth.seqs]
    for name in TOTALS:
        found[name] = [getattr(rep, name) for rep in truth.reps]
    return found


def measured(done: Job, wanted: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The same of an engine's job."""
    return {
        name: done.stats[TOTALS[name]].tolist() if name in TOTALS else getattr(done.req, name).tolist()
        for name in wanted
    }


def agree(case: Case, engine: str) -> Job:
    """The engine's job, which is as the oracle has it."""
    case = as_told(case)  # the oracle knows no other clients
    wanted, done = expected(oracle(case)), run(case, engine)
    got = measured(done, wanted)
    assert {n: v for n, v in got.items() if v != wanted[n]} == {n: v for n, v in wanted.items() if got[n] != v}
    return done


@settings(max_examples=600, **COMMON)
@given(case=cases(fixed=UNKNOWN, policies=KNOWN))
def test_reference_agrees(case: Case) -> None:
    agree(case, "reference")


@settings(max_examples=400, **COMMON)
@given(case=cases(fixed=UNKNOWN, policies=KNOWN))
def test_fast_agrees(case: Case) -> None:
    agree(case, "fast")


@pytest.mark.nightly
@settings(max_examples=4000, **COMMON)
@given(case=cases(most=40, fixed=UNKNOWN, policies=KNOWN), engine=st.sampled_from(["reference", "fast"]))
def test_many_agree(case: Case, engine: str) -> None:
    agree(case, engine)

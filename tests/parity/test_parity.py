"""The two engines leave the same: every request column, totals, histograms and step log, the lane on and off."""

import hashlib
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from parity.cases import COMMON, SEEDS, Case, cases, differences, outcome, run

from policies.registry import ORDERS, POLICIES
from policies.routers import ROUTERS
from simulator import state as s
from simulator.cost.unit import unit_cost
from simulator.selftest.fleets import unlike_pools
from simulator.state import CALENDAR, Limits
from simulator.units import NEVER


@settings(max_examples=400, **COMMON)
@given(case=cases())
def test_engines_agree(case: Case) -> None:
    assert differences(case) == {}


@pytest.mark.nightly
@settings(max_examples=10_000, **COMMON)
@given(case=cases(most=40))
def test_engines_agree_nightly(case: Case) -> None:
    assert differences(case) == {}


def long_case(policy: str, seed: int, ahead: int) -> Case:
    """Hundreds of requests of hundreds of tokens, memory for a handful: quiet runs cut by arrivals and blocks."""
    rng = np.random.default_rng(seed)
    n = 150
    output = rng.integers(1, 300, n)
    limits = Limits(
        max_num_seqs=12, max_num_batched_tokens=256, long_prefill_token_threshold=0, watermark_blocks=1,
        reserve_prompt=1, block_size=16, num_blocks=130, max_model_len=4096, contiguous=0, reserve_tokens=0,
        batch_window=0, length_bucket=0, stream=1, schedule_ahead=ahead,
        whole_prompt=int(POLICIES[policy].whole_prompt), order=ORDERS.get(policy, 0),
    )  # fmt: skip
    cost = unit_cost(7)._replace(decode_context_fp=np.int64(2**30), prefill_token_fp=np.int64(2**32))
    return Case(
        policy, tuple(np.sort(rng.integers(0, 12_000, n)).tolist()), tuple(rng.integers(1, 200, n).tolist()),
        tuple(output.tolist()), tuple((output + rng.integers(0, 2, n) * 40).tolist()), (0,) * n,
        tuple(rng.integers(0, 99, n).tolist()), limits, cost, replicas=2,
        router=list(ROUTERS)[seed % len(ROUTERS)],
        asks=tuple((name, tuple(rng.integers(0, 3, n).tolist())) for name in POLICIES[policy].needs),
    )  # fmt: skip


LONG = [(policy, seed, ahead) for policy in sorted(POLICIES) for seed, ahead in ((0, 0), (1, 1), (2, 1))]


@pytest.mark.parametrize(("policy", "seed", "ahead"), LONG)
def test_long_answers(policy: str, seed: int, ahead: int) -> None:
    assert differences(long_case(policy, seed, ahead)) == {}


@pytest.mark.parametrize("until", [3_000, 9_001])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_long_answers_cut_by_the_horizon(policy: str, until: int) -> None:
    """The horizon falls into quiet runs; nothing after it leaves a trace."""
    case = replace(long_case(policy, 0, 1), until=until)
    assert differences(case) == {}
    done = run(case, "fast")
    assert (done.req.status == 2).any()
    times = np.concatenate([done.req.scheduled, done.req.first, done.req.last])
    assert times[times != NEVER].max() <= until


@pytest.mark.parametrize("ahead", [0, 1])
def test_answers_of_more_than_a_round_of_the_calendar(ahead: int) -> None:
    """Sequences that end after one step, or a round of the lane's calendar or two later, share a place in it."""
    output = (1, 2, 3, CALENDAR - 1, CALENDAR, CALENDAR + 1, CALENDAR + 2, CALENDAR + 3, 2 * CALENDAR + 2, 5, 40)
    n = len(output)
    limits = long_case("chunked", 0, ahead).limits._replace(num_blocks=1000)
    case = replace(long_case("chunked", 0, ahead), arrival=(0,) * n, prompt=(1,) * n, output=output, limit=output,
                   cached=(0,) * n, pick=(0,) * n, limits=limits, replicas=1)
    assert differences(case) == {}
    assert run(case, "fast").req.preempted.sum() == 0


def test_long_answers_preempt() -> None:
    """The cases above would say little if memory never ran out in them."""
    for policy in ("chunked", "vllm_v0"):
        assert run(long_case(policy, 1, 1), "fast").req.preempted.sum() > 10


def test_one_request_a_replica_never_meets() -> None:
    """More replicas than requests: the idle ones leave no trace."""
    case = replace(long_case("chunked", 0, 1), replicas=400, router="least_outstanding")
    assert differences(case) == {}


def digest(policy: str, seed: int, ahead: int) -> str:
    """Fingerprint of a run, to compare across processes."""
    found = outcome(run(long_case(policy, seed, ahead), "fast"))
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def test_same_in_other_processes() -> None:
    """Two fresh processes, each loading the compiled engine anew, leave what this one leaves."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        theirs = list(pool.map(digest, *zip(*LONG, strict=True)))
    assert theirs == [digest(*each) for each in LONG]


MAY_DRAFT = {"stages": 0, "contiguous": 0, "window": 0}


def test_cases_are_hard() -> None:
    """The random scenarios do contain ties, preemption, refusals, waste, closed clients."""
    seen: set[str] = set()

    @settings(max_examples=1500, phases=[Phase.generate], database=None, derandomize=True, **COMMON)
    @given(case=cases() | cases(policies=("chunked",)) | cases(policies=("chunked",), fixed=MAY_DRAFT))
    def look(case: Case) -> None:
        req = run(case, "reference").req
        marks = {
            **{s.STATUS_NAMES[code]: True for code in req.status if code > s.FINISHED},
            "again": bool(req.attempts.max(initial=0) > 1), "talk": bool(case.talk), "ramp": case.habits.ramp_ns > 0,
            "held at the client": case.habits.max_in_flight > 0 and bool((req.arrival > case.arrival).any()),
            "preempted": req.preempted.max() > 0, "tie": len(set(case.arrival)) < len(case.arrival),
            "early end": bool((req.output < req.limit).any()), "refused": req.status.max() > 3,
            "finished": bool((req.status == 3).any()), case.load: True, case.policy: True, case.router: True,
            "contiguous": case.limits.contiguous == 1, f"ahead {case.limits.schedule_ahead}": True,
            "cut by the horizon": case.until is not None and bool((req.status < 3).any()),
            "drafts": bool(case.salts), "drafts, preempted": bool(case.salts) and req.preempted.max() > 0,
            "stages": case.limits.stages > 1, "stages, preempted": case.limits.stages > 1 and req.preempted.max() > 0,
            "arrival as an output is seen": bool(np.isin(req.queued, req.last).any()),
        }  # fmt: skip
        seen.update(name for name, there in marks.items() if there)

    look()
    wanted = {"preempted", "tie", "early end", "refused", "finished", "contiguous", "cut by the horizon",
              "arrival as an output is seen", "drafts", "drafts, preempted",
              "open", "closed", "grouped", "ahead 0", "ahead 1", "ahead 2", "ahead 3", "ahead 4",
              "stages", "stages, preempted",
              "again", "talk", "ramp", "held at the client",
              *s.STATUS_NAMES[s.REJECTED_LENGTH:s.LOST], *POLICIES, *ROUTERS}
    assert seen == wanted


@settings(max_examples=80, **COMMON)
@given(seed=SEEDS)
def test_engines_agree_on_unlike_pools(seed: int) -> None:
    assert differences(unlike_pools(seed)) == {}

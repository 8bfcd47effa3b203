"""What holds in every run: conservation of requests, tokens and blocks, causality, clocks that only go forward."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from parity.cases import Case, cases, run

from simulator import state as s
from simulator.engines.clients import LOG_ROWS
from simulator.engines.job import Job
from simulator.state import LOG_FIELDS
from simulator.units import NEVER

COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
STEP = {name: k for k, name in enumerate(LOG_FIELDS)}


def whole(case: Case) -> Case:
    """The case without its horizon."""
    return replace(case, until=None)


@settings(max_examples=100, **COMMON)
@given(case=cases())
def test_everybody_is_answered_or_refused(case: Case) -> None:
    """Without a horizon nothing is left waiting, and a request is refused only if it could never run."""
    done = run(whole(case), "fast")
    refused = np.isin(done.req.status, (s.REJECTED_LENGTH, s.REJECTED_KV, s.REJECTED_BUDGET))
    assert np.all(refused | (done.req.status == s.FINISHED))
    assert np.all(done.req.done[~refused] == done.req.output[~refused])
    assert np.all(done.req.done[refused] == 0)
    assert np.all(done.req.first[refused] == NEVER)


@settings(max_examples=100, **COMMON)
@given(case=cases())
def test_memory_and_slots_come_back(case: Case) -> None:
    done = run(whole(case), "fast")
    counters = done.reps.c
    assert np.all(counters[:, s.FREE_BLOCKS] == case.limits.num_blocks)
    assert np.all(counters[:, s.LARGEST_GAP] == case.limits.num_blocks)
    for idle in (s.N_RUNNING, s.N_WAITING, s.N_FLIGHT, s.N_EXTENTS, s.KV_TOKENS, s.OUTSTANDING):
        assert np.all(counters[:, idle] == 0)
    assert np.all(done.reps.slots == -1)
    assert np.all(done.req.blocks == 0)


@settings(max_examples=100, **COMMON)
@given(case=cases())
def test_causality(case: Case) -> None:
    """arrival <= queued <= scheduled <= first <= last; tokens of one request come one after the other."""
    req = run(case, "fast").req
    order = (req.arrival, req.queued, req.scheduled, req.first, req.last)
    for before, after in pairwise(order):
        happened = after != NEVER
        assert np.all(before[happened] <= after[happened])
    assert np.all(req.done <= req.output)
    released = req.queued != NEVER
    assert np.all(np.diff(req.arrival[released]) >= 0)
    assert np.all(np.diff(req.queued[released]) >= 0)  # the clock never goes back to an earlier arrival
    one = req.done == 1
    if case.limits.stream:
        assert np.all(req.first[one] == req.last[one])


def logged(done: Job) -> Any:
    """The step log, in the order it was written."""
    return done.log[: done.ctl[LOG_ROWS]]


@settings(max_examples=100, **COMMON)
@given(case=cases())
def test_steps_account_for_every_token(case: Case) -> None:
    """The log, the totals and the requests count the same tokens, steps and gaps."""
    done = run(whole(case), "fast")
    rows, totals = logged(done), done.stats.sum(axis=0)
    assert totals[s.T_OUTPUT] == done.req.done.sum()
    assert rows[:, STEP["steps"]].sum() == totals[s.T_STEPS]
    assert rows[:, STEP["prefill_tokens"]].sum() == totals[s.T_PREFILL]
    assert rows[:, STEP["gpu_ns"]].sum() == totals[s.T_GPU]
    assert rows[:, STEP["wall_ns"]].sum() == totals[s.T_WALL]
    assert done.rows_time.sum() == totals[s.T_WALL]
    parts = totals[s.T_DENSE] + totals[s.T_DECODE_ATTENTION] + totals[s.T_PREFILL_ATTENTION]
    assert parts == totals[s.T_GPU]
    if case.limits.stream:
        answered = done.req.done > 0
        assert done.itl.sum() == (done.req.done[answered] - 1).sum()
        gaps = (done.req.last - done.req.first)[answered]
        assert np.all(done.req.itl_max[answered] <= gaps)
        assert np.all(gaps <= done.req.itl_max[answered] * np.maximum(done.req.done[answered] - 1, 0))


@settings(max_examples=100, **COMMON)
@given(case=cases())
def test_a_replica_is_busy_one_step_at_a_time(case: Case) -> None:
    """Per replica outputs are in order, wall times do not overlap, limits hold in every step."""
    done = run(whole(case), "fast")
    lim = case.limits
    for r in range(case.replicas):
        rows = logged(done)[logged(done)[:, STEP["replica"]] == r]
        if not len(rows):
            continue
        assert np.all(np.diff(rows[:, STEP["end"]]) >= 0)
        assert np.all(rows[:, STEP["start"]] <= rows[:, STEP["end"]])
        horizon = rows[-1, STEP["end"]] - rows[0, STEP["start"]]
        assert done.stats[r, s.T_WALL] <= horizon
        assert done.stats[r, s.T_GPU] <= horizon
        assert np.all(rows[:, STEP["running"]] <= lim.max_num_seqs)
        assert np.all(rows[:, STEP["decode"]] + rows[:, STEP["prefill"]] <= rows[:, STEP["running"]])
        assert np.all(rows[:, STEP["blocks"]] <= lim.num_blocks)
        assert np.all(rows[:, STEP["kv_tokens"]] <= rows[:, STEP["blocks"]] * lim.block_size)
        if case.policy == "chunked":
            assert np.all(rows[:, STEP["decode"]] + rows[:, STEP["prefill_tokens"]] <= lim.max_num_batched_tokens)


@settings(max_examples=100, **COMMON)
@given(case=cases(ahead=0))
def test_little_bounds(case: Case) -> None:
    """Little's law on any path without planning ahead: waiting requests x wall time, step by step, lies below the
    sum of the waits of the requests, since a step counts those that wait when it starts."""
    done = run(whole(case), "fast")
    req, rows = done.req, logged(done)
    if req.preempted.any() or case.policy == "static":
        return
    started = req.scheduled != NEVER
    waited = (req.scheduled - req.queued)[started].sum()
    by_step = (rows[:, STEP["waiting"]] * rows[:, STEP["wall_ns"]]).sum()
    held = (req.last - req.scheduled)[started].sum() - case.cost.frontend_out_ns * started.sum()
    used = (rows[:, STEP["running"]] * rows[:, STEP["wall_ns"]]).sum()
    assert by_step <= waited
    assert used == held

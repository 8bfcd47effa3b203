"""What holds in every run: conservation of requests, tokens and blocks, causality, clocks that only go forward."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from parity.cases import Case, cases, run

from simulator import state as s
from simulator.engines.job import Job
from simulator.units import NEVER

COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


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
    assert np.all(counters["free_blocks"] == case.limits.num_blocks)
    assert np.all(counters["largest_gap"] == case.limits.num_blocks)
    for idle in ("n_running", "n_waiting", "n_flight", "n_extents", "kv_tokens", "lane"):
        assert np.all(counters[idle] == 0)
    assert np.all(done.reps.front["outstanding"] == 0)
    assert np.all(done.reps.phase == 0) and np.all(done.reps.calendar == -1)
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
    return done.logged


@settings(max_examples=100, **COMMON)
@given(case=cases())
def test_steps_account_for_every_token(case: Case) -> None:
    """The log, the totals and the requests count the same tokens, steps and gaps."""
    done = run(whole(case), "fast")
    rows, totals = logged(done), s.Totals(*(done.stats[name].sum() for name in done.stats.dtype.names))
    assert totals.output == done.req.done.sum()
    assert rows["steps"].sum() == totals.steps
    assert rows["prefill_tokens"].sum() == totals.prefill
    assert rows["gpu_ns"].sum() == totals.gpu
    assert rows["wall_ns"].sum() == totals.wall
    assert done.rows_time.sum() == totals.wall
    assert totals.accepted <= totals.drafts <= rows["drafts"].sum()
    parts = totals.dense + totals.decode_attention + totals.prefill_attention
    assert parts == totals.gpu
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
        rows = logged(done)[logged(done)["replica"] == r]
        if not len(rows):
            continue
        assert np.all(np.diff(rows["end"]) >= 0)
        assert np.all(rows["start"] <= rows["end"])
        horizon = rows["end"][-1] - rows["start"][0]
        assert done.stats["wall"][r] <= horizon
        assert done.stats["gpu"][r] <= horizon
        assert np.all(rows["running"] <= lim.max_num_seqs)
        assert np.all(rows["decode"] + rows["prefill"] <= rows["running"])
        assert np.all(rows["blocks"] <= lim.num_blocks)
        assert np.all(rows["kv_tokens"] <= rows["blocks"] * lim.block_size)
        if case.policy == "chunked":
            assert np.all(rows["decode"] + rows["drafts"] + rows["prefill_tokens"] <= lim.max_num_batched_tokens)
            assert np.all(rows["drafts"] <= rows["decode"] * lim.draft_tokens)


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
    by_step = (rows["waiting"] * rows["wall_ns"]).sum()
    held = (req.last - req.scheduled)[started].sum() - case.cost.frontend_out_ns * started.sum()
    used = (rows["running"] * rows["wall_ns"]).sum()
    assert by_step <= waited
    assert used == held

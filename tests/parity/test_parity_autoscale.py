"""Autoscaled fleets, alone and with crashes, conversations, impatient clients and hand-overs: the engines agree, and no
request and no block is lost."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from parity.cases import COMMON, SEEDS, Case, as_told, job, outcome, ran

from simulator.engines.changes import SLOW
from simulator.engines.job import Job
from simulator.engines.members import ABSENT, DRAINING, STARTING, UP
from simulator.engines.plans import Plans
from simulator.engines.pools import Pool
from simulator.engines.scaler import Scaler, Shift
from simulator.selftest.cases import Uniform, some_case
from simulator.selftest.mixed import some_scaler, some_tick
from simulator.state import FINISHED, REJECTED_LENGTH

PLAIN, CRASHING, RESTLESS, HANDING = range(4)


def drawn(seed: int) -> tuple[Case, dict[str, Any]]:
    """A case with an autoscaler, some with a schedule, and with what its kind may have besides."""
    more = Uniform(seed + 1)
    kind = seed % 4
    fixed: dict[str, Any] = {"policy": "chunked", "draft_tokens": 0,
                             "replicas": more.among(2, 3, 5)}
    if kind == HANDING:
        fixed |= {"contiguous": 0, "prefix": 0, "window": 0, "reserve_prompt": 1, "talk": (),
                  "max_model_len": 10**6, "num_blocks": 1000}
    case = some_case(Uniform(seed), fixed)
    if kind in (CRASHING, HANDING):
        case = as_told(case)
    tick = some_tick(case)
    scaler = some_scaler(more, tick, 0, case.replicas, kind == CRASHING and more.among(0, 1) == 1, kind == CRASHING)
    plan = [Shift(0, 4 * tick, 20 * tick, 50 * tick, case.replicas)] if more.among(0, 0, 1) else []
    rows = []
    if kind == CRASHING:
        count = more.among(0, 2, 6)
        rows = sorted((at * tick, more.among(0, 1, 2, 3, 4), more.numbers(1, 0, case.replicas - 1)[0],
                       more.numbers(1, tick, 20 * tick)[0]) for at in more.numbers(count, 0, 40))
        rows = [(at, kind, r, 2500 if kind == SLOW else lasts) for at, kind, r, lasts in rows]
    plans = Plans(rows, more.among(0, 0, 4 * tick), more.among(tick, 3 * tick), more.among(0, 9) * tick, [scaler], plan)
    if kind != HANDING:
        return case, {"plans": plans}
    decode = Pool(case.limits, case.cost, more.among(1, 3))
    second = some_scaler(more, tick, case.replicas, decode.replicas, False, False)
    second.pool = 1
    more_plans = plans._replace(scalers=[scaler, second])
    return replace(case, limits=case.limits._replace(hand_over=1), others=(decode,), groups=((0,), (1,)),
                   link=(2**20, tick, 0)), {"plans": more_plans}


def scaled(seed: int, engine: str) -> Job:
    case, parts = drawn(seed)
    made = job(case, engine != "reference", **parts)
    return ran(made, case.policy, engine)


@settings(max_examples=160, **COMMON)
@example(seed=665)  # a replica that hangs is to be restarted
@given(seed=SEEDS)
def test_engines_agree(seed: int) -> None:
    wanted = outcome(scaled(seed, "reference"))
    assert wanted == outcome(scaled(seed, "fast")) == outcome(scaled(seed, "fast without leaps"))


@settings(max_examples=160, **COMMON)
@example(seed=665)  # a replica that hangs is to be restarted
@given(seed=SEEDS)
def test_nothing_is_lost(seed: int) -> None:
    case, parts = drawn(seed)
    done = scaled(seed, "reference")
    req = done.req
    assert done.reps.front["outstanding"].sum() == np.isin(req.status, (1, 2)).sum()
    assert req.done.sum() <= done.stats["output"].sum() - done.stats["failed_tokens"].sum()
    if case.until is None:
        assert ((req.status == FINISHED) | (req.status >= REJECTED_LENGTH)).all()
        assert (req.done[req.status == FINISHED] == req.output[req.status == FINISHED]).all()
        assert not req.blocks.any()
    for scaler in parts["plans"].scalers:
        check_fleet(done, scaler, case.until is None)


def check_fleet(done: Job, scaler: Scaler, ended: bool) -> None:
    """Replicas wanted stay within bounds; each goes through its states in order; none works unless it is there."""
    rows = done.fleet
    decisions = rows[(rows["replica"] < 0) & (rows["pool"] == scaler.pool)]
    assert ((decisions["wanted"] >= scaler.low) & (decisions["wanted"] <= scaler.count)).all()
    may = {UP: (1, 2), DRAINING: (1, 2, 4), 2: (0, 4), STARTING: (0, 4), ABSENT: (3,)}
    for r in range(scaler.first, scaler.first + scaler.count):
        own = rows[rows["replica"] == r]
        state, since = UP, 0
        for row in own:
            first = row["tick"] == 0 and state == UP
            assert first or row["state"] in may[state], (r, state, row)
            if state == STARTING and row["state"] == UP:
                assert row["tick"] - since == scaler.start
            state, since = int(row["state"]), int(row["tick"])
        if state == ABSENT and ended:
            assert done.reps.front["outstanding"][r] == 0 and done.reps.c["free_blocks"][r] == done.lim.num_blocks


def test_cases_are_hard() -> None:
    """Fleets grow and shrink, start from nothing, lose requests, and release replicas that are still starting."""
    grown = shrunk = zero = lost = cancelled = 0
    for seed in range(400):
        done = scaled(seed, "reference")
        rows = done.fleet
        decisions = rows[rows["replica"] < 0]
        change = np.diff(decisions["wanted"]) * (np.diff(decisions["pool"]) == 0)
        grown += int((change > 0).sum())
        shrunk += int((change < 0).sum())
        zero += int((decisions["wanted"] == 0).sum())
        lost += int(done.stats["failed"].sum())
        for r in range(done.replicas):
            own = rows[rows["replica"] == r]["state"]
            cancelled += int(((own[:-1] == STARTING) & (own[1:] == ABSENT)).sum())
    assert min(grown, shrunk, lost, cancelled, zero) > 15, (grown, shrunk, zero, lost, cancelled)

"""Replicas that crash, are drained and come back: the engines agree, and no request and no block is lost."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from parity.cases import COMMON, SEEDS, Case, as_told, job, outcome, ran

from simulator.engines.changes import SLOW
from simulator.engines.job import Job
from simulator.engines.plans import Plans
from simulator.selftest.cases import Uniform, some_case
from simulator.state import FINISHED, REJECTED_LENGTH


def drawn(seed: int) -> tuple[Case, dict[str, Any]]:
    """A case with up to six changes of all kinds, ties among them and with arrivals."""
    more = Uniform(seed + 1)
    case = as_told(some_case(Uniform(seed), {"policy": "chunked", "draft_tokens": 0,
                                             "replicas": more.among(1, 2, 3)}))
    tick = max(1, int(case.cost.dense_ns.max()))
    count = more.among(1, 2, 6)
    rows = sorted(zip([t * tick for t in more.numbers(count, 0, more.among(10, 40))], more.numbers(count, 0, 4),
                      more.numbers(count, 0, case.replicas - 1), more.numbers(count, tick, 20 * tick), strict=True))
    rows = [(at, kind, r, more.among(0, 1500, 4000) if kind == SLOW else lasts) for at, kind, r, lasts in rows]
    return case, {"plans": Plans(rows, more.among(0, 0, 4 * tick), more.among(tick, 3 * tick),
                                 more.among(0, 2, 9) * tick)}


def changed(seed: int, engine: str) -> Job:
    case, given_ = drawn(seed)
    made = job(case, engine != "reference", **given_)
    return ran(made, "chunked", engine)


@settings(max_examples=120, **COMMON)
@given(seed=SEEDS)
def test_engines_agree(seed: int) -> None:
    wanted = outcome(changed(seed, "reference"))
    assert wanted == outcome(changed(seed, "fast")) == outcome(changed(seed, "fast without leaps"))


@settings(max_examples=120, **COMMON)
@given(seed=SEEDS)
def test_nothing_is_lost(seed: int) -> None:
    case, _ = drawn(seed)
    done = changed(seed, "reference")
    req, stats = done.req, done.stats
    held = np.zeros(case.replicas, dtype=np.int64)
    np.add.at(held, np.maximum(req.replica, 0), req.blocks)
    if not case.limits.prefix or case.until is None:  # blocks that several share have one place and count for each
        assert (held + done.reps.c["free_blocks"] == case.limits.num_blocks).all()
    assert done.reps.front["outstanding"].sum() == np.isin(req.status, (1, 2)).sum()
    assert req.done.sum() == stats["output"].sum() - stats["failed_tokens"].sum()
    if case.until is None:
        assert ((req.status == FINISHED) | (req.status >= REJECTED_LENGTH)).all()
        ended = req.status == FINISHED
        assert (req.done[ended] == req.output[ended]).all() and not req.blocks.any()
        assert (req.queued[ended] <= req.scheduled[ended]).all() and (req.scheduled <= req.first)[ended].all()


def test_cases_are_hard() -> None:
    """Requests are lost in the middle of their answers, and find nobody in service."""
    failed = tokens = parked = 0
    for seed in range(300):
        done = changed(seed, "reference")
        failed += int(done.stats["failed"].sum())
        tokens += int(done.stats["failed_tokens"].sum())
        parked += int(done.ctl["n_parked"][0] > 0)
    assert failed > 100 and tokens > 100 and parked > 10

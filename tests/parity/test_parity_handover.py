"""Requests handed from prefill to decode replicas: the engines agree, and nothing is lost on the way."""

import numpy as np
from hypothesis import given, settings
from parity.cases import COMMON, SEEDS, outcome, run

from simulator.selftest.fleets import handing_over, limits_of
from simulator.state import FINISHED, REJECTED_LENGTH
from simulator.units import NEVER


@settings(max_examples=120, **COMMON)
@given(seed=SEEDS)
def test_engines_agree(seed: int) -> None:
    wanted = outcome(run(handing_over(seed), "reference"))
    assert wanted == outcome(run(handing_over(seed), "fast")) == outcome(run(handing_over(seed), "fast without leaps"))


@settings(max_examples=120, **COMMON)
@given(seed=SEEDS)
def test_nothing_is_lost(seed: int) -> None:
    case = handing_over(seed)
    done = run(case, "reference")
    req, total = done.req, [lim.num_blocks for lim in limits_of(case)]
    held = np.zeros(len(total), dtype=np.int64)
    np.add.at(held, np.maximum(req.replica, 0), req.blocks)
    np.add.at(held, np.maximum(req.source, 0), req.held)
    assert (held + done.reps.c["free_blocks"] == total).all()
    assert done.reps.front["outstanding"].sum() == np.isin(req.status, (1, 2)).sum()
    sent = (req.landed != NEVER) & (req.status == FINISHED)
    assert (req.first[sent] - int(case.cost.frontend_out_ns) <= req.landed[sent]).all()
    assert (req.landed[sent] <= req.last[sent]).all() and (req.first[sent] < NEVER).all()
    if case.until is None:
        assert ((req.status == FINISHED) | (req.status >= REJECTED_LENGTH)).all()
        assert (req.done[req.status == FINISHED] == req.output[req.status == FINISHED]).all()
        assert not held.any() and not done.reps.c["kv_tokens"].any()
        # an even row is handed over unless its first token is its last; an odd one never is
        ended = req.status == FINISHED
        even = np.arange(len(req.prompt)) % 2 == 0
        assert (sent == (ended & even & (req.output > 1))).all()
        assert (req.replica[sent] >= case.replicas).all() and (req.source[sent] < case.replicas).all()
    assert (req.limit[sent] == np.array(case.limit)[sent]).all()


def test_cases_are_hard() -> None:
    """Memory runs out at both ends, and KV waits to be fetched."""
    seen = {"preempted": 0, "waited": 0, "sent": 0, "refused": 0}
    for seed in range(200):
        done = run(handing_over(seed), "reference")
        sent = done.req.source >= 0
        seen["sent"] += int(sent.sum())
        seen["preempted"] += int(done.req.preempted[sent].sum())
        seen["refused"] += int((done.req.status >= REJECTED_LENGTH).sum())
        seen["waited"] += int(done.stats["peak_waiting"][-1] > 1)
    assert min(seen.values()) > 20, seen

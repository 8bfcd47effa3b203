"""Requests handed from prefill to decode replicas: the engines agree, and nothing is lost on the way."""

import numpy as np
from hypothesis import given, settings
from parity.cases import COMMON, SEEDS, Case, as_told, job, outcome, ran

from simulator.engines.job import Job
from simulator.engines.pools import Pool
from simulator.selftest.cases import Uniform, some_case
from simulator.state import FINISHED, REJECTED_LENGTH
from simulator.units import NEVER
from simulator.windows import blocks_for

GIVEN = {"policy": "chunked", "contiguous": 0, "prefix": 0, "window": 0, "draft_tokens": 0}


def drawn(seed: int) -> tuple[Case, Pool, tuple[int, int]]:
    """A case whose own pool hands over, a decode pool with room for the longest request, and a link."""
    case = as_told(some_case(Uniform(seed), GIVEN))
    lim, more = case.limits, Uniform(seed + 1)
    longest = max(p + limit for p, limit in zip(case.prompt, case.limit, strict=True))
    decode = lim._replace(num_blocks=blocks_for(longest, lim.block_size) + more.among(0, 1, 9),
                          max_num_seqs=more.among(1, 2, 6), schedule_ahead=more.among(0, 1, 2))
    tick = max(1, max(case.arrival, default=1) // 50)
    link = more.among(0, 3 * tick << 20, tick << 18), more.among(0, tick, 5 * tick)
    prefill = lim._replace(hand_over=1, reserve_prompt=1)
    return Case(**{**vars(case), "limits": prefill}), Pool(decode, case.cost, more.among(1, 2)), link


def handed(seed: int, engine: str) -> Job:
    """Every other request is handed over; the others are served whole by the decode pool."""
    case, decode, link = drawn(seed)
    made = job(case, engine != "reference", others=(decode,), groups=((0,), (1,), (1,), ()), link=link)
    return ran(made, "chunked", engine)


@settings(max_examples=120, **COMMON)
@given(seed=SEEDS)
def test_engines_agree(seed: int) -> None:
    wanted = outcome(handed(seed, "reference"))
    assert wanted == outcome(handed(seed, "fast")) == outcome(handed(seed, "fast without leaps"))


@settings(max_examples=120, **COMMON)
@given(seed=SEEDS)
def test_nothing_is_lost(seed: int) -> None:
    case, decode, _ = drawn(seed)
    done = handed(seed, "reference")
    req, total = done.req, [case.limits.num_blocks] * case.replicas + [decode.lim.num_blocks] * decode.replicas
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
        done = handed(seed, "reference")
        sent = done.req.source >= 0
        seen["sent"] += int(sent.sum())
        seen["preempted"] += int(done.req.preempted[sent].sum())
        seen["refused"] += int((done.req.status >= REJECTED_LENGTH).sum())
        seen["waited"] += int(done.stats["peak_waiting"][-1] > 1)
    assert min(seen.values()) > 20, seen

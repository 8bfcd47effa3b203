"""Fleets on which everything happens at once (hand-overs, crashes, autoscalers, conversations, clients who give up and
come again): the engines agree, and every request, token and block is accounted for."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from parity.cases import COMMON, SEEDS, outcome, run

from simulator.selftest.invariants import broken
from simulator.selftest.mixed import mixed
from simulator.state import ABORTED, FINISHED, LOST, NOT_SENT
from simulator.units import NEVER


@settings(max_examples=150, **COMMON)
@given(seed=SEEDS)
def test_engines_agree(seed: int) -> None:
    wanted = outcome(run(mixed(seed), "reference"))
    assert wanted == outcome(run(mixed(seed), "fast")) == outcome(run(mixed(seed), "fast without leaps"))


@settings(max_examples=200, **COMMON)
@given(seed=SEEDS)
def test_everything_is_accounted_for(seed: int) -> None:
    assert list(broken(mixed(seed), run(mixed(seed), "reference"))) == []


def test_cases_are_hard() -> None:
    """Every fate comes up often, and KV that is lost on its way, and who waits for a replica in service."""
    seen: Counter[str] = Counter()
    for seed in range(250):
        case = mixed(seed)
        done = run(case, "reference")
        req, code = done.req, done.req.status
        for name, status in (("finished", FINISHED), ("aborted", ABORTED), ("lost", LOST), ("unsent", NOT_SENT)):
            seen[name] += int((code == status).sum())
        seen["failed"] += int(done.stats["failed"].sum())
        seen["parked"] += int(done.ctl["n_parked"][0])
        seen["again"] += int((req.attempts > 1).sum())
        if case.link:
            sent = req.landed < NEVER
            seen["sent"] += int(sent.sum())
            seen["lost on the way"] += int(np.sum(sent & (req.carried == 0)))
    assert min(seen.values()) >= 10 and len(seen) == 9, seen

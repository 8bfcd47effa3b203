"""What holds in every run, by number as in docs/invariants.md; and that each check can fail."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from parity.cases import COMMON, Case, cases, run

from simulator.cost.unit import unit_cost
from simulator.engines.clients import Habits
from simulator.engines.job import Job
from simulator.engines.pools import Pool
from simulator.selftest.invariants import INVARIANTS, broken
from simulator.state import LOST, Limits
from simulator.units import NEVER

DOCS = Path(__file__).resolve().parents[2] / "docs" / "invariants.md"


@settings(max_examples=300, **COMMON)
@given(case=cases())
def test_all_hold(case: Case) -> None:
    assert list(broken(case, run(case, "fast"))) == []


@settings(max_examples=100, **COMMON)
@given(case=cases(ahead=0))
def test_littles_law_without_planning_ahead(case: Case) -> None:
    case = replace(case, until=None)
    assert list(broken(case, run(case, "fast"))) == []


def falling() -> Case:
    """1,200 answers of 1, 2, 3, ... tokens at once; a step of n sequences takes n ns: every gap is shorter than all
    before it, more of them than the lane keeps."""
    n = 1200
    limits = Limits(
        max_num_seqs=n, max_num_batched_tokens=2 * n, long_prefill_token_threshold=0, watermark_blocks=0,
        reserve_prompt=1, block_size=1, num_blocks=10**6, max_model_len=4096, contiguous=0, reserve_tokens=0,
        batch_window=0, length_bucket=0, stream=1, schedule_ahead=1, whole_prompt=0,
    )  # fmt: skip
    cost = unit_cost(1)._replace(dense_ns=np.tile(np.arange(n + 1), (2, 1)))
    ones, lengths = (1,) * n, tuple(range(1, n + 1))
    return Case("chunked", (0,) * n, ones, lengths, lengths, (0,) * n, (0,) * n, limits, cost)


def test_blocks_come_back_when_the_lane_has_no_room_for_gaps() -> None:
    case = falling()
    done = run(case, "fast")
    assert list(broken(case, done)) == []
    assert done.reps.c["free_blocks"].tolist() == [case.limits.num_blocks]


def sent_again() -> Case:
    """A prompt of three shared blocks whose client gives up before each answer ends and comes back 60 times: a prompt
    that is known to its end has its last token computed again, and so its last block becomes known once more."""
    limits = falling().limits._replace(max_num_seqs=1, num_blocks=1000, prefix=1, schedule_ahead=0)
    cost = unit_cost(10)
    habits = Habits(0, 1, 0, 25, 60, 0, 0)
    return Case("chunked", (0,), (3,), (9,), (9,), (0,), (0,), limits, cost, chains=((0, 1, 2),), habits=habits)


def test_blocks_known_again_and_again_have_room() -> None:
    case = sent_again()
    done = run(case, "fast")
    assert list(broken(case, done)) == []
    assert 50 < done.reps.c["n_nodes"][0] <= done.reps.prefix.nodes.shape[1]
    assert run(case, "reference").reps.c["n_nodes"].tolist() == done.reps.c["n_nodes"].tolist()


def one_more(column: Any) -> None:
    column[-1] += 1


SPOILT = {
    1: lambda job: one_more(job.req.done), 2: lambda job: one_more(job.stats["output"]),
    3: lambda job: one_more(job.reps.c["free_blocks"]), 4: lambda job: one_more(job.itl),
    5: lambda job: np.copyto(job.req.scheduled, job.req.queued - 1),
    6: lambda job: np.copyto(job.req.queued, NEVER - 1 - np.arange(len(job.req.queued))),
    7: lambda job: one_more(job.stats["wall"]), 8: lambda job: np.copyto(job.logged["blocks"], 10**7),
    9: lambda job: np.copyto(job.logged["running"], 0),
    10: lambda job: np.copyto(job.req.queued, 0), 11: lambda job: np.copyto(job.req.scheduled, job.req.scheduled[::-1]),
    12: lambda job: np.copyto(job.stats["wasted"], 10**9), 13: lambda job: one_more(job.req.arrival),
    14: lambda job: np.copyto(job.req.landed, 1), 15: lambda job: np.copyto(job.logged["end"], 10**9),
    16: lambda job: np.copyto(job.req.status, LOST),
}  # fmt: skip


def a_run(number: int) -> tuple[Case, Job]:
    """Two bursts with an idle time between them; for the last three invariants a hand-over, a crash among them."""
    case = falling()
    limits = case.limits._replace(max_num_seqs=2, schedule_ahead=0)
    rows = {name: getattr(case, name)[:6] for name in ("prompt", "output", "limit", "cached", "pick")}
    talk, pause = (0, 1, 2, 3, 4, 0), (7, 0, 0, 0, 0, 0)
    case = replace(case, arrival=(5, 5, 6, 900, 900, 901), limits=limits, talk=talk, pause=pause, **rows)
    if number == 14:
        case = replace(case, limits=limits._replace(hand_over=1), others=(Pool(limits, case.cost, 1),),
                       groups=((0,), (1,)), link=(2**20, 3, 0), talk=(), pause=())
    if number in (15, 16):
        case = replace(case, changes=((902, 0, 0, 50),), talk=(), pause=(), retries=2 if number == 16 else None)
    return case, run(case, "fast")


@pytest.mark.parametrize("number", range(1, len(INVARIANTS) + 1))
def test_each_can_fail(number: int) -> None:
    case, done = a_run(number)
    assert list(broken(case, done)) == []
    SPOILT[number](done)
    assert any(found.startswith(f"{number} ") for found in broken(case, done))


def test_docs_number_them_alike() -> None:
    text = DOCS.read_text(encoding="utf-8").replace("'", "")
    named = re.findall(r"^(\d+)\. \*\*(.+?)\*\*", text, re.MULTILINE)
    assert named == [(str(number), check.__name__.replace("_", " ").capitalize())
                     for number, check in enumerate(INVARIANTS, 1)]  # fmt: skip

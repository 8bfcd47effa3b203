"""The reference engine decides as vLLM 0.24's own scheduler did, step by step.

What that decided is in decisions.json.gz; make_decisions.py makes it anew from the released wheel.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from parity.cases import Case, job

from policies.registry import POLICIES
from simulator.cost.unit import unit_cost
from simulator.engines.job import Job
from simulator.engines.reference import _Run
from simulator.engines.world import Acceptance
from simulator.scenario.pipeline import in_stages
from simulator.state import FINISHED, Limits

DATA = json.loads(gzip.decompress((Path(__file__).parent / "decisions.json.gz").read_bytes()))

WITHOUT_CACHE = ("plain", "priority", "drafts", "pipeline")


class Watched(_Run):
    """The reference engine, noting each plan and output as make_decisions.py does."""

    def __init__(self, job: Job, policy: str) -> None:
        super().__init__(job, POLICIES[policy])
        self.steps: list[Any] = []

    def plan(self, r: int) -> bool:
        rep, req = self.job.reps[r], self.job.req
        running, preempted = set(rep.running[: rep.c.n_running]), list(req.preempted)
        planned = super().plan(r)
        rows = [[i, n] for i, n in zip(rep.batch, rep.tokens, strict=True)][: rep.c.n_batch]
        gone = [i for i, before in enumerate(preempted) if req.preempted[i] > before]
        if rows or gone:
            self.steps.append(["plan", rows, gone, [[i, req.computed[i] - n] for i, n in rows
                                                     if i not in running or i in gone]])
        return planned

    def complete(self, r: int) -> None:
        rep, done = self.job.reps[r], list(self.job.req.done)
        oldest = rep.steps[rep.c.first_flight]
        super().complete(r)
        if oldest.decode + oldest.prefill == 0:
            return
        req = self.job.req
        got = [i for i, before in enumerate(done) if req.done[i] > before]
        rows = [[i, int(req.status[i] == FINISHED), req.done[i] - done[i]] for i in got]
        self.steps.append(["output", rows if self.job.lim.draft_tokens else [row[:2] for row in rows]])


def case(made: dict[str, Any]) -> Case:
    """The scenario for our engine; requests of a group begin with the same tokens."""
    arrival, prompt, output, limit, group, shared = zip(*made["requests"], strict=True)
    limits = Limits(
        max_num_seqs=made["max_num_seqs"], max_num_batched_tokens=made["max_num_batched_tokens"],
        long_prefill_token_threshold=made["long_prefill_token_threshold"],
        watermark_blocks=int(made["watermark"] * made["num_gpu_blocks"]),
        reserve_prompt=int(made["reserve_full_prompt"]),
        block_size=made["block_size"], num_blocks=made["num_gpu_blocks"] - 1,
        max_model_len=made.get("max_model_len", 4096), contiguous=0,
        reserve_tokens=0, batch_window=0, length_bucket=0, stream=1, schedule_ahead=made["schedule_ahead"],
        whole_prompt=0, prefix=int(made["kind"] not in WITHOUT_CACHE),
    )  # fmt: skip
    if "drafts" in made:
        drafts, limits = made["drafts"], limits._replace(draft_tokens=made["drafts"]["tokens"])
        limits = limits._replace(lookahead=drafts["lookahead"], rehearse=int(drafts["method"] == "eagle3"))
    stages = made.get("stages", 1)
    limits = in_stages(limits, stages)
    cost = unit_cost(DATA["step"] * stages)._replace(layers=stages)
    chains = tuple(tuple(1000 * g + k for k in range(tokens // made["block_size"]))
                   for g, tokens in zip(group, shared, strict=True))  # fmt: skip
    nothing = (0,) * len(arrival)
    asks = (("priority", tuple(made["priority"])),) if "priority" in made else ()
    return Case("priority" if asks else "chunked", arrival, prompt, output, limit, nothing, nothing, limits,
                cost, chains=chains, asks=asks)  # fmt: skip


def plans(made: dict[str, Any]) -> list[Any]:
    return [step for step in made["steps"] if step[0] == "plan"]


def name(k: int) -> str:
    return f"{k} {DATA['scenarios'][k]['kind']}"


@pytest.mark.parametrize("k", range(len(DATA["scenarios"])), ids=name)
def test_every_decision_is_the_schedulers(k: int) -> None:
    made = DATA["scenarios"][k]
    ready = job(case(made), compiled=False)
    if "drafts" in made:
        ready.acceptance = Acceptance(made["drafts"]["salts"], made["drafts"]["chances"])
    run = Watched(ready, case(made).policy)
    run.run()
    assert run.steps == made["steps"]
    firsts = {i: start for _, _, _, admitted in reversed(plans(made)) for i, start in admitted}
    assert made["kind"] in WITHOUT_CACHE or dict(enumerate(run.job.req.found)) == firsts


def test_the_scenarios_are_hard() -> None:
    """Hundreds of them, with preemption, tokens in flight at it, cut prompts, early ends, cache hits."""
    plain = [made for made in DATA["scenarios"] if made["kind"] == "plain"]
    assert len(plain) >= 200
    gone = [(made["schedule_ahead"], i) for made in plain for _, _, preempted, _ in plans(made) for i in preempted]
    assert len(gone) >= 200
    assert sum(ahead == 1 for ahead, _ in gone) >= 100
    assert sum(output < limit for made in plain for _, _, output, limit, _, _ in made["requests"]) >= 100
    cut = [n for made in plain for _, rows, _, _ in plans(made) for i, n in rows if 1 < n < made["requests"][i][1]]
    assert len(cut) >= 200
    ranked = [made for made in DATA["scenarios"] if "priority" in made]
    assert sum(len(gone) for made in ranked for _, _, gone, _ in plans(made)) >= 200
    passed = [made for made in ranked if made["priority"] != sorted(made["priority"])]
    assert len(passed) >= 100
    hits = [n for made in DATA["scenarios"] for _, _, _, admitted in plans(made) for _, n in admitted if n > 0]
    assert len(hits) >= 100

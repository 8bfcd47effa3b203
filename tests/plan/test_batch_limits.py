"""Batch limits that a plan does not name: found by small steps, and as good when it names them."""

from typing import Any

import pytest

from simulator.errors import ConfigError
from simulator.metrics.intervals import interval
from simulator.planning.batch_limits import Tried, climb
from simulator.planning.budget import spend
from simulator.planning.candidate import Candidate, candidates_of
from simulator.planning.plan import plan
from simulator.planning.spec import plan_from
from simulator.planning.statistics import Judged, Judgement, against
from simulator.report.plan.limits import limit_lines, limit_rows

DEFAULT = {"max_num_batched_tokens": 2048, "max_num_seqs": 256}
START = Candidate("l40s", 1, None, None, None, "bf16", "bf16", "round_robin")


def judged(ratio: float) -> Judgement:
    got = interval([ratio])
    return Judgement((Judged("p95 TTFT", 1.0, got, against(got, 1.0)),), False, ())


def climbed(worst: Any, found: float = 1.0) -> tuple[Candidate | None, list[tuple[str, int]], Tried]:
    """A climb on a landscape of (tokens, seqs) that is shifted so that what is at or below `found` does."""
    note = Tried("start", "with 2 replicas", DEFAULT)

    def look(c: Candidate) -> Judgement:
        return judged(worst(c.max_num_batched_tokens or 2048, c.max_num_seqs or 256) / found)

    changed = climb(START, DEFAULT, look, note)
    return changed, [(row["limit"], row["value"]) for row in note.rows], note


def test_one_limit_after_the_other_and_no_step_beyond_what_helps() -> None:
    """Least at 512 tokens and 512 sequences: up one step in vain, down two and one in vain never tried (512 is the
    least there is), then up one and one in vain."""
    def worst(tokens: int, seqs: int) -> float:
        return 2 + abs(tokens - 512) / 512 + abs(seqs - 512) / 512

    changed, tried, note = climbed(worst)
    assert changed is None and note.found == ""
    tokens, seqs = "max_num_batched_tokens", "max_num_seqs"
    assert tried == [(tokens, 4096), (tokens, 1024), (tokens, 512), (seqs, 512), (seqs, 1024)]


def test_the_first_setting_that_does_is_taken() -> None:
    def worst(tokens: int, seqs: int) -> float:
        return 2.0 if tokens > 1024 else 0.9

    changed, tried, note = climbed(worst)
    assert changed is not None and changed.max_num_batched_tokens == 1024 and changed.max_num_seqs is None
    assert tried[-1] == ("max_num_batched_tokens", 1024) and note.found == changed.label


def small(**changes: Any) -> dict[str, Any]:
    return {
        "workload": {"arrivals": {"kind": "poisson", "rate": 9, "requests": 1500},
                     "prompt": {"kind": "lognormal", "mean": 1500, "cv": 0.8, "max": 6000},
                     "output": {"kind": "lognormal", "mean": 150, "cv": 0.8, "max": 1000}},
        "slo": {"ttft_p95_s": 1.5, "tpot_p95_s": 0.05}, "max_model_len": 8192,
        "candidates": {"gpu": "l40s", "replicas": {"max": 16}}, "search": {"replications": 2}, **changes,
    }  # fmt: skip


def test_limits_that_are_found_are_as_good_by_name_and_better_than_the_default() -> None:
    """On an L40S a chunk of 2,048 tokens holds every decode up for a third of a second; smaller ones are kinder to TPOT
    (Agrawal et al., Sarathi-Serve, OSDI 2024, section 3.1)."""
    slo = {"ttft_p95_s": 1.5, "tpot_p95_s": 0.06}
    found = plan(plan_from(small(slo=slo)), jobs=1, explain=False)
    default = plan(plan_from(small(slo=slo, search={"replications": 2, "batch_limits": False})), jobs=1, explain=False)
    assert found.best and default.best and not default.limits
    assert found.best.outcome.replicas < default.best.outcome.replicas
    best = found.best.outcome.candidate
    assert best.max_num_batched_tokens is not None and best.max_num_batched_tokens < 2048
    named = {"gpu": "l40s", "replicas": {"max": 16}, "max_num_batched_tokens": best.max_num_batched_tokens,
             **({"max_num_seqs": best.max_num_seqs} if best.max_num_seqs else {})}  # fmt: skip
    again = plan(plan_from(small(slo=slo, candidates=named)), jobs=1, explain=False)
    assert again.best and again.best.outcome.replicas == found.best.outcome.replicas
    notes = [note.plain() for note in found.limits]
    assert best.label in limit_lines(notes, best.label)[0]
    assert len(limit_rows(notes)) == sum(len(note["rows"]) for note in notes)


def test_limits_that_the_plan_names_are_left_alone() -> None:
    named = {"gpu": "l40s", "replicas": [2], "max_num_batched_tokens": 2048, "max_num_seqs": 64}
    found = plan(plan_from(small(candidates=named)), jobs=1, explain=False)
    assert [o.candidate for o in found.outcomes] == list(candidates_of(found.spec)) and not found.limits


def test_a_budget_carries_no_less_with_other_limits() -> None:
    asked = small(budget={"replicas": 2})
    found = spend(plan_from(asked), jobs=1, explain=False)
    default = spend(plan_from(asked | {"search": {"replications": 2, "batch_limits": False}}), jobs=1, explain=False)
    assert default["batch_limits"] == [] and len(default["rows"]) == 1
    assert found["best"]["carries"] >= 1.02 * default["best"]["carries"]
    assert found["best"]["label"] in {note["found"] for note in found["batch_limits"]}


@pytest.mark.parametrize(("candidates", "words"), [
    ({"policy": "sarathi"}, "sarathi needs candidates.tbt_s"),
    ({"tbt_s": 0.05}, "no effect without candidates.policy sarathi"),
    ({"policy": ["sarathi"], "tbt_s": [0.05, -1]}, "numbers of seconds > 0"),
])  # fmt: skip
def test_a_time_between_tokens_belongs_to_its_policy(candidates: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_from(small(candidates={"gpu": "l40s"} | candidates))


def test_other_policies_go_without_a_time_between_tokens() -> None:
    spec = plan_from(small(candidates={"gpu": "l40s", "policy": ["chunked", "sarathi"], "tbt_s": [0.05, 0.1]}))
    assert [(c.policy, c.tbt_s) for c in candidates_of(spec)] == [
        ("chunked", None), ("sarathi", 0.05), ("sarathi", 0.1)]  # fmt: skip
    with pytest.raises(ConfigError, match=r"policy.tbt_s is a key of a scenario; in a plan it is candidates.tbt_s"):
        plan_from(small(policy={"tbt_s": 0.1}))


def test_a_tighter_time_between_tokens_takes_no_fewer_replicas() -> None:
    """A step kept within 50 ms whatever is in it computes fewer prompt tokens than one within 200 ms."""
    asked = {"gpu": "h100-sxm", "policy": "sarathi", "tbt_s": [0.05, 0.2], "max_num_seqs": 64, "replicas": {"max": 8}}
    found = plan(plan_from(small(candidates=asked, slo={"ttft_p95_s": 1.0})), jobs=1, explain=False)
    need = {o.candidate.tbt_s: o.replicas for o in found.outcomes if o.status == "feasible"}
    assert need[0.05] >= need[0.2]


def test_how_near_the_nearest_setting_was_is_said_in_words() -> None:
    """A setting whose backlog grows is not near, however low its levels are as long as the trace is."""
    def said(*rows: dict[str, Any]) -> str:
        note = {"label": "x", "fleet": "with 2 replicas", "default": {"max_num_seqs": 256}, "found": "", "rows": [
            {"limit": "max_num_seqs", "value": 64, "does": False, "level": "p95 TTFT", "overloaded": False} | row
            for row in rows]}  # fmt: skip
        return limit_lines([note], "x")[0].partition("nearest: ")[2]

    assert said({"of_limit": 1.04}) == "max_num_seqs 64, p95 TTFT 4 % above its limit)."
    assert said({"of_limit": 22.3}) == "max_num_seqs 64, p95 TTFT 22.3 times its limit)."
    assert said({"of_limit": 0.4, "overloaded": True}, {"of_limit": 1.5}).endswith("p95 TTFT 50 % above its limit).")
    assert said({"of_limit": 0.4, "overloaded": True}) == "max_num_seqs 64, overloaded)."


def test_the_sentence_on_limits_is_about_what_is_bought_or_says_that_it_is_not() -> None:
    row = {"limit": "max_num_seqs", "value": 64, "does": False, "level": "p95 TTFT", "overloaded": False, "of_limit": 2}
    mine, other = ({"label": label, "fleet": "with 2 replicas", "default": {"max_num_seqs": 256}, "found": "",
                    "rows": [row]} for label in ("mine", "other"))  # fmt: skip
    (line,) = limit_lines([other, mine], "mine")
    assert "of mine keeps" in line and "other" not in line.replace("no other setting", "")
    assert line.endswith("; 2 were tried, of 2 candidates.") and len(limit_rows([other, mine])) == 2
    (line,) = limit_lines([other], "mine")
    assert line.startswith("Batch limits: other would be the better choice with 2 replicas, but")

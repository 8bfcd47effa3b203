"""Speculative decoding: draws, tokens per step, what clients see, what is refused."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator import scenario_from, simulate
from simulator.cost.calibrated import calibrated_cost
from simulator.engines.speculation import accepted, mixed
from simulator.engines.world import Acceptance
from simulator.errors import ConfigError
from simulator.planning.bounds import request_seconds_bound
from simulator.profiles.engine import load_engine
from simulator.profiles.gpu import load_gpu
from simulator.profiles.model import load_model
from simulator.profiles.speculation import Speculation, chances_of_length, constant_chances
from simulator.scenario.setup import cost_on, prepare
from simulator.workload.build import build_trace

ROOT = Path(__file__).parents[2]
DRAFT = ROOT / "calibration/measurements/models/eagle3-llama-8b.config.json"


def scenario(speculation: dict[str, Any] | None, prompt: list[int], output: list[int], **more: Any) -> Any:
    """Requests on the textbook GPU: every step takes a second."""
    return scenario_from({
        "workload": {"requests": {"prompt": prompt, "output": output}}, "hardware": "unit",
        "engine": {"speculation": speculation, **more.pop("engine", {})},
        "policy": {"name": "chunked", "max_num_seqs": 64, "max_num_batched_tokens": 4096}, "max_model_len": 4096,
        **more,
    })  # fmt: skip


def ngram(tokens: int, acceptance: Any) -> dict[str, Any]:
    return {"method": "ngram", "tokens": tokens, "acceptance": acceptance}


def test_a_word_is_scattered_one_to_one() -> None:
    """Every step is invertible, so 2^16 words stay different, and each bit of them is 1 about half the time."""
    words = np.array([mixed(k) for k in range(2**16)])
    assert len(set(words.tolist())) == 2**16 and words.min() >= 0 and words.max() < 2**32
    share = [(words >> bit & 1).mean() for bit in range(32)]
    assert np.all(np.abs(np.array(share) - 0.5) < 4 * 0.5 / 2**8)


def test_draws_have_the_chances_given_whoever_draws_in_whatever_order() -> None:
    """40,000 draws: the share of steps with at least j right drafts within 4 standard deviations of the j-th chance."""
    chances = (0.72, 0.50, 0.34, 0.22)
    acceptance = Acceptance([12345, 678], [round(c * 2**32) for c in chances])
    for i, done in ((range(200), range(200)), (range(40_000), range(1)), (range(1), range(40_000))):
        found = Counter(accepted(acceptance, a, b, 4) for a in i for b in done)
        for j, chance in enumerate(chances):
            share = sum(count for right, count in found.items() if right > j) / 40_000
            assert abs(share - chance) < 4 * (chance * (1 - chance) / 40_000) ** 0.5
    assert accepted(Acceptance([1, 2], [2**32] * 4), 3, 4, 2) == 2  # no more than were drafted
    assert accepted(Acceptance([1, 2], [0] * 4), 3, 4, 4) == 0


@pytest.mark.parametrize(("chance", "tokens"), [(0.8, 5), (0.6, 3), (0.3, 4)])
def test_tokens_per_step_of_theory(chance: float, tokens: int) -> None:
    """Leviathan et al. 2023 (arXiv:2211.17192), equation 1: (1 - a^(k+1)) / (1 - a); within 4 standard errors of a sum
    of about 20,000 steps that are at most k + 1 apart."""
    output = [400] * 200
    found = simulate(scenario(ngram(tokens, chance), [10] * 200, output), "reference").summary["speculation"]
    expected = (1 - chance ** (tokens + 1)) / (1 - chance)
    steps = sum(output) / expected
    assert found["tokens_per_step"] == pytest.approx(expected, abs=4 * (tokens + 1) / 2 / steps**0.5)
    assert Speculation("ngram", tokens, constant_chances(chance, tokens)).tokens_per_step == pytest.approx(expected)


def test_chances_of_a_mean_are_vllms() -> None:
    """vllm/config/speculative.py, SpeculativeConfig._acceptance_length_to_rates(2.7, 4): one draft surely, 0.7 more."""
    assert chances_of_length(2.7, 4) == pytest.approx((1.0, 0.7, 0.0, 0.0))
    assert chances_of_length(1.0, 2) == (0.0, 0.0) and chances_of_length(3.0, 2) == (1.0, 1.0)


@pytest.mark.parametrize("ahead", [0, 1])
def test_drafts_that_are_never_right_change_nothing(ahead: int) -> None:
    """One token a step and sequence: the same times as without speculation where every step takes as long."""
    prompt, output, engine = [10, 300, 5, 77], [1, 40, 7, 20], {"schedule_ahead": ahead}
    drafts = {"method": "eagle3", "tokens": 3, "acceptance": 0.0}
    plain = simulate(scenario(None, prompt, output, engine=engine), "reference")
    found = simulate(scenario(drafts, prompt, output, engine=engine), "reference")
    for column in ("first", "last", "done", "itl_max"):
        assert getattr(found.requests, column).tolist() == getattr(plain.requests, column).tolist()
    assert found.summary["speculation"]["accepted_tokens"] == 0
    assert found.summary["itl_s"] == plain.summary["itl_s"]


def test_drafts_that_are_always_right_by_hand() -> None:
    """4 drafts: the prompt's step gives 1 token, then 5 a step: 12 tokens are 1 + 5 + 5 + 1, so 4 steps; the last step
    is cut after 1. Gaps of 1 s before each step's first token, none within: 3 of 11 gaps. TPOT 3 s / 11."""
    found = simulate(scenario(ngram(4, 1.0), [10], [12]), "reference")
    assert (found.requests.first[0], found.requests.last[0]) == (10**9, 4 * 10**9)
    assert found.summary["tpot_s"]["mean"] == pytest.approx(3 / 11)
    assert found.summary["throughput"]["output_tokens_per_s"] == pytest.approx(12 / 4)
    assert found.itl.sum() == 11 and found.itl[0] == 8
    assert found.summary["speculation"] == {"draft_tokens": 12, "accepted_tokens": 12, "acceptance_rate": 1.0,
                                            "tokens_per_step": 5.0}  # fmt: skip


def test_drafts_take_their_part_of_the_budget() -> None:
    """Two sequences of 1 + 4 tokens in a budget of 8: the second gets 3, so its step checks 2 drafts."""
    made = scenario(ngram(4, 1.0), [1, 1], [11, 11]).updated({"policy.max_num_batched_tokens": 8})
    log = simulate(made, "reference", log=True).log
    assert log is not None
    assert log["drafts"].tolist()[:2] == [0, 6] and log["decode"].tolist()[:2] == [0, 2]


def test_n_gram_is_synchronous_and_a_draft_model_keeps_tokens_back() -> None:
    base = {"workload": {"requests": {"prompt": [9], "output": [9]}}, "hardware": "h200-sxm", "max_model_len": 4096,
            "policy": {"max_num_seqs": 100, "max_num_batched_tokens": 2048}}  # fmt: skip
    drafts = {"method": "draft_model", "tokens": 3, "acceptance": 0.6, "draft": "llama-3.2-1b"}
    found = prepare(scenario_from(base | {"engine": {"speculation": drafts}}))
    assert found.limits.max_num_batched_tokens == 2048 - 100 and found.token_budget == 2048
    assert (found.limits.lookahead, found.engine.schedule_ahead) == (3, 1)
    again = cost_on(found, found.host)  # on the host it has, its own step times
    assert all(np.array_equal(*both) for both in zip(again, found.cost, strict=True))
    found = prepare(scenario_from(base | {"engine": {"speculation": ngram(3, 0.6)}}))
    assert (found.limits.lookahead, found.engine.schedule_ahead, found.limits.max_num_batched_tokens) == (0, 0, 2048)


def eagle() -> Speculation:
    return Speculation("eagle3", 4, (0.72, 0.5, 0.34, 0.22), load_model(DRAFT))


def test_a_step_reads_the_drafts_keys_once_a_pass() -> None:
    """32 layers of the target and 4 passes over 1 of the draft: 36 / 32 of the KV bytes a context token, and a prompt
    meets 33 layers. 128 sequences of 5 tokens are above the largest graph, 512; 102 are not."""
    model, gpu, engine = load_model("llama-3.1-8b"), load_gpu("h200-sxm"), load_engine("vllm-0.24")
    plain = calibrated_cost(gpu, engine, model, 1, "bf16", "bf16", 128, 2048)
    found = calibrated_cost(gpu, engine, model, 1, "bf16", "bf16", 128, 2048, speculation=eagle())
    assert int(found.decode_context_fp) / int(plain.decode_context_fp) == pytest.approx(36 / 32, rel=1e-6)
    assert int(found.prefill_pair_fp) / int(plain.prefill_pair_fp) == pytest.approx(33 / 32, rel=1e-6)
    assert plain.eager[0, 128] == 0 and found.eager[0, 5 * 102] == 0 and found.eager[0, 5 * 103] == 1
    weights = 4 * load_model(DRAFT).weight_bytes("bf16") * 0.8  # read four times, the fusion once
    assert found.dense_ns[0, 5] - plain.dense_ns[0, 5] > weights / gpu.bandwidth * 1e9


def test_the_bound_of_a_plan_holds_with_drafts() -> None:
    """No run beats it: here every draft is right and the replica is never idle."""
    drafts = {"method": "eagle3", "tokens": 4, "acceptance": 1.0, "draft": str(DRAFT)}
    made = scenario_from({
        "workload": {"requests": {"prompt": [200] * 300, "output": [100] * 300}}, "hardware": "h200-sxm",
        "load": {"kind": "closed", "width": 100}, "max_model_len": 4096, "engine": {"speculation": drafts},
        "policy": {"max_num_seqs": 100, "max_num_batched_tokens": 2048},
    })  # fmt: skip
    found = simulate(made, "reference")
    trace = build_trace(made.parsed_workload(), 0, 0, Path())
    assert 300 * request_seconds_bound(prepare(made), trace) <= found.summary["makespan_s"]


REFUSED = [
    ({"method": "eagle3", "tokens": 4, "acceptance": 0.7}, {}, "engine.speculation: eagle3 needs draft"),
    ({"method": "eagle3", "tokens": 4, "acceptance": 0.7, "draft": "llama-3.2-1b"}, {}, "a model of its own"),
    ({"method": "draft_model", "tokens": 4, "acceptance": 0.7, "draft": str(DRAFT)}, {}, "an EAGLE-3 draft"),
    ({"method": "draft_model", "tokens": 4, "acceptance": 0.7, "draft": "qwen3-0.6b"}, {}, "vocabulary of 151936"),
    (ngram(2, [0.5]), {}, "one for each of the 2 drafts, got 1"),
    (ngram(2, [0.5, 0.6]), {}, "none above the one before"),
    (ngram(2, 1.5), {}, "acceptance"), (ngram(0, 0.5), {}, "tokens"),
    ({"method": "ngram", "tokens": 2}, {}, "give acceptance or tokens_per_step"),
    ({"method": "ngram", "tokens": 2, "tokens_per_step": 3.5}, {}, "must be <= 1 .* tokens = 3"),
    ({"method": "medusa", "tokens": 2, "acceptance": 0.5}, {}, "eagle3"),
    (ngram(2, 0.5), {"policy": {"name": "orca"}}, "a policy that plans drafts"),
    (ngram(2, 0.5), {"cost_model": "roofline"}, "step times of drafts are not modelled"),
    (ngram(2, 0.5), {"engine": {"name": "sglang"}}, "as vLLM does it, not sglang"),
    (ngram(2, 0.5), {"engine": {"schedule_ahead": 1}}, "engine.schedule_ahead must be 0 with ngram"),
    ({"method": "draft_model", "tokens": 2, "acceptance": 0.5, "draft": "llama-3.2-1b"},
     {"policy": {"max_num_seqs": 64, "max_num_batched_tokens": 64}}, "leaves none"),
]  # fmt: skip


@pytest.mark.parametrize(("speculation", "more", "message"), REFUSED)
def test_what_is_refused(speculation: dict[str, Any], more: dict[str, Any], message: str) -> None:
    data: dict[str, Any] = {"workload": {"requests": {"prompt": [9], "output": [9]}}, "hardware": "h200-sxm",
                            "max_model_len": 4096, **more}  # fmt: skip
    data["engine"] = {**data.get("engine", {}), "speculation": speculation}
    with pytest.raises(ConfigError, match=message) as error:
        prepare(scenario_from(data))
    assert "\n" not in str(error.value)

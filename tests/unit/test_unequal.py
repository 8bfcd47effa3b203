"""How unequal contexts are, and what decode attention loses by it: worked out by hand."""

from typing import Any

import numpy as np
import pytest

from simulator.cost.device import unsplit
from simulator.planning.bounds import relieved_replica
from simulator.scenario.setup import prepare
from simulator.scenario.spec import scenario_from
from simulator.workload.spec import parse_workload
from simulator.workload.unequal import spread, unequal

WHOLE = np.int64


def generated(prompt: dict[str, Any], output: dict[str, Any]) -> dict[str, Any]:
    return {"arrivals": {"kind": "poisson", "rate": 5, "requests": 10}, "prompt": prompt, "output": output}


def test_spread_by_hand() -> None:
    """Contexts of 100 and 300 in the middle of answers of 60: mean 230, deviation sqrt(100^2 + 60^2 / 12)."""
    prompt, output = np.array([100, 300], WHOLE), np.array([60, 60], WHOLE)
    assert spread(prompt, output) == pytest.approx((10_000 + 300) ** 0.5 / 230)
    assert spread(prompt, output, together=True) == pytest.approx(100 / 230)


def test_equal_requests_at_one_place_are_equal_and_it_ends_at_one() -> None:
    same = np.full(50, 512, WHOLE)
    assert spread(same, same, together=True) == 0.0
    assert spread(np.array([1] * 99 + [100_000], WHOLE), np.ones(100, WHOLE)) == 1.0


def test_a_lone_request_says_nothing_of_those_beside_it() -> None:
    assert spread(np.array([512], WHOLE), np.array([128], WHOLE)) == 1.0


def test_generated_lengths_have_their_own_spread() -> None:
    """Fixed 512 and 128: 128 / sqrt(12) over 576. Uniform prompts from 100 to 1,900, one token each: 1,800 / sqrt(12)
    over 1,000, the draw's error left. Lognormal ones of cv 1.2 count as unequal altogether."""
    one = {"kind": "fixed", "value": 1}
    fixed = generated({"kind": "fixed", "value": 512}, {"kind": "fixed", "value": 128})
    assert unequal(parse_workload(fixed)) == pytest.approx(128 / 12**0.5 / 576)
    wide = generated({"kind": "uniform", "min": 100, "max": 1900}, one)
    assert unequal(parse_workload(wide)) == pytest.approx(1800 / 12**0.5 / 1000, rel=0.03)
    assert unequal(parse_workload(generated({"kind": "lognormal", "mean": 1000, "cv": 1.2}, one))) == 1.0


def test_what_was_measured_counts_as_unequal() -> None:
    one = {"kind": "fixed", "value": 2}
    talks = {"arrivals": {"kind": "poisson", "rate": 1, "requests": 3}, "turns": one, "new": one, "output": one}
    assert unequal(parse_workload({"trace": "some.csv"})) == unequal(parse_workload({"sessions": talks})) == 1.0


def test_contexts_are_split_until_they_fill_the_processors() -> None:
    """Four sequences of eight KV heads are split and lose little, sixteen lose all; with half of the heads on a GPU it
    takes twice the sequences beside one."""
    assert unsplit(np.array([0.0]), 8)[0] == 0.0
    assert unsplit(np.array([3.0]), 8)[0] < 0.12 and unsplit(np.array([15.0]), 8)[0] > 0.99
    others = np.arange(1.0, 64.0)
    assert unsplit(2.0 * others, 4) == pytest.approx(unsplit(others, 8))
    assert np.all(np.diff(unsplit(others, 8)) >= 0)


def test_only_decode_steps_of_many_unequal_sequences_last_longer() -> None:
    """Lone ones and steps with prefill are as among equals; what the others take more is 8.9 us a layer."""
    def cost(prompt: dict[str, Any]) -> Any:
        return prepare(scenario_from({
            "workload": generated(prompt, {"kind": "fixed", "value": 1}), "hardware": "h200-sxm", "max_model_len": 8192,
        })).cost  # fmt: skip

    equal, mixed = cost({"kind": "fixed", "value": 4000}), cost({"kind": "uniform", "min": 1, "max": 8000})
    more = (mixed.dense_ns - equal.dense_ns) / 32 / 1e3  # [us] per layer
    assert more[0, 1] == 0.0 and not more[1].any()
    share = (7999 / 12**0.5) / 4000.5
    assert more[0, 64] == pytest.approx(8.9 * share, rel=0.05)


def test_more_bandwidth_reads_all_contexts_faster() -> None:
    """A quarter more of it: what decode attention reads alone, beside prefill and in windows takes 1 / 1.25."""
    plain = prepare(scenario_from({"workload": generated({"kind": "fixed", "value": 9}, {"kind": "fixed", "value": 9}),
                                   "hardware": "h200-sxm", "model": "gemma-2-27b", "max_model_len": 8192}))
    more = relieved_replica(plain, "bandwidth").cost
    for name in ("decode_context_fp", "beside_context_fp", "seen_context_fp"):
        before, after = int(getattr(plain.cost, name)), int(getattr(more, name))
        assert before > 0 and after == pytest.approx(before / 1.25, rel=1e-6)

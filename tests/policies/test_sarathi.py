"""A token budget found from a time between tokens: by hand, largest, and kept in runs full of long prompts."""

import numpy as np
import pytest

from simulator import scenario_from, simulate
from simulator.cost.unit import unit_cost
from simulator.errors import ConfigError
from simulator.scenario.pace import longest_step_ns, paced
from simulator.scenario.setup import prepare
from simulator.state import Limits

ONE = np.int64(2**32)
LIMITS = Limits(max_num_seqs=4, max_num_batched_tokens=1000, long_prefill_token_threshold=0, watermark_blocks=0,
                reserve_prompt=0, block_size=4, num_blocks=10, max_model_len=30, contiguous=0, reserve_tokens=0,
                batch_window=0, length_bucket=0, stream=1, schedule_ahead=0, whole_prompt=0)  # fmt: skip


def scenario(**policy):
    return scenario_from({
        "workload": {"arrivals": {"kind": "gamma", "rate": 6, "cv": 3, "requests": 120},
                     "prompt": {"kind": "lognormal", "mean": 3000, "cv": 1.5, "max": 15000},
                     "output": {"kind": "lognormal", "mean": 60, "cv": 1.0}},
        "policy": {"max_num_seqs": 64, **policy}, "max_model_len": 16384, "seed": 5})


COST = unit_cost(10)._replace(slope_fp=ONE, decode_context_fp=ONE, prefill_pair_fp=ONE // 30 + 1)
"""A step of n tokens takes 10 + n, 1 a context token of which 40 fit, and 1 every 30 pairs: 50 + 2 n at most, since a
token is at most the 30th of its request."""


@pytest.mark.parametrize(("tbt_ns", "budget"), [(100, 25), (101, 25), (102, 26), (58, 4), (3000, 1000)])
def test_budget_by_hand(tbt_ns: int, budget: int) -> None:
    named = scenario(name="sarathi", tbt_s=tbt_ns / 1e9)
    assert longest_step_ns(COST, LIMITS, budget) <= tbt_ns
    assert paced(named, COST, LIMITS, True).max_num_batched_tokens == budget


def test_what_cannot_be_kept_or_is_not_given_is_refused() -> None:
    """Four slots that all decode take 58 already."""
    with pytest.raises(ConfigError, match=r"policy.tbt_s: 5.7e-08 s cannot be kept: .* 58 ns"):
        paced(scenario(name="sarathi", tbt_s=57e-9), COST, LIMITS, True)
    with pytest.raises(ConfigError, match=r"policy.tbt_s is needed"):
        prepare(scenario(name="sarathi"))


def test_no_more_memory_is_read_than_the_slots_can_fill() -> None:
    """Of 1,000 blocks four requests of 30 tokens fill 8 each, 128 tokens: 10 + 128 + 2 n."""
    assert longest_step_ns(COST, LIMITS._replace(num_blocks=1000), 5) == 148


@pytest.mark.parametrize("tbt_s", [0.05, 0.1])
def test_no_gap_between_tokens_exceeds_the_target_where_chunked_exceeds_it(tbt_s: float) -> None:
    """Long prompts in bursts on an H100; with the engine's own budget of 8,192 tokens answers stall far longer."""
    longest = {}
    for policy in ({"name": "sarathi", "tbt_s": tbt_s}, {"name": "chunked"}):
        result = simulate(scenario(**policy), "reference")
        assert not result.requests.preempted.any()
        longest[policy["name"]] = int(np.max(result.requests.itl_max))
    assert longest["sarathi"] <= tbt_s * 1e9 < longest["chunked"]

"""Windowed attention: counts by brute force, memory as vLLM's block tables hold it, limits where it must equal full."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.errors import ConfigError
from simulator.profiles.kv_groups import KvGroups
from simulator.profiles.model import load_model
from simulator.run import simulate
from simulator.scenario.setup import prepare
from simulator.scenario.spec import scenario_from
from simulator.state import Limits
from simulator.windows import admission_blocks, held_blocks, pairs_up_to, seen

SHAPES = [(1, 0), (4, 0), (7, 0), (16, 0), (4, 1), (7, 1)]


def limits(window: int, chunked: int, block: int = 4, full: int = 1, windowed: int = 2, budget: int = 8) -> Limits:
    return Limits(4, budget, 0, 0, 1, block, 1000, 10_000, 0, 0, 0, 0, 1, 1, 0, window=window, chunked=chunked,
                  full_groups=full, window_groups=windowed)


def visible(window: int, chunked: int, at: int) -> int:
    """Tokens that token `at` (from 0) attends to, itself included, by going through all of them."""
    start = at // window * window if chunked else at - window + 1
    return sum(1 for other in range(at + 1) if other >= start)


@pytest.mark.parametrize(("window", "chunked"), SHAPES)
def test_counts_by_going_through_all_pairs(window: int, chunked: int) -> None:
    lim = limits(window, chunked)
    for known in range(1, 60):
        assert seen(lim, known) == visible(window, chunked, known - 1)
        assert pairs_up_to(lim, known) == sum(visible(window, chunked, at) for at in range(known))


@pytest.mark.parametrize(("window", "chunked"), SHAPES)
def test_blocks_by_going_through_their_tokens(window: int, chunked: int) -> None:
    """A windowed group holds the blocks in which some token is still seen by the next token or by a later one."""
    for computed in range(60):
        tokens = computed + 3
        needed = {at // 4 for at in range(tokens) if any(
            at >= (later // window * window if chunked else later - window + 1) for later in range(computed, tokens))}
        assert held_blocks(limits(window, chunked, full=0, windowed=1), tokens, computed) == len(needed)
    assert held_blocks(limits(window, chunked, full=3, windowed=0), 9, 8) == 3 * 3


@pytest.mark.parametrize(("window", "chunked"), SHAPES)
def test_no_sequence_holds_more_than_was_admitted(window: int, chunked: int) -> None:
    """Steps of up to the budget of 8 tokens, to any length; the count is that of `servecast kv` too,
    where chunks are whole blocks (Llama 4: 8,192 tokens)."""
    lim = limits(window, chunked)
    for length in range(1, 80):
        most = max(held_blocks(lim, min(start + step, length), start)
                   for start in range(length) for step in range(1, 9))
        assert most <= admission_blocks(lim, length)
        groups = KvGroups(1, (0, window, window), bool(chunked))
        if not chunked or window % 4 == 0:
            assert admission_blocks(lim, length) <= groups.blocks(length, 8, 4)


def gemma(**changes: Any) -> dict[str, Any]:
    return {"workload": {"requests": {"prompt": [3000, 900, 40], "output": [30, 200, 60]}}, "model": "gemma-3-27b",
            "hardware": {"gpu": "h200-sxm"}, "policy": {"max_num_seqs": 8, "max_num_batched_tokens": 2048}} | changes


def test_requests_no_longer_than_the_window_cost_what_full_attention_costs() -> None:
    """At max_model_len 1,024 the windows of Gemma-3 are never reached: no coefficient, all layers full."""
    short = prepare(scenario_from(gemma(max_model_len=1024)))
    long = prepare(scenario_from(gemma(max_model_len=8192)))
    assert short.limits.window == 0 and int(short.cost.seen_context_fp) == 0
    assert int(long.cost.decode_context_fp) / int(short.cost.decode_context_fp) == pytest.approx(10 / 62, rel=1e-6)
    for whole, parts in (("decode_context_fp", "seen_context_fp"), ("prefill_pair_fp", "seen_pair_fp")):
        both = int(getattr(long.cost, whole)) + int(getattr(long.cost, parts))
        assert both == pytest.approx(int(getattr(short.cost, whole)), rel=1e-6)


def test_a_window_as_long_as_the_requests_changes_no_time() -> None:
    """The same costs with windows that nothing reaches: every token comes out when it does without them."""
    setup = prepare(scenario_from(gemma(max_model_len=4096)))
    wide = replace(setup, limits=setup.limits._replace(window=4096))
    cost = setup.cost
    full = replace(setup, limits=setup.limits._replace(window=0, full_groups=1, window_groups=0), cost=cost._replace(
        decode_context_fp=cost.decode_context_fp + cost.seen_context_fp, seen_context_fp=np.int64(0),
        prefill_pair_fp=cost.prefill_pair_fp + cost.seen_pair_fp, seen_pair_fp=np.int64(0)))
    first, second = (simulate(each.scenario, "reference", setup=each) for each in (wide, full))
    assert first.requests.last == pytest.approx(second.requests.last, abs=2000)  # two roundings of 1 ns a step
    narrow = simulate(setup.scenario, "reference", setup=setup)
    assert int(narrow.requests.last.max()) < int(first.requests.last.max())


def test_memory_holds_more_long_requests_than_full_attention_would() -> None:
    """Gemma-3-27B, 8,000 tokens: 10 full layers in a group, 52 windowed in 6 groups, each 65 blocks and those of
    a step (vLLM 0.24, SlidingWindowSpec: ceil((1023 + budget) / 16) + 1)."""
    lim = prepare(scenario_from(gemma(max_model_len=8192))).limits
    assert (lim.full_groups, lim.window_groups, lim.window) == (1, 6, 1024)
    assert admission_blocks(lim, 8000) == 500 + 6 * (-(-(1023 + 2048) // 16) + 1)
    assert held_blocks(lim, 8000, 7999) == 500 + 6 * 64


def test_what_windows_are_not_modelled_with_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gemma-3-27b has attention windows of 1024 tokens, modelled with .* got"):
        prepare(scenario_from(gemma(max_model_len=8192, policy="orca")))
    with pytest.raises(ConfigError, match=r"kv.prefix_caching: gemma-3-27b has attention windows"):
        prepare(scenario_from(gemma(max_model_len=8192, kv={"prefix_caching": True})))
    with pytest.raises(ConfigError, match=r"sliding-window attention of 1024 tokens \(cost_model: roofline\)"):
        prepare(scenario_from(gemma(max_model_len=8192, cost_model="roofline")))
    assert load_model("gemma-3-27b").window == 1024

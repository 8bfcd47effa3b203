"""Whole numbers stay whole: exact products beyond 64 bits, and what could leave int64 is refused in one line."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from parity.cases import Case, cases, run

from policies.registry import POLICIES
from simulator.cost.reach import LAST_TICK, LONGEST_STEP_NS, check_reach, longest_step, reach
from simulator.cost.step import rounded_off, scaled
from simulator.cost.unit import unit_cost
from simulator.engines.job import request_columns
from simulator.errors import ConfigError, TraceError
from simulator.jit import compiled
from simulator.planning.whatif import Overlay, transformed
from simulator.run import simulate
from simulator.scenario.setup import prepare
from simulator.scenario.spec import scenario_from
from simulator.state import LARGEST_COUNT
from simulator.workload.trace import make_trace

ENGINES = pytest.mark.parametrize("engine", ["reference", "fast"])
UP_TO_62_BITS = st.integers(0, 62).flatmap(lambda bits: st.integers(0, 2**bits))


def _products(counts: Any, coefficients: Any, found: Any) -> None:
    for k in range(len(counts)):
        found[0, k] = scaled(counts[k], coefficients[k])
        found[1, k] = rounded_off(counts[k], coefficients[k])


compiled_products = compiled(_products, "products")


@settings(max_examples=300, deadline=None)
@example(pairs=[(2**32 - 1, 2**32 - 1), (2**62, 2**32)])
@given(pairs=st.lists(st.tuples(UP_TO_62_BITS, UP_TO_62_BITS), min_size=1, max_size=20))
def test_products_are_exact_in_both_engines(pairs: list[tuple[int, int]]) -> None:
    """count x coefficient / 2^32, rounded down, whenever that is below 2^63; and what that leaves out."""
    pairs = [pair for pair in pairs if pair[0] * pair[1] >> 32 < 2**63]
    assume(pairs)
    exact = [[count * coefficient >> 32 for count, coefficient in pairs],
             [count * coefficient % 2**32 for count, coefficient in pairs]]
    assert [[scaled(*pair) for pair in pairs], [rounded_off(*pair) for pair in pairs]] == exact
    found = np.zeros((2, len(pairs)), dtype=np.int64)
    compiled_products(np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs]), found)
    assert found.tolist() == exact


@pytest.mark.parametrize("workload", [
    {"prompt": [25803, 6918], "output": [2, 2]}, {"prompt": 13245, "output": [2]}, {"prompt": 32_000, "output": [3]},
])
@pytest.mark.parametrize(("gpu", "dtype"), [("dgx-spark", "int4"), ("l4", "bf16"), ("a10g", "bf16")])
@pytest.mark.parametrize("policy", ["orca", "static"])
def test_long_prompts_on_slow_gpus(policy: str, gpu: str, dtype: str, workload: dict[str, Any]) -> None:
    """Tens of thousands of tokens at more than 32 us each: the compiled engine counts as Python's integers do."""
    scenario = scenario_from({
        "workload": {"requests": workload}, "model": "qwen2.5-7b", "hardware": {"gpu": gpu, "weight_dtype": dtype},
        "policy": {"name": policy, "max_num_seqs": 3}, "kv": {"num_gpu_blocks": 30_000},
    })  # fmt: skip
    first, second = (simulate(scenario, engine) for engine in ("reference", "fast"))
    assert first.requests.first.tolist() == second.requests.first.tolist()
    assert first.totals.tolist() == second.totals.tolist()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_no_step_goes_beyond_its_reach(case: Case) -> None:
    """The counts and the time of every step lie below what was checked before the run."""
    budgeted = "max_num_batched_tokens" in POLICIES[case.policy].knobs
    most = reach(case.limits, budgeted, max(case.prompt), max(case.limit), len(case.prompt))
    done = run(case, "reference")
    rows = done.logged
    assert np.all(rows["decode"] + rows["prefill"] <= most.rows)
    assert np.all(rows["decode"] + rows["prefill_tokens"] + rows["pad_rows"] <= most.tokens)
    assert np.all(rows["pairs"] <= most.pairs)
    assert np.all(rows["context"] <= most.context)
    assert np.all(rows["gpu_ns"] <= rows["steps"] * longest_step(case.cost, most))


def test_what_a_step_can_hold_by_hand() -> None:
    """Prompts of 10 with answers of 5: all of 15 are computed again after a preemption. Without a token budget four of
    them in one step, with one of 8 tokens no more than one that is longer; each token may look at all 15. A
    budget of 17 is one of two blocks of 16, for TGI."""
    limits = prepare(slow({"prompt": [10] * 4, "output": [5] * 4}, 4)).limits
    free = reach(limits, False, 10, 5, 4)
    assert (free.rows, free.tokens, free.context, free.pairs) == (4, 60, 60, 900)
    assert reach(limits._replace(max_num_batched_tokens=8, block_size=1), True, 10, 5, 4).tokens == 15
    assert reach(limits._replace(max_num_batched_tokens=17, block_size=16), True, 10, 5, 4).tokens == 32
    assert reach(limits, False, 10, 5, 2).tokens == 30


def test_drafts_are_in_the_context_of_a_step() -> None:
    """A prompt of 1 with an answer of 2: the step for the second token has the first two and two drafts to look at."""
    limits = prepare(slow({"prompt": [1], "output": [2]}, 1)).limits._replace(draft_tokens=2)
    assert reach(limits, True, 1, 2, 1).context >= 4


def slow(requests: dict[str, Any], seqs: int, **more: Any) -> Any:
    """A textbook GPU whose every step takes 1,000,000 s."""
    return scenario_from({"workload": {"requests": requests}, "hardware": {"gpu": "unit", "step_s": 1e6},
                          "policy": {"name": "orca", "max_num_seqs": seqs}} | more)  # fmt: skip


@ENGINES
def test_sums_over_the_run_are_checked(engine: Any) -> None:
    """1,024 sequences for 10^16 ns are 10^19 slot-ns, beyond 2^63 = 9.2 x 10^18; half as many are not."""
    with pytest.raises(ConfigError, match=r"busy for 116 days with up to 1024 running .* set a shorter horizon_s"):
        simulate(slow({"prompt": 1, "output": [10] * 1024}, 1024), engine)
    assert simulate(slow({"prompt": 1, "output": [10] * 512}, 512), engine).totals["rows"][0] == 512 * 10**16


@ENGINES
def test_a_run_of_more_than_73_years_ends_with_a_message(engine: Any) -> None:
    """3 x 1,000 steps of 10^15 ns one after the other; the clock is stopped at 2^61 = 2.3 x 10^18."""
    with pytest.raises(ConfigError, match="1 request is not finished after 73 simulated years; set horizon_s"):
        simulate(slow({"prompt": 1, "output": [1000] * 3}, 1), engine)
    assert 2 * 10**18 < LAST_TICK < 3 * 10**18


@pytest.mark.parametrize(("requests", "cost", "message"), [
    ({"prompt": 2**30, "answer": 2**30, "count": 1}, {}, "query-key pairs; accepted: fewer than 2"),
    ({"prompt": 2**20, "answer": 1, "count": 1}, {"slope_fp": 2**62}, "could take 13 days; accepted: up to 13"),
    ({"prompt": 1, "answer": 2**20, "count": 1}, {"dense_ns": 2**45}, "an answer of 1048576 tokens could take"),
    ({"prompt": 1, "answer": 1, "count": 2**20}, {"frontend_each_ns": 2**41}, "the front end would take"),
])
def test_what_could_leave_int64_is_refused(requests: dict[str, int], cost: dict[str, int], message: str) -> None:
    plain = unit_cost(cost.pop("dense_ns", 1))._replace(**{name: np.int64(value) for name, value in cost.items()})
    wide = {"max_model_len": LARGEST_COUNT, "kv": {"num_gpu_blocks": 10}}
    limits = prepare(slow({"prompt": 1, "output": [1]}, 1, **wide)).limits
    most = reach(limits, False, requests["prompt"], requests["answer"], requests["count"])
    with pytest.raises(ConfigError, match=message):
        check_reach(plain, most, requests["count"])
    less = {name: max(1, value // 32) for name, value in requests.items()}
    check_reach(plain, reach(limits, False, less["prompt"], less["answer"], less["count"]), less["count"])


def test_more_blocks_than_a_count_holds_are_refused() -> None:
    """4 x 2^31 tokens in blocks of 1 are 2^33 blocks; an engine would index with what is left of them."""
    base = {"workload": {"requests": {"prompt": 1, "output": [1]}}, "hardware": "unit", "policy": "orca"}
    with pytest.raises(ConfigError, match=r"kv\.reserve_tokens: 4 sequences of 2147483647 tokens .* up to 2147483647"):
        prepare(scenario_from(base | {"kv": {"layout": "contiguous", "reserve_tokens": LARGEST_COUNT}}))


@pytest.mark.parametrize("key", ["policy.long_prefill_token_threshold", "max_model_len", "kv.reserve_tokens"])
def test_counts_beyond_int32_are_refused_at_the_door(key: str) -> None:
    section, _, name = key.rpartition(".")
    given: Any = {"workload": {"requests": {"output": [1]}}, "kv": {"layout": "contiguous"}}
    (given.setdefault(section, {}) if section else given)[name] = 2**40
    with pytest.raises(ConfigError, match=rf"{key} must be <= 2147483647, got 1099511627776"):
        scenario_from(given)


def test_a_longer_what_if_is_refused_beyond_the_largest_count() -> None:
    trace = make_trace([0], [3_000_000], [1])
    with pytest.raises(ConfigError, match="prompt_scale 1000 makes 3000000 tokens 3000000000; "):
        transformed(trace, Overlay(name="long", prompt_scale=1000.0))
    with pytest.raises(TraceError, match=r"prompt must be 0\.\.2147483647 tokens, got 3000000000"):
        wrong = replace(trace, prompt=np.array([3_000_000_000]))
        request_columns(wrong.arrival_ns, wrong.prompt, wrong.output, wrong.max_tokens, wrong.cached, np.zeros(0))


def test_the_longest_step_is_thirteen_days() -> None:
    assert 13 < LONGEST_STEP_NS / 86_400e9 < 13.1

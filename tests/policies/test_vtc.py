"""The virtual token counter: the paper's bound on random backlogged tenants, weights, and the counter lift by hand."""

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulator import Result, simulate
from simulator.scenario.spec import scenario_from

TOKENS = 64
"""KV memory [tokens]: M of the paper."""
LONGEST = 10
"""[tokens] longest prompt, and longest answer: three of both fit the memory, so nobody is preempted."""


def run(requests: dict[str, Any], policy: str = "vtc", **knobs: Any) -> Result:
    data = {"workload": {"requests": requests}, "hardware": "unit",
            "kv": {"block_size": 1, "num_gpu_blocks": TOKENS + 1},
            "policy": {"name": policy, "max_num_seqs": 3} | knobs}  # fmt: skip
    return simulate(scenario_from(data), "reference")


def service(result: Result, tenant: int, steps: int) -> Any:
    """(steps,) what a tenant was served in each step of 1 s: its prompt tokens at admission, 2 an output token."""
    req, found = result.requests, np.zeros(steps, dtype=np.int64)
    for i in np.flatnonzero(result.trace.asks.tenant == tenant):
        found[req.scheduled[i] // 10**9] += req.prompt[i]
        first, last = req.first[i] // 10**9, req.last[i] // 10**9
        found[first - 1 : last] += 2
    return found


def largest_difference(result: Result) -> int:
    """Largest difference in service of two tenants over any interval in which both have requests that wait."""
    req, who = result.requests, result.trace.asks.tenant
    steps = int(req.last.max() // 10**9)
    backlogged = int(min(req.scheduled[who == t].max() for t in (0, 1)) // 10**9)
    gap = np.cumsum((service(result, 0, steps) - service(result, 1, steps))[:backlogged])
    return int(np.ptp(np.concatenate(([0], gap))))


SIZES = st.lists(st.tuples(st.integers(1, LONGEST), st.integers(1, LONGEST)), min_size=15, max_size=40)


@settings(max_examples=40, deadline=None)
@given(first=SIZES, second=SIZES)
@example(first=[(1, 10)] * 40, second=[(1, 1)] * 40)
@example(first=[(10, 1)] * 40, second=[(1, 1)] * 40)
def test_backlogged_tenants_differ_by_no_more_than_the_papers_bound(first: Any, second: Any) -> None:
    """Theorem 4.4: over any interval in which both are backlogged, |W_f - W_g| <= 2 max(w_p L_input, w_q M)."""
    prompt, output = zip(*first, *second, strict=True)
    result = run({"prompt": list(prompt), "output": list(output),
                  "tenant": ["f"] * len(first) + ["g"] * len(second)})
    assert not result.requests.preempted.any()
    assert largest_difference(result) <= 2 * max(LONGEST, 2 * TOKENS)


def heavy_and_light(policy: str, **knobs: Any) -> Result:
    """100 requests of one tenant, then 60 of another, all there at once."""
    return run({"prompt": 10, "output": 10, "arrival_s": 0.0, "tenant": ["heavy"] * 100 + ["light"] * 60} |
               {"output": [10] * 160}, policy, **knobs)  # fmt: skip


def test_first_come_first_served_breaks_the_bound() -> None:
    """The heavy tenant's 100 x (10 + 20) = 3,000 come before anything of the light one; shares are equal under VTC."""
    assert largest_difference(heavy_and_light("vtc")) <= 256 < largest_difference(heavy_and_light("chunked"))


def test_twice_the_weight_gets_twice_the_service() -> None:
    """As far as the bound lets them: while both wait, W_heavy = 2 W_light within 2 x 256 (counters are W / weight)."""
    result = heavy_and_light("vtc", tenant_weights={"heavy": 2.0})
    req, who = result.requests, result.trace.asks.tenant
    steps = int(req.last.max() // 10**9)
    end = int(min(req.scheduled[who == t].max() for t in (0, 1)) // 10**9)
    heavy, light = (int(service(result, t, steps)[:end].sum()) for t in (0, 1))
    assert heavy > 1000
    assert abs(heavy - 2 * light) <= 512


def test_a_tenant_that_comes_late_is_not_owed_for_the_time_before() -> None:
    """One slot, prompts of 1, answers of 1: 1 + 2 = 3 a request. `a` is served 10 times before `b` comes; lifted to a's
    counter, b then alternates with a. Without the lift b would be served 10 times in a row."""
    arrival = [0.0] * 20 + [9.5] * 10
    result = run({"output": [1] * 30, "arrival_s": arrival, "tenant": ["a"] * 20 + ["b"] * 10}, max_num_seqs=1)
    order = np.argsort(result.requests.scheduled, kind="stable")
    served = ["a" if i < 20 else "b" for i in order]
    assert served[:10] == ["a"] * 10
    assert abs(served[10:].count("a") - 10) == 0
    assert max(len(run) for run in "".join(served[10:28]).replace("ab", "a b").replace("ba", "b a").split()) <= 2

"""Policies that are a key: small timelines worked by hand, brute force over every order, and what aging promises.

On the `unit` GPU a step takes 1 s and the step that admits a request gives its first token.
"""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Result, simulate
from simulator.errors import ConfigError
from simulator.scenario.spec import scenario_from

SMALL = st.integers(1, 6)


def run(policy: str | dict[str, Any], requests: dict[str, Any], **rest: Any) -> Result:
    """One slot, synchronous, unless `rest` says otherwise."""
    knobs = {"name": policy} if isinstance(policy, str) else policy
    data = {"workload": {"requests": requests}, "hardware": "unit", "policy": {"max_num_seqs": 1} | knobs} | rest
    return simulate(scenario_from(data), "reference")


def seconds(column: Any) -> list[float]:
    return [tick / 1e9 for tick in column.tolist()]


def test_priority_passes_in_the_queue_and_takes_no_slot_away() -> None:
    """Outputs of 3; 0 runs from 0 to 3. Of those that wait, 2 (priority 0) is before 1 (priority 5), 3 (5) is last."""
    result = run("priority", {"output": [3, 3, 3, 3], "arrival_s": [0.0, 0.0, 1.0, 1.0], "priority": [5, 5, 0, 5]})
    assert seconds(result.requests.last) == [3, 9, 6, 12]


def test_when_memory_is_out_the_largest_number_goes_though_it_was_planned_already() -> None:
    """16 blocks of one token, three slots, prompts of 1, answers of 8. Five steps fill 15. In step 6 request 0 takes
    the last, request 1 finds none: 0 (priority 3) loses its place in the step and all it has. 1 and 2 end at 8; in
    step 9 its 1 + 5 tokens are computed again for its 6th token, so it ends at 11. First come, first served, 2 goes.
    """
    small = {"kv": {"block_size": 1, "num_gpu_blocks": 17}}  # the engine keeps one
    result = run({"name": "priority", "max_num_seqs": 3}, {"output": [8, 8, 8], "priority": [3, 1, 1]}, **small)
    assert result.requests.preempted.tolist() == [1, 0, 0]
    assert seconds(result.requests.last) == [11, 8, 8]
    first_come = run({"name": "chunked", "max_num_seqs": 3}, {"output": [8, 8, 8]}, **small)
    assert first_come.requests.preempted.tolist() == [0, 0, 1]
    assert seconds(first_come.requests.last) == [8, 8, 11]


def test_the_tokens_of_a_victim_planned_before_are_there_for_others() -> None:
    """14 blocks of one token, 3 tokens a step. Request 0 is there a step before the others, so after step 5 they hold
    5 + 4 + 4. In step 6 request 0 takes the last block, request 1 finds none and 0 goes; its token of the budget goes
    to request 2, which computes two and so its prompt of 6."""
    result = run({"name": "priority", "max_num_seqs": 3, "max_num_batched_tokens": 3},
                 {"prompt": [1, 1, 6], "output": [9, 8, 1], "priority": [3, 1, 1], "arrival_s": [0.0, 1.0, 1.0]},
                 kv={"block_size": 1, "num_gpu_blocks": 15})
    assert result.requests.preempted.tolist() == [1, 0, 0]
    assert seconds(result.requests.first)[2] == 6


@settings(max_examples=40, deadline=None)
@given(output=st.lists(SMALL, min_size=2, max_size=6))
def test_shortest_first_has_the_least_mean_completion_of_all_orders(output: list[int]) -> None:
    """Smith 1956, on a batch with one slot: brute force over every order of the answers."""
    best = min(sum(np.cumsum(order)) for order in permutations(output))
    assert sum(seconds(run("oracle_sjf", {"output": output}).requests.last)) == best
    asked = {"name": "shortest_predicted", "prediction_error": 0.0}
    assert sum(seconds(run(asked, {"output": output}).requests.last)) == best


@settings(max_examples=60, deadline=None)
@given(jobs=st.lists(st.tuples(SMALL, st.integers(1, 20)), min_size=2, max_size=5))
def test_earliest_deadline_meets_all_if_any_order_does(jobs: list[tuple[int, int]]) -> None:
    """One slot, equal release. A request of n steps before its first token is one with a prompt of n tokens, one token
    a step; the deadline is on that token."""
    prompt, target = zip(*jobs, strict=True)
    result = run({"name": "earliest_deadline", "max_num_batched_tokens": 1},
                 {"prompt": list(prompt), "output": [1] * len(jobs), "ttft_target_s": [float(t) for t in target]})
    met = np.all(np.asarray(seconds(result.requests.first)) <= np.asarray(target))
    possible = any(all(sum(prompt[j] for j in order[: k + 1]) <= target[i] for k, i in enumerate(order))
                   for order in permutations(range(len(jobs))))
    assert met == possible


@settings(max_examples=40, deadline=None)
@given(prompt=st.lists(SMALL, min_size=2, max_size=6))
def test_shortest_prompt_has_the_least_mean_time_to_first_token(prompt: list[int]) -> None:
    """One prompt token a step, answers of one token: the prompts are the jobs."""
    result = run({"name": "shortest_prompt", "max_num_batched_tokens": 1},
                 {"prompt": prompt, "output": [1] * len(prompt)})
    assert sum(seconds(result.requests.first)) == min(sum(np.cumsum(order)) for order in permutations(prompt))


def starving(aging: dict[str, float]) -> float:
    """[s] when a request of priority 1, come at 0, is admitted, while one of priority 0 comes every second."""
    n = 60
    arrival = [0.0, 0.0, *(float(k) for k in range(1, n - 1))]
    result = run({"name": "priority"} | aging, {"output": [1] * n, "arrival_s": arrival,
                                                "priority": [0, 1] + [0] * (n - 2)})
    return seconds(result.requests.scheduled)[1]


def test_aging_ends_starvation() -> None:
    """The server is full with priority 0 alone. With aging_s 5, whoever comes 5 s after the request of priority 1 is
    behind it, so it is next then; without aging it is last."""
    assert starving({}) == 59
    assert starving({"aging_s": 5.0}) == pytest.approx(5, abs=1)


@settings(max_examples=60, deadline=None)
@given(asked=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=2, max_size=12),
       aging=st.integers(1, 4))
def test_with_aging_nobody_is_passed_by_who_came_much_later(asked: list[tuple[int, int]], aging: int) -> None:
    """A request that came more than (difference in priority) x aging_s after another does not start before it."""
    asked.sort()
    arrival, priority = zip(*asked, strict=True)
    result = run({"name": "priority", "aging_s": float(aging)},
                 {"output": [2] * len(asked), "arrival_s": [float(a) for a in arrival], "priority": list(priority)})
    started = seconds(result.requests.scheduled)
    for i in range(len(asked)):
        for j in range(len(asked)):
            if arrival[j] > arrival[i] + (priority[i] - priority[j]) * aging and arrival[j] >= arrival[i]:
                assert started[j] > started[i]


def test_a_prediction_errs_by_what_it_says_and_leaves_the_requests_alone() -> None:
    """The logarithm of guess / truth has mean 0 and the standard deviation given, as far as whole tokens allow."""
    workload = {"arrivals": {"kind": "burst", "requests": 4000}, "prompt": 10, "output": 5000}
    knobs = {"name": "shortest_predicted", "prediction_error": 0.5, "max_num_seqs": 64}
    from simulator.scenario.job import build_job
    from simulator.scenario.setup import prepare
    from simulator.workload.build import build_trace

    scenario = scenario_from({"workload": workload, "hardware": "unit", "policy": knobs})
    trace = build_trace(scenario.parsed_workload(), scenario.seed)
    guess = np.log(np.asarray(build_job(prepare(scenario), trace, True, False).req.predicted) / trace.output)
    assert abs(guess.mean()) < 4 * 0.5 / 4000**0.5
    assert abs(guess.std() - 0.5) < 4 * 0.5 / (2 * 4000) ** 0.5
    again = build_trace(scenario.updated({"policy.prediction_error": 2.0}).parsed_workload(), scenario.seed)
    assert np.array_equal(again.output, trace.output)


@pytest.mark.parametrize(("policy", "message"), [
    ({"name": "priority"}, "policy: priority needs the priority of every request; accepted: priority in workload.cl"),
    ({"name": "shortest_predicted"}, "policy: shortest_predicted needs a predicted length .* policy.prediction_error"),
    ({"name": "earliest_deadline"}, "policy: earliest_deadline needs the wanted time .* accepted: slo.ttft_s"),
    ({"name": "chunked", "aging_s": 3.0}, "policy.aging_s has no effect under chunked"),
    ({"name": "priority", "prediction_error": 1.0}, "policy.prediction_error has no effect under priority"),
])
def test_what_is_missing_or_without_effect_is_refused(policy: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(policy, {"output": [1, 2]})


def test_aging_that_would_overflow_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"aging_s x the largest priority must be <= 1152921505 s, got 1e\+06 x 2147"):
        run({"name": "priority", "aging_s": 1e6}, {"output": [1], "priority": [2**31 - 1]})

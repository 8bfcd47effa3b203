"""A star in a comparison is for what is proved: two runs of the same kind get none, one that is faster gets it."""

from typing import Any

import pytest

from simulator import Result, scenario_from, simulate
from simulator.report.compared import compared
from simulator.report.page import render_report


def run(requests: int = 400, seed: int = 0, slots: int = 1, service: int = 3) -> Result:
    """Poisson arrivals at a quarter of a request a second, answers of `service` tokens of a second each."""
    data: dict[str, Any] = {
        "name": f"{seed} {slots}", "seed": seed, "hardware": "unit",
        "policy": {"name": "chunked", "max_num_seqs": slots},
        "workload": {"arrivals": {"kind": "poisson", "rate": 0.25, "requests": requests}, "prompt": 1,
                     "output": service},
    }  # fmt: skip
    return simulate(scenario_from(data), "reference")


def stars(*results: Result) -> dict[str, list[bool]]:
    return {label: [cell.best for cell in cells] for label, cells in compared(results)}


def test_what_differs_by_chance_alone_has_no_star() -> None:
    """Other draws of the same traffic: every number differs, and nobody is better."""
    for seed in (1, 2, 3):
        assert not any(any(cells) for cells in stars(run(seed=0), run(seed=seed)).values())


def test_a_second_server_shortens_the_wait_in_every_part_and_leaves_the_throughput() -> None:
    """M/D/1 at a load of 0.75 waits 4.5 s on average; two servers wait a fraction of that, and carry the same."""
    found = stars(run(slots=1), run(slots=2))
    assert found["queue mean"] == found["TTFT mean"] == found["E2E p95"] == [False, True]
    assert found["requests/s"] == found["TPOT mean"] == found["makespan"] == [False, False]


def test_a_server_that_cannot_keep_up_is_proved_to_carry_less() -> None:
    """Five seconds an answer are 1.25 at a time: one server carries 0.2 requests/s of 0.25, two carry them all."""
    found = stars(run(service=5), run(service=5, slots=2))
    assert found["requests/s"] == found["makespan"] == [False, True]


def test_of_three_one_is_the_best_only_where_it_is_better_than_both() -> None:
    slow, fast, again = run(service=3), run(service=1), run(service=1, seed=1)
    assert stars(slow, fast, again)["queue mean"] == [False, False, False]
    assert stars(slow, fast, run(service=3, seed=1))["queue mean"] == [False, True, False]


@pytest.mark.parametrize("requests", [1, 5, 19])
def test_a_handful_of_drawn_requests_proves_nothing(requests: int) -> None:
    assert not any(any(cells) for cells in stars(run(requests), run(requests, service=1)).values())


def test_the_page_names_a_lowest_latency_only_where_it_is_proved() -> None:
    assert "which may be chance" in render_report([run(seed=0), run(seed=1)])
    assert "Lowest p99 TTFT: 0 2 with" in render_report([run(slots=1), run(slots=2)])

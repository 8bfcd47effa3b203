"""The recommended fleet on the other shipped hosts, against plans made for those hosts and against a launch by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simulator.planning.candidate import candidates_of
from simulator.planning.capacity import capacity, levels_of
from simulator.planning.hosts import carried_on_hosts, on_other_hosts
from simulator.planning.passing import surely
from simulator.planning.points import Runner
from simulator.planning.search import Search
from simulator.planning.slo_words import slo_of_words
from simulator.planning.spec import PlanSpec, SearchSpec, plan_from
from simulator.report.load.words import capacity_lines, carried_lines
from simulator.report.plan.hosts import host_lines
from simulator.scenario.spec import scenario_from

ERROR = 0.049


def asked(ttft_s: float, rate: float = 60.0, **changes: Any) -> PlanSpec:
    """Prompts of 600 tokens, whose steps wait for their launch: 26.0 ms on the measured host (hwprofiles/host), twice
    that on the slow one."""
    return plan_from({
        "name": "hosts", "workload": {"arrivals": {"kind": "poisson", "rate": rate, "requests": 2000}, "prompt": 600,
                                      "output": 10},
        "slo": {"ttft_p90_s": ttft_s}, "candidates": {"gpu": ["h100-sxm"], "max_num_seqs": [128],
                                                      "max_num_batched_tokens": [2048], "replicas": {"max": 24}},
        "search": {"replications": 2, "most_replications": 2, "calibration_error": ERROR}, **changes})  # fmt: skip


def others(spec: PlanSpec, serving: int, spare: int = 0, error: float = 0.0) -> list[dict[str, Any]]:
    """The rows of a fleet of so many, without a plan around it."""
    (candidate,) = candidates_of(spec)
    fleet: Any = SimpleNamespace(candidate=candidate, serving=serving, spare=spare)
    return on_other_hosts(Search(spec, Runner(spec, jobs=1)), fleet, 1.0, error)


def test_a_plan_for_that_host_takes_that_number_and_not_one_less() -> None:
    """From the number that the measured host takes, found by the search of a plan; one replica may fail."""
    spec = asked(0.07, survive=1)
    search = Search(spec, Runner(spec, jobs=1))
    (candidate,) = candidates_of(spec)
    serving = search.solve(search.runner.bench.ready(candidate), 1.0).replicas
    rows = others(spec, serving, 1, ERROR)
    said = {row["host"]: row["replicas"] for row in rows}
    assert list(said) == ["fast", "measured", "slow"]
    for host, count in said.items():
        at_home = asked(0.07, survive=1, host=host)
        there = Search(at_home, Runner(at_home, jobs=1))
        assert there.runner.bench.ready(candidate).error.relative == ERROR
        does = [surely(there.verdict(candidate, n, 1.0, 1 + ERROR)) for n in (count - 2, count - 1)]
        assert does == [False, True], host
    fast, own, slow = said.values()
    assert fast < own < slow
    (line,) = host_lines({"hosts": rows})
    assert line.startswith(f"On the slow host {slow} replicas instead of {own} ({2.69 * slow:.2f} USD/h); on the fast "
                           f"host {fast} replicas instead of {own} ")  # fmt: skip


def test_what_a_fleet_carries_elsewhere_is_what_it_carries_there() -> None:
    """Against the wall found on that very host. Each of the four walls is searched to 1 %."""
    spec = asked(0.12)
    (candidate,), here = candidates_of(spec), Search(spec, Runner(spec, jobs=1))
    wall = here.wall(candidate, 3, 1.0)
    setup = here.runner.bench.setup(candidate)
    rows = carried_on_hosts(setup, lambda way: here.moved(candidate, 3, wall, way=way))
    assert [row["host"] for row in rows] == ["fast", "measured", "slow"]
    for row in rows:
        at_home = asked(0.12, host=row["host"])
        there = Search(at_home, Runner(at_home, jobs=1)).wall(candidate, 3, 1.0)
        assert row["factor"] * wall == pytest.approx(there, rel=0.04), row["host"]
    (line,) = carried_lines(rows, 60 * wall)
    assert line.startswith("It carries about ") and rows[2]["factor"] < 0.9


def test_the_capacity_of_a_scenario_elsewhere_is_its_capacity_there() -> None:
    """Both walls are searched to 1 %."""
    def found(host: str, explain: bool) -> dict[str, Any]:
        scenario = scenario_from({
            "name": "c", "workload": {"arrivals": {"kind": "poisson", "rate": 20, "requests": 800}, "prompt": 600,
                                      "output": 10},
            "model": "llama-3.1-8b", "hardware": "h100-sxm", "policy": {"max_num_batched_tokens": 2048},
            "max_model_len": 4096, "host": host})  # fmt: skip
        search = SearchSpec(replications=2, most_replications=2)
        return capacity(scenario, levels_of(scenario, slo_of_words(["p90 ttft < 150 ms"]), search), explain=explain)

    here = found("measured", True)
    factor = {row["host"]: row["factor"] for row in here["hosts"]}
    assert factor["measured"] == 1.0 and factor["slow"] < 0.9
    assert here["rate"] * factor["slow"] == pytest.approx(found("slow", False)["rate"], rel=0.02)
    assert carried_lines(here["hosts"], here["rate"])[0] in capacity_lines(here)


def test_where_the_host_changes_little_it_carries_as_much() -> None:
    rows = [{"host": host, "planned": host == "measured", "factor": factor}
            for host, factor in (("fast", 1.02), ("measured", 1.0), ("slow", 0.98))]  # fmt: skip
    (line,) = carried_lines(rows, 5.0)
    assert line == "It carries as much on the slow and the fast hosts."
    assert carried_lines([], 5.0) == []


def test_a_limit_shorter_than_the_slow_launch_is_met_by_no_fleet_there() -> None:
    """2 x 26.0 ms are more than 50 ms, 26.0 ms with 3 ms of the front end are less."""
    rows = others(asked(0.05, rate=20.0), 4)
    assert [row["replicas"] is None for row in rows] == [False, False, True]
    (line,) = host_lines({"hosts": rows})
    assert line.startswith("On the slow host no fleet of this kind is enough (no fleet meets it, even nearly idle: p90")


def test_more_than_are_allowed_is_said_so() -> None:
    """Of 60 requests/s one replica launches at most 1 / 52 ms = 19 steps/s there; four are allowed."""
    kinds = {"gpu": ["h100-sxm"], "max_num_seqs": [128], "max_num_batched_tokens": [2048], "replicas": {"max": 4}}
    slow = others(asked(0.07, candidates=kinds), 3)[-1]
    assert slow["replicas"] is None and slow["usd_per_hour"] is None
    assert slow["reason"] == "4 replicas are the most allowed, and not enough"


def test_a_host_of_ones_own_has_no_others(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nmark: fitted\nscaled_from: measured\n"
                    "cpu_scale: {value: 1.0, unit: '1', mark: fitted, source: own runs}\n")
    assert others(asked(0.2, host=str(path)), 1) == [] and host_lines({"hosts": []}) == []


def test_a_host_that_changes_nothing_is_said_so() -> None:
    row = {"mark": "measured", "usd_per_hour": 1.0, "reason": "", "planned": False, "replicas": 1}
    rows = [row | {"host": "fast"}, row | {"host": "measured", "planned": True}, row | {"host": "slow"}]
    assert host_lines({"hosts": rows}) == [
        "The host's CPU does not change the number: 1 replica on the slow and the fast hosts too."]

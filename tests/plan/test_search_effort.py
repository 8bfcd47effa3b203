"""The search does not simulate what cannot change the answer, and what it leaves out is left out for a reason."""

import math
from pathlib import Path

import numpy as np
import pytest

from simulator.metrics.intervals import interval
from simulator.metrics.samples import worst_window
from simulator.planning.bounds import fewest_replicas
from simulator.planning.candidate import candidates_of
from simulator.planning.edge import Edge, find_edge
from simulator.planning.passing import by_mean, clear, early, possibly, surely
from simulator.planning.plan import plan
from simulator.planning.points import Bench, Point
from simulator.planning.slo_words import slo_of_words
from simulator.planning.spec import load_plan, plan_from
from simulator.planning.statistics import Judged, Judgement, against
from simulator.planning.traffic import at_rate, mean_rate
from simulator.run import simulate


def judged(*values: float, limit: float = 1.0, overloaded: bool = False) -> Judgement:
    got = interval(values)
    target = slo_of_words(["p99 ttft < 1 s"]).targets[0]
    return Judgement((Judged("level", limit, got, against(got, limit), target),), overloaded, ())


def test_one_replication_speaks_for_all_where_the_others_cannot_change_it() -> None:
    """Of two values the mean of 2.2 and anything is above 1; of 1.6 and 0.3 it is not. Half of the limit is clear."""
    assert clear(judged(2.2), 2) == pytest.approx(math.log(2.2))
    assert clear(judged(1.6), 2) is None and judged(1.6, 0.3).holds
    assert clear(judged(2.2), 4) is None and judged(2.2, 0.3, 0.3, 0.3).holds
    assert clear(judged(0.4), 4) == pytest.approx(math.log(0.4)) and clear(judged(0.6), 4) is None
    assert clear(judged(0.4, overloaded=True), 4) is None
    assert clear(judged(math.inf), 2) == math.inf


def test_two_replications_speak_for_four_at_the_ends_of_a_range() -> None:
    """Student t, 1 degree of freedom, 90 %: 0.905 +- 6.314 x 0.0071 / sqrt(2) is below 1, 0.98 +- 10 x that not."""
    assert early(judged(1.1, 1.2), surely) == pytest.approx(math.log(1.15))
    assert early(judged(0.9, 0.8), possibly) == pytest.approx(math.log(0.85))
    close, near = early(judged(0.90, 0.91), surely), early(judged(0.93, 1.03), surely)
    assert close is not None and close < 0 and near is None
    assert early(judged(1.1, 1.11), possibly) == pytest.approx(math.log(judged(1.1, 1.11).levels[0].interval.low))
    assert early(judged(0.9, 1.3), possibly) is None
    assert judged(0.93, 1.03).verdict == "open" and by_mean(judged(0.93, 1.03))


def test_a_resource_that_moves_nothing_takes_one_point() -> None:
    """A wall known to be at 10: the next number that could be told apart from it fails, and that is all."""
    tried: list[float] = []

    def excess(rate: float) -> float:
        tried.append(rate)
        return math.log(rate / 10.0)

    assert find_edge(excess, 10.1, lowest=0.1, highest=1e4, known=10.0) == Edge(10.0, 10.1)
    assert tried == [10.1]


def test_a_level_that_no_fleet_meets_is_seen_on_idle_ones() -> None:
    """One prompt of 8,000 tokens alone takes longer than 50 ms on an A100: three looks at the trace."""
    spec = plan_from({
        "workload": {"arrivals": {"kind": "poisson", "rate": 20, "requests": 400}, "prompt": 8000, "output": 20},
        "slo": {"ttft_p90_s": 0.05}, "max_model_len": 16384, "candidates": {"gpu": "a100-sxm-80gb"},
    })  # fmt: skip
    found = plan(spec, jobs=1, explain=False)
    assert [o.status for o in found.outcomes] == ["infeasible"]
    assert found.outcomes[0].reason.startswith("no fleet meets it, even nearly idle: p90 TTFT")
    assert found.requests <= 3 * 400


def test_the_bound_knows_that_a_cache_spares_prompts() -> None:
    """The shipped conversations: one replica keeps up with 15 requests/s with the cache, so the bound is one replica;
    without it the prompts alone take more than one."""
    questions = Path(__file__).parents[2] / "scenarios" / "questions"
    spec = load_plan(questions / "05_prefix_caching.yaml", ["workload.trace.copies=3"])
    bench = Bench(spec)
    trace = bench.traffic.trace(0)
    with_cache, without = (bench.setup(candidate) for candidate in candidates_of(spec))
    assert fewest_replicas(with_cache, trace, 15.0) == 1
    assert fewest_replicas(without, trace, 15.0) > 1
    assert simulate(with_cache.scenario, trace=at_rate(trace, 15.0 / mean_rate(trace)),
                    setup=with_cache).summary["stability"]["verdict"] == "stable"  # fmt: skip


@pytest.fixture(scope="module")
def day() -> Bench:
    """Two hours whose traffic rises and falls, on replicas with 4 slots and 0.1 s a step that serve 2 requests/s."""
    return Bench(plan_from({
        "workload": {"arrivals": {"kind": "diurnal", "rate": 4, "amplitude": 0.8, "period_s": 7200, "duration_s": 7200},
                     "prompt": 1, "output": {"kind": "exponential", "mean": 20}},
        "step_s": 0.1, "slo": {"ttft_p95_s": 1, "window_s": 300},
        "candidates": {"gpu": "unit", "policy": "chunked", "max_num_seqs": 4}}))  # fmt: skip


@pytest.mark.parametrize(("first", "end"), [(3000, 12_000), (0, 7000), (9000, 20_000)])
def test_a_part_with_the_rest_answered_at_once_is_no_worse_than_the_whole(day: Bench, first: int, end: int) -> None:
    """Every mean and percentile, and the worst windows: of a part they are at most those of the whole."""
    (candidate,) = candidates_of(day.spec)
    size = len(day.traffic.trace(0))
    end = min(end, size)
    whole = day.run(Point(candidate, 3, 1.0, full=True))
    part = day.run(Point(candidate, 3, 1.0, full=True, rows=(first, end), part=True))
    for key, value in part["values"].items():
        if not key.startswith("itl"):
            assert value <= whole["values"][key] * 1.001 + 1e-9, key
    found, all_of_it = part["worst"]["ttft * 95"]["300"], whole["worst"]["ttft * 95"]["300"]
    assert found is not None and found[0] <= all_of_it[0] * 1.001
    share = (end - first) / size
    assert part["values"]["e2e * mean"] < whole["values"]["e2e * mean"] * (0.3 + share)


def test_windows_of_a_part_are_those_of_the_whole() -> None:
    """Half windows of 10 s from the first arrival at 0: of a part that begins at 23 s the first begins at 25 s."""
    at = np.arange(0.0, 100.0, 1.0)
    values = np.where((at >= 30) & (at < 40), 5.0, 1.0)
    whole = worst_window(at, values, 10.0, None, 2)
    part = worst_window(at[23:80], values[23:80], 10.0, None, 2, after_s=23.0)
    assert whole is not None and part is not None and whole.value == part.value == 5.0
    assert (whole.start_s, part.start_s) == (30.0, 30.0 - 23.0)
    short = worst_window(at[33:38], values[33:38], 10.0, None, 2, after_s=33.0)
    assert short is None

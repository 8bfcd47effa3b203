"""Autoscaled and partly spot fleets beside the fixed one, and what the cost hangs on, against worked numbers."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import numpy as np
import pytest
import yaml

from simulator.errors import ConfigError
from simulator.planning.candidate import candidates_of
from simulator.planning.plan import Plan, plan
from simulator.planning.points import Bench, Point
from simulator.planning.sensitivity import Sensitivity
from simulator.planning.spec import plan_from
from simulator.planning.ways import BLOCK, can_share_more, changed_trace, fleet_setup
from simulator.report.plan.alternatives import alternative_lines, tornado
from simulator.report.plan.data import plain
from simulator.report.plan.words import answer_lines
from simulator.run import simulate
from simulator.units import NS_PER_S
from simulator.workload.build import build_trace
from simulator.workload.extras import Extras
from simulator.workload.inspect import variation
from simulator.workload.spec import parse_workload
from simulator.workload.trace import Trace

SERVER = {"gpu": "unit", "policy": "chunked", "max_num_seqs": 4, "router": "least_outstanding", "replicas": {"max": 12}}
"""Four slots a replica, 0.1 s a step, an answer of 20 tokens: it takes 2 s, so a replica serves 2/s."""


def asked(**changes: Any) -> dict[str, Any]:
    return {
        "name": "alternatives",
        "workload": {"arrivals": {"kind": "diurnal", "rate": 4, "amplitude": 0.9, "period_s": 3600, "duration_s": 3600},
                     "prompt": 1, "output": 20},
        "step_s": 0.1, "slo": {"ttft_p90_s": 2.0}, "candidates": SERVER, "search": {"replications": 2}, **changes,
    }  # fmt: skip


SCALE = {"metric": "requests", "min": 1, "start": {"weights_s": 20}}


def planned(**changes: Any) -> Plan:
    return plan(plan_from(asked(**changes)), jobs=1, explain=False)


@pytest.fixture(scope="module")
def scaled() -> Plan:
    return planned(autoscale=SCALE)


def test_an_autoscaled_fleet_costs_less_on_a_curve_that_rises_and_falls(scaled: Plan) -> None:
    """Traffic between 0.4/s and 7.6/s: the fixed fleet is for the peak, on average it takes half of that."""
    assert scaled.best and scaled.answer
    row = scaled.answer.autoscaled
    assert row is not None and row["holds"] and row["most"] == 2 * scaled.best.fleet.serving
    assert 2 <= row["mean_replicas"] < scaled.best.fleet.serving  # 4/s are two replicas' whole time
    assert row["usd_per_hour"] == pytest.approx(row["mean_replicas"] * scaled.best.fleet.usd_per_hour
                                                / scaled.best.fleet.replicas)  # fmt: skip
    assert all(each["value"] <= each["limit"] for each in row["levels"])


def test_replica_hours_are_those_of_the_run(scaled: Plan) -> None:
    """The same fleet run as a scenario of its own: its summary has the hours that the plan has, by the mean of both."""
    assert scaled.best and scaled.answer and scaled.answer.autoscaled
    row = scaled.answer.autoscaled
    setup = fleet_setup(scaled.spec, scaled.best.fleet.candidate, row["most"], ("autoscaled", row["target"]))
    hours = [simulate(setup.scenario, replication=k).summary["fleet"]["replica_hours"] for k in range(2)]
    assert np.mean(hours) == pytest.approx(row["replica_hours"], rel=1e-9)


def test_levels_of_an_autoscaled_fleet_are_shown_without_the_margin() -> None:
    """The run of a scenario of its own knows of no error; with steps a fifth longer answers wait longer."""
    found = planned(autoscale=SCALE | {"target": 2}, search={"replications": 2, "calibration_error": 0.2})
    assert found.best and found.answer and found.answer.autoscaled
    row = found.answer.autoscaled
    assert row["holds"]
    setup = fleet_setup(found.spec, found.best.fleet.candidate, row["most"], ("autoscaled", 2))
    ttft = [simulate(setup.scenario, replication=k).summary["ttft_s"]["p90"] for k in range(2)]
    assert row["levels"][0]["value"] == pytest.approx(np.mean(ttft), rel=1e-9)


def test_higher_targets_that_were_tried_take_fewer_replica_hours(scaled: Plan) -> None:
    assert scaled.answer and scaled.answer.autoscaled
    tried = sorted(scaled.answer.autoscaled["tried"], key=lambda each: each["target"])
    hours = [each["replica_hours"] for each in tried if each["holds"]]
    assert len(hours) > 2 and hours == sorted(hours, reverse=True)
    assert [each["holds"] for each in tried] == sorted((each["holds"] for each in tried), reverse=True)


def test_its_manifest_holds_against_the_schema_of_kubernetes() -> None:
    """autoscaling/v2, strict. A plan on a real GPU, whose target is given."""
    spec = {"workload": {"arrivals": {"kind": "poisson", "rate": 2, "requests": 300}, "prompt": 300, "output": 40},
            "slo": {"ttft_p90_s": 3}, "max_model_len": 4096, "search": {"replications": 2}}  # fmt: skip
    for formula in ("hpa", "keda"):
        found = plain(plan(plan_from(spec | {"autoscale": SCALE | {"target": 20, "formula": formula}}), jobs=1,
                           explain=False))  # fmt: skip
        document = yaml.safe_load(found["export"]["autoscaler"])
        row = found["answer"]["autoscaled"]
        assert row["target"] == 20 and row["tried"] == []
        if formula == "hpa":
            kubernetes_validate.validate(document, "1.33", strict=True)
            assert document["spec"]["metrics"][0]["pods"]["target"]["averageValue"] == "20"
        else:
            assert document["kind"] == "ScaledObject"
            assert document["spec"]["triggers"][0]["metadata"]["threshold"] == "20"
        assert document["spec"]["scaleTargetRef"]["name"] == "plan"


def test_replicas_that_never_start_keep_no_limits() -> None:
    """One replica serves 2/s of up to 7.6/s, and the others take longer to start than the run lasts."""
    found = planned(autoscale=SCALE | {"initial": 1, "start": {"weights_s": 7200}})
    assert found.answer and found.answer.autoscaled
    assert not found.answer.autoscaled["holds"]
    told = plain(found)["answer"]
    line = alternative_lines(told)[0]
    assert "does not keep the limits" in line and "7200 s to start" in line and "Predictive" not in line
    foreseen = told | {"autoscaled": told["autoscaled"] | {"forecast": True}}
    assert alternative_lines(foreseen)[0].startswith("Autoscaled by the Predictive Horizontal Pod Autoscaler with")


def test_an_autoscaled_fleet_that_may_lose_a_replica() -> None:
    """Two hundred seconds until another one serves: the fleet is larger than without the loss, for its target is lower,
    and so the limit is kept in the five minutes after it, which at the target without the loss it is not. The run as a
    scenario of its own, with the crash where the plan says, has those numbers."""
    slow = SCALE | {"min": 2, "start": {"weights_s": 200}}
    alone, found = planned(autoscale=slow), planned(autoscale=slow, survive=1)
    assert alone.answer and alone.answer.autoscaled and found.answer and found.answer.autoscaled and found.best
    without, row = alone.answer.autoscaled, found.answer.autoscaled
    assert without["holds"] and row["holds"] and without["loss"] is None
    assert row["target"] < without["target"] and row["replica_hours"] > without["replica_hours"]
    loss = row["loss"]
    assert (loss["replicas"], loss["after_s"], loss["target"]) == (1, 300.0, row["target"])
    fleet = found.best.fleet
    assert fleet.replicas == fleet.serving + 1 and row["fixed_replica_hours"] > without["fixed_replica_hours"]

    def after(target: float) -> float:
        """p90 of the TTFT of those who came in the five minutes after the crash."""
        setup = fleet_setup(found.spec, fleet.candidate, row["most"], ("autoscaled", target))
        done = simulate(setup.scenario.updated({"cluster.retry_s": 1e-3, "cluster.events": [
            {"at_s": at_s, "kind": "crash", "replica": 0, "for_s": 200}]}))
        arrival = done.requests.arrival / NS_PER_S
        ttft = (done.requests.first - done.requests.arrival)[(arrival >= at_s) & (arrival < at_s + 300)] / NS_PER_S
        assert done.summary["changes"]["down_s"] == 200
        return float(np.quantile(ttft, 0.9, method="inverted_cdf"))

    trace = build_trace(parse_workload(asked()["workload"]), 0, 0)
    at_s = loss["at_s"] + trace.arrival_ns[0] / NS_PER_S
    value = loss["levels"][0]["value"]
    assert after(row["target"]) == pytest.approx(value, rel=0.02) and value <= 2
    assert after(without["target"]) > 2
    line = alternative_lines(plain(found)["answer"])[0]
    assert "In the 300 s after the loss of 1 in its busiest time" in line and "with the margin on step times" in line


def test_spot_that_is_never_taken_back_is_as_good_and_cheaper_by_arithmetic() -> None:
    """Half of the fixed fleet's replicas, rounded down, at a third of the price."""
    spot = {"share": 0.5, "prices": {"unit": 1 / 3}, "reclaims_per_hour": 1e-9, "replace_s": 60}
    found = planned(spot=spot, prices={"unit": 1.0})
    assert found.best and found.answer and found.answer.spot
    row, count = found.answer.spot, found.best.fleet.serving
    assert row["holds"] and (row["owned"], row["spot"]) == (count - count // 2, count // 2)
    assert row["usd_per_hour"] == pytest.approx(count - count // 2 + count // 2 / 3)
    assert row["saving_pct"] == pytest.approx(100 * (1 - row["usd_per_hour"] / count))
    assert any(f"{row['saving_pct']:.0f} % less" in line for line in answer_lines(plain(found)))


def test_spot_that_is_always_taken_back_is_no_fleet() -> None:
    """Taken back a thousand times an hour and replaced after an hour: as good as nothing."""
    spot = {"share": 1, "prices": {"unit": 0.9}, "reclaims_per_hour": 1000, "notice_s": 1, "replace_s": 3600}
    found = planned(spot=spot, prices={"unit": 1.0})
    assert found.answer and found.answer.spot and not found.answer.spot["holds"]
    assert not any(row["holds"] for row in found.answer.spot["tried"])


@pytest.mark.parametrize(("changes", "words"), [
    ({"autoscale": SCALE, "survive": 1}, r"autoscale\.min must be > survive \(1\), so that somebody is left, got 1"),
    ({"spot": {"prices": {"unit": 1}, "reclaims_per_hour": 1, "replace_s": 1}, "survive": 1},
     "spot is not modelled with survive"),
    ({"autoscale": SCALE, "spot": {"prices": {"unit": 1}, "reclaims_per_hour": 1, "replace_s": 1}},
     "spot is not modelled with autoscale: the autoscaler would order replicas in place of those taken back"),
    ({"spot": {"prices": {"unit": 1}, "reclaims_per_hour": 1, "replace_s": 1}, "budget": {"gpus": 4}},
     "spot is not modelled with a budget"),
    ({"spot": {"prices": {"l40s": 1}, "reclaims_per_hour": 1, "replace_s": 1}}, "no such GPU among candidates.gpu"),
    ({"spot": {"prices": {"unit": 0}, "reclaims_per_hour": 1, "replace_s": 1}}, "must be > 0"),
    ({"autoscale": {"start": {}, "schedule": [{"from_s": 0, "to_s": 9, "replicas": 1}]}}, "metric must be given"),
    ({"autoscale": SCALE | {"grace_s": 10}}, "not modelled in a plan"),
])  # fmt: skip
def test_what_is_not_modelled_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_from(asked(**changes))


def numbered(rows: list[list[int]]) -> Trace:
    """A request a row, its prompt in blocks of 16 with these numbers; the first 100 tokens are a system prompt."""
    count = np.array([len(row) for row in rows])
    extras = Extras(hash_ids=np.concatenate([np.array(row) for row in rows]), hash_ends=np.cumsum(count), hash_block=16,
                    opening=np.zeros(len(rows), dtype=np.int64), opening_tokens=np.full(len(rows), 100))  # fmt: skip
    columns = {name: np.arange(len(rows)) for name in ("id", "arrival_ns")}
    tokens = {"prompt": 16 * count, "output": count, "max_tokens": count, "cached": np.full(len(rows), 40)}
    return Trace(**columns, **tokens, cls=np.zeros(len(rows), dtype=np.int32), extras=extras)


def test_more_of_a_prompt_is_known_and_prompts_stay_as_long() -> None:
    """Five blocks are known of the second prompt and of the third: a fifth more is one block, the same in both. The
    fourth repeats seven of the second; of those one is changed, and it is still found. 100 and 40 tokens are 120 and
    48, unless the prompt ends before."""
    common = [1, 2, 3, 4, 5]
    trace = numbered([[*common, 6, 7, 8, 9, 10], [*common, 11, 12, 13, 14, 15], [*common, 21, 22, 23, 24, 25],
                      [*common, 11, 12]])  # fmt: skip
    more = changed_trace(trace, ("hit rate", 1.2), 0)
    ids = np.split(more.extras.hash_ids, more.extras.hash_ends[:-1])
    assert ids[0].tolist() == [*common, 6, 7, 8, 9, 10]
    assert ids[1].tolist() == [*common, 26, 12, 13, 14, 15] and ids[2].tolist() == [*common, 26, 22, 23, 24, 25]
    assert ids[3].tolist() == [*common, 26, 12]
    assert more.extras.opening_tokens.tolist() == [120, 120, 120, 112] and more.cached.tolist() == [48] * 4
    assert more.prompt.tolist() == trace.prompt.tolist()
    assert can_share_more(trace)
    none = np.zeros(4, dtype=np.int64)
    assert not can_share_more(replace(trace, cached=none, extras=Extras(session=none)))


def test_a_higher_hit_rate_carries_more() -> None:
    """Prompts of 2,150 tokens of which 2,000 are one of four system prompts; of a fifth of the requests nothing is
    known, of all the 2,000, of all everything."""
    bench = Bench(plan_from({
        "name": "t", "workload": {"arrivals": {"kind": "poisson", "rate": 10, "requests": 400}, "prompt": 150,
                                  "output": 20, "prefix": {"groups": 4, "length": 2000}},
        "slo": {"ttft_p90_s": 1}, "candidates": {"gpu": "l40s"}, "max_model_len": 4096}))  # fmt: skip
    (candidate,) = candidates_of(bench.spec)
    ttft = [bench.run(Point(candidate, 1, full=True, way=way))["values"]["ttft * 90"]
            for way in (("hit rate", 0.8), None, ("hit rate", 1.2))]  # fmt: skip
    assert ttft[0] > 1.1 * ttft[1] and ttft[1] > 1.1 * ttft[2]


def test_the_cost_follows_the_price_and_the_length_of_answers() -> None:
    """A replica serves 4 / (0.1 s x tokens) requests a second: a fifth fewer or more tokens move the cost by a fifth,
    prompts of one token, which stay one, by nothing."""
    found = plan(plan_from(asked(workload={"arrivals": {"kind": "poisson", "rate": 4, "requests": 8000}, "prompt": 1,
                                           "output": 20}, slo={"ttft_p90_s": 20.0})), jobs=1)  # fmt: skip
    assert found.answer
    rows = {row["input"]: row for row in found.answer.sensitivity}
    assert set(rows) == {"price", "prompt length", "output length", "burstiness"}
    assert (rows["price"]["down"]["cost"], rows["price"]["up"]["cost"]) == (0.8, 1.2)
    assert rows["output length"]["down"]["cost"] == pytest.approx(0.8, rel=0.03)
    assert rows["output length"]["up"]["cost"] == pytest.approx(1.2, rel=0.03)
    assert rows["prompt length"]["up"]["cost"] == pytest.approx(1.0, rel=0.015)
    assert rows["burstiness"]["down"]["cost"] <= rows["burstiness"]["up"]["cost"]
    spreads = [row["spread"] for row in found.answer.sensitivity]
    assert spreads == sorted(spreads, reverse=True)
    picture = tornado(found.answer.sensitivity)
    assert picture.count("var(--good)") >= 2 and picture.count("var(--bad)") >= 2


@pytest.mark.parametrize(("down", "up", "spread"), [(np.inf, 0.8, np.log(1.25)), (np.inf, np.inf, 0.0),
                                                    (1.25, 0.0, np.log(1.25)), (2.0, 0.5, np.log(4))])
def test_an_end_without_a_wall_or_a_rate_has_no_cost(down: float, up: float, spread: float) -> None:
    """The wall moves by `down` and `up`; cost goes as 1 / wall, and only ends that have one span the range."""
    moved = iter((down, up))
    search: Any = SimpleNamespace(moved=lambda *_, **__: next(moved))
    fleet: Any = SimpleNamespace(candidate=SimpleNamespace(beside=None), serving=2, replicas=2, spare=0)
    row = Sensitivity(search, fleet, 1.0, 1.5, 0.0, 1.2, (2, 2))._row("output length", 0.2)
    assert row["spread"] == pytest.approx(spread)


@pytest.mark.parametrize("factor", [0.75, 1.25])
def test_other_gaps_keep_the_span_of_every_stretch(factor: float) -> None:
    arrivals = {"kind": "diurnal", "rate": 5, "amplitude": 0.8, "period_s": 2000, "duration_s": 2000}
    trace = build_trace(parse_workload({"arrivals": arrivals, "prompt": 10, "output": 5}), 3, 0)
    changed = changed_trace(trace, ("burstiness", factor), 0)
    gaps, other = np.diff(trace.arrival_ns).astype(float), np.diff(changed.arrival_ns).astype(float)
    assert variation(other) / variation(gaps) == pytest.approx(factor, rel=0.01)
    ends = np.arange(0, len(trace), BLOCK)
    assert np.abs(changed.arrival_ns[ends] - trace.arrival_ns[ends]).max() <= 10_000  # [ns] of rounding
    assert (other >= 0).all() and (changed.prompt == trace.prompt).all()


def test_lengths_scale_and_stay_at_least_one_token() -> None:
    trace = build_trace(parse_workload({"requests": {"prompt": [1, 10, 100], "output": [1, 5, 50]}}), 0, 0)
    assert changed_trace(trace, ("prompt length", 0.8), 0).prompt.tolist() == [1, 8, 80]
    longer = changed_trace(trace, ("output length", 1.2), 0)
    assert longer.output.tolist() == [1, 6, 60] and (longer.max_tokens >= longer.output).all()


@pytest.mark.parametrize(("moved", "replicas", "does"), [(1.0, 8, True), (0.995, 8, True), (0.8, 10, False),
                                                         (1.25, 7, True)])
def test_replicas_are_those_bought_with_the_margin(moved: float, replicas: int, does: bool) -> None:
    """Eight replicas surely carry the traffic and nothing more, a mean prediction of them 1.25 times as much: by hand
    8 / moved, rounded up; within a wall's accuracy of 1 % nothing moves."""
    search: Any = SimpleNamespace(moved=lambda *_, **__: moved)
    fleet: Any = SimpleNamespace(candidate=SimpleNamespace(beside=None), serving=8, replicas=8, spare=0)
    end = Sensitivity(search, fleet, 1.0, 1.25, 0.1, 1.0, (6, 8))._end("output length", 1.2)
    assert (end["replicas"], end["does"]) == (replicas, does)


@pytest.mark.parametrize(("factor", "moved", "replicas"), [(0.9, 1.1, 6), (1.1, 0.75, 8)])
def test_step_times_within_the_margin_take_the_range_of_the_search(factor: float, moved: float, replicas: int) -> None:
    """The fleet was searched with those steps, so it does whatever the walls of one replication say."""
    search: Any = SimpleNamespace(moved=lambda *_, **__: moved)
    fleet: Any = SimpleNamespace(candidate=SimpleNamespace(beside=None), serving=8, replicas=8, spare=0)
    end = Sensitivity(search, fleet, 1.0, 1.25, 0.1, 1.0, (6, 8))._end("step time", factor)
    assert (end["replicas"], end["does"]) == (replicas, True)

"""The fleet over time: hours, cost and targets met are those of the run; manifests say what was simulated."""

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from simulator import scenario_from, simulate
from simulator.cli.run import print_result
from simulator.engines.members import DOWN, DRAINING, STARTING, UP
from simulator.metrics.fleet import stays
from simulator.report.autoscaler import manifests
from simulator.report.fleet import attained, fleet_figure, wanted_over_time
from simulator.report.page import render_report
from simulator.report.timeline import end_tick, start_tick
from simulator.report.write import write_result
from simulator.run import Result
from simulator.units import NS_PER_S

START = {"node_s": 10, "weights_s": 20}


def result(auto: dict[str, Any] | None = None, **cluster: Any) -> Result:
    """Requests of 4 s, one every 2 s until 40 s and one at 300 s, on up to three replicas."""
    arrivals = [2.0 * k for k in range(21)] + [300.0]
    given = {"metric": "requests", "target": 1, "start": START, **(auto or {})}
    return simulate(scenario_from({
        "name": "Ä fleet", "workload": {"requests": {"arrival_s": arrivals, "prompt": [1] * 22, "output": [4] * 22}},
        "hardware": "unit", "max_model_len": 99, "policy": {"name": "chunked", "max_num_seqs": 1}, "slo": {"ttft_s": 3},
        "cluster": {"replicas": 3, "router": "least_outstanding", "autoscale": given, **cluster}}), "reference")


def test_states_fill_the_time_and_make_the_hours() -> None:
    done = result(events=[{"at_s": 20, "kind": "crash", "replica": 0, "for_s": 7}])
    begin, end = start_tick(done), end_tick(done)
    found = stays(done, begin, end)
    for r in range(3):
        own = np.flatnonzero(found.replica == r)
        assert found.start[own[0]] == begin and found.end[own[-1]] == end
        assert (found.start[own[1:]] == found.end[own[:-1]]).all()
    own = done.summary["fleet"]
    assert own["hours"]["down"] * 3600 == 7 and own["hours"]["starting"] * 3600 == 2 * 30
    assert own["replica_hours"] == pytest.approx(sum(own["hours"].values()))
    assert own["usd_fixed"] == pytest.approx(3 * done.summary["makespan_s"] / 3600)
    assert {UP, DOWN, STARTING} <= set(found.state.tolist()) and found.spent(DRAINING) >= 0


def test_targets_met_over_time_add_up_to_the_share_of_the_run() -> None:
    done = result()
    found = attained(done)
    assert found is not None
    edges, share = found
    arrival = done.requests.arrival / NS_PER_S
    counts, _ = np.histogram(arrival, edges)
    assert np.nansum(share * counts) / 22 == pytest.approx(done.summary["goodput"]["attained"])


def test_wanted_replicas_follow_the_decisions() -> None:
    tick, wanted = wanted_over_time(result())
    assert (tick[0], wanted[0]) == (0, 1) and (tick[1] / NS_PER_S, wanted[1]) == (15, 3)
    # the last recommendation of three is of 45 s: it holds for 300 s
    assert wanted.max() == 3


def test_the_page_says_what_the_fleet_was_and_cost() -> None:
    page = render_report(result(events=[{"at_s": 20, "kind": "crash", "replica": 0, "for_s": 7}]))
    assert "The fleet had 1 to 3 replicas" in page and "replica hours" in page
    assert "Replicas were out of service for 7 s in all" in page and "submitted again" in page and "∞</" not in page
    for title in ("replicas", "requests a replica, as the autoscaler read it", "requests that met every target"):
        assert title in page


def test_the_page_says_that_some_never_got_an_answer() -> None:
    """Who is lost for good waits for ever, in the cards and in the table."""
    done = result(events=[{"at_s": 20, "kind": "crash", "replica": 0, "for_s": 7}], retries=0)
    lost = done.summary["requests"]["lost"]
    page = render_report(done)
    assert lost > 0 and f"times, {lost} of them for good" in page and page.count("∞</") > 3


def test_pictures_say_whose_crash_and_whose_metric_it_is() -> None:
    """Two pools, one of them autoscaled: a crash of one replica, a restart of a whole pool."""
    auto = {"metric": "requests", "target": 1, "start": START}
    pools = {"short": {"replicas": 2, "serves": {"max_prompt_tokens": 5}},
             "long": {"replicas": 2, "serves": {"min_prompt_tokens": 6}, "autoscale": auto}}
    events = [{"at_s": 5, "kind": "crash", "pool": "long", "replica": 1, "for_s": 7},
              {"at_s": 9, "kind": "drain", "pool": "short", "for_s": 7}]
    done = simulate(scenario_from({
        "workload": {"requests": {"arrival_s": [0, 20, 40], "prompt": [1, 9, 9], "output": [4, 4, 4]}},
        "hardware": "unit", "max_model_len": 99, "cluster": {"pools": pools, "events": events}}), "reference")
    replicas, metric, *_ = fleet_figure(done).axes
    assert {text.get_text() for text in replicas.texts} >= {"crash long 1", "drain short"}
    assert metric.get_title("left") == "requests a replica, as the autoscaler of pool long read it"


def test_the_terminal_says_what_the_fleet_was_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(result())
    assert "The fleet had 1 to 3 replicas" in capsys.readouterr().out


def test_a_fleet_that_stayed_as_it_was_is_said_to_have() -> None:
    assert "The fleet had 1 replica all the time (" in render_report(result({"target": 1000}))


def test_a_fixed_fleet_has_no_such_picture() -> None:
    fixed = simulate(result().scenario.updated({"cluster.autoscale": None}), "reference")
    assert "fleet" not in fixed.summary and "as the autoscaler read it" not in render_report(fixed)


def test_a_fleet_that_nobody_was_sent_to_has_a_page() -> None:
    auto = {"formula": "keda", "min": 0, "metric": "requests"}
    none = result(auto).scenario.updated({"workload": {"requests": {"output": [1, 1], "prompt": [200, 200]}}})
    done = simulate(none, "reference")
    assert done.summary["requests"]["rejected"] == 2
    page = render_report(done)
    assert "The fleet had" not in page and "2 requests" in page


def test_files(tmp_path: Path) -> None:
    done = result()
    write_result(done, tmp_path / "out", report=False)
    assert done.fleet is not None
    assert pq.read_table(tmp_path / "out" / "fleet.parquet").num_rows == len(done.fleet)
    assert (tmp_path / "out" / "autoscaler.yaml").read_text() == manifests(done)


@pytest.mark.parametrize("auto", [
    {}, {"metric": "kv", "target": 0.85}, {"metric": "ttft", "target": 1.5, "scale_up": {"pods": 2, "percent": 0}},
    {"scale_down": {"percent": 10, "period_s": 60}, "scale_down_window_s": 600, "sync_s": 30, "min": 2},
])
def test_hpa_manifest_is_valid_and_says_what_was_simulated(auto: dict[str, Any]) -> None:
    body = yaml.safe_load(manifests(result(auto)))
    kubernetes_validate.validate(body, "1.30", strict=True)
    spec = body["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (auto.get("min", 1), 3)
    (metric,) = spec["metrics"]
    target = metric.get("pods", metric.get("external"))["target"]
    assert target.get("averageValue", target.get("value")) == {"kv": "850m", "ttft": "1500m"}.get(
        auto.get("metric", ""), "1")
    down, up = spec["behavior"]["scaleDown"], spec["behavior"]["scaleUp"]
    assert down["stabilizationWindowSeconds"] == auto.get("scale_down_window_s", 300)
    assert down["policies"] == [{"type": "Percent", "value": 10, "periodSeconds": 60} if "scale_down" in auto else
                                {"type": "Percent", "value": 100, "periodSeconds": 15}]
    pods = {"type": "Pods", "value": 2 if "scale_up" in auto else 4, "periodSeconds": 15}
    assert up["policies"][0] == pods and len(up["policies"]) == (1 if "scale_up" in auto else 2)
    assert ("sync-period=30s" in manifests(result(auto))) == ("sync_s" in auto)


@pytest.mark.parametrize("formula", ["hpa", "keda"])
def test_forecast_manifest_says_what_was_simulated(formula: str) -> None:
    """Field names of jthomperoo/predictive-horizontal-pod-autoscaler 0.13, api/v1alpha1; what is not of a model is what
    a HorizontalPodAutoscaler has. KEDA's sum is an external metric there."""
    text = manifests(result({"formula": formula, "sync_s": 10, "forecast": {"history": 12}}))
    body = yaml.safe_load(text)
    assert (body["apiVersion"], body["kind"]) == ("jamiethompson.me/v1alpha1", "PredictiveHorizontalPodAutoscaler")
    spec = body["spec"]
    own = {key: spec.pop(key) for key in ("models", "syncPeriod", "tolerance", "decisionType")}
    assert own == {"models": [{"type": "Linear", "name": "linear", "linear": {"lookAhead": 30_000, "historySize": 12}}],
                   "syncPeriod": 10_000, "tolerance": 0.1, "decisionType": "maximum"}
    plain = body | {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
    kubernetes_validate.validate(plain, "1.30", strict=True)
    (metric,) = spec["metrics"]
    kind = "pods" if formula == "hpa" else "external"
    assert metric[kind]["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert "kube-controller-manager" not in text


def only(required: str = "", **properties: Any) -> dict[str, Any]:
    """An object of these properties and no others."""
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required.split()}


WHOLE, TEXT = {"type": "integer", "minimum": 0}, {"type": "string"}
SCALED_OBJECT = only(
    "apiVersion kind metadata spec", apiVersion={"const": "keda.sh/v1alpha1"}, kind={"const": "ScaledObject"},
    metadata=only("name", name=TEXT),
    spec=only(
        "scaleTargetRef triggers", pollingInterval=WHOLE, cooldownPeriod=WHOLE, initialCooldownPeriod=WHOLE,
        idleReplicaCount=WHOLE, minReplicaCount=WHOLE, maxReplicaCount=WHOLE, fallback={"type": "object"},
        scaleTargetRef=only("name", apiVersion=TEXT, kind=TEXT, name=TEXT, envSourceContainerName=TEXT),
        advanced=only(restoreToOriginalReplicaCount={"type": "boolean"},
                      horizontalPodAutoscalerConfig=only(name=TEXT, behavior={"type": "object"})),
        triggers={"type": "array", "items": only(
            "type metadata", type=TEXT, name=TEXT, metricType={"enum": ["AverageValue", "Value", "Utilization"]},
            useCachedMetrics={"type": "boolean"}, authenticationRef={"type": "object"},
            metadata={"type": "object", "additionalProperties": TEXT})}))  # fmt: skip
"""ScaledObject of KEDA 2 (keda.sh, its custom resource definition): every value of a trigger is text."""


@pytest.mark.parametrize("auto", [
    {}, {"min": 0, "metric": "waiting", "polling_s": 5, "cool_down_s": 60}, {"metric": "ttft", "target": 1.5},
    {"schedule": [{"from_s": 3600, "to_s": 7200, "replicas": 2}], "scale_down": {"percent": 10, "period_s": 60}},
])
def test_keda_manifest_is_a_scaled_object(auto: dict[str, Any]) -> None:
    """Its behaviour is that of a HorizontalPodAutoscaler, which Kubernetes' own schema is asked about."""
    body = yaml.safe_load(manifests(result({"formula": "keda"} | auto)))
    jsonschema.Draft202012Validator(SCALED_OBJECT).validate(body)
    spec, target = body["spec"], {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}
    scaler = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "x"},
              "spec": {"scaleTargetRef": target, "maxReplicas": spec["maxReplicaCount"],
                       "behavior": spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]}}  # fmt: skip
    kubernetes_validate.validate(scaler, "1.30", strict=True)


def test_keda_manifest_says_what_was_simulated() -> None:
    """Field names of keda.sh: ScaledObject specification, Prometheus and Cron scalers."""
    auto = {"formula": "keda", "min": 0, "polling_s": 10, "cool_down_s": 60,
            "schedule": [{"from_s": 3600 * 7 + 1800, "to_s": 3600 * 20, "replicas": 2}]}
    body = yaml.safe_load(manifests(result(auto)))
    spec = body["spec"]
    assert (body["kind"], body["metadata"]["name"]) == ("ScaledObject", spec["scaleTargetRef"]["name"])
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], spec["pollingInterval"], spec["cooldownPeriod"]) == (
        0, 3, 10, 60)
    prometheus, cron = spec["triggers"]
    assert prometheus["metricType"] == "AverageValue" and prometheus["metadata"]["threshold"] == "1"
    assert "vllm:num_requests_waiting" in prometheus["metadata"]["query"]
    assert cron["metadata"] == {"timezone": "Etc/UTC", "start": "30 7 * * *", "end": "0 20 * * *",
                                "desiredReplicas": "2"}


def test_cost_is_drawn_once_where_the_fleet_stays() -> None:
    """A crash keeps every replica paid for: no second line of what all of them all the time would cost."""
    crash = [{"at_s": 20, "kind": "crash", "replica": 0, "for_s": 7}]
    changed = result(events=crash)
    fixed = simulate(changed.scenario.updated({"cluster.autoscale": None}), "reference")
    for done, lines in ((changed, 2), (fixed, 1)):
        cost = fleet_figure(done).axes[-1]
        assert len(cost.lines) == lines and len(cost.texts) == lines

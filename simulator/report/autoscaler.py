"""The autoscaling that was simulated as manifests: a HorizontalPodAutoscaler, one with forecasts, a ScaledObject.

Fields are those of autoscaling/v2 (kubernetes.io, HorizontalPodAutoscaler), keda.sh/v1alpha1 (keda.sh, ScaledObject
specification; Prometheus and Cron scalers) and jamiethompson.me/v1alpha1 (Predictive Horizontal Pod Autoscaler 0.13,
api/v1alpha1/predictivehorizontalpodautoscaler_types.go). Metrics are vLLM's; what the manifest cannot say stands in a
comment.
"""

from typing import Any, Final

import yaml

from simulator.report.plan.names import service_name
from simulator.run import Result
from simulator.scenario.autoscale import COOL_DOWN_S, DAY_S, POLLING_S, AutoscaleSpec, RateSpec, ShiftSpec
from simulator.scenario.changes import autoscaled

QUERIES: Final = {
    "waiting": "sum(vllm:num_requests_waiting{{{where}}})",
    "running": "sum(vllm:num_requests_running{{{where}}})",
    "requests": "sum(vllm:num_requests_waiting{{{where}}}) + sum(vllm:num_requests_running{{{where}}})",
    "kv": "sum(vllm:kv_cache_usage_perc{{{where}}})",
    "ttft": "sum(rate(vllm:time_to_first_token_seconds_sum{{{where}}}[{window:.0f}s])) / "
    "sum(rate(vllm:time_to_first_token_seconds_count{{{where}}}[{window:.0f}s]))",
}
"""PromQL of each metric, over the pods of the fleet."""
ADAPTED: Final = {"waiting": "vllm_num_requests_waiting", "running": "vllm_num_requests_running",
                  "requests": "vllm_num_requests", "kv": "vllm_kv_cache_usage_perc",
                  "ttft": "vllm_time_to_first_token_seconds_mean"}
"""Names under which an adapter (prometheus-adapter) gives them to Kubernetes."""
MINUTE_S: Final = 60.0


def manifests(result: Result) -> str:
    """One YAML document an autoscaler; empty where the fleet does not change its size by itself."""
    scenario, pools = result.scenario, list(result.scenario.cluster.pools)
    found = []
    for pool, _, spec, most in autoscaled(scenario.cluster):
        name = service_name(f"{scenario.name}-{pools[pool]}" if pools else scenario.name)
        found.append(manifest(name, spec, most))
    return "---\n".join(found)


def manifest(name: str, spec: AutoscaleSpec, most: int) -> str:
    """The YAML document of one autoscaler of the Deployment `name`, of at most so many replicas."""
    notes, body = (_hpa if spec.formula == "hpa" or spec.forecast else _scaled_object)(name, spec, most)
    if spec.forecast is not None:
        body = _predictive(body, spec)
    text = yaml.safe_dump(body, sort_keys=False, width=120)
    return "".join(f"# {note}\n" for note in [*_notes(spec), *notes]) + text


def _notes(spec: AutoscaleSpec) -> list[str]:
    """What belongs elsewhere: to the pods, and to the controller."""
    start = spec.start
    notes = [f"simulated with {start.total_s:g} s from order to service: node {start.node_s:g}, image "
             f"{start.image_s:g}, weights {start.weights_s:g}, compilation {start.compile_s:g}"]
    if spec.grace_s:
        notes.append(f"the pods need terminationGracePeriodSeconds: {spec.grace_s:.0f}")
    else:
        notes.append("the pods need a terminationGracePeriodSeconds that is longer than any answer")
    if spec.forecast is not None:
        return notes
    if spec.sync_s != AutoscaleSpec.model_fields["sync_s"].default:
        notes.append(f"kube-controller-manager --horizontal-pod-autoscaler-sync-period={spec.sync_s:g}s")
    if spec.tolerance != AutoscaleSpec.model_fields["tolerance"].default:
        notes.append(f"kube-controller-manager --horizontal-pod-autoscaler-tolerance={spec.tolerance:g}")
    return notes


def _quantity(value: float) -> str:
    """A number as Kubernetes writes it: whole, or in thousandths."""
    milli = round(1000 * value)
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def _behavior(spec: AutoscaleSpec) -> dict[str, Any]:
    def rules(window_s: float, rate: RateSpec) -> dict[str, Any]:
        policies = [{"type": kind, "value": value, "periodSeconds": round(rate.period_s)}
                    for kind, value in (("Pods", rate.pods), ("Percent", rate.percent)) if value]
        if not policies:
            return {"stabilizationWindowSeconds": round(window_s), "selectPolicy": "Disabled"}
        return {"stabilizationWindowSeconds": round(window_s), "selectPolicy": "Max", "policies": policies}

    return {"scaleUp": rules(spec.scale_up_window_s, spec.scale_up),
            "scaleDown": rules(spec.scale_down_window_s, spec.scale_down)}


def _hpa(name: str, spec: AutoscaleSpec, most: int) -> tuple[list[str], dict[str, Any]]:
    notes, metrics = [], []
    if spec.metric is not None and spec.target is not None:
        adapted = ADAPTED[spec.metric]
        query = QUERIES[spec.metric].format(where=f'pod=~"{name}-.*"', window=spec.ttft_window_s)
        if spec.metric == "ttft":
            notes.append(f"an adapter must give the external metric {adapted}: {query}")
            metrics.append({"type": "External", "external": {
                "metric": {"name": adapted}, "target": {"type": "Value", "value": _quantity(spec.target)}}})
        elif spec.formula == "keda":
            notes.append(f"an adapter must give the external metric {adapted}: {query}, and what waits at the gateway")
            target = {"type": "AverageValue", "averageValue": _quantity(spec.target)}
            metrics.append({"type": "External", "external": {"metric": {"name": adapted}, "target": target}})
        else:
            notes.append(f"an adapter must give {adapted} of each pod; over all of them it is {query}")
            target = {"type": "AverageValue", "averageValue": _quantity(spec.target)}
            metrics.append({"type": "Pods", "pods": {"metric": {"name": adapted}, "target": target}})
    if spec.schedule:
        notes.append("a HorizontalPodAutoscaler has no schedule: the simulated one needs another tool (KEDA's cron)")
    body = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name},
            "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                     "minReplicas": spec.min, "maxReplicas": most, "metrics": metrics, "behavior": _behavior(spec)}}
    if not metrics:
        del body["spec"]["metrics"]  # type: ignore[attr-defined]
    return notes, body


def _predictive(body: dict[str, Any], spec: AutoscaleSpec) -> dict[str, Any]:
    """The HorizontalPodAutoscaler `body` with a forecast; what is the controller's there is its own here."""
    assert spec.forecast is not None
    model = {"type": "Linear", "name": "linear", "linear": {"lookAhead": round(1000 * spec.look_ahead_s),
                                                             "historySize": spec.forecast.history}}
    own = {"syncPeriod": round(1000 * spec.sync_s), "tolerance": spec.tolerance, "decisionType": "maximum",
           "models": [model]}
    return {"apiVersion": "jamiethompson.me/v1alpha1", "kind": "PredictiveHorizontalPodAutoscaler",
            "metadata": body["metadata"], "spec": body["spec"] | own}


def _scaled_object(name: str, spec: AutoscaleSpec, most: int) -> tuple[list[str], dict[str, Any]]:
    notes: list[str] = []
    triggers: list[dict[str, Any]] = []
    if spec.metric is not None and spec.target is not None:
        notes.append("serverAddress is an example; what waits at the gateway is in its metrics, not in vLLM's")
        given = {"serverAddress": "http://prometheus.monitoring:9090", "threshold": f"{spec.target:g}",
                 "query": QUERIES[spec.metric].format(where=f'pod=~"{name}-.*"', window=spec.ttft_window_s)}
        if spec.activation:
            given["activationThreshold"] = f"{spec.activation:g}"
        triggers.append({"type": "prometheus", "metricType": "Value" if spec.metric == "ttft" else "AverageValue",
                         "metadata": given})
    for shift in spec.schedule:
        trigger = _cron(shift)
        if trigger is None:
            notes.append(f"not a time of the day in whole minutes: {shift.replicas} replicas from {shift.from_s:g} to "
                         f"{shift.to_s:g} s of every {shift.every_s:g} s")
        else:
            triggers.append(trigger)
    body: dict[str, Any] = {
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": name},
        "spec": {"scaleTargetRef": {"name": name}, "minReplicaCount": spec.min, "maxReplicaCount": most,
                 "pollingInterval": round(spec.polling_s or POLLING_S),
                 "cooldownPeriod": round(COOL_DOWN_S if spec.cool_down_s is None else spec.cool_down_s),
                 "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(spec)}}, "triggers": triggers}}
    return notes, body


def _cron(shift: ShiftSpec) -> dict[str, Any] | None:
    """A shift as KEDA's cron trigger; None where it is not daily in whole minutes."""
    if shift.every_s != DAY_S or shift.from_s % MINUTE_S or shift.to_s % MINUTE_S or not shift.replicas:
        return None
    begin, end = (f"{int(at // MINUTE_S) % 60} {int(at // 3600) % 24} * * *" for at in (shift.from_s, shift.to_s))
    return {"type": "cron", "metadata": {"timezone": "Etc/UTC", "start": begin, "end": end,
                                         "desiredReplicas": str(shift.replicas)}}

"""The columns that a policy needs of the requests, from the trace or from the scenario's keys."""

from collections.abc import Callable
from typing import Final

import numpy as np

from policies.fastserve import DEEPEST
from policies.registry import Policy
from policies.vtc import FIRST, UNIT
from simulator.cost.step import Cost, dense_time, prefill_attention_time, table_at
from simulator.engines.job import Job
from simulator.errors import ConfigError, UnknownNameError
from simulator.scenario.spec import Scenario
from simulator.state import LARGEST_COUNT, Replica
from simulator.units import MAX_TICKS, to_ticks
from simulator.workload.streams import stream
from simulator.workload.trace import Int64s, Trace


def asked(policy: Policy, scenario: Scenario, trace: Trace, replication: int, cost: Cost,
          quantum: int) -> dict[str, Int64s]:
    """The columns of registry.ASKS that the policy needs, or who sheds by priority. Raises ConfigError where nothing
    says what they hold."""
    columns = {name: _MAKERS[name](scenario, trace, replication) for name in policy.needs if name != "joins"}
    if "joins" in policy.needs:
        columns["joins"] = _joins(trace, cost, quantum)
    if scenario.admission.shed:
        columns["priority"] = _given_priority(trace, scenario.place("admission.shed"))
    return columns


def _joins(trace: Trace, cost: Cost, quantum: int) -> Int64s:
    """The first level of fastserve whose quantum is no shorter than the step of the prompt alone."""
    lengths, where = np.unique(trace.prompt, return_inverse=True)
    levels = np.zeros(lengths.size, dtype=np.int64)
    for k, tokens in enumerate(lengths.tolist()):
        step = prompt_ns(cost, tokens)
        while quantum << int(levels[k]) < step and levels[k] < DEEPEST:
            levels[k] += 1
    found: Int64s = levels[where]
    return found


def prompt_ns(cost: Cost, tokens: int) -> int:
    """[ns] of a step with one whole prompt: the CPU prepares it, the GPU computes it."""
    gpu = dense_time(cost, 1, tokens) + prefill_attention_time(cost, 1, tokens, tokens * (tokens + 1) // 2)
    return int(table_at(cost.prep_ns, 1, tokens) + cost.prep_seq_ns + gpu)


def _missing(scenario: Scenario, what: str, accepted: str) -> ConfigError:
    return ConfigError(f"{scenario.place('policy')}: {scenario.policy.name} needs {what} of every request; accepted: "
                       f"{accepted}")


def _given_priority(trace: Trace, who: str) -> Int64s:
    if trace.asks.priority is None:
        raise ConfigError(f"{who} needs the priority of every request; accepted: priority in workload.classes or "
                          "workload.requests, or a column of the trace (columns: {priority: NAME})")
    return trace.asks.priority


def _priority(scenario: Scenario, trace: Trace, replication: int) -> Int64s:
    """Of the trace; aging must stay within int64."""
    column = _given_priority(trace, f"{scenario.place('policy')}: {scenario.policy.name}")
    aging, most = scenario.policy.aging_s or 0.0, int(np.abs(column).max())
    if most * to_ticks(aging) > MAX_TICKS:
        raise ConfigError(f"{scenario.place('policy')}: aging_s x the largest priority must be <= "
                          f"{MAX_TICKS / 1e9:.0f} s, got {aging:g} x {most}")
    return column


def _tenant(scenario: Scenario, trace: Trace, replication: int) -> Int64s:
    """Of the trace; where it names none, each class is one."""
    return trace.cls.astype(np.int64) if trace.asks.tenant is None else trace.asks.tenant


def tenants_of(trace: Trace) -> tuple[str, ...]:
    """Names of the tenants, by index."""
    return trace.class_names if trace.asks.tenant is None else trace.asks.tenants


def weigh_tenants(scenario: Scenario, trace: Trace, job: Job) -> None:
    """Write policy.tenant_weights into aux, as vtc reads them. Raises UnknownNameError."""
    names = tenants_of(trace)
    for name, weight in (scenario.policy.tenant_weights or {}).items():
        if name not in names:
            raise UnknownNameError("tenant", name, names, f"{scenario.place('policy')}: tenant_weights")
        at, unit = FIRST + 2 * names.index(name) + 1, round(UNIT / weight)
        for aux in job.reps.aux if isinstance(job.reps, Replica) else [rep.aux for rep in job.reps]:
            aux[at] = unit


def _predicted(scenario: Scenario, trace: Trace, replication: int) -> Int64s:
    """[tokens] of the trace, or the true length times a lognormal error of median 1."""
    error, place = scenario.policy.prediction_error, scenario.place("policy")
    if trace.asks.predicted is not None:
        if error is not None:
            raise ConfigError(f"{place}: prediction_error has no effect, the requests come with predictions; remove it")
        return trace.asks.predicted
    if error is None:
        raise _missing(scenario, "a predicted length", "policy.prediction_error (0 = always right), predicted in "
                       "workload.requests, or a column of the trace (columns: {predicted: NAME})")
    factor = np.exp(error * stream(scenario.seed, "prediction", replication).standard_normal(len(trace)))
    guess: Int64s = np.clip(np.rint(trace.output * factor), 1, LARGEST_COUNT).astype(np.int64)
    return guess


def _target(scenario: Scenario, trace: Trace, replication: int) -> Int64s:
    """[ns] of the trace; where it has none, that of the scenario."""
    given, common = trace.asks.target_ns, scenario.slo.ttft_s
    column = np.full(len(trace), -1, dtype=np.int64) if given is None else given
    if common is None and (column < 0).any():
        raise _missing(scenario, "the wanted time to first token", "slo.ttft_s, ttft_target_s in workload.classes or "
                       "workload.requests, or a column of the trace (columns: {ttft_target: NAME})")
    return column if common is None else np.where(column < 0, to_ticks(common), column)


_MAKERS: Final[dict[str, Callable[[Scenario, Trace, int], Int64s]]] = {
    "priority": _priority, "tenant": _tenant, "predicted": _predicted, "target": _target}

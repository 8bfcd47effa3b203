"""What if: a scenario and named changes of it, as a table of differences with intervals.

    replications: 5
    confidence: 0.9
    overlays:
      - {name: twice the traffic, traffic: 2}
      - {name: fp8 weights, set: {hardware.weight_dtype: fp8}}
      - {name: one replica lost, lose_replicas: 1}

Replication k of every overlay replays the arrivals and lengths of replication k of the base (common random
numbers), so a difference is not blurred by chance that both share.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import Field, model_validator

from policies.registry import Policy
from simulator.config import Document, Section, validate
from simulator.engine_choice import announce, to_compile
from simulator.errors import CapacityError, ConfigError, NoProgressError, ServecastError
from simulator.metrics.fleet import HOUR_NS, cost_usd, paid_ns
from simulator.metrics.intervals import interval, paired
from simulator.metrics.latency import fates
from simulator.metrics.pools import parts
from simulator.metrics.summary import begin_ns, makespan_ns
from simulator.planning.measure import Wanted, key_of, measure
from simulator.planning.news import INTERRUPTED, Tell, Teller, first_times
from simulator.planning.slo import MEAN
from simulator.planning.statistics import finite
from simulator.planning.traffic import Traffic, at_rate
from simulator.planning.trusted import trusted_run
from simulator.run import Result, simulate
from simulator.scenario.setup import prepare
from simulator.scenario.spec import Scenario, load_scenario
from simulator.text import several
from simulator.version import schema_of
from simulator.workload.trace import MAX_TOKENS, Trace
from simulator.workload.transform import with_lengths

METRICS: Final = (
    ("TTFT p50", "ttft", 50.0),
    ("TTFT p99", "ttft", 99.0),
    ("TPOT mean", "tpot", MEAN),
    ("TPOT p99", "tpot", 99.0),
    ("E2E mean", "e2e", MEAN),
    ("E2E p99", "e2e", 99.0),
    ("queue p99", "queue", 99.0),
)
"""Name, metric, percentile; all in seconds, smaller is better."""
WAITED: Final = ("ttft", "e2e", "queue")
"""Metrics with the waiting in the queue, which grows without end where more comes than is served."""
REPLICA_HOURS: Final = "replica hours"
USD_PER_MILLION: Final = "USD/M output"
"""What a fleet cost; shown where one of them changes its size."""
SHARES: Final = ("within SLO", "completed")
"""Metrics that are shares of the requests: they change by points, all others by a factor."""


class Overlay(Section):
    """One named change: scenario keys, or a factor on the traffic or the lengths, or replicas that are down."""

    name: str = Field(min_length=1)
    set: dict[str, Any] = Field(default_factory=dict)
    traffic: float = Field(default=1.0, gt=0, le=1000)
    prompt_scale: float = Field(default=1.0, gt=0, le=1000)
    output_scale: float = Field(default=1.0, gt=0, le=1000)
    lose_replicas: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _changes_something(self) -> "Overlay":
        if not self.set and self.lose_replicas == 0 and self.traffic == self.prompt_scale == self.output_scale == 1.0:
            raise ValueError(
                f"overlay {self.name!r} changes nothing; accepted: set, traffic, prompt_scale, "
                "output_scale, lose_replicas"
            )
        return self


class WhatIf(Section):
    """The overlay file."""

    name: str = "what if"
    description: str = ""
    replications: int = Field(default=5, ge=1, le=100)
    confidence: float = Field(default=0.9, gt=0.5, lt=1)
    overlays: list[Overlay] = Field(min_length=1)

    @model_validator(mode="after")
    def _named_once(self) -> "WhatIf":
        names = [overlay.name for overlay in self.overlays]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise ValueError(f"overlays: the name {twice!r} is given more than once")
        return self


@dataclass(frozen=True)
class Asked:
    """A base scenario and the changes to try."""

    base: Scenario
    whatif: WhatIf
    changed: tuple[Scenario, ...]  # one an overlay


def load_overlays(base: Path, overlays: Path, assignments: Iterable[str] = ()) -> Asked:
    """Read both files; `assignments` override the base. Raises ConfigError naming file, key and value."""
    return asked_for(load_scenario(base, assignments), Document(overlays))


def asked_for(base: Scenario, document: Document) -> Asked:
    """Check every overlay against the base."""
    whatif = validate(WhatIf, document)
    changed = []
    for k, overlay in enumerate(whatif.overlays):
        try:
            changed.append(_changed(base, overlay))
        except ConfigError as error:
            raise ConfigError(f"{document.where(('overlays', k))}: overlay {overlay.name!r}: {error}") from None
    return Asked(base, whatif, tuple(changed))


def _changed(base: Scenario, overlay: Overlay) -> Scenario:
    left = base.cluster.replicas - overlay.lose_replicas
    if left < 1:
        raise ConfigError(
            f"lose_replicas must leave one of {base.cluster.replicas} replicas, got {overlay.lose_replicas}"
        )
    changes = dict(overlay.set)
    if overlay.lose_replicas:
        changes["cluster.replicas"] = left
    return base.updated({"name": overlay.name, **changes})


def transformed(trace: Trace, overlay: Overlay) -> Trace:
    """The base's requests with the overlay's factors on rate and lengths (at least one token)."""
    trace = at_rate(trace, overlay.traffic)
    if overlay.prompt_scale == overlay.output_scale == 1.0:
        return trace

    def scaled(column: Any, key: str) -> Any:
        longer = np.maximum(1, np.rint(column * getattr(overlay, key)))
        if longer.max() > MAX_TOKENS:
            raise ConfigError(
                f"overlay {overlay.name!r}: {key} {getattr(overlay, key):g} makes {int(column.max())} tokens "
                f"{int(longer.max())}; accepted: up to {MAX_TOKENS}"
            )
        return longer.astype(np.int64)

    return with_lengths(trace, scaled(trace.prompt, "prompt_scale"), scaled(trace.output, "output_scale"),
                        scaled(trace.max_tokens, "output_scale"))


def _cost(result: Result) -> dict[str, float]:
    """Replica hours from order to release, and USD a million output tokens at the profile's example price."""
    fate = fates(result)
    span = makespan_ns(result, fate)
    begin = begin_ns(result, fate)
    tokens = int(result.requests.done[fate.arrived].sum())
    usd = cost_usd(result, list(parts(result).values()), begin, span)
    return {REPLICA_HOURS: paid_ns(result, begin, begin + span) / HOUR_NS,
            USD_PER_MILLION: 1e6 * usd / tokens if tokens else float("inf")}


def _run(scenario: Scenario, overlay: Overlay | None, replication: int, priced: bool = False) -> dict[str, Any]:
    """Simulate one replication; a change that cannot run says why. `priced`: with what the fleet cost."""
    traffic = Traffic(scenario)
    trace = traffic.trace(replication)
    limits = tuple(sorted((k.removesuffix("_s"), v) for k, v in scenario.slo.model_dump().items() if v is not None))
    wanted = Wanted(tuple((metric, None, p) for _, metric, p in METRICS), limits)
    try:
        result = simulate(scenario, trace=transformed(trace, overlay) if overlay else trace, replication=replication)
    except (CapacityError, NoProgressError) as error:
        return {"error": str(error)}
    record = measure(result, wanted)
    values = {name: record["values"][key_of(metric, None, p)] for name, metric, p in METRICS}
    seconds = (result.requests.last[result.requests.status == 3].max(initial=0) - trace.arrival_ns[0]) / 1e9
    values["output tokens/s"] = record["output_tokens"] / seconds if seconds > 0 else 0.0
    if limits:
        values["within SLO"] = record["attained"]
    values["completed"] = record["completed"] / record["arrived"]
    if priced:
        values |= _cost(result)
    return {"values": values, "overloaded": record["overloaded"], "preemptions": record["preemptions"]}


def compare(asked: Asked, *, jobs: int | None = None, progress: Tell | None = None) -> dict[str, Any]:
    """Run base and overlays; plain data for tables, HTML and JSON (infinite = null).

    Ctrl-C leaves the overlays that were done by then; `stopped` says so.
    """
    cases: list[tuple[Scenario, Overlay | None]] = [(asked.base, None)]
    cases += list(zip(asked.changed, asked.whatif.overlays, strict=True))
    count = asked.whatif.replications if Traffic(asked.base).replicable else 1
    priced = any(scenario.cluster.autoscales for scenario, _ in cases)
    tasks = [(scenario, overlay, k, priced) for scenario, overlay in cases for k in range(count)]
    teller = Teller(progress, len(cases))
    records, stopped = _until_stopped(tasks, count, jobs, teller, _to_compile(cases) if progress else [])
    groups = [records[k : k + count] for k in range(0, len(records) - count + 1, count)]
    base = groups[0]
    if "error" in base[0]:
        raise ConfigError(f"{asked.base.name}: the base cannot run: {base[0]['error']}")
    level, trace = asked.whatif.confidence, Traffic(asked.base).trace(0)
    rows = [_row("base", base, base, level)]
    rows += [_row(o.name, base, group, level) for o, group in zip(asked.whatif.overlays, groups[1:], strict=False)]
    missing = [overlay.name for overlay in asked.whatif.overlays[len(groups) - 1 :]]
    return {
        "schema": schema_of("whatif"),
        "name": asked.whatif.name,
        "description": asked.whatif.description,
        "base": asked.base.name,
        "replications": count,
        "confidence": level,
        "metrics": list(base[0]["values"]),
        "trust": trusted_run(prepare(asked.base), trace),
        "trace": trace.meta.facts,
        "rows": rows,
        "stopped": stopped,
        "missing": missing,
    }


def _until_stopped(
    tasks: list[tuple[Scenario, Overlay | None, int, bool]], count: int, jobs: int | None, teller: Teller,
    engines: Sequence[str]
) -> tuple[list[dict[str, Any]], str]:
    """Records in order, `count` of each case, and what stopped them; without a whole base nothing is left. `engines`
    are those that are compiled before each case."""
    records: list[dict[str, Any]] = []
    try:
        for k, record in enumerate(_all(tasks, jobs)):
            if k % count == 0:
                overlay = tasks[k][1]
                cases = several(len(tasks) // count, "case")
                teller.begin(f"{overlay.name if overlay else 'base'} ({k // count + 1} of {cases})",
                             ["", *engines[k // count + 1 :]])
            records.append(record)
            teller.count()
    except KeyboardInterrupt:
        if len(records) < count:
            raise
        return records, INTERRUPTED
    return records, ""


def _to_compile(cases: Iterable[tuple[Scenario, Overlay | None]]) -> list[str]:
    """The engine that is compiled before each case; empty where it is there by then."""
    found = []
    for scenario, _ in cases:
        name = ""
        with suppress(ServecastError):
            name = to_compile(prepare(scenario))
        found.append(name)
    return first_times(found)


def _policies(scenarios: Iterable[Scenario]) -> Iterator[Policy]:
    """Policies of the scenarios that can be set up."""
    for scenario in scenarios:
        with suppress(CapacityError):
            yield prepare(scenario).policy


def _all(tasks: list[tuple[Scenario, Overlay | None, int, bool]], jobs: int | None) -> Iterator[dict[str, Any]]:
    import os

    workers = jobs or os.cpu_count() or 1
    size = len(Traffic(tasks[0][0]).trace(0)) * len(tasks)
    if workers > 1 and size > 200_000:
        from joblib import Parallel, delayed  # type: ignore[import-untyped]

        announce(_policies(scenario for scenario, *_ in tasks))
        yield from Parallel(n_jobs=workers, batch_size=1, return_as="generator")(delayed(_run)(*task) for task in tasks)
        return
    for task in tasks:
        yield _run(*task)


def _overloaded(group: list[dict[str, Any]]) -> bool:
    return bool(sum(r["overloaded"] for r in group) * 2 > len(group))


def _row(name: str, base: list[dict[str, Any]], group: list[dict[str, Any]], level: float) -> dict[str, Any]:
    failed = next((r["error"] for r in group if "error" in r), None)
    if failed:
        return {"name": name, "error": failed, "overloaded": False, "cells": {}}
    cells, waited = {}, {name for name, metric, _ in METRICS if metric in WAITED}
    either = _overloaded(base) or _overloaded(group)
    for metric in base[0]["values"]:
        a, b = ([r["values"][metric] for r in runs] for runs in (base, group))
        cells[metric] = _cell(metric, a, b, level, either and metric in waited)
    return {
        "name": name,
        "error": None,
        "overloaded": _overloaded(group),
        "cells": cells,
    }


def _cell(metric: str, a: list[float], b: list[float], level: float, grows: bool) -> dict[str, Any]:
    """Value with interval, and the paired change with its interval; null = not finite or not to be compared.

    Shares change by points (`kind` points: b - a). All else changes by a factor (`kind` factor: b / a), averaged as
    its logarithm, so that a change and its reverse weigh the same (Fleming and Wallace, CACM 29(3), 1986).
    `grows`: a latency with the waiting of an overloaded case, which is as large as the trace is long.
    """
    kind = "points" if metric in SHARES else "factor"
    none = dict.fromkeys(("low", "high", "change", "change_low", "change_high", "told_apart"))
    if np.isnan([*a, *b]).any():  # TPOT of a batch that is returned whole
        defined = not np.isnan(b).any()
        return {"kind": kind, **none, "value": finite(float(np.mean(b))) if defined else None, "defined": defined,
                "grows": grows}  # fmt: skip
    own = interval(b, level)
    cell = {"kind": kind, **none, "value": finite(own.mean), "low": finite(own.low), "high": finite(own.high),
            "defined": True, "grows": grows}  # fmt: skip
    positive = min(*a, *b) > 0
    if grows or not np.all(np.isfinite([*a, *b])) or (kind == "factor" and not positive):
        return cell
    if kind == "points":
        diff = paired(100 * np.asarray(a), 100 * np.asarray(b), level)
        low, middle, high = max(-100.0, diff.low), diff.mean, min(100.0, diff.high)
    else:
        diff = paired(np.log(a), np.log(b), level)
        low, middle, high = (float(np.exp(v)) for v in (diff.low, diff.mean, diff.high))
    told = None if diff.n < 2 else diff.low > 0 or diff.high < 0 or (diff.mean != 0 and diff.low == diff.high)
    known = diff.n > 1
    return {**cell, "change": finite(middle), "change_low": finite(low) if known else None,
            "change_high": finite(high) if known else None, "told_apart": told}  # fmt: skip

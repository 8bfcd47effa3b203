"""summarize(result) -> summary.json: counts, throughput, latencies, goodput, use of slots, GPU and KV memory.

`definitions` says what each number means; it is printed with every summary. Only plain values come out:
no NaN, no infinity (None instead), no wall-clock time.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.metrics.asked import drafted, resolved_scenario
from simulator.metrics.clients import clients
from simulator.metrics.definitions import DEFINITIONS
from simulator.metrics.fleet import fleet
from simulator.metrics.latency import FATES, TIMES, Bools, Fates, due, fates, itl_stats, time_stats, times
from simulator.metrics.pools import changes, parts, routed_to, transfers
from simulator.metrics.readings import banner, few, windows
from simulator.metrics.stability import little, stability
from simulator.metrics.trust import trust
from simulator.metrics.use import batch, kv, queue, ratio, time_spent, use
from simulator.result import Result
from simulator.state import NOT_SENT, REFUSALS, STATUS_NAMES
from simulator.text import several
from simulator.units import NEVER, NS_PER_S
from simulator.version import schema_of

if TYPE_CHECKING:
    import pandas as pd

Block = dict[str, Any]

def summarize(result: Result) -> Block:
    """The summary of a result, in the key order of summary.json (docs: DEFINITIONS)."""
    fate = fates(result)
    span, begin = makespan_ns(result, fate), begin_ns(result, fate)
    summary: Block = {"schema": schema_of("summary"), "name": result.scenario.name}
    summary |= _counts(result, fate)
    summary["throughput"] = _throughput(result, fate, span)
    for name in ("ttft_s", "tpot_s", "itl_s", *TIMES[2:]):
        summary[name] = itl_stats(result) if name == "itl_s" else time_stats(result, name, fate)
    summary["goodput"] = _goodput(result, fate, span)
    summary["makespan_s"] = span / NS_PER_S
    pools = parts(result)
    alike = list(pools.values()) or [result]
    summary |= use(result, span, begin, alike)
    summary |= {"batch": batch(result), "queue": queue(result), "kv": kv(result, alike)}
    summary["time"] = time_spent(result, alike)
    if result.setup.speculation:
        summary["speculation"] = drafted(result)
    summary |= {
        "stability": stability(result).as_dict(),
        "little": little(result),
        "definitions": dict(DEFINITIONS),
    }
    summary["banner"] = banner(summary)
    able = {name: due(result, name) for name in TIMES}
    counts = {name: _count(fate.measured if a is None else fate.measured & a) for name, a in able.items()}
    summary["few_requests"] = few(summary, counts | {"itl_s": summary["itl_s"]["count"]})
    summary["windows"] = windows(result, fate)
    summary |= clients(result, fate)
    if len(result.trace.class_names) > 1:
        summary["per_class"] = _per_class(result, fate, span)
    if pools:
        summary["pools"] = _pools(result, pools, fate, span, begin)
    if result.fleet is not None:
        summary["fleet"] = fleet(result, alike, begin, span)
        summary["changes"] = changes(result)
    if result.scenario.cluster.hands_over:
        summary["transfers"] = transfers(result)
    summary["trust"] = trust(result, summary)
    return summary | {"scenario": resolved_scenario(result), "provenance": result.provenance()}


def makespan_ns(result: Result, fate: Fates) -> int:
    """[ns] first submission -> last token at a client; 0 when no token was delivered."""
    served = fate.completed | (result.requests.done > 0) if result.setup.limits.stream else fate.completed
    if not served.any():
        return 0
    return int(result.requests.last[served].max()) - begin_ns(result, fate)


def begin_ns(result: Result, fate: Fates) -> int:
    """[tick] of the first submission; 0 without any."""
    return int(result.requests.arrival[fate.arrived].min()) if fate.arrived.any() else 0


def _count(rows: Bools) -> int:
    return int(np.count_nonzero(rows))


def refused(result: Result) -> dict[str, int]:
    """Refused requests by why."""
    codes = range(REFUSALS[0], REFUSALS[1] + 1)
    counts = {STATUS_NAMES[code].removeprefix("rejected: "): _count(result.requests.status == code) for code in codes}
    return {why: count for why, count in counts.items() if count}


def _counts(result: Result, fate: Fates) -> Block:
    req = result.requests
    numbers = {name: _count(getattr(fate, name)) for name in FATES}
    requests: Block = dict(numbers)
    requests["rejected_by_reason"] = refused(result)
    requests |= {"preempted": _count(req.preempted > 0), "preemptions": int(req.preempted.sum())}
    absent = {"aborted": not req.attempts.size, "lost": not req.losses.size}
    parts = [f"{name} {count}" for name, count in numbers.items() if not absent.get(name)]
    line = f"{parts[0]} = {' + '.join(parts[1:])}"
    unsent = _count(req.status == NOT_SENT)
    late = len(req.arrival) - numbers["arrived"] - unsent
    requests |= {"after_horizon": late, "not_sent": unsent}
    if req.attempts.size:
        requests |= {"attempts": int(req.attempts.sum()), "retried": _count(req.attempts > 1)}
    line += f"; {several(unsent, 'turn')} not sent" if unsent else ""
    return {"requests": requests, "conservation": line + (f"; {late} more after the horizon" if late else "")}


def _per_s(count: int, span: int) -> float | None:
    """[1/s]; 0 when there was nothing, None when something took no time."""
    return count * NS_PER_S / span if span else (None if count else 0.0)


def _throughput(result: Result, fate: Fates, span: int) -> Block:
    req = result.requests
    served = fate.arrived if result.setup.limits.stream else fate.completed
    out, prompt = int(req.done[served].sum()), int(req.prompt[fate.completed].sum())
    return {
        "requests_per_s": _per_s(_count(fate.completed), span),
        "output_tokens_per_s": _per_s(out, span),
        "prompt_tokens_per_s": _per_s(prompt, span),
        "total_tokens_per_s": _per_s(out + prompt, span),
    }


def meets_slo(result: Result, fate: Fates) -> Bools | None:
    """Requests completed within every target of scenario.slo, bool (N,); None when there is no target."""
    targets = {name: limit for name, limit in result.scenario.slo.model_dump().items() if limit is not None}
    if not targets:
        return None
    met = fate.completed.copy()
    for name, limit in targets.items():
        able = due(result, name)
        rows = np.flatnonzero(met if able is None else met & able)
        met[rows] = times(result, name, rows) <= limit * NS_PER_S
    return met


def _goodput(result: Result, fate: Fates, span: int, within: Bools | None = None) -> Block:
    met, arrived = meets_slo(result, fate), fate.arrived
    if met is None:
        return {"slo": result.scenario.slo.model_dump(), "attained": None, "requests_per_s": None}
    if within is not None:
        met, arrived = met & within, arrived & within
    return {
        "slo": result.scenario.slo.model_dump(),
        "attained": ratio(_count(met), _count(arrived)),
        "requests_per_s": _per_s(_count(met), span),
    }


def _pools(result: Result, pools: dict[str, Result], fate: Fates, span: int, begin: int) -> Block:
    """Counts, latencies, goodput and use of each pool; `replicas` and GPUs of it."""
    blocks: Block = {}
    for name, part in pools.items():
        replicas, scenario = result.scenario.cluster.ranges[name], part.setup.scenario
        within = routed_to(result, replicas)
        block: Block = {"replicas": len(replicas), "role": result.scenario.cluster.pools[name].role,
                        "gpu": part.setup.gpu.name, "tensor_parallel": scenario.hardware.tensor_parallel,
                        "pipeline_parallel": scenario.hardware.pipeline_parallel}
        block |= _block(result, fate, span, within) | use(part, span, begin, [part])
        blocks[name] = block | {"batch": batch(part), "queue": queue(part), "kv": kv(part, [part])}
    return blocks


def _per_class(result: Result, fate: Fates, span: int) -> Block:
    """Counts, latencies (all but ITL, whose histogram is common) and goodput of each class of requests."""
    blocks: Block = {}
    for code, name in enumerate(result.trace.class_names):
        blocks[name] = _block(result, fate, span, result.trace.cls == code)
    return blocks


def _block(result: Result, fate: Fates, span: int, within: Bools) -> Block:
    """Counts, latencies and goodput of some of the requests."""
    block: Block = {"requests": {name: _count(getattr(fate, name) & within) for name in FATES}}
    block |= {time: time_stats(result, time, fate, within) for time in TIMES}
    return block | {"goodput": _goodput(result, fate, span, within)}


def request_columns(result: Result) -> dict[str, Any]:
    """One row a request, in order of submission: numpy columns (N,), lists for text; NaN = no such time."""
    req, fate, trace = result.requests, fates(result), result.trace
    columns: dict[str, Any] = {
        "id": trace.id,
        "class": [trace.class_names[code] for code in trace.cls.tolist()],
        "arrival_s": np.where(fate.arrived, req.arrival / NS_PER_S, np.nan),
        "prompt_tokens": req.prompt,
        "output_tokens": req.output,
        "cached_tokens": req.found if req.found.size else req.cached,
    }
    for name in ("ttft_s", "tpot_s", "e2e_s", "queue_s", "prefill_s", "frontend_s"):
        able = due(result, name)
        rows = np.flatnonzero(fate.completed if able is None else fate.completed & able)
        columns[name] = np.full(len(req.arrival), np.nan)
        columns[name][rows] = times(result, name, rows) / NS_PER_S
    gaps = (req.done > 1) & (req.last != NEVER) & bool(result.setup.limits.stream)
    columns["itl_max_s"] = np.where(gaps, req.itl_max / NS_PER_S, np.nan)
    return columns | {
        "replica": req.replica,
        "slot": req.slot,
        "preemptions": req.preempted,
        "status": _fate_names(req.status.tolist(), fate),
    }


def _fate_names(codes: list[int], fate: Fates) -> list[str]:
    """finished, unfinished, after horizon, aborted, lost, not sent, or rejected with its reason."""
    names = [
        STATUS_NAMES[code] if code >= REFUSALS[0] else "after horizon"
        for code in codes
    ]
    for label, rows in (("finished", fate.completed), ("unfinished", fate.unfinished)):
        for k in np.flatnonzero(rows).tolist():
            names[k] = label
    return names


def request_table(result: Result) -> "pd.DataFrame":
    """request_columns as a DataFrame."""
    import pandas as pd

    return pd.DataFrame(request_columns(result))

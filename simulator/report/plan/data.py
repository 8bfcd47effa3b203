"""A plan as plain data: plan.json, and what every other form of the report is made from."""

from dataclasses import replace
from typing import Any

from simulator.metrics.trust import gpu_mark
from simulator.planning.answer import Answer
from simulator.planning.bounds import Ready
from simulator.planning.candidate import Candidate
from simulator.planning.measure import key_of
from simulator.planning.plan import Choice, Plan
from simulator.planning.price import Fleet, plain_candidate, pools_of, price_of
from simulator.planning.search import Outcome
from simulator.planning.slo import MEAN
from simulator.planning.spec import PlanSpec
from simulator.planning.statistics import Judgement, finite, mean_of
from simulator.planning.traffic import asked_rate, mean_rate
from simulator.planning.trusted import trusted
from simulator.planning.unlike import BESIDE, OWN
from simulator.report.autoscaler import manifest
from simulator.report.plan.deploy import VLLM, command, command_notes, export_both, kubernetes, no_command
from simulator.report.plan.levels import level_rows, refused_requests
from simulator.report.plan.names import service_name
from simulator.scenario.autoscale import AutoscaleSpec
from simulator.scenario.length import kv_tokens, safe_tokens
from simulator.scenario.setup import Setup
from simulator.version import schema_of
from simulator.workload.trace import Trace

NOT_MODELLED = (
    "network and load-balancer latency between client and replica; time to start a replica, but in autoscale and spot",
    "prefix hits that the traffic does not show (sessions, prefix hashes, cached tokens)",
    "failures other than replicas missing (survive) and spot: no retries, no slow GPUs, no restarts under load",
    "LoRA adapters loaded in turn, replicas spread over a network",
    "quality of the answers: lower precision is counted as faster, never as worse",
    "host, storage, network and staff costs; power is GPUs times their rated maximum",
)


def plain(plan: Plan) -> dict[str, Any]:
    """JSON-safe: infinities are null, no wall-clock time, no paths."""
    spec = plan.spec
    data: dict[str, Any] = {
        "schema": schema_of("plan"),
        "name": spec.name,
        "description": spec.description,
        "question": question(plan),
        "feasible": plan.best is not None,
        "complete": plan.complete,
        "stopped": plan.stopped,
        "recommended": choice(plan, plan.best) if plan.best else None,
        "runners_up": [choice(plan, c) for c in plan.choices[1:]],
        "cannot_be_told_apart": list(plan.ties),
        "candidates": [outcome(o) for o in plan.outcomes],
        "nearest": nearest(plan),
        "answer": answer(plan.answer) if plan.answer else None,
        "front": list(plan.front),
        "batch_limits": [note.plain() for note in plan.limits],
        "export": export(plan),
        "assumptions": assumptions(plan),
        "provenance": provenance(plan),
        "not_modelled": list(NOT_MODELLED),
        "effort": {"points": plan.simulated + plan.reused},
        "plan": spec.model_dump(mode="json", exclude={"slo"}) | {"slo": slo(spec)},
    }
    cleaned: dict[str, Any] = _clean(data)
    return cleaned


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(v) for v in value]
    if isinstance(value, float):
        return finite(value)
    return value


def slo(spec: PlanSpec) -> list[dict[str, Any]]:
    """Every limit of the plan."""
    rows = [{"name": t.name, "limit_s": t.max_s} for t in spec.slo.targets]
    if spec.slo.attainment:
        rows.append(
            {
                "name": f"{spec.slo.attainment.share:.2%} of requests within all of",
                "limit_s": spec.slo.attainment.limits,
            }
        )
    for name, asked in spec.slo.class_attainment.items():
        rows.append({"name": f"{asked.share:.2%} of requests of class {name} within all of", "limit_s": asked.limits})
    if spec.slo.goodput_per_s:
        limits = spec.slo.request_limits()
        rows.append({"name": f"{spec.slo.goodput_per_s:g} requests/s within all of", "limit_s": limits})
    return rows


def question(plan: Plan) -> dict[str, Any]:
    """The traffic and limits in numbers."""
    trace, spec = plan.trace, plan.spec
    return {
        "requests": len(trace),
        "requests_per_s": mean_rate(trace) * spec.growth,
        "asked_per_s": (asked_rate(spec) or 0.0) * spec.growth or None,
        "growth": spec.growth,
        "span_s": trace.span_ns / 1e9,
        "prompt_mean": float(trace.prompt.mean()),
        "output_mean": float(trace.output.mean()),
        "longest": _longest(trace),
        "model": ", ".join(dict.fromkeys(name or spec.model for name in spec.candidates.model)),
        "engine": spec.engine.name,
        "slo": slo(spec),
        "survive": spec.survive,
        "objective": spec.objective,
        "confidence": spec.search.confidence,
    }


def _longest(trace: Trace) -> int:
    """[tokens] of the longest request that a replica must have room for, max_tokens for its answer."""
    return int((trace.prompt + trace.max_tokens).max())


def choice(plan: Plan, c: Choice) -> dict[str, Any]:
    """A feasible fleet: what to buy, what it costs, what it reaches."""
    o, price, own = c.outcome, price_of(plan.spec, c.fleet.candidate.gpu), c.fleet.candidate.own(c.fleet.replicas)
    assert o.judgement is not None
    pools = pools_of(plan.spec, c.fleet.candidate, c.fleet.replicas)
    if pools:
        pools["beside"]["replica"] = replica(plan, c.fleet.candidate, BESIDE)
    return {
        **c.fleet.plain(),
        **pools,
        "serving_range": list(o.range),
        "replica": replica(plan, c.fleet.candidate, OWN if own else BESIDE),
        "bound": o.bound,
        "levels": level_rows(o.judgement, o.slow, o.fast),
        "refused": refused_requests(o.judgement),
        "goodput_per_gpu": c.goodput_per_gpu or None,
        "price_usd_per_gpu_hour": price.usd_per_hour,
        "price_source": price.source,
        "price_assumed": price.assumed and own > 0,
        "latency": latency(o.judgement),
        "worst_windows": worst(o.judgement, plan.spec),
        "fewer": o.fewer,
        "fewer_replicas": o.smaller + c.fleet.spare if o.smaller else None,
        "trust": trusted(plan.ready[c.fleet.candidate.label], _longest(plan.trace)),
    }


def latency(judged: Judgement) -> list[dict[str, Any]]:
    """Mean over replications of the usual percentiles."""
    rows = []
    for metric in ("ttft", "tpot", "itl", "e2e", "queue"):
        values = {
            name: mean_of(judged.records, key_of(metric, None, p))
            for name, p in (("mean", MEAN), *((f"p{p:g}", p) for p in (50.0, 90.0, 95.0, 99.0, 99.9)))
        }
        rows.append({"metric": metric, **values})
    return rows


def outcome(o: Outcome) -> dict[str, Any]:
    """One row of the table of everything that was looked at."""
    return {
        "label": o.candidate.label,
        "candidate": plain_candidate(o.candidate),
        "status": o.status,
        "reason": o.reason,
        "replicas": o.replicas or None,
        "bound": o.bound or None,
        "rate_met": o.rate_met or None,
    }


def nearest(plan: Plan) -> dict[str, Any] | None:
    """Nothing feasible: the binding limit and the nearest point that would be."""
    if plan.best or plan.nearest is None or plan.nearest.best_try is None:
        return None
    o, judged = plan.nearest, plan.nearest.best_try
    most = o.candidate.counts(plan.spec)[-1]
    binding = judged.binding
    return {
        "label": o.candidate.label,
        "status": o.status,
        "binding": binding.name,
        "limit": binding.limit,
        "value": binding.shown,
        "overloaded": judged.overloaded,
        "replicas": most,
        **pools_of(plan.spec, o.candidate, most),
        "traffic_share": o.rate_met / plan.spec.growth if o.rate_met else None,
        "reason": o.reason,
    }


def answer(a: Answer) -> dict[str, Any]:
    """Everything around the recommended fleet."""
    data = {k: v for k, v in vars(a).items() if k != "bought"}
    return data | {"bought": {"levels": level_rows(a.bought, None, None), "holds": a.bought.verdict == "meets"}}


def worst(judged: Judgement, spec: PlanSpec) -> list[dict[str, Any]]:
    """Each level in the worst windows of the recommended fleet, the mean over replications as the level itself is, and
    where the worst of them begins; windows of too few left out. A window's own limit comes before that of all
    requests."""
    rows = []
    busy = [record for record in judged.records if not record["idle"]]
    for target in sorted(spec.slo.targets, key=lambda each: each.window_s is not None):
        worsts = [record["worst"][key_of(target.metric, target.cls, target.percentile)] for record in busy]
        for window in worsts[0]:
            own = target.window_s is None or target.window_s == float(window)
            found = [each[window] for each in worsts if each[window] is not None]
            if own and found and busy[0]["span_s"] >= 2 * float(window):
                value, start_s, requests = max(found, key=lambda each: float(each[0]))
                value = sum(each[0] for each in found) / len(found)
                row = {"name": replace(target, window_s=None).name, "window_s": float(window), "value": value}
                rows.append(row | {"start_s": start_s, "requests": requests, "limit": target.max_s,
                                   "replications": len(found)})  # fmt: skip
    return list({(row["name"], row["window_s"]): row for row in rows}.values())


def replica(plan: Plan, candidate: Candidate, pool: str = OWN) -> dict[str, Any]:
    """What one replica of a candidate (of one of its pools) is started with, and its KV memory."""
    setup = plan.ready[candidate.label].setup
    assert setup is not None
    setup = setup.pools.get(pool, setup)
    limits, asked = setup.limits, plan.spec.max_model_len
    return {
        "kv_blocks": limits.num_blocks,
        "kv_tokens": kv_tokens(limits),
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": setup.token_budget,
        "max_model_len": limits.max_model_len,
        "positions": setup.model.max_positions,
        "shortened": asked is None and setup.gpu.name != "unit" and limits.max_model_len < setup.model.max_positions,
        "at_the_edge": setup.gpu.name != "unit"
        and limits.max_model_len > safe_tokens(limits, setup.gpu, plan.spec.kv.num_gpu_blocks is not None),
    }


def export(plan: Plan) -> dict[str, Any]:
    """Command and manifests for the recommended fleet, or the `reason` why there are none."""
    if plan.best is None:
        return {}
    fleet = plan.best.fleet
    setup = plan.ready[fleet.candidate.label].setup
    assert setup is not None
    found = export_of(plan.spec, setup, fleet)
    if "kubernetes" not in found:
        return found
    scaled = plan.answer.autoscaled if plan.answer else None
    if scaled and scaled["holds"] and plan.spec.autoscale is not None:
        own = AutoscaleSpec.model_validate(plan.spec.autoscale.scaler(scaled["target"], scaled["most"]))
        found["autoscaler"] = manifest(service_name(plan.spec.name), own, scaled["most"])
        found["notes"].append("with autoscaler.yaml leave the number of replicas out of deploy.yaml")
    return found


def export_of(spec: PlanSpec, setup: Setup, fleet: Fleet) -> dict[str, Any]:
    """Command and manifest of a fleet, or the `reason` why there are none."""
    if fleet.candidate.beside is not None:
        return export_both(spec, setup, fleet)
    reason = no_command(spec, setup)
    if reason:
        return {"reason": reason}
    found: dict[str, Any] = {"command": command(spec, setup), "notes": command_notes(setup, fleet)}
    if setup.engine.name == VLLM:
        found |= {"vllm": found["command"], "kubernetes": kubernetes(spec, setup, fleet)}
    return found


def assumptions(plan: Plan) -> list[str]:
    """In plain words, those that matter for this plan."""
    spec = plan.spec
    texts = []
    others = [each for each in spec.candidates.beside if each is not None]
    gpus = [o.candidate.gpu for o in plan.outcomes] + [each.gpu for each in others if each.price is None]
    for gpu in dict.fromkeys(gpus):
        price = price_of(spec, gpu)
        if price.assumed and gpu != "unit":
            texts.append(
                f"{gpu}: {price.usd_per_hour:.2f} USD per GPU and hour is an example, yours goes under prices "
                f"({price.source.removeprefix('assumption, override it: ')})"
            )
    texts.append(
        f"replicas {'of a pool ' if others else ''}are identical and share nothing; whether a fleet in the tables does "
        "was simulated with all its replicas, while the search, headroom and changes simulate one replica with its "
        "share of the requests where that is enough"
    )
    if spec.growth != 1.0:
        texts.append(f"growth {spec.growth:g}: the same requests arrive {spec.growth:g} times as fast")
    if plan.trace.meta.copies > 1:
        texts.append(
            f"the trace is superposed {plan.trace.meta.copies} times, each copy turned by a random time; "
            "replications draw other turns"
        )
    elif plan.trace.meta.source not in ("generated", "sessions"):
        texts.append(
            "one recorded trace is answered for this very traffic; its intervals come from within the run and "
            "say how far such traffic may differ, not how another day would"
        )
    texts.append("headroom, bottleneck, changes and curves use mean predictions without safety margin")
    return texts


def provenance(plan: Plan) -> dict[str, Any]:
    """Profile, mark and error behind each candidate that was simulated, and the trace."""
    rows: list[dict[str, Any]] = []
    seen: set[tuple[str, str]] = set()
    looked_up = [(setup, found.errors.get(name, found.error)) for found in plan.ready.values() if found.setup
                 for name, setup in _unlike(found)]  # fmt: skip
    for setup, error in looked_up:
        if (setup.gpu.name, error.source) in seen:
            continue
        seen.add((setup.gpu.name, error.source))
        rows.append(
            {
                "gpu": setup.gpu.name,
                "gpu_mark": gpu_mark(setup),
                "unverified": list(setup.gpu.unverified),
                "engine": f"{setup.engine.name} {setup.engine.version}",
                "engine_mark": setup.engine.mark,
                "step_time_error": error.relative,
                "error_source": error.source,
            }
        )
    meta = plan.trace.meta
    traffic = {
        "trace": meta.format,
        "sha256": meta.sha256,
        "rows_read": meta.rows_read,
        "rows_dropped": dict(meta.rows_dropped),
        "account": meta.account,
        "copies": meta.copies,
        "seed": plan.spec.seed,
    }
    return {"profiles": rows, "traffic": traffic}


def _unlike(found: Ready) -> list[tuple[str, Setup]]:
    """The setups of a candidate that have errors of their own, by pool."""
    assert found.setup is not None
    return list(found.setup.pools.items()) if found.errors else [("", found.setup)]

"""Several deployments as plain data: deployments.json, and what its other forms are made from.

A row a deployment, alike with and without a budget; `carries` is a multiple of the planned traffic, null where no
limit breaks at any rate.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.metrics.trust import longest_of
from simulator.planning.capacity import months_to
from simulator.planning.deployments import Deployments
from simulator.planning.joint import Joint
from simulator.planning.part import Part
from simulator.planning.plan import token_rates
from simulator.planning.price import Fleet, fleet_of, watts_of
from simulator.planning.search import Outcome
from simulator.planning.split import Shared, Split
from simulator.planning.trusted import trusted
from simulator.report.plan.data import export_of, plain
from simulator.version import schema_of

Data = Mapping[str, Any]


def joint_data(joint: Joint) -> dict[str, Any]:
    """Plans of all deployments, and their sum."""
    plans = {name: plain(found) for name, found in joint.plans.items()}
    rows = [_planned(name, spec.model, plans.get(name)) for name, spec in joint.asked.specs.items()]
    for name, found in joint.plans.items():
        next(row for row in rows if row["name"] == name)["trace"] = found.trace.meta.facts
    return {
        **_head(joint.asked, rows),
        "common": None,
        "needs": None,
        "more": [],
        "relief": [],
        "growth": [],
        "plans": plans,
        "stopped": joint.stopped,
        "missing": [row["name"] for row in rows if row["status"] == "not finished"],
        "simulated": sum(found.simulated for found in joint.plans.values()),
        "requests": sum(found.requests for found in joint.plans.values()),
    }


def shared_data(shared: Shared) -> dict[str, Any]:
    """A budget over all deployments: the split, and what it carries."""
    specs, found = shared.asked.specs, shared.found
    rows = [(_bought(shared, k) if found else _none(part, shared)) | {"trace": part.trace.meta.facts}
            for k, part in enumerate(shared.parts)]
    head = _head(shared.asked, rows)
    head["feasible"] = head["feasible"] and found is not None
    growth = next(iter(specs.values())).growth_pct_per_month
    return {
        **head,
        "common": _common(shared, rows, growth) if found else None,
        "needs": _totals(shared.needs) if shared.needs else None,
        "more": [_totals(split) for split in shared.more],
        "relief": list(shared.relief),
        "growth": list(growth),
        "plans": {},
        "stopped": shared.stopped,
        "missing": [],
        "reason": head["reason"] or shared.reason,
        "simulated": sum(part.search.runner.simulated for part in shared.parts),
        "requests": sum(part.search.runner.requests for part in shared.parts),
    }


def _head(asked: Deployments, rows: Sequence[Data]) -> dict[str, Any]:
    """What both forms begin with: the rows and their sums; no sums where a deployment has no fleet."""
    whole = all(row["gpus"] is not None for row in rows)
    failed = [row["name"] for row in rows if row["status"] not in ("feasible", "not finished")]
    return {
        "schema": schema_of("deployments"),
        "name": asked.name,
        "description": asked.description,
        "budget": asked.budget.model_dump(exclude_none=True) if asked.budget else None,
        "feasible": whole,
        "failed": failed,
        "reason": next((row["reason"] for row in rows if row["name"] in failed), ""),
        "gpus": sum(row["gpus"] or 0 for row in rows),
        "usd_per_hour": sum(row["usd_per_hour"] or 0.0 for row in rows),
        "spare_gpus": sum(row["spare_gpus"] or 0 for row in rows),
        "spare_usd_per_hour": sum(row["spare_usd_per_hour"] or 0.0 for row in rows),
        "price_assumed": any(row["price_assumed"] for row in rows),
        "watts_estimate": sum(row["watts_estimate"] or 0.0 for row in rows),
        "deployments": list(rows),
    }


def _blank(name: str, model: str, traffic: float | None, status: str, reason: str) -> dict[str, Any]:
    return {
        "name": name, "model": model, "traffic": traffic, "status": status, "reason": reason.removeprefix(f"{name}: "),
        "label": None,
        "gpu": None, "replicas": None, "spare": None, "gpus": None, "usd_per_hour": None, "spare_gpus": None,
        "spare_usd_per_hour": None, "price_assumed": False, "watts_estimate": None, "levels": [], "carries": None,
        "low": None, "high": None, "wall": False, "explained": False, "breaks": None, "bottleneck": None,
        "words": "", "span_s": None, "trust": None, "export": {},
    }  # fmt: skip


def _planned(name: str, model: str, data: Data | None) -> dict[str, Any]:
    """One deployment from its plan; `data` is None where it was not begun."""
    if data is None:
        return _blank(name, model, None, "not finished", "the search was stopped before it was begun")
    best, answer, asked = data["recommended"], data["answer"], data["question"]
    if best is None:
        near = data["nearest"]
        reason = near["reason"] if near else next((o["reason"] for o in data["candidates"] if o["reason"]), "")
        status = "not finished" if data["stopped"] else "infeasible"
        return _blank(name, asked["model"], asked["requests_per_s"], status, reason)
    row = _blank(name, best["candidate"]["model"] or model, asked["requests_per_s"], "feasible", "")
    each, beside = best["usd_per_hour"] / best["replicas"], best["candidate"]["beside"]
    keys = ("label", "replicas", "spare", "gpus", "usd_per_hour", "watts_estimate")
    row |= {key: best[key] for key in keys} | {
        "gpu": " and ".join(sorted({best["candidate"]["gpu"]} | ({beside["gpu"]} if beside else set()))),
        "price_assumed": _assumed(best),
        "spare_gpus": best["spare"] * best["gpus"] // best["replicas"],
        "spare_usd_per_hour": best["spare"] * each,
        "levels": [{key: level[key] for key in ("name", "value", "limit")} for level in best["levels"]],
        "trust": best["trust"],
        "export": data["export"],
        **({"beside": best["beside"]} if beside else {}),
    }
    if answer and answer["explained"]:
        row |= {"explained": True, "wall": answer["wall_rate"] is not None}
    if row["wall"]:
        low, high = answer["headroom_range"]
        row |= {"carries": 1 + answer["headroom_pct"] / 100, "low": 1 + low / 100,
                "high": None if high is None else 1 + high / 100,
                "breaks": answer["breaks"], "bottleneck": answer["bottleneck"]}  # fmt: skip
    return row


def _assumed(fleet: Data) -> bool:
    """Whether an example price is in a fleet's cost, its own or that of what stands beside it."""
    return bool(fleet["price_assumed"] or fleet.get("beside", {}).get("price_assumed"))


def _none(part: Part, shared: Shared) -> dict[str, Any]:
    failed = part.name == shared.failed
    status = "infeasible" if failed or not shared.failed else "not finished"
    status = "not finished" if shared.stopped else status
    return _blank(part.name, part.spec.model, part.traffic, status, shared.reason if failed else "")


def _bought(shared: Shared, k: int) -> dict[str, Any]:
    """One deployment of a split."""
    assert shared.found is not None
    part, option, own = shared.parts[k], shared.found.fleets[k][0], shared.rows[k]
    candidate, spare = option.found.candidate, option.spare
    fleet = _fleet(part, shared.found, k)
    row = _blank(part.name, candidate.model or part.spec.model, part.traffic, "feasible", "")
    keys = ("label", "replicas", "gpus", "usd_per_hour", "levels", "wall")
    row |= {key: own[key] for key in (*keys, *(["beside"] if "beside" in own else []))}
    row |= {
        "price_assumed": _assumed(own),
        "gpu": " and ".join(sorted(candidate.kinds)),
        "spare": spare,
        "spare_gpus": spare * candidate.gpus,
        "spare_usd_per_hour": spare * own["usd_per_hour"] / own["replicas"],
        "watts_estimate": watts_of(candidate, own["replicas"]),
        "explained": True,
        "trust": trusted(option.found, longest_of(part.trace)),
        "export": export_of(part.spec, option.found.setup, fleet) if option.found.setup else {},
    }
    if own["wall"]:
        row |= {key: None if own[key] is None else own[key] / part.traffic for key in ("carries", "low", "high")}
    if own["breaks"]:
        row |= {"breaks": own["breaks"]["level"], "words": own["breaks"]["words"], "span_s": own["span_s"]}
    return row


def _fleet(part: Part, split: Split, k: int) -> Fleet:
    option, serving = split.fleets[k]
    outcome = Outcome(option.found.candidate, "feasible", replicas=serving, range=(serving, serving))
    return fleet_of(part.spec, outcome, token_rates(part.trace, part.spec.growth))


def _common(shared: Shared, rows: Sequence[Data], growth: Sequence[float]) -> dict[str, Any]:
    """The growth that all carry: that of the first at its wall; the range holds the ends of all."""
    assert shared.found is not None
    walls = [row for row in rows if row["wall"]]
    first = min(walls, key=lambda row: row["carries"], default=None)
    carries = first["carries"] if first else None
    highs = [row["high"] for row in walls if row["high"] is not None]
    lows = [row["low"] for row in walls]
    return {
        "carries": carries,
        "low": None if not lows or None in lows else min(lows),
        "high": min(highs, default=None),
        "first": first["name"] if first else None,
        "breaks": first["breaks"] if first else None,
        "left": max(0.0, shared.amount - shared.found.cost),
        "capped": shared.capped,
        "months": months_to(1.0, carries, growth) if carries and growth else {},
    }


def _totals(split: Split) -> dict[str, Any]:
    """Who gets what in a split, and what it carries."""
    gpus = [option.found.candidate.gpus_of(n + option.spare) for option, n in split.fleets]
    return {
        "carries": split.growth if split.growth < float("inf") else None,
        "budget": split.cost,
        "gpus": sum(gpus),
        "split": gpus,
        "kinds": [" and ".join(sorted(option.found.candidate.kinds)) for option, _ in split.fleets],
        "labels": [option.found.candidate.label for option, _ in split.fleets],
    }

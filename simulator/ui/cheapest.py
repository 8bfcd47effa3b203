"""The page's button: a small plan for the traffic and the limits that are set, over a few GPUs."""

from dataclasses import replace
from typing import Any, Final

from simulator.errors import ServecastError
from simulator.planning.plan import plan
from simulator.planning.price import Fleet
from simulator.planning.spec import plan_from
from simulator.report.plan.data import plain
from simulator.report.plan.words import answer_lines
from simulator.ui.settings import SEED, Settings

GPUS: Final = ("h100-sxm", "h200-sxm", "a100-sxm-80gb", "l40s")
"""Tried beside the one that is set."""
REQUESTS: Final = 2500
MOST: Final = 64
LINES: Final = 8


def plan_data(s: Settings, prices: dict[str, float]) -> dict[str, Any]:
    """The plan as plain data: these requests and limits, GPUs and number formats as they are set."""
    gpus = list(dict.fromkeys((s.gpu, *GPUS)))
    candidates: dict[str, Any] = {"gpu": gpus, "tensor_parallel": s.tensor_parallel, "policy": s.policy,
                                  "weight_dtype": s.weight_dtype, "router": s.router, "replicas": {"max": MOST},
                                  "max_num_seqs": s.max_num_seqs}  # fmt: skip
    if s.max_num_batched_tokens:
        candidates["max_num_batched_tokens"] = s.max_num_batched_tokens
    start = s.plain(s.rate, REQUESTS)
    if s.policy == "sarathi":
        candidates["tbt_s"] = start["policy"].get("tbt_s", s.tpot_ms / 1000)
    for key in ("kv_dtype", "pipeline_parallel"):
        if start["hardware"].get(key) is not None:
            candidates[key] = start["hardware"][key]
    made: dict[str, Any] = {
        "name": "the cheapest fleet", "seed": SEED, "workload": start["workload"], "model": s.model,
        "max_model_len": start["max_model_len"],
        "slo": {"ttft_p99_s": s.ttft_ms / 1000, "tpot_p99_s": s.tpot_ms / 1000},
        "candidates": candidates, "prices": {gpu: usd for gpu, usd in prices.items() if gpu in gpus},
        "search": {"replications": 2, "most_replications": 4},
    }  # fmt: skip
    return made | {key: start[key] for key in ("engine", "host", "kv", "cost_model") if key in start}


def cheapest(s: Settings, prices: dict[str, float]) -> tuple[list[str], Settings | None]:
    """The answer in words, and the settings of the fleet to buy; a message and None where there is none."""
    try:
        found = plan(plan_from(plan_data(s, prices), s.folder), jobs=1, explain=False)
        lines = answer_lines(plain(found))[:LINES]
    except ServecastError as error:
        return [str(error)], None
    if found.best is None:
        return lines, None
    return lines, applied(s, found.best.fleet, prices)


def applied(s: Settings, fleet: Fleet, prices: dict[str, float]) -> Settings:
    """The page's settings with the fleet of a plan."""
    candidate = fleet.candidate
    return replace(s, gpu=candidate.gpu, replicas=fleet.replicas, price=prices.get(candidate.gpu),
                   max_num_seqs=candidate.max_num_seqs or s.max_num_seqs,
                   max_num_batched_tokens=candidate.max_num_batched_tokens or 0)  # fmt: skip

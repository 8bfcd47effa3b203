"""What each feature costs: the same kind of chat load with one thing on at a time, beside the plain engine.

Plain is `chunked` without a prefix cache. Each case runs plain and with the feature in one process, and tells the CPU
time an output token takes with it, as a multiple of plain: requests may differ (conversations), the machine does not.
"""

import math
from typing import Any, Final

from policies.registry import POLICIES
from simulator.bench.case import peak_mb, row, timed
from simulator.bench.work import AZURE_OUTPUT, AZURE_PROMPT, Z90
from simulator.engines.fast import run_fast
from simulator.engines.job import Job
from simulator.scenario.job import build_job, in_submission_order
from simulator.scenario.setup import Setup, prepare
from simulator.scenario.spec import Scenario, scenario_from
from simulator.workload.build import build_trace
from simulator.workload.trace import Trace

REQUESTS: Final = 100_000
REPEATS: Final = 2
PLAIN: Final = "plain"
Changes = dict[str, Any]

_CLASSES: Final = {"quick": {"weight": 3, "priority": 0}, "slow": {"weight": 1, "priority": 1}}
FEATURES: Final[dict[str, Changes]] = {
    "prefix_cache_unshared": {"kv": {"prefix_caching": True}},
    "prefix_cache_shared": {"kv": {"prefix_caching": True}, "prefix": {"groups": 100, "length": 512, "skew": 1.0}},
    "conversations": {"kv": {"prefix_caching": True}, "sessions": True},
    "kv_offload": {"kv": {"prefix_caching": True, "num_gpu_blocks": 1500, "offload": {"gib": 64, "gb_per_s": 25}},
                   "sessions": True},
    "fastserve": {"policy": {"name": "fastserve", "max_num_batched_tokens": 16384, "max_batch_size": 48},
                  "kv": {"num_gpu_blocks": 6000, "swap": {"gib": 64, "gb_per_s": 25}}},
    "splitfuse": {"policy": {"name": "splitfuse"}},
    "priority": {"policy": {"name": "priority"}, "classes": _CLASSES},
    "shortest_predicted": {"policy": {"name": "shortest_predicted", "prediction_error": 0.5}},
    "fair_shares": {"policy": {"name": "vtc"}, "classes": _CLASSES},
    "impatient_clients": {"load": {"timeout_s": 30, "retry": {"attempts": 2}}},
    "closed_loop": {"load": {"kind": "closed", "width": 64}},
    "speculation": {"engine": {"speculation": {"method": "ngram", "tokens": 3, "acceptance": 0.5}}},
    "swap": {"policy": {"name": "vllm_v0", "max_num_batched_tokens": 16384},
             "kv": {"num_gpu_blocks": 1500, "swap": {"gib": 8, "gb_per_s": 25}}},
    "tgi": {"policy": {"name": "tgi", "max_num_batched_tokens": 16384}},
    "trtllm": {"policy": {"name": "max_utilization", "max_num_batched_tokens": 16384}},
    "window": {"model": "mistral-7b-v0.1"},
    "pipeline": {"hardware": {"pipeline_parallel": 2}},
    "two_pools": {"cluster": {"link": {"gb_per_s": 50}, "pools": {
        "prompts": {"role": "prefill"}, "answers": {"role": "decode"}}}},
}
"""Case -> what differs from plain; `prefix`, `classes` and `sessions` belong to the workload."""


def feature_scenario(name: str, requests: int) -> Scenario:
    """The scenario of a case, or of PLAIN, with Azure-like lengths at 10 requests a second."""
    changes = dict(FEATURES[name]) if name != PLAIN else {}
    lengths = {"prompt": _lognormal(AZURE_PROMPT), "output": _lognormal(AZURE_OUTPUT)}
    arrivals = {"kind": "poisson", "rate": 10, "requests": requests}
    workload: dict[str, Any] = {"arrivals": arrivals}
    if changes.pop("sessions", False):
        begin = arrivals | {"rate": 2, "requests": max(1, requests // 5)}
        workload = {"sessions": {"arrivals": begin, "turns": 5, "first": lengths["prompt"], "new": 100,
                                 "output": lengths["output"], "think_s": 5.0, "max_context": 16000}}
    elif "classes" in changes:
        workload["classes"] = {key: value | lengths for key, value in changes.pop("classes").items()}
    else:
        workload |= lengths | ({"prefix": changes.pop("prefix")} if "prefix" in changes else {})
    policy = {"name": "chunked", "max_num_seqs": 128, "max_num_batched_tokens": 2048} | changes.pop("policy", {})
    kv = {"prefix_caching": False} | changes.pop("kv", {})
    if not POLICIES[policy["name"]].prefix_cache:
        del kv["prefix_caching"]
    return scenario_from({"name": f"feature_{name}", "workload": workload, "model": "llama-3.1-8b",
                          "hardware": "h100-sxm", "engine": "vllm-0.24", "policy": policy, "kv": kv,
                          "max_model_len": 16384} | changes, name="bench")


def _lognormal(shape: tuple[float, float, int]) -> dict[str, Any]:
    median, p90, longest = shape
    return {"kind": "lognormal", "median": median, "sigma": math.log(p90 / median) / Z90, "max": longest}


def measure_feature(name: str, requests: int) -> dict[str, Any]:
    """The row of a case, in this process, with its ratio to plain."""
    plain = _cpu_a_token(feature_scenario(PLAIN, requests))[0]
    token, seconds, job, policy = _cpu_a_token(feature_scenario(name, requests))
    steps, tokens = int(job.stats["steps"].sum()), int(job.stats["output"].sum())
    done = len(job.req.arrival)
    return row(f"feature_{name}", policy, job.replicas, done, seconds, steps, tokens, peak=peak_mb(),
               lengths="lognormal through median and p90 of the Azure 2023 conversation trace") | {
                   "ratio_to_plain": round(token / plain, 2)}


def _cpu_a_token(scenario: Scenario) -> tuple[float, float, Job, str]:
    """[s] CPU an output token and wall in all of the quickest of REPEATS runs, the job, and the policy's name."""
    setup = prepare(scenario)
    trace = in_submission_order(build_trace(scenario.parsed_workload(), 0), scenario.load.kind)
    _run(setup, trace.take(slice(0, 1)) if not trace.extras else trace)  # leaves compiled code behind
    found = [_run(setup, trace) for _ in range(REPEATS)]
    cpu, wall, job = min(found, key=lambda each: each[0])
    return cpu / int(job.stats["output"].sum()), wall, job, setup.policy.name


def _run(setup: Setup, trace: Trace) -> tuple[float, float, Job]:
    job = build_job(setup, trace, True, False)
    wall, busy = timed(run_fast, job, setup.policy)
    return busy, wall, job

"""What the benchmark runs: chat lengths, Poisson arrivals, an 8B model on an H100; and the bare loop."""

import heapq
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.jit import compiled
from simulator.scenario.spec import Scenario, scenario_from
from simulator.units import NS_PER_S
from simulator.workload.trace import Trace, TraceMeta, make_trace

Int64s = npt.NDArray[np.int64]

# Azure LLM inference trace 2023, conversation (github.com/Azure/AzurePublicDataset, CC-BY 4.0; Patel et al.,
# ISCA 2024), 19,366 requests: median, 90th percentile and longest of prompt and output [tokens].
AZURE_PROMPT: Final = (1020.0, 2734.5, 14050)
AZURE_OUTPUT: Final = (129.0, 424.0, 1000)
Z90: Final = 1.2815515655446004
"""90th percentile of the standard normal distribution."""
HEAP_SIZE: Final = 128


@dataclass(frozen=True)
class Lengths:
    """Prompt and output tokens to draw pairs from; `source` says where they come from."""

    prompt: Int64s
    output: Int64s
    source: str


def chat_lengths(trace: Path | None) -> Lengths:
    """Pairs of the Azure file where given, else of lognormals through its median and 90th percentile."""
    if trace is not None:
        from simulator.workload.load import load_lengths

        loaded = load_lengths(trace)
        return Lengths(loaded.prompt, loaded.output, trace.name)
    rng = np.random.default_rng(2023)
    prompt, output = (_lognormal(rng, *shape) for shape in (AZURE_PROMPT, AZURE_OUTPUT))
    return Lengths(prompt, output, "lognormal through median and p90 of the Azure 2023 conversation trace")


def chat_trace(lengths: Lengths, requests: int, rate: float, seed: int = 0) -> Trace:
    """`requests` Poisson arrivals at `rate` [1/s] with lengths drawn pairwise, shape (requests,)."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(lengths.prompt), requests, dtype=np.int32)
    gaps = rng.exponential(NS_PER_S / rate, requests)
    arrival = np.rint(np.cumsum(gaps, out=gaps), out=gaps).astype(np.int64)
    meta = TraceMeta("generated", "poisson", "", requests)
    return make_trace(arrival, lengths.prompt[rows], lengths.output[rows], meta=meta)


def chat_scenario(policy: str, replicas: int, slots: int = 128) -> Scenario:
    """The benchmark's scenario; its workload section is a stand-in, traces are passed beside it."""
    knobs: dict[str, Any] = {"name": policy, "max_num_seqs": slots}
    if policy in ("chunked", "vllm_v0"):
        knobs["max_num_batched_tokens"] = 2048 if policy == "chunked" else 16384
    return scenario_from({
        "name": "bench", "workload": {"requests": {"output": [1]}}, "model": "llama-3.1-8b",
        "hardware": "h100-sxm", "engine": "vllm-0.24", "policy": knobs, "max_model_len": 16384,
        "cluster": {"replicas": replicas, "router": "least_outstanding"}}, name="bench")


def _lognormal(rng: np.random.Generator, median: float, p90: float, longest: int) -> Int64s:
    sigma = np.log(p90 / median) / Z90
    drawn = np.rint(np.exp(rng.normal(np.log(median), sigma, 20_000)))
    return np.clip(drawn, 1, longest).astype(np.int64)


def _bare_loop(arrival: Int64s, prompt: Int64s, output: Int64s) -> int:
    """Read every request once, push its end on a heap of HEAP_SIZE ends and pop the earliest."""
    heap = [0] * HEAP_SIZE
    total = 0
    for i in range(len(arrival)):
        heapq.heappush(heap, arrival[i] + output[i] * 10_000_000 + prompt[i] * 30_000)
        total += heapq.heappop(heap) & 1
    return total


bare_loop = compiled(_bare_loop, "bare-loop", allocates=True)

"""The hit-rate curve against caches that are really run: a dictionary, and the simulator one request at a time."""

from collections import OrderedDict

import numpy as np
import pytest

from simulator import scenario_from, simulate
from simulator.metrics.reuse import Curve, curve, curve_of, reuse
from simulator.report.reuse import reuse_figure
from simulator.workload.build import build_trace
from simulator.workload.shared import Shared, shared_blocks
from simulator.workload.trace import Trace

CHATS = {"sessions": {"arrivals": {"kind": "poisson", "rate": 2.0, "requests": 12}, "turns": {"kind": "uniform",
         "min": 1, "max": 4}, "new": {"kind": "uniform", "min": 1, "max": 9}, "output": {"kind": "uniform", "min": 1,
         "max": 6}, "prefix": {"groups": 3, "length": {"kind": "uniform", "min": 2, "max": 14}, "skew": 1.0}}}
PROMPTS = {"arrivals": {"kind": "poisson", "rate": 2.0, "requests": 40}, "prompt": {"kind": "uniform", "min": 1,
           "max": 9}, "output": 3, "prefix": {"groups": 8, "length": {"kind": "uniform", "min": 2, "max": 20},
           "skew": 0.7}}


def scenario(workload, blocks, block_size=1):
    """One request at a time on the textbook GPU."""
    return scenario_from({"workload": workload, "hardware": "unit", "engine": {"schedule_ahead": 0},
                          "policy": {"name": "chunked", "max_num_seqs": 1, "max_num_batched_tokens": 4096},
                          "kv": {"num_gpu_blocks": blocks, "block_size": block_size, "prefix_caching": True},
                          "load": {"kind": "closed", "width": 1}, "max_model_len": 4096})


def found_by_lru(trace: Trace, shared: Shared, blocks: int, block: int) -> int:
    """[blocks] found by an LRU dictionary of `blocks` entries, block by block."""
    cache: OrderedDict[tuple[int, int], None] = OrderedDict()
    hits = 0
    for i in range(len(trace)):
        chain = shared.numbers[(shared.ends[i - 1] if i else 0) : shared.ends[i]].tolist()
        full = int(trace.prompt[i] + trace.output[i] - 1) // block
        names = [(-1, number) for number in chain] + [(i, k) for k in range(len(chain), full)]
        for name in names[: int(trace.prompt[i] - 1) // block]:
            if name not in cache:
                break
            hits += 1
        for name in reversed(names):
            cache.pop(name, None)
            cache[name] = None
        while len(cache) > blocks:
            cache.popitem(last=False)
    return hits


@pytest.mark.parametrize("workload", [CHATS, PROMPTS], ids=["conversations", "system prompts"])
@pytest.mark.parametrize("seed", range(4))
def test_the_curve_is_what_a_cache_of_every_size_finds(workload, seed):
    trace = build_trace(workload, seed)
    for block in (1, 4):
        shared = shared_blocks(trace, block)
        asked, used = (trace.prompt - 1) // block, (trace.prompt + trace.output - 1) // block
        found = curve_of(shared, np.arange(len(trace)), asked, used)
        sizes = [1, 5, 10, 20, 30, 50, 80, 120, 200, 400, 10**9]
        hits = [found.hits(size) for size in sizes]
        assert hits == [found_by_lru(trace, shared, size, block) for size in sizes]
        assert hits == sorted(hits) and hits[-1] == found.ideal == found.hits(found.enough) > 0
        assert found.hits(found.enough - 1) < found.ideal


@pytest.mark.parametrize("workload", [CHATS, PROMPTS], ids=["conversations", "system prompts"])
def test_the_engine_one_request_at_a_time_finds_what_the_curve_says_at_its_size(workload):
    """Blocks of one token, so that none is filled in part; a paged engine keeps one block for itself."""
    runs = [simulate(scenario(workload, blocks), "reference") for blocks in (60, 90, 140, 200, 400, 5000)]
    hits, _ = curve(runs[0])
    found = [int(run.requests.found.sum()) for run in runs]
    assert found == [hits.hits(run.setup.limits.num_blocks) for run in runs]
    assert found == sorted(found) and found[0] < found[-1] == hits.ideal


def test_the_summary_has_the_curve_at_multiples_of_the_memory_and_the_blocks_shared():
    """Four requests at once with one system prompt of eight blocks: three of them hold 24 that are not there."""
    workload = {"arrivals": {"kind": "burst", "requests": 4}, "prompt": 1, "output": 9,
                "prefix": {"groups": 1, "length": 32}}  # fmt: skip
    many = scenario(workload, 101, 4).updated({"policy": {"name": "chunked", "max_num_seqs": 4}, "load": "open"})
    run = simulate(many, "reference")
    assert run.summary["kv"]["prefix_cache"]["peak_blocks_shared"] == 24
    sizes = reuse(run, curve(run))
    assert [each["num_blocks"] for each in sizes["sizes"]] == [25, 50, 100, 200, 400]
    assert sizes["unlimited"] == sizes["sizes"][-1]["hit_rate"] == 3 * 32 / (4 * 33)
    assert simulate(many.updated({"kv": {"prefix_caching": False}}), "reference").prefix_reuse is None


def test_hits_by_hand():
    """A, B, A again of two blocks each: A's come back after the two of B, first the one with two blocks above it."""
    assert Curve(np.array([2]), np.array([2])).hits(2) == 0
    shared = Shared(np.array([0, 1, 0, 1]), np.array([2, 2, 4]), 2)
    found = curve_of(shared, np.arange(3), np.array([2, 2, 2]), np.array([2, 2, 2]))
    assert [found.hits(size) for size in range(6)] == [0, 0, 0, 1, 2, 2]


def test_no_picture_of_a_run_in_which_every_prompt_is_too_long():
    done = simulate(scenario_from({
        "workload": {"arrivals": {"kind": "burst", "requests": 3}, "prefix": {"groups": 1, "length": 95}, "prompt": 20,
                     "output": 5},
        "max_model_len": 100, "policy": "chunked"}), "reference")
    assert done.summary["requests"]["rejected"] == 3
    assert done.reuse_curve is None and reuse_figure(done) is None

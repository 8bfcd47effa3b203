"""Large fleets take memory by what runs, not by the product of limits."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simulator import scenario_from
from simulator.memory import LARGE, zeros_as_used
from simulator.prefix import forget_all
from simulator.records import Counters
from simulator.run import build_job, build_trace, in_submission_order
from simulator.scenario.setup import prepare
from simulator.state import Prefix

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")


def resident() -> int:
    """[bytes] of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_one_number_a_row_takes_a_page_a_row() -> None:
    """512 rows of 1 MiB, of which the first number is written: 2 MiB of pages of 4 KiB, not half a GiB."""
    table = zeros_as_used((512, 2**17), np.int64)
    before = resident()
    table[:, 0] = 1
    assert resident() - before < 32 * 2**20 and table.sum() == 512
    assert zeros_as_used((3, 5), np.int32).nbytes == 60 and table.nbytes > LARGE


def test_a_thousand_replicas_begin_with_what_their_slots_take() -> None:
    """Blocks of the prefix cache of an H100, 27,000 a replica, take their place when they are used: 1.4 GB for all of
    them; slots take 64 KiB a replica."""
    scenario = scenario_from({
        "workload": {"arrivals": {"kind": "poisson", "rate": 100, "requests": 30_000}, "prompt": 100, "output": 10},
        "engine": "vllm-0.24", "max_model_len": 4096, "cluster": {"replicas": 1024}})
    trace = in_submission_order(build_trace(scenario.parsed_workload(), 1), "open")
    before = resident()
    job = build_job(prepare(scenario), trace, True, False)
    job.reps.prefix.nodes["owner"][:, 0] = 1
    assert job.reps.prefix.nodes.nbytes > 1.4e9 and resident() - before < 0.25e9


def test_a_thousand_prefix_caches_begin_empty() -> None:
    """What each replica knows of every shared block is a table of over 1 GB for all of them; before anything has run it
    is empty, and emptying the cache of a replica that comes back takes no memory either."""
    scenario = scenario_from({
        "workload": {"arrivals": {"kind": "poisson", "rate": 100, "requests": 20_000}, "prompt": 100, "output": 10,
                     "prefix": {"groups": 2000, "length": 1600}},
        "engine": "vllm-0.24", "max_model_len": 4096, "cluster": {"replicas": 1024}})
    trace = in_submission_order(build_trace(scenario.parsed_workload(), 1), "open")
    before = resident()
    job = build_job(prepare(scenario), trace, True, False)
    found = job.reps.prefix.found
    rep: Any = SimpleNamespace(prefix=Prefix((), (), found[0], (), ()), c=Counters())
    forget_all(rep)
    assert found.nbytes > 1e9 and resident() - before < 0.25e9 and not found.any()

"""What a faster or slower host does to a replica of one GPU and of several, whose launches run in worker processes."""

from typing import Any

import numpy as np
import pytest

from simulator import scenario_from
from simulator.planning.bounds import RELIEF, relieved_replica
from simulator.planning.ways import changed_setup
from simulator.scenario.setup import Setup, prepare


def replica(tp: int, **more: Any) -> Setup:
    """Qwen3-30B-A3B, whose steps with prompts are bound by their launches."""
    return prepare(scenario_from({
        "workload": {"requests": {"output": [2]}}, "model": "qwen3-30b-a3b", "max_model_len": 4096,
        "hardware": {"gpu": "h200-sxm", "tensor_parallel": tp},
        "policy": {"max_num_seqs": 64, "max_num_batched_tokens": 2048}, **more}))  # fmt: skip


@pytest.mark.parametrize("tp", [1, 2])
def test_a_change_of_host_time_is_a_run_on_that_host(tp: int) -> None:
    """`host time` of a plan's tornado against `host.cpu_scale` of a scenario."""
    changed = changed_setup(replica(tp), ("host time", 0.8)).cost
    other = replica(tp, host={"cpu_scale": 0.8}).cost
    assert all(np.array_equal(one, two) for one, two in zip(changed, other, strict=True))


@pytest.mark.parametrize("tp", [1, 2])
def test_more_of_the_cpu_shortens_steps_that_wait_for_it(tp: int) -> None:
    """A step of 1,024 prompt tokens: 26 ms of work on the GPU, 69 to launch."""
    usual, relieved = replica(tp), relieved_replica(replica(tp), "scheduler CPU")
    lasts = [max(int(setup.cost.dense_ns[1, 1024]), int(setup.cost.cpu_ns[1, 1024])) for setup in (usual, relieved)]
    assert lasts[1] == pytest.approx(lasts[0] / RELIEF, rel=0.05)
    assert int(relieved.cost.frontend_in_ns) == int(usual.cost.frontend_in_ns)

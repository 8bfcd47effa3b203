"""Slots of the engine's tables: as many as can be held at a time, and refused before memory is taken."""

import pytest

from simulator import memory, scenario_from, simulate
from simulator.errors import ConfigError

HUGE = {"workload": {"requests": {"output": [3, 1, 2], "prompt": 5}}, "hardware": "unit",
        "policy": {"name": "chunked", "max_num_seqs": 65536}, "cluster": {"replicas": 4096},
        "kv": {"num_gpu_blocks": 100}}


def test_slots_nobody_can_hold_take_no_memory() -> None:
    """4,096 replicas of 65,536 sequences: 268 million slots, of which three requests can hold three."""
    done = simulate(scenario_from(HUGE), "reference")
    assert done.requests.done.tolist() == [3, 1, 2]
    assert len(done.totals) == 4096


def test_tables_beyond_the_memory_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 4096 * memory.REPLICA_BYTES)
    with pytest.raises(ConfigError, match=r"^cluster\.replicas: 4,096 replicas x 3 slots that can be held at a time"):
        simulate(scenario_from(HUGE), "reference")


@pytest.mark.parametrize("blocks", [2, 3])
def test_a_sequence_holds_a_block(blocks: int) -> None:
    """Of so many blocks one is kept back: the rest bounds the sequences, and all are served one after the other."""
    data = HUGE | {"cluster": {"replicas": 1}, "kv": {"num_gpu_blocks": blocks, "block_size": 16}}
    done = simulate(scenario_from(data), "reference")
    assert done.requests.done.tolist() == [3, 1, 2]
    assert int(done.totals["peak_running"].max()) == blocks - 1

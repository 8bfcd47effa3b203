"""Host memory behind the prefix cache: ticks by hand, the hits of an LRU dictionary, a published trace's own ideal."""

from pathlib import Path
from typing import Any

import pytest
from oracle.test_oracle import UNKNOWN, agree
from parity.cases import run
from prefix.test_hits import ideal
from prefix.test_reuse import CHATS, PROMPTS, scenario
from unit.steps import ENGINES, requests, times

from simulator import scenario_from, simulate
from simulator.errors import ConfigError
from simulator.metrics.reuse import curve
from simulator.selftest.cases import Case, Uniform, some_case


def again(host: int, more: int = 0) -> Case:
    """4 blocks of 4 tokens. A prompt of 9 leaves two blocks that the prompt at 100 takes; at 200 it comes again, and
    `more` times at 203. Copies take 3 a block, steps 10."""
    return requests([0, 100, 200, *[203] * more], [9, 15, 9, *[9] * more], [2, 1, 1, *[1] * more], num_blocks=4,
                    prefix=1, offload_blocks=host, offload_ns=3,
                    more={"chains": ((0, 1), (), (0, 1), *[(0, 1)] * more)})


@ENGINES
@pytest.mark.parametrize(("host", "first", "loaded", "prefill"), [
    (5, 216, 2, 25), (4, 213, 1, 29), (3, 210, 0, 33), (0, 210, 0, 33)])
def test_what_the_gpu_dropped_comes_back_from_the_host(host: int, first: int, loaded: int, prefill: int,
                                                       engine: str) -> None:
    """5 blocks of the host hold all; in 4 the last block of the older request was dropped for one of the newer's, so
    that one comes back in 3 and 5 tokens are computed; in 3 none is left."""
    done = run(again(host), engine)
    assert times(done)[1][2] == first and done.stats["loaded"][0] == loaded
    assert (done.stats["prefill"][0], done.stats["loading"][0]) == (prefill, 3 * loaded)
    assert done.req.found.tolist() == [0, 0, 4 * loaded]


@ENGINES
def test_a_block_on_its_way_is_waited_for_and_not_copied_twice(engine: str) -> None:
    """The copy has come at 206. Then both are computed, in one step, from two blocks that they share."""
    done = run(again(6, more=1), engine)
    assert times(done)[1][2:] == [216, 216] and done.stats["loaded"][0] == 2
    assert done.req.found.tolist() == [0, 0, 8, 8] and done.req.fetched.tolist() == [0, 0, 8, 0]


@ENGINES
def test_who_decodes_does_not_wait_for_a_copy(engine: str) -> None:
    """8 blocks, one more answer from 195 on: it gets a token every 10, the copies of 20 ns each notwithstanding; who
    loads is in the first step planned when they have come, at 245."""
    case = requests([0, 100, 195, 200], [9, 31, 1, 9], [2, 1, 9, 1], num_blocks=8, prefix=1, offload_blocks=99,
                    offload_ns=20, more={"chains": ((0, 1), (), (), (0, 1))})
    done = run(case, engine)
    assert times(done)[2][2] == 285 and done.req.itl_max[2] == 10
    assert done.stats["loaded"][0] == 2 and times(done)[0][3] == 245


@ENGINES
def test_who_waits_is_looked_at_when_a_block_that_it_would_find_is_taken(engine: str) -> None:
    """10 blocks of 4 tokens. The first leaves 3 known blocks and one more, the second 2 younger ones. The third decodes
    from 40 on; the fourth, of 8 blocks, waits for as many free ones, among which are those it finds. At 120 the third,
    with 21 tokens, takes its 6th block, the last known one, which is in host memory: the fourth now finds 2, copies
    one, and needs no more than these 3 of the 4 free ones at first. The copy lasts until 160; the third ends at 140,
    and the fourth computes its other 19 tokens until 170."""
    case = requests([0, 20, 30, 35], [13, 8, 12, 31], [1, 1, 11, 1], num_blocks=10, prefix=1, offload_blocks=99,
                    offload_ns=40, more={"chains": ((0, 1, 2), (), (), (0, 1, 2))})
    done = run(case, engine)
    assert times(done)[2] == [10, 30, 140, 170]
    assert done.req.found.tolist() == [0, 0, 0, 12] and done.req.fetched.tolist() == [0, 0, 0, 4]


@pytest.mark.parametrize("workload", [CHATS, PROMPTS], ids=["conversations", "system prompts"])
def test_one_at_a_time_both_memories_find_what_the_larger_of_them_would(workload: dict[str, Any]) -> None:
    """What was used least recently goes in both, and every block is in the host's from when it is computed on: so the
    smaller memory holds nothing that the larger has not (Mattson et al. 1970), and a host's no larger than the GPU's
    copies nothing. Blocks of one token, 131,072 bytes."""
    alone = scenario(workload, 91)
    hits, _ = curve(simulate(alone, "reference"))
    found = []
    for host in (10, 90, 120, 200, 400, 10**6):
        kv = alone.kv.model_dump() | {"offload": {"gib": host / 8192, "gb_per_s": 1000}}
        done = simulate(alone.updated({"kv": kv}), "reference")
        cache = done.summary["kv"]["prefix_cache"]
        found.append(cache["found_tokens"])
        assert found[-1] == hits.hits(max(90, host))
        assert cache["host"]["found_tokens"] == found[-1] - hits.hits(90) == cache["host"]["blocks_loaded"]
        assert cache["host"]["blocks"] == host and cache["host"]["peak_blocks"] <= host
    assert found == sorted(found) and found[0] == found[1] < found[-1] == hits.ideal


def test_mooncake_with_a_host_without_end_finds_the_ideal_from_little_gpu_memory(data_dir: Path) -> None:
    """The trace's own ideal, with a hundredth of the KV memory that holds it all."""
    trace = data_dir / "traces" / "mooncake_conversation.jsonl"
    if not trace.is_file():
        pytest.skip(f"{trace.name} is not there")
    done = simulate(scenario_from({
        "workload": {"trace": {"path": str(trace), "limit": 1000}}, "max_model_len": 131072,
        "kv": {"num_gpu_blocks": 10_000, "prefix_caching": True, "offload": {"gib": 1e5, "gb_per_s": 25}}}))
    found, fetched = int(done.requests.found.sum()), int(done.requests.fetched.sum())
    assert found == ideal(trace, 1000) > 2 * (found - fetched)


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_drawn_runs_agree_with_the_oracle_block_by_block(engine: str) -> None:
    """Short of memory of both kinds, with preemption and all that is drawn."""
    loaded = 0
    for seed in range(150):
        given = UNKNOWN | {"policy": "chunked", "prefix": 1, "contiguous": 0, "num_blocks": (5, 7, 9)[seed % 3],
                           "offload_blocks": (3, 8, 30, 10**6)[seed % 4], "block_size": 1 + seed % 2}
        case = some_case(Uniform(seed), given, most=40, longest=12)
        loaded += int(agree(case, engine).stats["loaded"].sum())
    assert loaded > 50


HOST = {"gib": 1, "gb_per_s": 25}


@pytest.mark.parametrize(("changes", "words"), [
    ({"kv": {"prefix_caching": False, "offload": HOST}}, "kv.offload needs a prefix cache"),
    ({"model": "mistral-7b-v0.1", "kv": {"offload": HOST}}, "kv.offload is not modelled for mistral-7b-v0.1"),
    ({"engine": {"speculation": {"method": "ngram", "tokens": 3, "acceptance": 0.5}}}, "not modelled with engine.spec"),
    ({"kv": {"prefix_caching": True, "offload": HOST | {"gib": 1e-6}}}, "gib must hold a KV block of 2,097,152"),
    ({"workload": {"requests": {"prompt": 50, "output": [2], "cached": 20}}}, "kv.offload needs requests that name"),
])
def test_what_is_not_modelled_is_refused(changes: dict[str, Any], words: str) -> None:
    data = {"workload": {"requests": {"prompt": 50, "output": [2]}},
            "kv": {"prefix_caching": True, "offload": HOST}} | changes
    with pytest.raises(ConfigError, match=words):
        simulate(scenario_from(data), "reference")

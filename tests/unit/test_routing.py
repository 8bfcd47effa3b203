"""What routers know: load seen a while ago, prefixes by what was sent where or by the caches; by hand and in theory."""

from typing import Any

import numpy as np
import pytest

from simulator import Scenario, scenario_from, simulate
from simulator.errors import ConfigError
from simulator.run import Result
from simulator.units import NS_PER_S
from simulator.workload.extras import Extras
from simulator.workload.trace import make_trace


def fleet(replicas: int, requests: dict[str, Any], **cluster: Any) -> Scenario:
    return scenario_from({"workload": {"requests": requests}, "hardware": "unit", "max_model_len": 999,
                          "policy": {"name": "chunked", "max_num_seqs": 1}, "kv": {"prefix_caching": False},
                          "cluster": {"replicas": replicas, **cluster}})


def test_one_picture_for_all_until_the_next_look() -> None:
    """A request a second, each of five seconds: by the first picture, of an empty fleet, the first replica is the best
    until 10 s; then it has eight, and all go to the second, until 20 s."""
    n = 25
    requests = {"arrival_s": [float(k) for k in range(n)], "prompt": [1] * n, "output": [5] * n}
    done = simulate(fleet(2, requests, router="least_outstanding", staleness_s=10), "reference")
    assert done.requests.replica.tolist() == [0] * 10 + [1] * 10 + [0] * 5  # at 20 s 6 there, 8 here
    fresh = simulate(fleet(2, requests, router="least_outstanding"), "reference")
    assert fresh.requests.replica[:4].tolist() == [0, 1, 0, 1]


def waits(router: str, staleness_s: float) -> float:
    """[s] mean wait of 4,000 requests of a second each at 16 replicas that are busy for nine tenths of the time."""
    n, draw = 4000, np.random.default_rng(5)
    requests = {"arrival_s": np.cumsum(draw.exponential(1 / (0.9 * 16), n)).tolist(), "prompt": [1] * n,
                "output": [1] * n}
    req = simulate(fleet(16, requests, router=router, staleness_s=staleness_s), "reference").requests
    return float((req.scheduled - req.queued).mean() / NS_PER_S)


def test_old_information_is_worse_than_none() -> None:
    """Mitzenmacher, "How Useful Is Old Information?", IEEE TPDS 11(1), 2000, periodic update: who looks at all is
    best with fresh information and, from a few service times on, worse than random, for all go where few were; of two
    drawn the better does harm later. While a picture of an empty fleet lasts, one replica gets 14.4 requests a second
    and serves one: the mean wait of that time T is 13.4 T / 2."""
    random, fresh, two = waits("random", 0), waits("least_outstanding", 0), waits("power_of_two", 0)
    assert fresh < two < random
    old, old_two = waits("least_outstanding", 20), waits("power_of_two", 20)
    assert old > 3 * random and old > 3 * old_two
    assert waits("power_of_two", 1) < random < waits("least_outstanding", 4)
    assert waits("least_outstanding", 1e6) == pytest.approx(13.4 * (4000 / 14.4) / 2, rel=0.05)


def shared(*blocks: list[int], cluster: dict[str, Any], router: str = "prefix_aware",
           times: tuple[int, ...] = (0, 0, 20, 40, 60)) -> Result:
    """Requests of the blocks of four tokens named, each answered within seconds."""
    n = len(blocks)
    ends = np.cumsum([len(each) for each in blocks])
    extras = Extras(hash_ids=np.concatenate(blocks), hash_ends=ends, hash_block=4)
    arrivals = np.array(times[:n]) * NS_PER_S
    trace = make_trace(arrivals, [4 * len(each) for each in blocks], [3] * n, extras=extras)
    scenario = fleet(2, {"output": [1]}, router=router, **cluster).updated(
        {"kv": {"prefix_caching": True, "block_size": 4}})
    return simulate(scenario, "reference", trace=trace)


A, B, HALF, MOST = [1, 2], [3, 4], [3, 8, 7, 6, 5, 9], [3, 4, 8]


@pytest.mark.parametrize("knows", ["sent", "caches"])
def test_who_shares_most_of_its_prompt_goes_where_that_is(knows: str) -> None:
    """A and B are apart as B finds A at the first. Two blocks of three go to B; one of six goes to the least loaded."""
    done = shared(A, B, MOST, HALF, A, cluster={"prefixes": {"knows": knows}})
    assert done.requests.replica.tolist() == [0, 1, 1, 0, 0]
    assert done.requests.found.tolist() == [0, 0, 8, 0, 4]  # the last block of a prompt is computed for its logits
    assert shared(A, B, MOST, cluster={}, router="least_outstanding").requests.replica.tolist() == [0, 1, 0]


@pytest.mark.parametrize(("capacity", "goes"), [(4, 1), (3, 0)])
def test_an_index_of_few_blocks_forgets(capacity: int, goes: int) -> None:
    """After B's two blocks three others go to the second replica: the latest four hold one of B's, the latest three
    none. (Blocks of one prompt are sent, and forgotten, together.)"""
    cluster = {"prefixes": {"capacity_blocks": capacity}}
    done = shared(A, B, [5, 6, 7], [8, 9, 10], B, cluster=cluster, times=(0, 0, 20, 20, 40))
    assert done.requests.replica.tolist() == [0, 1, 0, 1, goes]


@pytest.mark.parametrize(("knows", "goes"), [("sent", 1), ("caches", 0)])
def test_a_restart_empties_the_cache_and_not_the_index(knows: str, goes: int) -> None:
    crash = [{"at_s": 10, "kind": "crash", "replica": 1, "for_s": 5}]
    done = shared(A, B, MOST, cluster={"prefixes": {"knows": knows}, "events": crash})
    assert done.requests.replica.tolist() == [0, 1, goes] and done.requests.found[2] == 0


def test_loads_far_apart_count_first() -> None:
    """Eight that share all their prompt, at once: by prefix all go to one; where loads may not differ, half of them."""
    n, extras = 8, Extras(hash_ids=np.tile([1, 2], 8), hash_ends=2 * np.arange(1, 9), hash_block=4)
    trace = make_trace(np.zeros(n, dtype=np.int64), [8] * n, [3] * n, extras=extras)
    base = fleet(2, {"output": [1]}, router="prefix_aware").updated({"kv": {"prefix_caching": True, "block_size": 4}})
    for apart, there in ((32, [0] * 8), (0, [0, 1] * 4)):
        scenario = base.updated({"cluster.prefixes": {"most_apart": apart, "factor": 1}})
        assert simulate(scenario, "reference", trace=trace).requests.replica.tolist() == there


@pytest.mark.parametrize(("cluster", "words"), [
    ({"staleness_s": 1}, "no effect with router: round_robin"),
    ({"prefixes": {}}, "no effect without router: prefix_aware"),
    ({"router": "prefix_aware", "prefixes": {"knows": "caches", "capacity_blocks": 3}}, "no effect with knows: caches"),
    ({"router": "prefix_aware"}, "needs prefix caches"),
])
def test_refused(cluster: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        simulate(fleet(2, {"output": [1]}, **cluster), "reference")

"""Unlike pools behind one router: who may go where, what is refused, and totals that fit together."""

import numpy as np
import pytest

from simulator import Scenario, scenario_from, simulate
from simulator.cli.run import print_result
from simulator.errors import ConfigError
from simulator.report.slots import slot_figure

POOLS = {"long": {"replicas": 2, "serves": {"min_prompt_tokens": 100}},
         "short": {"replicas": 3, "policy": {"max_num_seqs": 2}, "serves": {"max_prompt_tokens": 99}}}


def fleet(pools: dict[str, object], **more: object) -> Scenario:
    requests = {"arrival_s": [float(k) for k in range(20)], "prompt": [50, 150] * 10, "output": [4] * 20}
    data = {"workload": {"requests": requests}, "hardware": "unit", "policy": {"name": "chunked", "max_num_seqs": 4},
            "cluster": {"pools": pools}}
    return scenario_from(data | more)


def test_requests_go_where_they_may() -> None:
    done = simulate(fleet(POOLS), "reference")
    assert (done.requests.replica[done.requests.prompt > 99] < 2).all()
    assert (done.requests.replica[done.requests.prompt < 100] >= 2).all()
    # round robin among the members of each group: ten requests over two, ten over three replicas
    assert np.bincount(done.requests.replica, minlength=5).tolist() == [5, 5, 4, 3, 3]


@pytest.mark.parametrize("order", [("fast", "slow"), ("slow", "fast")])
def test_work_is_weighed_by_speed_whichever_pool_comes_first(order: tuple[str, str]) -> None:
    """Five requests of the same work at once, one pool four times as fast. The first two go one to each pool; then the
    fast one has 1/4, 2/4 and 3/4 of the slow one's load, and gets the rest."""
    kinds = {"fast": {"hardware": {"gpu": "unit", "step_s": 1}}, "slow": {"hardware": {"gpu": "unit", "step_s": 4}}}
    requests = {"arrival_s": [0.0] * 5, "prompt": [10] * 5, "output": [4] * 5}
    done = simulate(fleet({}, workload={"requests": requests}, cluster={
        "router": "least_work", "pools": {name: kinds[name] for name in order}}), "reference")
    assert {name: own["requests"]["arrived"] for name, own in done.summary["pools"].items()} == {"fast": 4, "slow": 1}


def test_pools_add_up() -> None:
    whole = simulate(fleet(POOLS), "reference").summary
    parts = whole["pools"].values()
    assert sum(part["requests"]["completed"] for part in parts) == whole["requests"]["completed"] == 20
    assert sum(part["replicas"] for part in parts) == 5


def test_one_pool_is_the_fleet_of_its_kind() -> None:
    """A single pool of n replicas is n replicas."""
    plain = fleet({}, cluster={"replicas": 3})
    pooled = fleet({"only": {"replicas": 3}})
    one, other = simulate(plain, "reference"), simulate(pooled, "reference")
    for column, same in zip(one.requests, other.requests, strict=True):
        assert np.array_equal(column, same)
    assert one.summary["kv"]["mean_use"] == other.summary["kv"]["mean_use"]
    assert one.summary["slot_utilization"] == other.summary["slot_utilization"]


@pytest.mark.parametrize(("pools", "words"), [
    ({"a": {"serves": {"max_prompt_tokens": 99}}}, "10 requests are served by no pool"),
    ({"a": {"serves": {"classes": ["gold"]}}}, "unknown class 'gold'"),
    ({"a": {}, "b": {"policy": "orca"}}, "one policy for all pools"),
    ({"a": {"hardware": {"gpu": "h1000"}}}, "cluster.pools.a: "),
    ({"a": {"replica": 2}}, "replica"),
])
def test_refused(pools: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        simulate(fleet(pools), "reference")


def test_replicas_beside_pools_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.replicas has no effect"):
        fleet({}, cluster={"replicas": 2, "pools": POOLS})


def test_affinity_needs_conversations() -> None:
    with pytest.raises(ConfigError, match="needs a workload with conversations"):
        simulate(fleet({}, cluster={"replicas": 3, "router": "session_affinity"}), "reference")


def test_the_slot_picture_names_the_pool_and_every_pool_has_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    done = simulate(fleet(POOLS), "reference")
    assert "replica 0 of 5, pool long" in slot_figure([done]).axes[0].get_title("left")
    real = {"long": POOLS["long"], "short": POOLS["short"] | {"hardware": {"weight_dtype": "fp8"}}}
    print_result(simulate(fleet(real, hardware="h100-sxm", max_model_len=4096), "reference"))
    said = capsys.readouterr().out
    assert said.index("pool long:") < said.index("-14.99 GiB") < said.index("pool short:")
    assert said.count("left for KV") == 2 and said.count("-14.99 GiB") == 1  # fp8 weights are about half of that

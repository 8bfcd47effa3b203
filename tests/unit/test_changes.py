"""Crashes and restarts: timelines worked by hand, and what is refused."""

from typing import Any

import pytest

from simulator import Scenario, scenario_from, simulate
from simulator.errors import ConfigError
from simulator.units import NS_PER_S


def fleet(replicas: int, events: list[dict[str, Any]], requests: dict[str, Any], **cluster: Any) -> Scenario:
    return scenario_from({"workload": {"requests": requests}, "hardware": "unit", "max_model_len": 99,
                          "policy": {"name": "chunked", "max_num_seqs": 1},
                          "cluster": {"replicas": replicas, "events": events, **cluster}})


def seconds(column: Any) -> list[float]:
    return (column / NS_PER_S).tolist()


ONE = {"arrival_s": [0.0], "prompt": [1], "output": [5]}


def test_a_crash_by_hand() -> None:
    """A step a second: two tokens are out when the replica goes at 2.5 s, for 10 s. Submitted again at 3.5 s the
    request finds nobody; it begins anew at 12.5 s."""
    done = simulate(fleet(1, [{"at_s": 2.5, "kind": "crash", "for_s": 10}], ONE), "reference")
    assert seconds(done.requests.first) == [13.5] and seconds(done.requests.last) == [17.5]
    assert done.summary["changes"] == {"requests_failed": 1, "tokens_lost": 2, "down_s": 10}
    assert done.summary["ttft_s"]["mean"] == 13.5


def test_until_a_health_check_requests_fail() -> None:
    """Lost at 2.5 s, submitted again every second; the fourth attempt, at 6.5 s, waits at the gateway."""
    done = simulate(fleet(1, [{"at_s": 2.5, "kind": "crash", "for_s": 10}], ONE, health_check_s=3.5), "reference")
    assert done.summary["changes"]["requests_failed"] == 1 + 3
    assert seconds(done.requests.last) == [17.5]


def test_the_other_replica_takes_over() -> None:
    two = {"arrival_s": [0.0, 0.0], "prompt": [1, 1], "output": [5, 5]}
    done = simulate(fleet(2, [{"at_s": 2.5, "kind": "crash", "replica": 1, "for_s": 50}], two), "reference")
    # the second request, lost at 2.5 s, waits from 3.5 s behind the first, which ends at 5 s
    assert done.requests.replica.tolist() == [0, 0]
    assert seconds(done.requests.last) == [5, 10]


def test_a_drained_replica_finishes_what_it_has() -> None:
    """Drained at 2.5 s it answers until 5 s and is away until 8 s; what came at 4 s waits until then."""
    two = {"arrival_s": [0.0, 4.0], "prompt": [1, 1], "output": [5, 2]}
    done = simulate(fleet(1, [{"at_s": 2.5, "kind": "drain", "for_s": 3}], two), "reference")
    assert seconds(done.requests.last) == [5, 10]
    assert done.summary["changes"] == {"requests_failed": 0, "tokens_lost": 0, "down_s": 3}


def test_a_rolling_restart_loses_nothing() -> None:
    """Three idle replicas, 10 s apart, away for 4 s each: who comes meanwhile goes to the others."""
    three = {"arrival_s": [2.0, 12.0, 22.0], "prompt": [1] * 3, "output": [1] * 3}
    done = simulate(fleet(3, [{"at_s": 0, "kind": "drain", "for_s": 4, "apart_s": 10}], three,
                          router="least_outstanding"), "reference")
    assert done.requests.replica.tolist() == [1, 0, 0]
    assert seconds(done.requests.last) == [3, 13, 23]
    assert done.summary["changes"]["down_s"] == 12


CRASH = {"at_s": 1, "kind": "crash", "for_s": 1}


@pytest.mark.parametrize(("events", "change", "words"), [
    ([CRASH | {"pool": "x"}], {}, "unknown pool 'x'"),
    ([CRASH | {"replica": 1}], {}, r"cluster\.events\[0\]\.replica must be < 1, got 1"),
    ([CRASH], {"policy": {"name": "static"}}, "sends tokens as they come"),
    ([], {"cluster.retry_s": 2}, "has no effect without cluster.events"),
])
def test_refused(events: list[dict[str, Any]], change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        simulate(fleet(1, events, ONE).updated(change), "reference")

"""Crashes and restarts: timelines worked by hand, and what is refused."""

from typing import Any

import numpy as np
import pytest

from simulator import Scenario, scenario_from, simulate
from simulator.engines.members import DOWN, DRAINING, UP
from simulator.errors import ConfigError
from simulator.scenario.changes import reclaims
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


def test_a_slow_replica_by_hand() -> None:
    """Steps planned at 2 and 4 s take two seconds each; the one planned at 6 s, when that is over, takes one."""
    done = simulate(fleet(1, [{"at_s": 2, "kind": "slow", "factor": 2, "for_s": 4}], ONE), "reference")
    assert seconds(done.requests.first) == [1] and seconds(done.requests.last) == [7]
    assert done.summary["time"]["gpu_s"] == 7


def test_a_hanging_replica_by_hand() -> None:
    """From 2.5 s on nothing moves, and who comes at 5 s is sent there all the same. Found at 6.5 s, both are submitted
    again at 7.5 s and wait until it is back at 16.5 s, one after the other."""
    two = {"arrival_s": [0.0, 5.0], "prompt": [1, 1], "output": [5, 5]}
    done = simulate(fleet(1, [{"at_s": 2.5, "kind": "hang", "for_s": 10}], two, health_check_s=4), "reference")
    assert seconds(done.requests.last) == [21.5, 26.5]
    assert done.summary["changes"] == {"requests_failed": 2, "tokens_lost": 2, "down_s": 10}


def test_spot_capacity_goes_after_its_notice() -> None:
    """A busy replica has the notice and no longer, then another one comes; an idle one goes at once."""
    busy = fleet(1, [], {"arrival_s": [0.0], "prompt": [1], "output": [90]}, retry_s=1,
                 spot={"reclaims_per_hour": 200, "notice_s": 7, "replace_s": 5}).updated({"horizon_s": 400})
    done = simulate(busy, "reference")
    assert done.fleet is not None
    rows = [(row["tick"], int(row["state"])) for row in done.fleet]
    assert len(rows) >= 9 and [state for _, state in rows[:6]] == [DRAINING, DOWN, UP] * 2
    times = [tick for tick, _ in rows]
    for notice, gone, back in zip(times[::3], times[1::3], times[2::3], strict=False):
        assert gone - notice in (0, 7 * NS_PER_S) and back - gone == 5 * NS_PER_S
    assert done.summary["changes"]["requests_failed"] > 0


def test_reclaims_are_poisson_and_of_each_replica_its_own() -> None:
    """Of 400 replicas in ten hours at 1.5 an hour 6,000, within four standard deviations; gaps are exponential (mean
    and deviation alike); a larger fleet changes nothing for the others."""
    spot = {"reclaims_per_hour": 1.5, "replace_s": 60}
    end = 36_000 * NS_PER_S
    cluster = fleet(400, [], ONE, spot=spot).cluster
    rows = reclaims(cluster, 3, 0, end)
    assert abs(len(rows) - 6000) < 4 * 6000**0.5
    times = {r: [at for at, _, own, _ in rows if own == r] for r in range(400)}
    gaps = np.concatenate([np.diff([0, *own]) for own in times.values()]) / NS_PER_S
    assert 0.9 < gaps.std() / gaps.mean() < 1.05
    assert [row for row in rows if row[2] < 7] == reclaims(fleet(7, [], ONE, spot=spot).cluster, 3, 0, end)
    assert rows != reclaims(cluster, 3, 1, end)


CRASH = {"at_s": 1, "kind": "crash", "for_s": 1}


@pytest.mark.parametrize(("events", "change", "words"), [
    ([CRASH | {"pool": "x"}], {}, "unknown pool 'x'"),
    ([CRASH | {"replica": 1}], {}, r"cluster\.events\[0\]\.replica must be < 1, got 1"),
    ([CRASH], {"policy": {"name": "static"}}, "sends tokens as they come"),
    ([CRASH | {"kind": "slow"}], {}, "factor belongs to kind: slow"),
    ([CRASH | {"factor": 2}], {}, "factor belongs to kind: slow"),
    ([CRASH | {"kind": "hang"}], {}, "health_check_s must be > 0 for kind: hang"),
    ([], {"cluster.retry_s": 2}, "has no effect without cluster.events"),
])
def test_refused(events: list[dict[str, Any]], change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        simulate(fleet(1, events, ONE).updated(change), "reference")

"""Crashes and restarts: timelines worked by hand, and what is refused."""

from typing import Any

import numpy as np
import pytest

from simulator import Scenario, scenario_from, simulate
from simulator.engines.members import DOWN, DRAINING, UP
from simulator.errors import ConfigError
from simulator.scenario.changes import reclaims
from simulator.state import ABORTED, FINISHED, LOST, NOT_SENT
from simulator.units import NS_PER_S
from simulator.workload.extras import Extras
from simulator.workload.trace import make_trace


def fleet(replicas: int, events: list[dict[str, Any]], requests: dict[str, Any], **cluster: Any) -> Scenario:
    return scenario_from({"workload": {"requests": requests}, "hardware": "unit", "max_model_len": 99,
                          "policy": {"name": "chunked", "max_num_seqs": 1},
                          "cluster": {"replicas": replicas, "events": events, **cluster}})


def seconds(column: Any) -> list[float]:
    return (column / NS_PER_S).tolist()


CRASHED = {"at_s": 2.5, "kind": "crash", "for_s": 10}
ONE = {"arrival_s": [0.0], "prompt": [1], "output": [5]}


def test_a_crash_by_hand() -> None:
    """A step a second: two tokens are out when the replica goes at 2.5 s, for 10 s. Submitted again at 3.5 s the
    request finds nobody; it begins anew at 12.5 s."""
    done = simulate(fleet(1, [{"at_s": 2.5, "kind": "crash", "for_s": 10}], ONE), "reference")
    assert seconds(done.requests.first) == [13.5] and seconds(done.requests.last) == [17.5]
    assert done.summary["changes"] == {"requests_failed": 1, "tokens_lost": 2, "down_s": 10}
    assert done.summary["ttft_s"]["mean"] == 13.5


@pytest.mark.parametrize("replica", [0, 1])
def test_a_crash_in_the_tick_in_which_the_last_one_is_over(replica: int) -> None:
    """Down from 2 to 5 s and from 5 to 9 s, whatever the replica's number."""
    events = [{"at_s": 2, "kind": "crash", "replica": replica, "for_s": 3},
              {"at_s": 5, "kind": "crash", "replica": replica, "for_s": 4}]
    done = simulate(fleet(2, events, {"arrival_s": [20.0], "prompt": [1], "output": [1]}), "reference")
    assert done.summary["changes"]["down_s"] == 7


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


def test_the_gateway_is_first_come_first_served() -> None:
    """Lost at 2.5 s, the first request comes to the gateway at 5.5 s, behind those of 3 and 4 s and before that of 6 s;
    from 12.5 s on each has the replica for 4 s."""
    requests = {"arrival_s": [0.0, 3.0, 4.0, 6.0], "prompt": [1] * 4, "output": [4] * 4}
    done = simulate(fleet(1, [CRASHED], requests, retry_s=3), "reference")
    assert seconds(done.requests.last) == [24.5, 16.5, 20.5, 28.5]


def test_who_finds_nobody_keeps_the_place_in_the_queue() -> None:
    """Prompts of 2 tokens are for a pool that comes back at 10 s, longer ones for one that is back at 20 s: who was
    lost there comes again at 4.5 s, behind the one of 3 s, and is behind it still when the other pool has been
    back."""
    requests = {"arrival_s": [0.0, 3.0, 4.0, 6.0], "prompt": [5, 5, 2, 2], "output": [2] * 4}
    pools = {"short": {"serves": {"max_prompt_tokens": 2}}, "long": {"serves": {"min_prompt_tokens": 3}}}
    events = [{"at_s": 1.5, "kind": "crash", "pool": name, "for_s": back - 1.5}
              for name, back in (("short", 10), ("long", 20))]
    done = simulate(scenario_from({
        "workload": {"requests": requests}, "hardware": "unit", "max_model_len": 99,
        "policy": {"name": "chunked", "max_num_seqs": 1}, "cluster": {"pools": pools, "events": events, "retry_s": 3}},
    ), "reference")
    assert seconds(done.requests.last) == [24, 22, 12, 14]


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


def lose(requests: dict[str, Any], event: dict[str, Any] = CRASHED, load: Any = None, **cluster: Any) -> Any:
    """A fleet of one whose gateway gives lost requests up, unless `cluster` says otherwise."""
    scenario = fleet(1, [event], requests, **({"retries": 0} | cluster))
    return simulate(scenario.updated({"load": load or {}, "slo.e2e_s": 100}), "reference")


def test_a_request_lost_for_good_counts_as_failed() -> None:
    """Lost at 2.5 s with two tokens; the one that comes at 20 s is answered: half of them within any target."""
    two = {"arrival_s": [0.0, 20.0], "prompt": [1, 1], "output": [5, 5]}
    done = lose(two)
    assert done.requests.status.tolist() == [LOST, FINISHED] and seconds(done.requests.lost_at[:1]) == [2.5]
    got = done.summary
    assert got["conservation"] == "arrived 2 = completed 1 + rejected 0 + lost 1 + unfinished 0"
    assert got["goodput"]["attained"] == 0.5 and got["ttft_s"]["p99"] is None and got["ttft_s"]["p50"] is None
    assert got["throughput"]["output_tokens_per_s"] == 5 / 25 and got["changes"]["tokens_lost"] == 2
    assert got["banner"] == {"verdict": "rejecting", "reason": got["banner"]["reason"]}
    assert got["banner"]["reason"].startswith("1 of 2 requests was lost (50.0 %)")


def test_a_gateway_tries_so_often_and_no_more() -> None:
    """Lost at 2.5 s, refused at 3.5, 4.5 and 5.5 s; the next attempt would have found it back at 6 s."""
    down = CRASHED | {"for_s": 3.5}
    assert lose(ONE, down, retries=3, health_check_s=9).summary["requests"]["lost"] == 1
    assert seconds(lose(ONE, down, retries=4, health_check_s=9).requests.last) == [11.5]


def test_a_client_comes_again_with_a_longer_wait() -> None:
    """Lost at 2.5 s, submitted again by its client at 4.5 s; refused, as nobody has noticed, and again 4 s later: at
    8.5 s it is refused for the last time. Where the crash is known it waits at the gateway until 12.5 s."""
    retry = {"retry": {"attempts": 3, "backoff_s": 2, "max_backoff_s": 60}}
    done = lose(ONE, load=retry, health_check_s=20)
    assert done.requests.attempts.tolist() == [3] and seconds(done.requests.lost_at) == [8.5]
    done = lose(ONE, load=retry)
    assert done.requests.attempts.tolist() == [2] and seconds(done.requests.sent) == [4.5]
    assert seconds(done.requests.first) == [13.5] and done.summary["requests"]["lost"] == 0


@pytest.mark.parametrize("health_check_s", [0, 20])
def test_a_client_gives_up_while_its_replica_is_down(health_check_s: int) -> None:
    """At 6 s, waiting for a replica at the gateway or between two attempts of it; the next request is served as if
    there had been none."""
    two = {"arrival_s": [0.0, 13.0], "prompt": [1, 1], "output": [5, 5]}
    done = lose(two, load={"timeout_s": 6}, retries=None, health_check_s=health_check_s)
    assert done.requests.status.tolist() == [ABORTED, FINISHED] and seconds(done.requests.last[1:]) == [18]
    assert done.summary["little"]["mean_in_system"] == 6 / 13


def test_a_place_in_flight_is_given_back_once() -> None:
    """One in flight: after the client of the first has given up, at 6 s, two come at 20 s, one after the other."""
    three = {"arrival_s": [0.0, 20.0, 20.0], "prompt": [1] * 3, "output": [5] * 3}
    done = lose(three, load={"timeout_s": 6, "max_in_flight": 1}, retries=None)
    assert done.requests.status.tolist() == [ABORTED, FINISHED, FINISHED]
    assert seconds(done.requests.arrival) == [0, 20, 25]


def test_a_client_does_not_give_up_in_its_back_off() -> None:
    """Lost at 2.5 s, submitted again at 6.5 s; the time-out of the first submission, at 6 s, is over with it."""
    load = {"timeout_s": 6, "retry": {"attempts": 2, "backoff_s": 4, "max_backoff_s": 4}}
    done = lose(ONE, CRASHED | {"for_s": 2}, load=load)
    assert done.requests.attempts.tolist() == [2] and seconds(done.requests.last) == [11.5]


def test_who_has_had_a_token_waits_for_no_first_one() -> None:
    """A token at 1 s is in time; that its answer begins anew at 12.5 s is no reason to give up. Without one it is."""
    patient = {"ttft_timeout_s": 3}
    assert seconds(lose(ONE, load=patient, retries=None).requests.last) == [17.5]
    done = lose(ONE, CRASHED | {"at_s": 0.5}, load=patient, retries=None)
    assert done.requests.status.tolist() == [ABORTED]


def test_gaps_of_lost_attempts_keep_their_mean() -> None:
    """Steps of a second: all gaps are one second, those of the attempt that was lost too."""
    assert lose(ONE, retries=None).summary["itl_s"]["mean"] == 1


def conversation(events: list[dict[str, Any]], **more: Any) -> Any:
    """Two turns on two replicas with a prefix cache: 8 tokens and an answer of 4, then 12 + 3 and 2, from 10 s on."""
    extras = Extras(np.array([0, 0]), np.array([0, 1]), np.array([0, 6 * NS_PER_S]))
    trace = make_trace(np.array([0, 1]) * NS_PER_S, [8, 15], [4, 2], extras=extras)
    scenario = fleet(2, events, {"output": [1]}, router="session_affinity").updated(
        {"load.turns": "after_answer", "kv": {"prefix_caching": True, "block_size": 1}, **more})
    return simulate(scenario, "reference", trace=trace)


def test_a_conversation_goes_on_elsewhere_with_its_context_computed_again() -> None:
    """The second turn finds the 11 tokens of the first whose KV was computed; where that replica has died, nothing."""
    stays = conversation([])
    home = int(stays.requests.replica[0])
    assert stays.requests.replica.tolist() == [home, home] and stays.requests.found.tolist() == [0, 11]
    moved = conversation([{"at_s": 6, "kind": "crash", "replica": home, "for_s": 50}])
    assert moved.requests.replica.tolist() == [home, 1 - home] and moved.requests.found.tolist() == [0, 0]
    assert seconds(moved.requests.last) == seconds(stays.requests.last) == [4, 12]  # a step takes a second


def test_only_conversations_of_who_has_gone_move() -> None:
    """Sixty conversations of two turns on four replicas, of which one crashes in between: the first turns of the others
    and their second ones are at one place; those of the one that is gone are spread over the three that are left."""
    n = 60
    extras = Extras(np.tile(np.arange(n), 2), np.repeat([0, 1], n), np.zeros(2 * n, dtype=np.int64))
    trace = make_trace(np.repeat([0, 100], n) * NS_PER_S, [8] * n + [12] * n, [1] * (2 * n), extras=extras)
    crash = [{"at_s": 50, "kind": "crash", "replica": 2, "for_s": 500}]
    scenario = fleet(4, crash, {"output": [1]}, router="session_affinity").updated({"policy.max_num_seqs": 64})
    homes = []
    for one in range(n):  # one after the other: no load moves them
        rows = np.array([one, n + one])
        homes.append(simulate(scenario, "reference", trace=trace.take(rows)).requests.replica.tolist())
    assert all(second == first for first, second in homes if first != 2)
    assert {second for first, second in homes if first == 2} == {0, 1, 3} and len({first for first, _ in homes}) == 4


def test_a_conversation_without_an_answer_is_broken_off() -> None:
    lost = conversation([{"at_s": 2, "kind": "crash", "for_s": 5}], **{"cluster.retries": 0})
    assert lost.requests.status.tolist() == [LOST, NOT_SENT] and lost.summary["sessions"]["broken_off"] == 1


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
    ([], {"cluster.retries": 2}, "has no effect without cluster.events"),
    ([CRASH], {"cluster.retries": 0, "cluster.retry_s": 2}, "has no effect with cluster.retries: 0"),
])
def test_refused(events: list[dict[str, Any]], change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        simulate(fleet(1, events, ONE).updated(change), "reference")

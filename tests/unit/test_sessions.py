"""Conversations and impatient clients in scenarios: drawn sessions, replayed traces, counts, refused keys."""

from typing import Any

import numpy as np
import pytest

from simulator import scenario_from, simulate
from simulator.errors import ConfigError
from simulator.planning.measure import Wanted, measure
from simulator.planning.slo import MEAN
from simulator.report.openmetrics import openmetrics
from simulator.run import Result
from simulator.workload.build import build_trace
from simulator.workload.extras import Extras
from simulator.workload.trace import Trace, make_trace

UNIT = {"hardware": "unit", "policy": {"name": "chunked", "max_num_seqs": 4, "max_num_batched_tokens": 100},
        "max_model_len": 5000}  # fmt: skip
DRAWN = {"sessions": {
    "arrivals": {"kind": "poisson", "rate": 2, "requests": 40}, "turns": {"kind": "uniform", "min": 1, "max": 6},
    "first": {"kind": "lognormal", "mean": 60, "cv": 1}, "new": {"kind": "uniform", "min": 2, "max": 30},
    "output": {"kind": "exponential", "mean": 9}, "think_s": {"kind": "lognormal", "mean": 4, "cv": 1}}}  # fmt: skip


def pairs(trace: Trace) -> Any:
    """Rows of a turn and of the next one of its session."""
    session, turn = trace.extras.session, trace.extras.turn
    assert session is not None and turn is not None
    order = np.lexsort((turn, session))
    same = session[order][1:] == session[order][:-1]
    return order[:-1][same], order[1:][same]


def run(workload: dict[str, Any], trace: Trace | None = None, **sections: Any) -> Result:
    return simulate(scenario_from({"workload": workload, **UNIT, **sections}), "reference", trace=trace)


def replayed(delays: bool = True) -> Trace:
    """Two conversations of two turns, one second apart in the trace; 10 s of pause in the client's own account."""
    pause = np.array([0, 0, 10, 10]) * 10**9
    extras = Extras(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]), pause if delays else None)
    return make_trace(np.array([0, 1, 2, 3]) * 10**9, [4, 4, 9, 9], [5, 1, 1, 1], extras=extras)


LISTED = {"requests": {"output": [1]}}


def test_a_prompt_is_all_that_was_said_and_more() -> None:
    trace = build_trace(DRAWN, seed=4)
    before, after = pairs(trace)
    added = trace.prompt[after] - trace.prompt[before] - trace.output[before]
    assert len(after) > 40 and added.min() >= 2 and added.max() <= 30
    first = np.setdiff1d(np.arange(len(trace)), after)
    assert len(first) == 40 and len(np.unique(trace.arrival_ns[first])) == 40


def test_a_session_ends_before_its_context_is_too_long() -> None:
    full = build_trace(DRAWN, seed=4)
    cut = build_trace({"sessions": DRAWN["sessions"] | {"max_context": 310}}, seed=4)
    context = full.prompt + full.output
    assert context.max() > 310 and (cut.prompt + cut.output).tolist() == context[context <= 310].tolist()
    assert cut.meta.rows_dropped == {"beyond max_context": int((context > 310).sum())}


def test_turns_follow_answers_and_answers_are_found_in_the_cache() -> None:
    """Every later turn is submitted its pause after the answer before, and with memory enough finds all whole blocks
    of what was said but the last, whose last token's KV was never computed."""
    done = run(DRAWN, kv={"block_size": 1, "prefix_caching": True, "num_gpu_blocks": 10**6})
    req, trace = done.requests, done.trace
    before, after = pairs(trace)
    assert trace.extras.delay_ns is not None
    assert (req.arrival[after] - req.last[before]).tolist() == trace.extras.delay_ns[after].tolist()
    assert req.found[after].tolist() == (trace.prompt + trace.output - 1)[before].tolist()
    assert np.all(np.diff(req.arrival) >= 0)
    assert done.summary["sessions"] == {"sessions": 40, "turns": len(trace), "overlapping": 0, "broken_off": 0}


def test_other_thinking_leaves_lengths_as_they_are() -> None:
    slow = {"sessions": DRAWN["sessions"] | {"think_s": 60}}
    a, b = build_trace(DRAWN, seed=4), build_trace(slow, seed=4)
    assert a.prompt.tolist() == b.prompt.tolist() and a.output.tolist() == b.output.tolist()


def test_a_trace_is_replayed_at_its_times_or_after_its_answers() -> None:
    """As given, the second turn of conversation 0 comes at 2 s, before its first answer (5 s) is complete; after
    answers it comes at 15 s, and that of conversation 1 (answered at 2 s) at 12 s."""
    given = run(LISTED, replayed())
    assert given.requests.arrival.tolist() == [0, 1e9, 2e9, 3e9]
    assert given.summary["sessions"]["overlapping"] == 1
    after = run(LISTED, replayed(), load={"turns": "after_answer"})
    assert after.requests.arrival.tolist() == [0, 1e9, 12e9, 15e9]
    assert after.trace.id.tolist() == [0, 1, 3, 2]
    quick = run(LISTED, replayed(delays=False), load={"turns": "after_answer", "think_s": 2.5})
    assert quick.requests.arrival.tolist() == [0, 1e9, 4.5e9, 7.5e9]


def test_broken_off_conversations_are_counted() -> None:
    """At most 12 tokens: the second turns (9 + 1) fit, a third of 20 does not, and the fourth is not sent."""
    extras = Extras(np.zeros(4, np.int64), np.arange(4), np.zeros(4, np.int64))
    trace = make_trace(np.zeros(4, np.int64), [4, 9, 20, 5], [1] * 4, extras=extras)
    got = run(LISTED, trace, load={"turns": "after_answer"}, max_model_len=12).summary
    assert (got["requests"]["completed"], got["requests"]["rejected"], got["requests"]["not_sent"]) == (2, 1, 1)
    assert got["requests"]["after_horizon"] == 0 and got["sessions"]["broken_off"] == 1
    assert got["conservation"] == "arrived 3 = completed 2 + rejected 1 + unfinished 0; 1 turn not sent"


def test_times_from_the_moment_the_trace_says() -> None:
    """One in flight, answers of 3 s, all wanted at 0: submitted at 0, 3, 6; first tokens 1 s later."""
    got = run({"requests": {"output": [3, 3, 3]}}, load={"max_in_flight": 1}).summary
    assert got["ttft_s"]["mean"] == 1 and got["e2e_s"]["mean"] == 3
    own = got["intended"]
    assert (own["client_wait_s"]["mean"], own["ttft_s"]["mean"], own["e2e_s"]["mean"]) == (3, 4, 6)


def test_given_up_requests_count_as_infinite() -> None:
    """Four slots hold four answers of 10 s; six more clients wait at most 5 s for a first token."""
    got = run({"requests": {"output": [10] * 10}}, load={"ttft_timeout_s": 5}).summary
    assert got["requests"]["aborted"] == 6 and got["ttft_s"]["count"] == 4
    assert got["ttft_s"]["p50"] is None and got["e2e_s"]["p90"] is None
    assert got["conservation"] == "arrived 10 = completed 4 + rejected 0 + aborted 6 + unfinished 0"


def test_the_states_of_impatient_clients_add_up_in_metrics_and_pools() -> None:
    """Two pools of four slots, ten answers of 10 s dealt in turn: one more client of each gives up after 5 s."""
    pools = {name: {"replicas": 1, "hardware": "unit"} for name in "ab"}
    workload = {"requests": {"output": [10] * 10}}
    got = run(workload, load={"ttft_timeout_s": 5}, cluster={"pools": pools, "router": "round_robin"}).summary
    for counts in (pool["requests"] for pool in got["pools"].values()):
        assert counts == {"arrived": 5, "completed": 4, "rejected": 0, "aborted": 1, "lost": 0, "unfinished": 0}
    lines = [line for line in openmetrics(got).splitlines() if line.startswith("servecast_requests{")]
    states = {line.partition('state="')[2].partition('"')[0]: int(line.rpartition(" ")[2]) for line in lines}
    assert states["aborted"] == 2 and sum(states.values()) == 10


def test_gaps_between_tokens_of_every_attempt_count_once() -> None:
    """Given up at 4.5 s with 4 tokens, again from 5 s: 3 gaps of 1 s each, twice."""
    load = {"timeout_s": 4.5, "retry": {"attempts": 2, "backoff_s": 0.5}}
    result = run({"requests": {"output": [9]}}, load=load)
    got, wanted = result.summary, Wanted((("itl", None, MEAN), ("itl", None, 99.0)), ())
    assert list(measure(result, wanted)["values"].values()) == [1, 1]
    assert got["itl_s"]["count"] == 6 and got["itl_s"]["mean"] == 1
    assert got["requests"]["attempts"] == 2 and got["requests"]["retried"] == 1


@pytest.mark.parametrize(
    ("workload", "load", "said"),
    [
        (DRAWN, {"turns": "as_given"}, "load.turns has no effect"),
        (DRAWN, {"max_in_flight": 3}, "load.max_in_flight has no effect"),
        (DRAWN, {"think_s": 3.0}, "workload.sessions.think_s"),
        (LISTED, {"ramp_s": 3.0}, "ramp_s has no effect"),
        (LISTED, {"kind": "grouped", "width": 2, "think_s": 3.0}, "no effect on a grouped load"),
        (LISTED, {"timeout_s": 3.0, "ttft_timeout_s": 4.0}, "timeout_s must be >= ttft_timeout_s"),
        (LISTED, {"retry": {"backoff_s": 9.0}}, "max_backoff_s must be >= backoff_s"),
        (LISTED, {"turns": "after_answer"}, "needs a trace with sessions and turns"),
        ({"sessions": DRAWN["sessions"] | {"max_context": 3}}, {}, "must leave room for first turns"),
        ({"sessions": DRAWN["sessions"] | {"think": 3}}, {}, "workload.sessions.think is not known here"),
    ],
)
def test_what_changes_nothing_or_cannot_be_is_refused(workload: Any, load: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        simulate(scenario_from({"workload": workload, **UNIT, "load": load}), "reference")


def test_what_a_policy_cannot_do_is_refused() -> None:
    static = {**UNIT, "policy": {"name": "static", "max_num_seqs": 4}}
    with pytest.raises(ConfigError, match="needs a policy that can drop a running request; static"):
        simulate(scenario_from({"workload": LISTED, **static, "load": {"timeout_s": 3.0}}), "reference")
    with pytest.raises(ConfigError, match="how long clients wait after an answer"):
        run(LISTED, replayed(delays=False), load={"turns": "after_answer"})

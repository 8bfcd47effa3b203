"""What clients do, one small run each, worked out by hand: turns after answers, time-outs, refusals, retries.

Steps take 10 ns; a request of n outputs and one prompt token runs n steps; an answer is at the client when it is out.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from parity.cases import Case, run
from unit.steps import ENGINES, cost, requests

from simulator.engines.clients import Habits
from simulator.state import ABORTED, FINISHED, NOT_SENT, REJECTED_LENGTH, REJECTED_QUEUE, REJECTED_SLOW
from simulator.units import NEVER

ONE = {"max_num_seqs": 1}
"""One at a time, in order of arrival."""


def clients(case: Case, pause: tuple[int, ...] = (), talk: tuple[int, ...] = (), **habits: int) -> Case:
    return replace(case, pause=pause, talk=talk, habits=Habits(**habits))


def closed(width: int, n: int, output: int = 2, **limits: int) -> Case:
    return requests([0] * n, [1] * n, [output] * n, more={"load": "closed", "width": width}, **limits)


def told(done: Any, *names: str) -> list[list[int]]:
    return [getattr(done.req, name).tolist() for name in names]


@ENGINES
def test_a_turn_comes_a_pause_after_the_answer_before(engine: str) -> None:
    """Turn 1: 0-20. Pause 7: turn 2 comes at 27, 27-57. Pause 3: turn 3 at 60. Their own arrivals are not used.
    Another conversation begins at 5, as the trace says, and joins the step at 10."""
    talks = clients(requests([0, 0, 0, 5], [1] * 4, [2, 3, 1, 1]), (7, 3, 0, 0), (4, 4, 4, 9))
    arrival, last = told(run(talks, engine), "arrival", "last")
    assert (arrival, last) == ([0, 27, 60, 5], [20, 57, 70, 20])


@ENGINES
def test_answers_take_their_way_through_the_front_end(engine: str) -> None:
    """In 2, out 3: queued at 2, last output at 12, at the client at 15; pause 5: next turn at 20, queued at 22."""
    slow = cost(10, frontend_in_ns=2, frontend_out_ns=3)
    done = run(clients(requests([0, 0], [1] * 2, [1, 1], cost=slow), (5, 0), (1, 1)), engine)
    assert told(done, "arrival", "queued", "last") == [[0, 20], [2, 22], [15, 35]]


@ENGINES
def test_turns_after_one_without_an_answer_are_not_sent(engine: str) -> None:
    """The second of four turns is longer than the model: two more are never submitted. Others go on."""
    talks = clients(requests([0] * 5, [1, 2000, 1, 1, 1], [1] * 5, max_model_len=1000), (0,) * 5, (0, 0, 0, 0, 1))
    done = run(talks, engine)
    assert told(done, "status")[0] == [FINISHED, REJECTED_LENGTH, NOT_SENT, NOT_SENT, FINISHED]
    assert done.req.queued.tolist()[1:4] == [10, NEVER, NEVER]


@ENGINES
def test_closed_clients_have_one_conversation_each(engine: str) -> None:
    """Two clients, three conversations of 2, 1 and 1 turns of 20, pauses of 5. Client 1: turns at 0 and 25; its next
    conversation would be at 50. Client 2: at 0, then at 25 the third conversation."""
    talks = clients(replace(closed(2, 4), load="closed"), (5,) * 4, (0, 0, 1, 2))
    assert told(run(talks, engine), "arrival")[0] == [0, 25, 0, 25]


@ENGINES
def test_closed_clients_start_one_after_the_other(engine: str) -> None:
    """Three clients over 40: 0, 20, 40. Each request takes 20: the first client takes the fourth request at 20 only
    after the second client has taken the second (the same tick; who ended comes before client 1 by its number)."""
    done = run(clients(closed(3, 6), ramp_ns=40), engine)
    assert sorted(told(done, "arrival")[0]) == [0, 20, 20, 40, 40, 40]


@ENGINES
def test_closed_clients_think(engine: str) -> None:
    """One client, answers of 20, pauses of 7, then 50."""
    assert told(run(clients(closed(1, 3), (7, 50, 9)), engine), "arrival")[0] == [0, 27, 97]


@ENGINES
def test_requests_wait_at_their_clients_for_a_place(engine: str) -> None:
    """At most two in flight. 0 and 1 enter; 2 and 3, there at 1 and 2, are submitted when 0 (20) and 1 (30) have ended;
    4 comes at 100 and finds places."""
    case = requests([0, 0, 1, 2, 100], [1] * 5, [2, 3, 1, 1, 1])
    done = run(clients(case, max_in_flight=2), engine)
    assert told(done, "arrival", "last") == [[0, 0, 20, 30, 100], [20, 30, 30, 40, 110]]


@ENGINES
def test_a_place_is_free_when_the_client_has_its_answer(engine: str) -> None:
    """One in flight, out 3: the answer put out at 10 is at the client at 13; who comes at 12 is submitted then."""
    done = run(clients(requests([0, 12], [1, 1], [1, 1], cost=cost(10, frontend_out_ns=3)), max_in_flight=1), engine)
    assert told(done, "arrival") == [[0, 13]]


@ENGINES
def test_a_client_gives_up_waiting_for_a_first_token(engine: str) -> None:
    """One slot, held until 50. Request 1 (from 0) gives up at 30, 2 (from 5) at 35, 3 (from 21) is scheduled at 50 and
    would have its token at 60: given up at 51 while it runs. 4 (from 45, until 75) has its token at 70."""
    case = clients(requests([0, 0, 5, 21, 45], [1] * 5, [5, 1, 1, 3, 1], **ONE), ttft_ns=30)
    done = run(case, engine)
    assert told(done, "status")[0] == [FINISHED, ABORTED, ABORTED, ABORTED, FINISHED]
    assert told(done, "scheduled", "first", "done") == [
        [0, NEVER, NEVER, 50, 60], [10, NEVER, NEVER, NEVER, 70], [5, 0, 0, 0, 1]]  # fmt: skip
    assert done.stats["wasted"].tolist() == [1]  # the step for request 3 ran to its end


@ENGINES
def test_an_output_at_the_deadline_is_in_time(engine: str) -> None:
    done = run(clients(requests([0, 1], [1, 1], [1, 1], **ONE), ttft_ns=10), engine)
    assert told(done, "status")[0] == [FINISHED, ABORTED]


@ENGINES
def test_a_client_gives_up_a_running_answer_and_its_memory_is_free(engine: str) -> None:
    """Blocks of 4, 3 of them, all held by request 0 from its second step on. Request 1 needs 2 and waits from 24. At 25
    the client of 0 gives up; the step until 30 goes on; then 1 is admitted, and done at 40."""
    case = requests([0, 24], [8, 5], [4, 1], block_size=4, num_blocks=3)
    done = run(clients(case, total_ns=25), engine)
    assert told(done, "status", "done", "scheduled") == [[ABORTED, FINISHED], [2, 1], [0, 30]]
    assert done.reps.c["free_blocks"].tolist() == [3]


@ENGINES
def test_first_token_and_whole_answer_have_deadlines_of_their_own(engine: str) -> None:
    """0: first token at 10 <= 15, whole at 50 > 35: given up with three tokens. 1: done at 30."""
    case = requests([0, 0], [1, 1], [5, 3], max_num_seqs=2)
    done = run(clients(case, ttft_ns=15, total_ns=35), engine)
    assert told(done, "status", "done") == [[ABORTED, FINISHED], [3, 3]]


@ENGINES
def test_a_full_queue_refuses(engine: str) -> None:
    """One slot, two places. At 1: 1 and 2 wait, 3 is refused. At 12: 1 runs since 10, so 4 waits."""
    done = run(requests([0, 1, 1, 1, 12], [1] * 5, [1] * 5, max_waiting=2, **ONE), engine)
    assert told(done, "status")[0] == [FINISHED, FINISHED, FINISHED, REJECTED_QUEUE, FINISHED]


@ENGINES
def test_the_less_urgent_are_shed_sooner(engine: str) -> None:
    """One slot. At 1: 1 waits, 2 (priority 1) finds it and is shed, 3 and 4 (0 and -1) wait, 5 (0) finds three, the
    full queue. At 45 all but 4 have run, 4 runs since 40: 6 (priority 2) finds nobody."""
    case = requests([0, 1, 1, 1, 1, 1, 45], [1] * 7, [1, 1, 1, 2, 1, 1, 1], max_waiting=3, shed_waiting=1,
                    shed_priority=1, **ONE)
    done = run(replace(case, asks=(("priority", (0, 0, 1, 0, -1, 0, 2)),)), engine)
    assert told(done, "status")[0] == [FINISHED, FINISHED, REJECTED_QUEUE, FINISHED, FINISHED, REJECTED_QUEUE, FINISHED]


@ENGINES
def test_who_was_refused_comes_again_after_a_doubled_wait(engine: str) -> None:
    """One slot until 100, one place, taken by 1. Request 2 comes at 2, is refused, and comes again after 10, 20 and 30
    (40 cut to 30): at 12, 32, 62, and no more."""
    case = requests([0, 1, 2], [1] * 3, [10, 1, 1], max_waiting=1, **ONE)
    done = run(clients(case, attempts=4, backoff_ns=10, longest_ns=30), engine)
    assert told(done, "status", "attempts") == [[FINISHED, FINISHED, REJECTED_QUEUE], [1, 1, 4]]
    assert done.req.sent.tolist() == [0, 1, 62] and done.req.arrival.tolist() == [0, 1, 2]


@ENGINES
def test_a_second_attempt_starts_from_nothing(engine: str) -> None:
    """Two slots. 0 (20 tokens) is given up at 45 with 4 tokens, comes again at 50, and at 95 is given up for good.
    1 (from 60, 2 tokens) is answered. The first attempt's token in flight is not given to the second."""
    case = requests([0, 60], [1, 1], [20, 2], max_num_seqs=2)
    done = run(clients(case, total_ns=45, attempts=2, backoff_ns=5, longest_ns=5), engine)
    assert told(done, "status", "attempts", "done", "first") == [[ABORTED, FINISHED], [2, 1], [4, 2], [60, 70]]


@ENGINES
def test_who_can_never_run_does_not_come_again(engine: str) -> None:
    case = requests([0], [2000], [1], max_model_len=1000)
    done = run(clients(case, attempts=5, backoff_ns=1, longest_ns=1), engine)
    assert told(done, "status", "attempts") == [[REJECTED_LENGTH], [1]]


@ENGINES
def test_refused_when_the_first_token_is_predicted_too_late(engine: str) -> None:
    """A step of t tokens takes t ns, budget 100. At 1: 0 has its 100 tokens in a step until 100. 1 (150 tokens): alone
    100 + 50 = 150 <= 200. 2 (60): 150 + 60 = 210, in steps 100 + 100 + 10: refused. 3 (50): 200, taken."""
    slow = cost(0)._replace(dense_ns=np.tile(np.arange(101, dtype=np.int64), (2, 1)))
    case = requests([0, 1, 1, 1], [100, 150, 60, 50], [1] * 4, cost=slow, predicted_ttft=200, num_blocks=1000)
    assert told(run(case, engine), "status")[0] == [FINISHED, FINISHED, REJECTED_SLOW, FINISHED]

"""The rules of a step, one small run each, worked out by hand; ticks are ns."""

from dataclasses import replace

import numpy as np
import pytest
from parity.cases import run
from unit.steps import ENGINES, cost, requests, times

from simulator.errors import NoProgressError, ServecastError
from simulator.run import _check_progress, simulate
from simulator.scenario.spec import scenario_from
from simulator.state import REJECTED_BUDGET, REJECTED_KV, REJECTED_LENGTH
from simulator.units import NEVER, NS_PER_S
from simulator.workload.trace import make_trace


@ENGINES
def test_arrival_at_the_tick_of_an_output_joins_the_next_step(engine: str) -> None:
    """Step 1 ends at 10; who comes at 10 is in the step that starts at 10, who comes at 11 in the one at 20."""
    assert times(run(requests([0, 10, 11], [1] * 3, [5, 1, 1]), engine)) == ([0, 10, 20], [10, 20, 30], [50, 20, 30])


@ENGINES
def test_without_planning_ahead_cpu_and_gpu_take_turns(engine: str) -> None:
    """prep 2, GPU 10, launch done at 3: a step every 12."""
    assert times(run(requests([0], [1], [3], cost=cost(10, 3, 2)), engine)) == ([0], [12], [36])


@ENGINES
def test_planning_ahead_hides_the_cpu(engine: str) -> None:
    """Step 2 is launched at 3, its GPU work queues behind step 1 (12): outputs at 12, 22, 32."""
    done = run(requests([0], [1], [3], cost=cost(10, 3, 2), schedule_ahead=1), engine)
    assert times(done) == ([0], [12], [32])


@ENGINES
def test_a_long_launch_delays_the_output_before_it(engine: str) -> None:
    """CPU 30 > GPU 10. Step 1 launched 0-30, G = 10. Step 2 launched 30-60: output 1 is seen at max(10, 60) = 60.
    Step 3 launched 60-90: output 2 at max(G2 = 40, 90) = 90; nothing more to launch: output 3 at max(70, 90) = 90."""
    done = run(requests([0], [1], [3], cost=cost(10, 30), schedule_ahead=1), engine)
    assert times(done) == ([0], [60], [90])


@ENGINES
def test_eager_steps_are_counted(engine: str) -> None:
    """Four steps of one token each, all eager; the launch of 30 outlasts the GPU's 10."""
    done = run(requests([0], [1], [4], cost=cost(10, 30, eager=1)), engine)
    assert times(done) == ([0], [30], [120])
    assert done.stats["eager"][0] == 4


@ENGINES
def test_an_output_is_known_to_the_router_at_its_tick(engine: str) -> None:
    """Replica 1's only request ends at 10; the one that arrives at 10 finds it empty and replica 0 busy."""
    more = {"replicas": 2, "router": "least_outstanding"}
    done = run(requests([0, 0, 10], [1] * 3, [9, 1, 1], more=more), engine)
    assert done.req.replica.tolist() == [0, 1, 1]


@ENGINES
def test_a_step_that_preempts_admits_nobody(engine: str) -> None:
    """4 blocks of 4, prompts of 7 in chunks of 4: both hold 2 blocks, first tokens come at 20, second at 30. The step
    at 30 has no block for the first's 9th token and preempts the second; 1 block is then free, enough for the second's
    first chunk, but that waits for the step at 40."""
    done = run(requests([0, 0], [7, 7], [4, 4], num_blocks=4, long_prefill_token_threshold=4), engine)
    rows = done.logged[["start", "decode", "prefill"]].tolist()[:5]
    assert rows == [(0, 0, 2), (10, 0, 2), (20, 2, 0), (30, 1, 0), (40, 1, 1)]


@ENGINES
@pytest.mark.parametrize(("prompt", "start"), [(3, 0), (4, 10)])
def test_vllm_v0_batches_whole_prompts_up_to_the_budget(prompt: int, start: int, engine: str) -> None:
    """Budget 8: 5 + 3 go together, 5 + 4 one after the other, before any decode."""
    done = run(requests([0, 0], [5, prompt], [3, 1], "vllm_v0", max_num_batched_tokens=8, whole_prompt=1), engine)
    assert done.req.scheduled.tolist() == [0, start]
    assert done.req.last[0] == 30 + start


@ENGINES
@pytest.mark.parametrize(("threshold", "first"), [(0, 10), (5, 30)])
def test_long_prefill_threshold_cuts_the_prompt(threshold: int, first: int, engine: str) -> None:
    """12 tokens at most 5 a step: three steps."""
    done = run(requests([0], [12], [1], long_prefill_token_threshold=threshold), engine)
    assert times(done)[1] == [first]


@ENGINES
@pytest.mark.parametrize(("reserve", "start"), [(0, 0), (1, 20)])
def test_whole_prompt_reserved_or_only_its_first_chunk(reserve: int, start: int, engine: str) -> None:
    """Budget 8, 4 blocks of 4. The first's 5 tokens hold 2 until it ends at 20. Of the second's 12 the budget leaves
    room for 3 at once, one block; all of them need 3 blocks."""
    case = requests([0, 0], [5, 12], [2, 1], max_num_batched_tokens=8, num_blocks=4, reserve_prompt=reserve)
    done = run(case, engine)
    assert done.req.scheduled.tolist() == [0, start]


@ENGINES
def test_front_end_serves_one_at_a_time(engine: str) -> None:
    """5 each, then 7 on the way in and 2 on the way out: queued at 12 and 17. The first is alone until 22."""
    done = run(requests([0, 0], [1, 1], [1, 1],
                        cost=cost(10, frontend_each_ns=5, frontend_in_ns=7, frontend_out_ns=2)), engine)  # fmt: skip
    assert done.req.queued.tolist() == [12, 17]
    assert times(done) == ([12, 22], [24, 34], [24, 34])


@ENGINES
def test_a_refusal_takes_as_long_to_the_client_as_an_answer(engine: str) -> None:
    """Two front ends (20 each), 100 on the way out, three clients. Request 0 ends at 30, seen at 130: request 3 goes
    out. Request 2 is refused at 40, seen at 140, after that: request 4. Request 3 ends at 160: request 5 at 260."""
    case = requests([0] * 6, [1, 1, 500, 1, 1, 1], [1, 20, 600, 1, 1, 1], cost=cost(10, frontend_each_ns=20,
                    frontend_out_ns=100), more={"load": "closed", "width": 3, "replicas": 2})  # fmt: skip
    done = run(case, engine)
    assert done.req.arrival.tolist() == [0, 0, 0, 130, 140, 260]
    assert done.req.queued.tolist() == [20, 20, 40, 150, 160, 280]


@ENGINES
def test_budget_is_shared_running_first(engine: str) -> None:
    """Budget 8: 8 of the first's 11 tokens; then its 3 and 5 of the second's 6; then 1 decode and the last 1."""
    done = run(requests([0, 0], [11, 6], [3, 2], max_num_batched_tokens=8), engine)
    assert done.logged["prefill_tokens"][:3].tolist() == [8, 8, 1]
    assert times(done) == ([0, 10], [20, 30], [40, 40])


@ENGINES
def test_early_end_wastes_the_step_planned_ahead(engine: str) -> None:
    """max_tokens 9, end after 2: planned one ahead, a third row is computed for nobody."""
    done = run(requests([0], [1], [2], limit=[9], schedule_ahead=1), engine)
    assert (done.stats["wasted"][0], done.stats["steps"][0]) == (1, 3)
    done = run(requests([0], [1], [2], limit=[2], schedule_ahead=1), engine)
    assert (done.stats["wasted"][0], done.stats["steps"][0]) == (0, 2)


@ENGINES
def test_memory_runs_out_last_admitted_is_recomputed(engine: str) -> None:
    """Blocks of 4, 4 in all; two prompts of 7 hold 2 each, room for 8 tokens. Step 1 computes both prompts, step 2
    token 8 of both. Step 3 (token 9): the first finds no block, the second is preempted with 2 tokens seen. The
    first then runs alone, 2 more steps to its 4th token at 40. The second then recomputes 9 tokens."""
    done = run(requests([0, 0], [7, 7], [4, 4], num_blocks=4), engine)
    assert done.req.preempted.tolist() == [0, 1]
    assert times(done) == ([0, 0], [10, 10], [40, 60])
    assert done.stats["prefill"][0] == 7 + 7 + 9
    assert done.req.itl_max.tolist() == [10, 30]


@ENGINES
@pytest.mark.parametrize(("output", "last", "computed"), [(4, 60, 23), (2, 20, 14)])
def test_a_token_in_flight_at_preemption_is_delivered(output: int, last: int, computed: int, engine: str) -> None:
    """As above, one step ahead. The step planned at 10 (the first's token 9) preempts the second, whose token of the
    step 10-20 comes at 20 all the same. Was it its last, the second has ended and leaves the queue; else it waits
    for the first's end at 40 and recomputes 7 + 2 tokens. vLLM 0.24 does so (Scheduler.update_from_output)."""
    done = run(requests([0, 0], [7, 7], [4, output], num_blocks=4, schedule_ahead=1), engine)
    assert done.req.preempted.tolist() == [0, 1]
    assert times(done)[2] == [40, last]
    assert (done.stats["prefill"][0], done.stats["wasted"][0]) == (computed, 0)
    assert done.reps.c["n_waiting"][0] == 0


@ENGINES
def test_readmission_counts_only_tokens_that_have_come(engine: str) -> None:
    """Two steps ahead, 6 blocks of 4. The steps planned at 0: three prompts; the 8th token of first and last; the
    first's 9th, which preempts the last with 2 tokens in flight. At 10 the second ends and the last is readmitted
    with 1 token seen and 1 in flight: 8 tokens are computed, the 9th in a decode of its own (request.num_tokens)."""
    done = run(requests([0] * 3, [7, 8, 7], [4, 1, 4], num_blocks=6, schedule_ahead=2), engine)
    assert done.req.preempted.tolist() == [0, 0, 1]
    assert done.stats["prefill"][0] == 7 + 8 + 7 + 8
    assert done.req.done.tolist() == [4, 1, 4]


@ENGINES
@pytest.mark.parametrize("policy", ["chunked", "vllm_v0"])
@pytest.mark.parametrize(("watermark", "start"), [(0, 0), (1, 40)])
def test_watermark_keeps_newcomers_out(watermark: int, start: int, policy: str, engine: str) -> None:
    """4 blocks, 2 for each prompt: with 1 to be kept free the second waits until the first has its 4 tokens, at 40."""
    done = run(requests([0, 0], [5, 8], [4, 1], policy, num_blocks=4, watermark_blocks=watermark), engine)
    assert done.req.scheduled.tolist() == [0, start]


@ENGINES
@pytest.mark.parametrize(("policy", "last", "preempted"), [("chunked", 20, 0), ("vllm_v0", 30, 1)])
def test_vllm_v0_decodes_only_beside_a_free_block(policy: str, last: int, preempted: int, engine: str) -> None:
    """4 blocks of 4, two prompts of 5 hold them all, with room for 3 tokens each. vLLM v0 preempts the second all the
    same (BlockSpaceManagerV2.can_append_slots: a touched block counts as a new one); it recomputes 6 tokens at 20."""
    done = run(requests([0, 0], [5, 5], [2, 2], policy, num_blocks=4), engine)
    assert times(done)[2] == [20, last]
    assert done.req.preempted.tolist() == [0, preempted]
    assert done.stats["prefill"][0] == 10 + 6 * preempted


@ENGINES
@pytest.mark.parametrize(("host", "scheduled", "last", "prefill", "moved"), [
    (2, [0, 0, 42], [26, 42, 52], 11, 2), (1, [0, 0, 20], [20, 30, 30], 17, 0)])
def test_vllm_v0_swaps_to_host_memory_and_back_before_new_prompts(
        host: int, scheduled: list[int], last: list[int], prefill: int, moved: int, engine: str) -> None:
    """4 blocks of 4, held by two prompts of 5. At 10 the second goes to host memory, 2 blocks of 3 ns, and the first
    gets its last token at 10 + 6 + 10; then the second comes back, 6 again, and has its own at 42. Who came at 12 waits
    until nobody is swapped out. In a host memory of 1 block there is no room: 6 tokens are computed again at 20."""
    done = run(requests([0, 0, 12], [5, 5, 1], [2, 2, 1], "vllm_v0", num_blocks=4, swap_blocks=host, swap_ns=3), engine)
    assert (done.req.scheduled.tolist(), done.req.last.tolist()) == (scheduled, last)
    stats = done.stats[0]
    assert (stats["prefill"], stats["swapped_out"], stats["swapped_in"], stats["copies"]) == (
        prefill, moved, moved, 2 * 3 * moved)
    assert (stats["peak_host"], done.req.preempted.tolist()) == (moved, [0, 1, 0])


@ENGINES
def test_vllm_v0_preempts_itself_and_goes_on(engine: str) -> None:
    """2 blocks, both full or begun by the prompt of 5: each further token is computed with all before it."""
    done = run(requests([0], [5], [3], "vllm_v0", num_blocks=2), engine)
    assert times(done) == ([0], [10], [30])
    assert (done.req.preempted[0], done.stats["prefill"][0]) == (2, 5 + 6 + 7)


@ENGINES
def test_vllm_v0_lets_in_alone_who_has_outgrown_the_watermark(engine: str) -> None:
    """4 blocks, 1 to be kept free; the prompt of 12 takes 3, its 13th token the last. At 20 none is free: it preempts
    itself and recomputes 14 tokens in 4 blocks."""
    done = run(requests([0], [12], [3], "vllm_v0", num_blocks=4, watermark_blocks=1, whole_prompt=1), engine)
    assert times(done) == ([0], [10], [30])
    assert (done.req.preempted[0], done.stats["prefill"][0]) == (1, 12 + 14)


@ENGINES
@pytest.mark.parametrize("policy", ["chunked", "vllm_v0", "orca"])
@pytest.mark.parametrize(("prompt", "cached", "computed"), [(10, 10, 2), (9, 9, 1), (8, 8, 4), (8, 3, 8), (4, 4, 4)])
def test_cached_blocks_are_whole_and_leave_a_token(prompt: int, cached: int, computed: int, policy: str,
                                                   engine: str) -> None:  # fmt: skip
    """Blocks of 4: of 8 cached of 8 one block is used, since the last token's logits are needed."""
    case = replace(requests([0], [prompt], [1], policy), cached=(cached,))
    assert run(case, engine).stats["prefill"][0] == computed


@ENGINES
@pytest.mark.parametrize(
    ("policy", "prompt", "output", "limits", "status"),
    [
        ("chunked", 10, 91, {"max_model_len": 100}, REJECTED_LENGTH),
        ("chunked", 10, 11, {"num_blocks": 5}, REJECTED_KV),
        ("vllm_v0", 101, 1, {"whole_prompt": 1}, REJECTED_BUDGET),
        ("vllm_v0", 13, 1, {"whole_prompt": 1, "num_blocks": 4, "watermark_blocks": 1}, REJECTED_KV),
        ("orca", 10, 11, {"num_blocks": 5, "contiguous": 1}, REJECTED_KV),
    ],
)
def test_what_can_never_run_is_refused(policy: str, prompt: int, output: int, limits: dict[str, int], status: int,
                                       engine: str) -> None:  # fmt: skip
    """One token too many; with one less it runs; the others do not notice."""
    done = run(requests([0, 0], [prompt, 1], [output, 1], policy, **limits), engine)
    assert done.req.status.tolist() == [status, 3]
    assert done.req.first[0] == NEVER
    less = (prompt - 1, output) if policy == "vllm_v0" else (prompt, output - 1)
    done = run(requests([0, 0], [less[0], 1], [less[1], 1], policy, **limits), engine)
    assert done.req.status.tolist() == [3, 3]


@ENGINES
@pytest.mark.parametrize("ahead", [0, 1])
def test_nothing_is_seen_after_the_horizon(ahead: int, engine: str) -> None:
    """A token every 10; at 1,005 there are 100, in the middle of a long undisturbed run."""
    done = run(requests([0], [1], [200], schedule_ahead=ahead, more={"until": 1005}), engine)
    assert (done.req.done[0], done.req.last[0], done.req.status[0]) == (100, 1000, 2)


def test_no_progress_is_told_with_a_diagnosis() -> None:
    """A policy that never plans is found out, not waited for."""
    done = run(requests([0], [1], [1]), "fast")
    done.reps.c["n_waiting"][0] = 1
    done.reps.c["head"][0] = 0
    with pytest.raises(NoProgressError, match="replica 0 stands still: 1 request waits"):
        _check_progress(done)
    assert issubclass(NoProgressError, ServecastError)


def test_closed_clients_submit_in_order_of_id() -> None:
    """A file in another order than its ids: with one client in flight, id 0 is served first, by its own length."""
    trace = make_trace([0, 1, 2], 1, [5, 3, 2], ids=[2, 0, 1])
    scenario = scenario_from({"workload": {"requests": {"output": [1]}}, "hardware": "unit",
                              "load": {"kind": "closed", "width": 1}, "policy": "chunked"})  # fmt: skip
    done = simulate(scenario, "reference", trace=trace)
    assert done.requests.output.tolist() == [3, 2, 5]
    assert np.diff(done.requests.last).tolist() == [2 * NS_PER_S, 5 * NS_PER_S]

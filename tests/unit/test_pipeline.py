"""Pipeline stages by hand: who computes when, of equal micro-batches, lone requests, slow launches."""

from typing import Any

import numpy as np
import pytest
from parity.cases import run
from unit.steps import LIMITS, requests

from simulator.cost.step import Cost
from simulator.cost.unit import unit_cost
from simulator.engines.stages import layers_before
from simulator.scenario.pipeline import in_stages
from simulator.state import Limits

G = 100
"""[ns] that a stage computes a step of any size."""


def limits(stages: int, ahead: int = 1, seqs: int = 64, budget: int = 1000) -> Limits:
    return in_stages(LIMITS._replace(max_num_seqs=seqs, max_num_batched_tokens=budget, block_size=16, num_blocks=10_000,
                                     max_model_len=10**6, schedule_ahead=ahead), stages)  # fmt: skip


def cost(stages: int, **changes: Any) -> Cost:
    """G on each stage, nothing else."""
    return unit_cost(G * stages)._replace(layers=np.int64(stages), **changes)


def ran(lim: Limits, times: Cost, arrival: list[int], prompt: list[int], output: list[int]) -> Any:
    return run(requests(arrival, prompt, output, cost=times, **lim._asdict()), "reference")


def table(ns: int) -> Any:
    return np.full((2, 1), ns, dtype=np.int64)


def test_layers_are_dealt_out_as_vllm_does() -> None:
    """What is left over goes to the last stages but the very last; where more is left, further to the front (vLLM 0.24,
    get_pp_indices: 7 layers on 3 stages are 2, 3, 2; 61 on 8 are 7, 7, 8, 8, 8, 8, 8, 7)."""
    def dealt(layers: int, stages: int) -> list[int]:
        ends = [layers_before(layers, stages, s) for s in range(stages + 1)]
        return [int(n) for n in np.diff(ends)]

    assert dealt(32, 2) == [16, 16]
    assert dealt(7, 3) == [2, 3, 2]
    assert dealt(7, 4) == [2, 2, 2, 1]
    assert dealt(61, 8) == [7, 7, 8, 8, 8, 8, 8, 7]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_lone_request_passes_all_stages_for_each_token(stages: int) -> None:
    """Nothing else to do: a token every stages x G, the other stages idle meanwhile."""
    done = ran(limits(stages), cost(stages), [0], [5], [10])
    assert done.req.first[0] == stages * G
    assert done.req.last[0] == 10 * stages * G


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_equal_batches_keep_every_stage_busy(stages: int, ahead: int) -> None:
    """The budget takes one prompt a round; from then on as many batches as stages take turns, each yields a token every
    stages x G, and a token leaves the last stage every G: stages times what one batch alone would give."""
    many = 50
    done = ran(limits(stages, ahead, budget=5), cost(stages), [0] * stages, [5] * stages, [many] * stages)
    assert done.req.first.tolist() == [(stages + k) * G for k in range(stages)]
    assert done.req.last.tolist() == [(stages * many + k) * G for k in range(stages)]
    span = int(done.req.last.max())
    assert done.stats["gpu"][0] / stages / span == pytest.approx(stages * many / (stages * many + stages - 1))


@pytest.mark.parametrize(("stages", "chunks"), [(2, 1), (2, 6), (3, 5), (4, 8)])
def test_a_prompt_in_chunks_fills_the_pipeline(stages: int, chunks: int) -> None:
    """M micro-batches through p stages take M + p - 1 of a stage's time, of which a share (p - 1) / (M + p - 1) is
    bubble (Huang et al. 2019, "GPipe", arXiv:1811.06965, section 2.3)."""
    done = ran(limits(stages, budget=10), cost(stages), [0], [10 * chunks], [1])
    span = (chunks + stages - 1) * G
    assert done.req.first[0] == span
    busy = done.stats["gpu"][0] / stages
    assert 1 - busy / span == pytest.approx((stages - 1) / (chunks + stages - 1))


def test_hops_and_the_head_come_on_top() -> None:
    """Two layers on two stages, a head of 30 on the last, 7 a hop: 100 + 7 + 100 + 30 for the first token; each next
    waits 7 more until the first stage has it."""
    times = cost(2, head_ns=table(30), hop_ns=np.int64(7), dense_ns=table(230))
    done = ran(limits(2), times, [0], [5], [3])
    assert done.req.first[0] == 237
    assert done.req.last[0] == 3 * 237 + 2 * 7


def test_the_last_stage_with_its_head_sets_the_pace() -> None:
    """Batches that take turns on stages of 100 and 130 follow each other every 130."""
    times = cost(2, head_ns=table(30), dense_ns=table(230))
    done = ran(limits(2, budget=5), times, [0, 0], [5, 5], [50, 50])
    outputs = np.sort(done.req.last)
    assert outputs[1] - outputs[0] == 130
    assert done.req.last.max() - done.req.first.min() == pytest.approx(99 * 130, rel=0.01)


def test_workers_launch_one_after_the_other() -> None:
    """A lone step whose launch is longer than its GPU work: 40 in the scheduler, then 300 on each of three workers."""
    times = cost(3, plan_ns=np.int64(40), cpu_ns=table(300), prep_ns=table(0))
    done = ran(limits(3), times, [0], [5], [1])
    assert done.req.first[0] == 40 + 3 * 300


def test_slow_workers_set_the_pace_of_batches_that_take_turns() -> None:
    """Two requests on two stages of 100 whose workers take 250 a step: a token every 250."""
    times = cost(2, cpu_ns=table(250), prep_ns=table(0))
    done = ran(limits(2, budget=5), times, [0, 0], [5, 5], [50, 50])
    span = int(done.req.last.max() - done.req.first.min())
    assert span == pytest.approx(99 * 250, rel=0.01)


def test_rounds_without_work_make_the_scheduler_pause() -> None:
    """A lone request on two stages: rounds 1, 3, 5, ... plan its tokens, the even ones nothing; the scheduler sleeps
    for 500 after each of those. Tokens are out 200 after they are planned, but are looked at when it wakes."""
    times = cost(2, pause_ns=np.int64(500))
    done = ran(limits(2), times, [0], [5], [4])
    assert done.req.first[0] == 500
    assert done.req.last[0] == 4 * 500


def test_a_request_that_comes_between_two_rounds_waits_for_the_oldest_step() -> None:
    """A lone request fills the queue of two stages with its step, one without work and its next step; the engine then
    waits for the first, and whoever has come since is planned when that is out, at 200 instead of 1: its first token
    comes when that batch has passed both stages behind the step in flight, at 200 + 200 + 100."""
    done = ran(limits(2), cost(2), [0, 1], [5, 5], [10, 1])
    assert done.req.scheduled.tolist() == [0, 200]
    assert done.req.first.tolist() == [200, 500]


@pytest.mark.parametrize("ahead", [1, 0])
def test_a_request_is_in_no_batch_twice_within_a_turn(ahead: int) -> None:
    """Four tokens of one request are four steps whatever is planned ahead, each after the one before is out of the last
    stage, where its token is drawn."""
    made = ran(limits(3, ahead), cost(3), [0], [5], [4])
    assert made.stats["steps"][0] == 4
    assert made.req.last[0] == 4 * 3 * G


def test_stages_that_compute_at_a_time_slow_each_other_down() -> None:
    """By a quarter: the second prompt of two is in the first stage while the first is in the second, which gives a
    token: 2 x 125 instead of 2 x 100."""
    times = cost(2, crowded=np.int64(1250))
    done = ran(limits(2, budget=5), times, [0, 0], [5, 5], [1, 1])
    assert done.req.first.tolist() == [200, 100 + 125 + 125]
    chunks = ran(limits(2, budget=5), times, [0], [10], [1])  # the first chunk of a prompt gives none
    assert chunks.req.first[0] == 300

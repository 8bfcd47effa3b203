"""Static batches: who is in one, what is padded, when answers are returned; worked out by hand, ticks are ns."""


import numpy as np
import pytest
from parity.cases import run
from unit.steps import ENGINES, requests, times

from policies.static import PADDINGS
from simulator.cost.unit import unit_cost
from simulator.errors import ServecastError
from simulator.scenario.setup import prepare
from simulator.scenario.spec import scenario_from
from simulator.units import NEVER


@ENGINES
def test_static_closed_client_waits_for_the_whole_batch(engine: str) -> None:
    """Two clients; both answers come at 30 with the batch; only then do they go on."""
    done = run(requests([0] * 3, [1] * 3, [1, 3, 1], "static", stream=0, max_num_seqs=2,
                        more={"load": "closed", "width": 2}), engine)  # fmt: skip
    assert done.req.arrival.tolist() == [0, 0, 30]
    assert times(done) == ([0, 0, 30], [30, 30, 40], [30, 30, 40])


@ENGINES
def test_static_pads_to_its_own_longest(engine: str) -> None:
    """1 ns a prefill token. The 8 does not fit beside the 2: the batch of the 2 is not padded for it."""
    cheap = unit_cost(0)._replace(prefill_token_fp=np.int64(2**32))
    done = run(requests([0, 0], [2, 8], [1, 1], "static", cheap, num_blocks=4), engine)
    assert times(done)[1] == [2, 10]


@ENGINES
@pytest.mark.parametrize(("padding", "ends"), [("naive", [12030, 24108, 9018]), ("removed", [9019, 13045, 7013]),
                                               ("fastertransformer", [10026, 22052, 7018])])  # fmt: skip
def test_static_padding(padding: str, ends: list[int], engine: str) -> None:
    """1000 ns a token, 1 ns a token of context and a pair. Prefill: 7 tokens, 13 pairs; padded 9 and 18. Step 2:
    2 rows, contexts 2 + 4; padded 3 of 4, FasterTransformer 3 rows, 4 + 4. Then 1 row, contexts 5-8; padded 3 each."""
    one = np.int64(2**32)
    linear = unit_cost(0)._replace(slope_fp=1000 * one, decode_context_fp=one, prefill_pair_fp=one)
    done = run(requests([0] * 3, [1, 3, 3], [2, 6, 1], "static", linear, padding=PADDINGS[padding]), engine)
    assert times(done)[1:] == ([ends[2]] * 3, ends)


@ENGINES
@pytest.mark.parametrize(("sizes", "waiting", "started"), [
    ((2,), 5, [0, 0, 20, 20, 40]), ((3, 2), 5, [0, 0, 0, 20, 20]), ((4, 3), 5, [0, 0, 0, 0, 20]),
    ((3,), 2, [7, 7]), ((3,), 3, [0, 0, 0])])
def test_static_starts_the_largest_preferred_batch_or_waits(sizes: tuple[int, ...], waiting: int, started: list[int],
                                                            engine: str) -> None:
    """Answers of 2 tokens, all there at 0, a window of 7 ns: by twos a batch takes 20, and the last one, whose window
    is long over, goes alone at 40; by threes or twos the last two are a batch. Two who are too few wait for 7."""
    packed = sum(size * 2 ** (20 * k) for k, size in enumerate(sizes))
    done = run(requests([0] * waiting, [1] * waiting, [2] * waiting, "static", batch_window=7, preferred_sizes=packed),
               engine)
    assert done.req.scheduled.tolist() == started


@ENGINES
def test_static_batch_is_full_within_its_bucket(engine: str) -> None:
    """Buckets of 4: the 9 does not fill the batch of the 1, which waits out its window of 25."""
    done = run(requests([0, 0], [1, 9], [1, 1], "static", batch_window=25, length_bucket=4, max_num_seqs=2), engine)
    assert done.req.scheduled.tolist() == [25, 35]


def test_static_answer_not_returned_by_the_horizon_is_unfinished() -> None:
    done = run(requests([0, 0], [1, 1], [1, 9], "static", stream=0, more={"until": 50}), "fast")
    assert done.req.first.tolist() == [NEVER, NEVER]


def test_a_preferred_batch_beyond_the_slots_is_refused() -> None:
    scenario = scenario_from({"workload": {"requests": {"output": [1]}}, "hardware": "unit",
                              "policy": {"name": "static", "max_num_seqs": 4, "preferred_batch_sizes": [2, 8]}})
    with pytest.raises(ServecastError, match=r"preferred_batch_sizes must be <= max_num_seqs \(4\), got 8"):
        prepare(scenario)

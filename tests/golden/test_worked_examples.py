"""The worked examples of static and continuous batching, step by step, on both engines.

The textbook GPU: every step lasts 1 s whatever is in it; prompts of one token; the step that admits a request
yields its first token. Tables are worked out by hand, the reasoning stands beside them. All times in seconds.
"""

from typing import Any

import pytest

from simulator import Result, scenario_from, simulate
from simulator.records import LOG_FIELDS
from simulator.units import NS_PER_S

CONTINUOUS = ("orca", "chunked")
ENGINES = ("fast", "reference")
COLUMNS = ("start", "end", "steps", "decode", "prefill", "pad_rows", "running", "waiting")


def play(
    policy: str, engine: str, slots: int, outputs: list[int], arrivals: Any = 0.0, **more: Any
) -> Result:
    """Run outputs [tokens] on the textbook GPU."""
    workload = {"requests": {"output": outputs, "arrival_s": arrivals, **more.pop("requests", {})}}
    base = {"workload": workload, "hardware": "unit", "policy": {"name": policy, "max_num_seqs": slots}}
    return simulate(scenario_from(base | more), engine, log=True)


def seconds(column: Any) -> list[int]:
    """Ticks -> whole seconds; fails when one is not whole."""
    assert all(int(t) % NS_PER_S == 0 for t in column)
    return [int(t) // NS_PER_S for t in column]


def table(result: Result) -> list[tuple[int, ...]]:
    """The step log, columns COLUMNS, runs of equal steps in one row."""
    rows = []
    for row in result.log:
        named = dict(zip(LOG_FIELDS, row.tolist(), strict=True))
        named["start"], named["end"] = seconds([named["start"], named["end"]])
        rows.append(tuple(named[name] for name in COLUMNS))
    return rows


def active(result: Result, names: str) -> list[str]:
    """Who is in the batch in the steps that start at 0, 1, 2, ... s (continuous batching)."""
    start, end = seconds(result.requests.scheduled), seconds(result.requests.last)
    return [
        "".join(n for n, a, b in zip(names, start, end, strict=True) if a <= t < b) for t in range(max(end))
    ]


FOUR = [4, 4, 10, 10, 4, 4]


@pytest.mark.parametrize("engine", ENGINES)
def test_four_slots_static_takes_14(engine: str) -> None:
    result = play("static", engine, 4, FOUR)
    assert table(result) == [
        # start end steps decode prefill pad running waiting
        (0, 1, 1, 0, 4, 0, 4, 2),  # first token of the first four
        (1, 4, 3, 4, 0, 0, 4, 2),  # tokens 2..4 of all
        (4, 10, 6, 2, 0, 2, 4, 2),  # the two 4s have ended, their slots are held: 12 rows for nobody
        (10, 11, 1, 0, 2, 0, 2, 0),  # only now the two that waited
        (11, 14, 3, 2, 0, 0, 2, 0),
    ]
    assert seconds(result.requests.scheduled) == [0, 0, 0, 0, 10, 10]
    assert seconds(result.requests.last) == [10, 10, 10, 10, 14, 14]  # answers are returned with the batch
    assert result.totals["steps"][0] == 14


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", CONTINUOUS)
def test_four_slots_continuous_takes_10(policy: str, engine: str) -> None:
    result = play(policy, engine, 4, FOUR)
    assert table(result) == [
        # start end steps decode prefill pad running waiting
        (0, 1, 1, 0, 4, 0, 4, 2),
        (1, 4, 3, 4, 0, 0, 4, 2),
        (4, 5, 1, 2, 2, 0, 4, 0),  # step 5: the waiting two beside tokens 5 of the 10s
        (5, 8, 3, 4, 0, 0, 4, 0),  # they end with step 8
        (8, 10, 2, 2, 0, 0, 2, 0),
    ]
    assert seconds(result.requests.scheduled) == [0, 0, 0, 0, 4, 4]
    assert seconds(result.requests.last) == [4, 4, 10, 10, 8, 8]
    assert result.totals["steps"][0] == 10


@pytest.mark.parametrize("engine", ENGINES)
def test_four_slots_prefill_first_takes_11(engine: str) -> None:
    """vLLM v0 computes prompts in steps of their own: the 10s stand still in step 5 and end a step later."""
    result = play("vllm_v0", engine, 4, FOUR)
    assert table(result) == [
        (0, 1, 1, 0, 4, 0, 4, 2),
        (1, 4, 3, 4, 0, 0, 4, 2),
        (4, 5, 1, 0, 2, 0, 4, 0),
        (5, 8, 3, 4, 0, 0, 4, 0),
        (8, 11, 3, 2, 0, 0, 2, 0),
    ]
    assert seconds(result.requests.last) == [4, 4, 11, 11, 8, 8]


@pytest.mark.parametrize("engine", ENGINES)
def test_idle_slots_use_44_75_percent(engine: str) -> None:
    """A 5, B 200, C 3, D 150: 358 useful rows of 4 x 200."""
    result = play("static", engine, 4, [5, 200, 3, 150])
    assert table(result) == [
        (0, 1, 1, 0, 4, 0, 4, 0),
        (1, 3, 2, 4, 0, 0, 4, 0),
        (3, 5, 2, 3, 0, 1, 4, 0),  # C's slot idle from step 3
        (5, 150, 145, 2, 0, 2, 4, 0),  # A's from 5
        (150, 200, 50, 1, 0, 3, 4, 0),  # D's from 150
    ]
    used, wall = result.totals["rows"][0], result.totals["wall"][0]
    assert (used, wall) == (358 * NS_PER_S, 200 * NS_PER_S)
    assert used / (4 * wall) == 0.4475
    assert result.summary["slot_utilization"] == pytest.approx(0.4475, abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", CONTINUOUS)
def test_waiting_e_and_f_take_the_slots_of_c_and_a(policy: str, engine: str) -> None:
    result = play(policy, engine, 4, [5, 200, 3, 150, 20, 20])
    a, _, c, _, e, f = range(6)
    assert seconds(result.requests.scheduled)[e:] == [3, 5]  # right after C's and A's last steps
    assert (result.requests.slot[e], result.requests.slot[f]) == (
        result.requests.slot[c],
        result.requests.slot[a],
    )
    assert seconds(result.requests.last) == [5, 200, 3, 150, 23, 25]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", CONTINUOUS)
def test_three_slots_active_set_at_every_step(policy: str, engine: str) -> None:
    """A (3 tokens) enters at 0, B (6) at 1, C (6) at 2; D (4) comes at 2, takes A's slot at 3."""
    result = play(policy, engine, 3, [3, 6, 6, 4], [0.0, 1.0, 2.0, 2.0])
    assert active(result, "ABCD") == ["A", "AB", "ABC", "BCD", "BCD", "BCD", "BCD", "C"]
    assert seconds(result.requests.queued) == [0, 1, 2, 2]
    assert result.requests.slot.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_long_and_short_in_a_static_pair_waste_990_rows(engine: str) -> None:
    result = play("static", engine, 2, [1000, 10])
    assert result.totals["pad_rows"][0] == 990
    assert result.totals["steps"][0] == 1000


def held(layout: dict[str, Any], prompt: int, engine: str) -> tuple[int, int]:
    """[tokens] KV memory held by, and used by, one prompt in the step that computes it."""
    result = play("orca", engine, 2, [1], kv=layout, requests={"prompt": prompt}, max_model_len=8192)
    row = dict(zip(LOG_FIELDS, result.log[0].tolist(), strict=True))
    return row["blocks"] * layout["block_size"], row["kv_tokens"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("prompt", "wasted"), [(500, 7500), (50, 7950)])
def test_reserving_8000_wastes_what_is_not_used(prompt: int, wasted: int, engine: str) -> None:
    room, used = held({"layout": "contiguous", "block_size": 16, "reserve_tokens": 8000}, prompt, engine)
    assert (room - used, used) == (wasted, prompt)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("prompt", [500, 50, 48])
def test_paged_wastes_less_than_a_block(prompt: int, engine: str) -> None:
    """Blocks of 16 under chunked scheduling: 32 hold 500 tokens, 4 hold 50, 3 hold 48."""
    result = play(
        "chunked", engine, 2, [1], kv={"block_size": 16}, requests={"prompt": prompt}, max_model_len=8192
    )
    row = dict(zip(LOG_FIELDS, result.log[0].tolist(), strict=True))
    assert row["blocks"] == {500: 32, 50: 4, 48: 3}[prompt]
    assert 0 <= row["blocks"] * 16 - row["kv_tokens"] < 16
    assert result.totals["kv_tokens"][0] == prompt * (NS_PER_S >> 10)

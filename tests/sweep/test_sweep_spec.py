"""Which points a sweep file means."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sweep_cases import make

from simulator.errors import ConfigError
from simulator.sweep.spec import Block, SweepSpec, axis_keys, load_sweep, sweep_points
from simulator.sweep.store import axis_type

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def test_a_grid_is_every_combination_with_the_last_key_fastest() -> None:
    points = sweep_points(make([{"grid": {"a.b": [1, 2], "c": ["x", "y"]}}]))
    assert points == [{"a.b": 1, "c": "x"}, {"a.b": 1, "c": "y"}, {"a.b": 2, "c": "x"}, {"a.b": 2, "c": "y"}]


def test_blocks_are_crossed() -> None:
    spec = make([{"list": [{"a": 1}, {"a": 2, "b": 7}]}, {"zip": {"c": [1, 2], "d": [3, 4]}}])
    assert sweep_points(spec) == [{"a": 1, "c": 1, "d": 3}, {"a": 1, "c": 2, "d": 4},
                                  {"a": 2, "b": 7, "c": 1, "d": 3}, {"a": 2, "b": 7, "c": 2, "d": 4}]
    assert axis_keys(sweep_points(spec)) == ["a", "c", "d", "b"]


@pytest.mark.parametrize(("span", "values"), [
    ({"low": 1, "high": 5, "steps": 3}, [1.0, 3.0, 5.0]),
    ({"low": 1, "high": 100, "steps": 3, "scale": "log", "integer": True}, [1, 10, 100]),
    ({"low": 1, "high": 2, "steps": 5, "integer": True}, [1, 2]),
])
def test_a_span_lists_its_values(span: dict[str, Any], values: list[float]) -> None:
    points = sweep_points(make([{"grid": {"a": span}}]))
    assert [point["a"] for point in points] == pytest.approx(values)
    assert [type(point["a"]) for point in points] == [type(value) for value in values]


def _random(seed: int, **keys: Any) -> list[dict[str, Any]]:
    return sweep_points(make([{"random": {"seed": seed, "points": 50, "keys": keys}}]))


def test_random_points_repeat_with_their_seed_and_only_then() -> None:
    keys = {"a": {"low": 0, "high": 1}, "b": {"choices": ["x", "y", "z"]}}
    assert _random(5, **keys) == _random(5, **keys)
    assert _random(5, **keys) != _random(6, **keys)


def test_a_further_random_key_leaves_the_draws_of_the_others() -> None:
    alone = _random(5, a={"low": 0, "high": 1})
    beside = _random(5, z={"low": 0, "high": 1}, a={"low": 0, "high": 1})
    assert [p["a"] for p in alone] == [p["a"] for p in beside]
    assert [p["z"] for p in beside] != [p["a"] for p in beside]


def test_random_draws_stay_in_their_range() -> None:
    keys = {"i": {"low": 2, "high": 4, "integer": True}, "l": {"low": 1, "high": 1000, "scale": "log"},
            "j": {"low": 1, "high": 9, "scale": "log", "integer": True}}
    points = _random(1, **keys)
    assert {p["i"] for p in points} == {2, 3, 4}
    assert all(1 <= p["l"] <= 1000 and 1 <= p["j"] <= 9 and isinstance(p["j"], int) for p in points)
    below = sum(p["l"] < 31.6 for p in points)  # half of a log-uniform draw lies below the geometric mean
    assert abs(below - 25) < 4 * 50**0.5 / 2


@pytest.mark.parametrize(("block", "says"), [
    ({"grid": {"a": [1]}, "list": [{"a": 1}]}, "exactly one of grid, list, zip, random; got grid, list"),
    ({}, "exactly one of grid, list, zip, random; got none"),
    ({"zip": {"a": [1, 2], "b": [1]}}, "equally long, got a: 2, b: 1"),
    ({"grid": {"a": []}}, "a must list at least one value"),
    ({"grid": {"a": {"low": 5, "high": 1, "steps": 2}}}, "high must be >= low, got 5.0 and 1.0"),
    ({"random": {"points": 1, "keys": {"a": {"low": 0, "high": 1, "scale": "log"}}}}, "low must be > 0"),
    ({"grid": {"a": {"low": 1, "high": 1e30, "steps": 3, "integer": True}}}, r"within \+-2\^53, got 1.0 and 1e\+30"),
    ({"random": {"points": 1, "keys": {"a": {"low": 1, "high": 1e30, "integer": True}}}}, r"within \+-2\^53"),
    ({"random": {"points": 1, "keys": {"a": {"low": 1.2, "high": 1.8, "integer": True}}}},
     "no whole number lies between low and high, got 1.2 and 1.8"),
    ({"random": {"points": 1, "keys": {"a": {"low": 0}}}}, "needs choices, or low and high"),
])
def test_a_bad_block_says_what_is_wrong(block: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Block.model_validate(block)


@pytest.mark.parametrize("values", [[10**20, 1], [10**20, 0.5], [-(10**20), None]])
def test_a_number_beyond_int64_is_kept_as_text(values: list[Any]) -> None:
    assert axis_type(values) == pa.string()


def test_a_key_in_two_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="axes set a in more than one block"):
        sweep_points(make([{"grid": {"a": [1]}}, {"list": [{"a": 2}]}]))


def test_errors_of_a_sweep_file_name_line_and_key(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("name: s\nbase: x.yaml\naxes:\n  - grid: {a: [1]}\nreplications: 0\n")
    with pytest.raises(ConfigError, match=r"s\.yaml:5: replications must be >= 1, got 0"):
        load_sweep(file)


@pytest.mark.parametrize("file", sorted(SCENARIOS.glob("sweep_*.yaml")), ids=lambda f: f.stem)
def test_shipped_sweeps_can_be_read(file: Path) -> None:
    spec, base = load_sweep(file)
    assert isinstance(spec, SweepSpec)
    for point in sweep_points(spec):
        base.updated(point)


def test_a_copied_sweep_still_finds_its_shipped_base(tmp_path: Path) -> None:
    """A file beside the sweep comes first, a shipped scenario of that name second; other names are refused."""
    file = tmp_path / "copy.yaml"
    file.write_text("base: chat.yaml\naxes:\n  - grid: {seed: [1]}\n")
    assert load_sweep(file)[1].name == "chat"
    (tmp_path / "chat.yaml").write_text("name: own\nworkload: {requests: {output: [1]}}\n")
    assert load_sweep(file)[1].name == "own"
    file.write_text("base: nowhere.yaml\naxes:\n  - grid: {seed: [1]}\n")
    with pytest.raises(ConfigError, match="nowhere"):
        load_sweep(file)

"""A sweep as typed YAML: a base scenario, blocks of axes that are crossed, replications.

Every block is one of
    grid    all combinations of the values of its keys
    list    mappings of keys to values, one a point
    zip     lists of equal length, walked together
    random  `points` draws per key, from its own named stream of `seed`
and the blocks are crossed with each other. Keys are the dotted keys of a scenario.
"""

import itertools
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from simulator.config import Document, Section, shown, validate
from simulator.errors import ConfigError
from simulator.scenario.spec import Scenario, load_scenario, scenario_from
from simulator.workload.streams import stream

MAX_POINTS = 1_000_000
"""Most points of a sweep, and most rows (points x replications)."""
WHOLE = 2**53
"""Up to here float64 holds every whole number."""
Point = dict[str, Any]
Points = list[Point]
Values = list[Any]


class Span(Section):
    """`steps` values from `low` to `high`, both included, evenly spaced or evenly in the logarithm."""

    low: float
    high: float
    steps: int = Field(ge=2, le=100_000)
    scale: Literal["linear", "log"] = "linear"
    integer: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> "Span":
        _check_range(self.low, self.high, self.scale, self.integer)
        return self

    def values(self) -> Values:
        """The values; whole numbers are rounded and listed once."""
        make = np.geomspace if self.scale == "log" else np.linspace
        values = make(self.low, self.high, self.steps)
        return list(np.unique(np.rint(values).astype(np.int64)).tolist() if self.integer else values.tolist())


class Draw(Section):
    """How a key of a random block is drawn: from `choices`, or uniformly in a range or its logarithm."""

    low: float | None = None
    high: float | None = None
    scale: Literal["linear", "log"] = "linear"
    integer: bool = False
    choices: Values | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one_kind(self) -> "Draw":
        if (self.choices is None) == (self.low is None) or (self.low is None) != (self.high is None):
            raise ValueError("needs choices, or low and high")
        if self.low is not None and self.high is not None:
            _check_range(self.low, self.high, self.scale, self.integer)
        return self

    def values(self, rng: np.random.Generator, count: int) -> Values:
        """`count` independent draws; whole numbers include both ends."""
        if self.choices is not None:
            return [self.choices[k] for k in rng.integers(0, len(self.choices), count)]
        low, high = float(self.low or 0.0), float(self.high or 0.0)
        if self.scale == "log":
            drawn = np.exp(rng.uniform(math.log(low), math.log(high), count))
        elif self.integer:
            return list(rng.integers(math.ceil(low), math.floor(high), count, endpoint=True).tolist())
        else:
            drawn = rng.uniform(low, high, count)
        return list((np.rint(drawn).astype(np.int64) if self.integer else drawn).tolist())


class RandomBlock(Section):
    """`points` independent draws of every key."""

    seed: int = Field(default=0, ge=0)
    points: int = Field(ge=1, le=MAX_POINTS)
    keys: dict[str, Draw] = Field(min_length=1)


class Block(Section):
    """One block of axes; exactly one of the four kinds."""

    grid: dict[str, Values | Span] | None = Field(default=None, min_length=1)
    list: Points | None = Field(default=None, min_length=1)
    zip: dict[str, Values] | None = Field(default=None, min_length=1)
    random: RandomBlock | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "Block":
        given = [name for name in ("grid", "list", "zip", "random") if getattr(self, name) is not None]
        if len(given) != 1:
            got = ", ".join(given) or "none"
            raise ValueError(f"must hold exactly one of grid, list, zip, random; got {got}")
        for key, values in {**(self.zip or {}), **(self.grid or {})}.items():
            if values == []:
                raise ValueError(f"{key} must list at least one value")
        if self.zip and len({len(values) for values in self.zip.values()}) > 1:
            lengths = ", ".join(f"{key}: {len(values)}" for key, values in self.zip.items())
            raise ValueError(f"the lists of a zip must be equally long, got {lengths}")
        return self

    def count(self) -> int:
        """How many points, without making them (a span of whole numbers may hold fewer than its steps)."""
        if self.grid is not None:
            return math.prod(v.steps if isinstance(v, Span) else len(v) for v in self.grid.values())
        if self.list is not None:
            return len(self.list)
        if self.zip is not None:
            return len(next(iter(self.zip.values())))
        return self.random.points if self.random else 0

    def points(self) -> Points:
        """The points of this block in a fixed order (grid: the last key changes fastest)."""
        if self.grid is not None:
            axes = [v.values() if isinstance(v, Span) else v for v in self.grid.values()]
            return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*axes)]
        if self.list is not None:
            return [dict(point) for point in self.list]
        if self.zip is not None:
            return [dict(zip(self.zip, row, strict=True)) for row in zip(*self.zip.values(), strict=True)]
        return _drawn(self.random) if self.random else []


class SweepSpec(Section):
    """A sweep file. `base` is the path of a scenario (from the sweep file) or a scenario written in place."""

    name: str = "sweep"
    description: str = ""
    base: str | dict[str, Any]
    axes: list[Block] = Field(min_length=1)
    replications: int = Field(default=1, ge=1, le=100_000)


def load_sweep(path: str | Path) -> tuple[SweepSpec, Scenario]:
    """Read a sweep file and its base scenario. Raises ConfigError with file, line and key."""
    document = Document(path)
    spec = validate(SweepSpec, document)
    rows = math.prod(block.count() for block in spec.axes) * spec.replications
    if rows > MAX_POINTS:
        raise ConfigError(f"{document.where(('axes',))}: axes: {shown(rows)} points x replications; "
                          f"accepted: at most {MAX_POINTS:,}")
    return spec, base_scenario(spec, Path(path).parent)


def base_scenario(spec: SweepSpec, folder: Path = Path()) -> Scenario:
    """The base of a sweep: a file, taken from `folder`, or a shipped scenario by name. Raises ConfigError."""
    if isinstance(spec.base, str):
        from scenarios import ROOT

        file, shipped = folder / spec.base, ROOT / f"{spec.base.removesuffix('.yaml')}.yaml"
        return load_scenario(shipped if shipped.is_file() and not file.exists() else file)
    return scenario_from(spec.base, folder, f"{spec.name}: base")


def sweep_points(spec: SweepSpec) -> Points:
    """All points: the blocks crossed, the last block fastest. Raises ConfigError beyond MAX_POINTS."""
    count = math.prod(block.count() for block in spec.axes)
    if count > MAX_POINTS:
        raise ConfigError(f"{spec.name}: axes give {shown(count)} points, accepted: at most {MAX_POINTS:,}")
    blocks = [block.points() for block in spec.axes]
    points: Points = []
    parts: tuple[Point, ...]
    for parts in itertools.product(*blocks):
        keys = [key for part in parts for key in part]
        if len(set(keys)) < len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise ConfigError(f"{spec.name}: axes set {', '.join(twice)} in more than one block")
        points.append({key: value for part in parts for key, value in part.items()})
    return points


def axis_keys(points: Points) -> list[str]:
    """Every key that some point sets, in order of first appearance."""
    return list(dict.fromkeys(key for point in points for key in point))


def _drawn(block: RandomBlock) -> Points:
    columns = {key: draw.values(stream(block.seed, f"sweep/{key}"), block.points)
               for key, draw in block.keys.items()}
    return [{key: column[k] for key, column in columns.items()} for k in range(block.points)]


def _check_range(low: float, high: float, scale: str, integer: bool) -> None:
    if high < low:
        raise ValueError(f"high must be >= low, got {low} and {high}")
    if scale == "log" and low <= 0:
        raise ValueError(f"low must be > 0 on a log scale, got {low}")
    if integer and not max(abs(low), abs(high)) <= WHOLE:
        raise ValueError(f"whole numbers must be within +-2^53, got {low} and {high}")
    if integer and math.ceil(low) > math.floor(high):
        raise ValueError(f"no whole number lies between low and high, got {low} and {high}")

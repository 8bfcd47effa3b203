"""Generated workloads: an arrival process, lengths, and a mix of request classes -> Trace."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simulator.errors import ConfigError
from simulator.units import LONGEST_S, to_ticks

from .arrivals import Arrivals, sample_arrivals
from .asks import MOST_PRIORITY, Asks
from .extras import NONE, Extras
from .lengths import Lengths, sample_lengths
from .prefixes import Prefixes, sample_prefixes
from .streams import stream
from .trace import DEFAULT_CLASS, Int64s, Trace, TraceMeta, content_sha256, make_trace
from .transform import cap_output


@dataclass(frozen=True)
class ClassSpec:
    """One class of requests: lengths and its share of the traffic.

    weight   > 0; shares are weight / sum of weights
    prompt, output   drawn independently; or
    joint    a trace whose rows give prompt and output together (their correlation is kept), drawn with
             replacement
    cached   prompt tokens found in the prefix cache, cut to the prompt's length (default none)
    prefix   what prompts begin with, one of several texts; comes before `prompt` tokens of the request's own
    priority smaller goes first, for policies in that order (default 0 when another class has one)
    ttft_target_s   [s] wanted time to first token
    """

    name: str = DEFAULT_CLASS
    weight: float = 1.0
    prompt: Lengths | None = None
    output: Lengths | None = None
    joint: Trace | None = None
    cached: Lengths | None = None
    prefix: Prefixes | None = None
    priority: int | None = None
    ttft_target_s: float | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.weight) and self.weight > 0):
            raise ConfigError(f"class {self.name!r}: weight must be > 0, got {self.weight}")
        if abs(self.priority or 0) > MOST_PRIORITY:
            raise ConfigError(f"class {self.name!r}: priority must be within +-{MOST_PRIORITY}, got {self.priority}")
        if self.ttft_target_s is not None and not 0 < self.ttft_target_s <= LONGEST_S:
            raise ConfigError(f"class {self.name!r}: ttft_target_s must be > 0 and <= {LONGEST_S:.0f}, got "
                              f"{self.ttft_target_s}")
        if self.prefix is not None and self.cached is not None:
            raise ConfigError(f"class {self.name!r}: cached has no effect beside prefix, which says what is found "
                              "again; give one of them")
        pair = self.prompt is not None and self.output is not None
        single = self.prompt is not None or self.output is not None
        if pair == (self.joint is not None) or single != pair:
            raise ConfigError(
                f"class {self.name!r} needs prompt and output lengths, or a joint sample, not a mix"
            )


@dataclass(frozen=True)
class Generated:
    """A workload drawn at random. `max_tokens` [tokens]: limit every request asks for; outputs end there."""

    arrivals: Arrivals
    classes: tuple[ClassSpec, ...] = field(default_factory=tuple)
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.classes]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"classes must be at least one, with different names, got {names}")
        if any(spec.prefix for spec in self.classes) and any(spec.cached for spec in self.classes):
            raise ConfigError("classes: cached has no effect where a class has a prefix, which says what is found "
                              "again; give one of them")


def generate_trace(workload: Generated, seed: int, replication: int = 0) -> Trace:
    """Draw the workload; equal (workload, seed, replication) give equal traces.

    Every use of chance has its own stream (`arrivals`, `class`, `<class>/prompt`, `<class>/output`, ...),
    and each class draws lengths for every request, so changing one part leaves the draws of the others as
    they were. Raises ConfigError for options that cannot be drawn from.
    """
    arrival = sample_arrivals(workload.arrivals, stream(seed, "arrivals", replication))
    names = tuple(spec.name for spec in workload.classes)
    cls = _choose_class(workload.classes, arrival.size, seed, replication)
    columns: dict[str, Any] = {
        part: np.ones(arrival.size, dtype=np.int64) for part in ("prompt", "output", "cached")
    }
    for code, spec in enumerate(workload.classes):
        chosen = cls == code
        for part, drawn in _draw(spec, arrival.size, seed, replication).items():
            columns[part][chosen] = drawn[chosen]
    extras = _openings(workload.classes, cls, seed, replication)
    if extras.opening_tokens is not None:
        columns["prompt"] += extras.opening_tokens
    trace = make_trace(arrival, **columns, cls=cls, class_names=names, extras=extras)
    if workload.max_tokens is not None:
        trace = cap_output(trace, workload.max_tokens)
    trace = replace(trace, asks=_asks(workload.classes, cls))
    meta = TraceMeta("generated", workload.arrivals.kind, content_sha256(trace), len(trace))
    return replace(trace, meta=meta)


def _openings(classes: tuple[ClassSpec, ...], cls: Int64s, seed: int, replication: int) -> Extras:
    """What the prompts begin with: texts of each class numbered one class after the other."""
    if not any(spec.prefix for spec in classes):
        return Extras()
    opening, tokens = np.full(cls.size, NONE, dtype=np.int64), np.zeros(cls.size, dtype=np.int64)
    for code, spec in enumerate(classes):
        if spec.prefix is not None:
            chosen = cls == code
            group, length = sample_prefixes(spec.prefix, cls.size, seed, f"{spec.name}/prefix", replication)
            opening[chosen] = group[chosen] + int(opening.max(initial=NONE)) + 1
            tokens[chosen] = length[chosen]
    return Extras(opening=opening, opening_tokens=tokens)


def _asks(classes: tuple[ClassSpec, ...], cls: Int64s) -> Asks:
    """What the class of each request asks for."""
    columns: dict[str, Any] = {}
    if any(spec.priority is not None for spec in classes):
        columns["priority"] = np.array([spec.priority or 0 for spec in classes], dtype=np.int64)[cls]
    if any(spec.ttft_target_s is not None for spec in classes):
        targets = [-1 if spec.ttft_target_s is None else to_ticks(spec.ttft_target_s) for spec in classes]
        columns["target_ns"] = np.array(targets, dtype=np.int64)[cls]
    return Asks(**columns)


def _choose_class(classes: tuple[ClassSpec, ...], n: int, seed: int, replication: int) -> Int64s:
    edges = np.cumsum([spec.weight for spec in classes])
    drawn = stream(seed, "class", replication).random(n) * edges[-1]
    chosen: Int64s = np.minimum(np.searchsorted(edges, drawn, side="right"), len(classes) - 1)
    return chosen


def _draw(spec: ClassSpec, n: int, seed: int, replication: int) -> dict[str, Int64s]:
    """prompt, output and cached of one class for every request, shape (n,) each."""

    def rng(part: str) -> np.random.Generator:
        return stream(seed, f"{spec.name}/{part}", replication)

    if spec.joint is not None:
        rows = rng("joint").integers(0, len(spec.joint), n)
        prompt, output = spec.joint.prompt[rows], spec.joint.output[rows]
    elif spec.prompt is not None and spec.output is not None:
        prompt = sample_lengths(spec.prompt, n, rng("prompt"))
        output = sample_lengths(spec.output, n, rng("output"))
    cached = np.zeros(n, dtype=np.int64)
    if spec.cached is not None:
        cached = np.minimum(sample_lengths(spec.cached, n, rng("cached")), prompt)
    return {"prompt": prompt, "output": output, "cached": cached}

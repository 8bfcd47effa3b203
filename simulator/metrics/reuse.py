"""What the prefix cache found over time, and what it would find with more or less KV memory: the hit-rate curve.

A block that is asked for again is found when fewer other blocks than the memory holds were used since. One pass over
the requests gives that number for every block, and so the hits at every size of memory at once (Mattson, Gecsei,
Slutz, Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970). It is exact for a
cache that drops what was used least recently and whose requests come one at a time, in the order in which the run
admitted them: a request uses all its full blocks, its last before its first, as the engine gives them back. What the
run itself found differs by what went on at once: blocks not yet computed, and running requests that fill the memory.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.metrics.use import ratio
from simulator.result import Result
from simulator.units import NEVER
from simulator.workload.shared import Shared, shared_blocks

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST: Final = 200_000
"""Requests in the curve: the first ones of a longer run."""
STEPS: Final = (0.25, 0.5, 1, 2, 4)
"""Sizes of memory in the summary, relative to that of the run."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Hits against memory. Segment k stands for `length[k]` hits, the j-th of which needs `start[k] + j` blocks."""

    start: Int64s
    length: Int64s

    def hits(self, blocks: float) -> int:
        """[blocks] found by a memory of `blocks` KV blocks a replica."""
        return int(np.clip(blocks - self.start, 0, self.length).sum())

    @property
    def ideal(self) -> int:
        """[blocks] found by a memory without end."""
        return int(self.length.sum())

    @property
    def enough(self) -> int:
        """[blocks] a replica from which on more memory finds no more."""
        return int((self.start + self.length).max(initial=0))


class _Newer:
    """Counts by position, and how many lie after one (Fenwick, "A new data structure for cumulative frequency tables",
    Software: Practice and Experience 24, 1994)."""

    def __init__(self, size: int) -> None:
        self.tree, self.total = [0] * (size + 1), 0

    def add(self, at: int, count: int) -> None:
        self.total += count
        at += 1
        while at < len(self.tree):
            self.tree[at] += count
            at += at & -at

    def after(self, at: int) -> int:
        left, at = self.total, at + 1
        while at > 0:
            left -= self.tree[at]
            at -= at & -at
        return left


def curve_of(shared: Shared, order: Int64s, asked: Int64s, used: Int64s) -> Curve:
    """The curve of one replica that admits the requests in `order`.

    `asked` (N,) [blocks] a request looks for at most, `used` (N,) [blocks] it fills. As every block comes with all
    before it, the blocks of a chain that the same request was the last to use are a run, and the most recent that are
    left of that request: one look-up serves them all.
    """
    ends = shared.ends
    begins = np.concatenate(([0], ends[:-1]))
    last = np.full(shared.count, -1, dtype=np.int64)  # position of the request that used it last
    newer = _Newer(order.size)
    start: list[int] = []
    length: list[int] = []
    for at, i in enumerate(order.tolist()):
        chain = shared.numbers[begins[i]:min(int(ends[i]), int(begins[i] + used[i]))]
        if chain.size:
            by = last[chain]
            cuts = [0, *(np.flatnonzero(by[1:] != by[:-1]) + 1).tolist(), chain.size]
            pieces = [(int(by[a]), a, b) for a, b in pairwise(cuts) if by[a] >= 0]
            for who, a, b in pieces:
                found = min(b, int(asked[i])) - a
                if found > 0:
                    start.append(newer.after(who))
                    length.append(found)
            for who, a, b in pieces:
                newer.add(who, a - b)
            last[chain] = at
        newer.add(at, int(used[i]))
    return Curve(np.array(start, dtype=np.int64), np.array(length, dtype=np.int64))


def curve(result: Result) -> tuple[Curve, int] | None:
    """Hits of all replicas against KV blocks of each, and the prompt tokens asked for; None where nothing is reused
    or nobody was served."""
    req, block = result.requests, result.setup.limits.block_size
    if not req.found.size or result.setup.pools:
        return None
    shared = shared_blocks(result.trace, block)
    if not shared.count:
        return None
    order = np.argsort(req.scheduled, kind="stable")
    order = order[req.scheduled[order] != NEVER][:MOST].astype(np.int64)
    if not order.size:
        return None
    asked = (np.asarray(req.prompt, np.int64) - 1) // block
    used = np.maximum(np.asarray(req.prompt, np.int64) + req.done - 1, req.prompt) // block
    parts = [curve_of(shared, order[req.replica[order] == r], asked, used) for r in range(len(result.totals))]
    whole = Curve(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("start", "length")))
    return whole, int(req.prompt[order].sum())


def reuse(result: Result, known: tuple[Curve, int] | None) -> dict[str, Any] | None:
    """The curve in numbers, beside the summary: hit rates of the ideal cache at a few sizes of memory."""
    if known is None:
        return None
    hits, tokens = known
    block, blocks = result.setup.limits.block_size, result.setup.limits.num_blocks
    sizes = [{"num_blocks": size, "times": step, "hit_rate": ratio(hits.hits(size) * block, tokens)}
             for step in STEPS for size in [int(blocks * step)]]
    return {"requests": min(MOST, int(np.count_nonzero(result.requests.scheduled != NEVER))), "sizes": sizes,
            "unlimited": ratio(hits.ideal * block, tokens), "enough_blocks": hits.enough}


def reuse_sentences(found: dict[str, Any] | None, measured: float | None, on_host: float | None = None) -> list[str]:
    """`reuse` in words; `measured` is the hit rate of the run, `on_host` the part of it that came from host memory."""
    if found is None or measured is None:
        return []
    rates = {each["times"]: f"{100 * each['hit_rate']:.1f} %" for each in found["sizes"]}
    part = "" if on_host is None else f", {100 * on_host:.1f} % in host memory"
    memory = "this memory" if on_host is None else "the GPU's memory alone"
    return [f"the prefix cache found {100 * measured:.1f} % of the prompt tokens{part}; used one request at a time, "
            f"{memory} would find {rates[1]}, half of it {rates[0.5]}, twice {rates[2]}, without end "
            f"{100 * found['unlimited']:.1f} %"]


def hit_rate_over_time(result: Result, edges: Int64s) -> tuple[Floats, Floats]:
    """(hit rate, prompt tokens admitted) in the bins between `edges` [ticks] of first admission; NaN where nobody was
    admitted."""
    req = result.requests
    rows = np.flatnonzero(req.scheduled < NEVER)
    at = np.clip(np.searchsorted(edges, req.scheduled[rows], side="right") - 1, 0, edges.size - 2)
    prompts: Floats = np.bincount(at, weights=req.prompt[rows], minlength=edges.size - 1).astype(np.float64)
    found = np.bincount(at, weights=req.found[rows], minlength=edges.size - 1)
    return np.divide(found, prompts, out=np.full(prompts.size, np.nan), where=prompts > 0), prompts



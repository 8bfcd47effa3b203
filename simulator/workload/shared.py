"""Which leading KV blocks of the requests of a trace hold the same tokens: numbers for the prefix cache.

Three sources: prefix hashes, as published traces have them; conversations, in which the prompt of a turn is the
prompt before, the answer to it and something new; texts that prompts begin with, as a system prompt, which
conversations may have too. Blocks that no other request has get no number.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from simulator.workload.trace import Trace

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Shared:
    """`numbers[ends[i - 1] : ends[i]]` are the leading blocks of request i that other requests have too, from 0 to
    `count` - 1: equal numbers, equal tokens up to the end of the block."""

    numbers: Int64s
    ends: Int64s
    count: int


def shared_blocks(trace: Trace, block_size: int) -> Shared:
    """The shared leading blocks of every request, in blocks of `block_size` tokens, in the trace's order."""
    if not trace.extras:
        return Shared(np.zeros(0, np.int64), np.zeros(len(trace), np.int64), 0)
    return _shared_blocks(trace, block_size)


@lru_cache(maxsize=1)
def _shared_blocks(trace: Trace, block_size: int) -> Shared:
    """As above; the run and its report ask for the same."""
    rows = len(trace)
    if trace.extras.hash_ids is not None and trace.extras.hash_ends is not None:
        keys, lengths = _of_hashes(trace, block_size)
    elif trace.extras.session is not None and trace.extras.turn is not None:
        keys, lengths = _of_sessions(trace, block_size)
    elif trace.extras.opening is not None and trace.extras.opening_tokens is not None:
        lengths = np.minimum(trace.prompt, trace.extras.opening_tokens) // block_size
        keys = _in_openings(trace, block_size, np.zeros(int(lengths.sum()), np.int64), lengths)
    else:
        return Shared(np.zeros(0, np.int64), np.zeros(rows, np.int64), 0)
    return _numbered(keys, lengths)


def _of_hashes(trace: Trace, block_size: int) -> tuple[Int64s, Int64s]:
    """A key per full block of every prompt: the id of the hash it lies in, and where in it."""
    extras = trace.extras
    assert extras.hash_ids is not None and extras.hash_ends is not None
    parts = -(-extras.hash_block // block_size)
    begins = np.concatenate(([0], extras.hash_ends[:-1]))
    hashed = (extras.hash_ends - begins) * extras.hash_block
    lengths = np.minimum(trace.prompt, hashed) // block_size
    owner, within = _places(lengths)
    # a block that spans two hashes has the tokens of both: the later hash, which stands for all before it, names it
    last = ((within + 1) * block_size - 1) // extras.hash_block
    place = within - last * extras.hash_block // block_size
    return extras.hash_ids[begins[owner] + last] * (parts + 1) + place, lengths


def _of_sessions(trace: Trace, block_size: int) -> tuple[Int64s, Int64s]:
    """A key per full block of every request, prompt and answer: its conversation, and where in it.

    A turn whose prompt is shorter than all before it repeats nothing: it begins a conversation of its own.
    """
    order, same = trace.extras.in_turns()
    context = (trace.prompt + trace.output)[order]
    goes_on = np.concatenate(([False], same & (trace.prompt[order][1:] >= context[:-1])))
    talk = np.zeros(len(trace), np.int64)
    talk[order] = np.cumsum(~goes_on) - 1
    # the last token's KV is never computed
    lengths = (trace.prompt + trace.output - 1) // block_size
    owner, within = _places(lengths)
    widest = int(lengths.max(initial=0)) + 1
    return _in_openings(trace, block_size, talk[owner] * widest + within, lengths), lengths


def _in_openings(trace: Trace, block_size: int, keys: Int64s, lengths: Int64s) -> Int64s:
    """The keys, with blocks that lie whole in the text a prompt begins with named by it and their place in it."""
    opening, tokens = trace.extras.opening, trace.extras.opening_tokens
    if opening is None or tokens is None:
        return keys
    owner, within = _places(lengths)
    inside = (within < (tokens // block_size)[owner]) & (opening[owner] >= 0)
    widest = int(tokens.max(initial=0)) // block_size + 1
    above = int(keys.max(initial=0)) + 1
    return np.where(inside, above + opening[owner] * widest + within, keys)


def _places(lengths: Int64s) -> tuple[Int64s, Int64s]:
    """For blocks laid one request after the other: whose each is, and its place there."""
    owner = np.repeat(np.arange(lengths.size), lengths)
    ends = np.cumsum(lengths)
    return owner, np.arange(owner.size) - np.repeat(ends - lengths, lengths)


def _numbered(keys: Int64s, lengths: Int64s) -> Shared:
    """Keys that occur once go, with all behind them in their request; the others are numbered as they appear."""
    _, inverse, times = np.unique(keys, return_inverse=True, return_counts=True)
    owner, within = _places(lengths)
    alone = times[inverse] < 2
    reach = lengths.copy()
    np.minimum.at(reach, owner[alone], within[alone])
    kept = within < reach[owner]
    found, numbers = np.unique(inverse[kept], return_inverse=True)
    return Shared(numbers.astype(np.int64), np.cumsum(reach), int(found.size))

"""Windowed attention: what layers see that attend to the last `window` tokens, or to those of the current chunk, only.

Every layer of a model is full or windowed, and all windows are alike. Counts are exact and whole: per decoding sequence
the context its windowed layers read, per prefill chunk their query-key pairs. Memory is that of vLLM 0.24's groups of
layers (v1/core/single_type_kv_cache_manager.py): `full_groups` keep blocks for every token; each of the `window_groups`
gives back, when its sequence is planned again, the blocks that no later token sees (get_num_skipped_tokens).
"""

from simulator.jit import jitable
from simulator.state import Limits, Replica, Requests


@jitable
def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return (tokens + block_size - 1) // block_size


@jitable
def full_blocks(lim: Limits, tokens: int) -> int:
    """Blocks that `tokens` tokens fill: tokens // block_size, without the division where it is a power of two."""
    if lim.block_bits == 0:
        return tokens // lim.block_size
    return tokens >> (lim.block_bits - 1)


@jitable
def blocks_of(lim: Limits, tokens: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return full_blocks(lim, tokens + lim.block_size - 1)


@jitable
def phase_of(lim: Limits, step: int) -> int:
    """Step of the lane (mod block_size): a place in Replica.phase and Replica.frees."""
    return step - full_blocks(lim, step) * lim.block_size


def with_bits(lim: Limits) -> Limits:
    """The limits with their block_bits."""
    size = lim.block_size
    return lim._replace(block_bits=size.bit_length() if size & (size - 1) == 0 else 0)


@jitable
def seen(lim: Limits, known: int) -> int:
    """[tokens] of `known`, the newest counted, that the newest sees in a windowed layer."""
    if lim.chunked == 1:
        return (known - 1) % lim.window + 1
    return min(known, lim.window)


@jitable
def pairs_up_to(lim: Limits, known: int) -> int:
    """Query-key pairs of the first `known` tokens in a windowed layer: the sum of `seen` over them."""
    window = lim.window
    whole = (window * (window + 1)) >> 1
    if known <= window:
        return (known * (known + 1)) >> 1
    if lim.chunked == 1:
        rest = known % window
        return known // window * whole + ((rest * (rest + 1)) >> 1)
    return whole + (known - window) * window


@jitable
def counts(req: Requests, rep: Replica, lim: Limits) -> tuple[int, int]:
    """(context, pairs) of windowed layers in the step being planned, before its sequences advance; without the lane."""
    context = 0
    pairs = 0
    for k in range(rep.c.n_batch):
        i = rep.batch[k]
        tokens = int(rep.tokens[k])
        before = int(req.computed[i])
        if tokens == 1 and req.planned[i] > 0 and before + 1 == int(req.prompt[i]) + int(req.planned[i]):
            context += seen(lim, before + 1)
        else:
            pairs += pairs_up_to(lim, before + tokens) - pairs_up_to(lim, before)
    return context, pairs


@jitable
def unseen(lim: Limits, computed: int) -> int:
    """[tokens] of `computed` that no later token sees in a windowed layer."""
    if lim.chunked == 1:
        return computed // lim.window * lim.window
    return max(0, computed - lim.window + 1)


@jitable
def held_blocks(lim: Limits, tokens: int, computed: int) -> int:
    """Blocks that hold `tokens` tokens of a sequence planned when `computed` of them were there, in all groups."""
    rows = blocks_of(lim, tokens)
    return (lim.full_groups + lim.window_groups) * rows - lim.window_groups * full_blocks(lim, unseen(lim, computed))


@jitable
def admission_blocks(lim: Limits, tokens: int) -> int:
    """Blocks that a sequence of up to `tokens` tokens holds at most, a whole token budget being computed at once
    (vLLM 0.24, v1/kv_cache_interface.py, max_admission_blocks_per_request)."""
    rows = blocks_of(lim, tokens)
    if lim.chunked == 1:
        most = blocks_of(lim, lim.window + lim.max_num_batched_tokens)
        if lim.window % lim.block_size > 0:  # a chunk, as a window, may begin inside a block
            most += 1
    else:
        most = blocks_of(lim, lim.window - 1 + lim.max_num_batched_tokens) + 1
    return lim.full_groups * rows + lim.window_groups * min(rows, most)


@jitable
def settled(lim: Limits, first: int, last: int) -> bool:
    """True when a sequence decoding from context `first` to `last` is on one side of its window throughout: what it
    reads and which blocks it takes then go by a rule that the lane can keep for all its sequences together."""
    return last <= lim.window or (lim.chunked == 0 and first > lim.window)


@jitable
def give_back_at(lim: Limits, first: int, born: int) -> int:
    """Step of the lane (mod block_size) at which a sequence beyond its window gives blocks back: it decodes context
    `first` in step `born`, and a block is unseen whenever context - window is a multiple of block_size."""
    return phase_of(lim, born + lim.window - first)

"""The yardstick of the benchmark: a plain compiled loop that touches every running sequence at every step it plans.

The rules of `chunked` for one replica: first come first served, one token budget, no planning ahead; a request enters
when blocks for all it may become are free, so that nothing is preempted. While nothing but decodes run and nobody
arrives it repeats the step without touching the sequences. It keeps first and last tokens, the histogram of gaps and
the longest gap of each request: no totals, no step log, no router, no CPU clock.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from simulator.cost.step import Cost, decode_attention_time, dense_time, prefill_attention_time, scaled
from simulator.engines.gaps import itl_bin
from simulator.state import ITL_BINS, Limits
from simulator.windows import blocks_for

Int64s = npt.NDArray[np.int64]
FAR = 2**62


def eager_loop(arrival: Int64s, prompt: Int64s, output: Int64s, lim: Limits, cost: Cost) -> int:
    """Serve the requests; returns the number of steps."""
    arrival, prompt, output = (np.ascontiguousarray(column, dtype=np.int64) for column in (arrival, prompt, output))
    columns = np.zeros((5, len(arrival)), dtype=np.int64)
    steps: int = _serve(arrival, prompt, output, lim, cost, columns, np.zeros(ITL_BINS, dtype=np.int64))
    return steps


def _step_time(cost: Cost, n_decode: int, context: int, n_prefill: int, tokens: int, pairs: int) -> int:
    """[ns] GPU time of a step."""
    kind = 1 if n_prefill > 0 else 0
    gpu = dense_time(cost, kind, n_decode + tokens) + decode_attention_time(cost, n_decode, context)
    if n_prefill > 0:
        gpu += prefill_attention_time(cost, n_prefill, tokens, pairs) + scaled(context, cost.beside_context_fp)
    return gpu


step_time: Any = numba.njit(_step_time)


def _loop(arrival: Int64s, prompt: Int64s, output: Int64s, lim: Limits, cost: Cost, columns: Int64s,
          itl: Int64s) -> int:
    first, last, computed, blocks, longest = columns[0], columns[1], columns[2], columns[3], columns[4]
    n, size = len(arrival), lim.block_size
    running = np.empty(lim.max_num_seqs, dtype=np.int64)
    take = np.empty(lim.max_num_seqs, dtype=np.int64)
    held = head = tail = now = done = steps = 0
    free = lim.num_blocks
    while done < n:
        while tail < n and arrival[tail] <= now:
            tail += 1
        if held == 0 and head == tail:
            now = arrival[tail]
            continue
        left, n_decode, context, n_prefill, tokens, pairs, least = lim.max_num_batched_tokens, 0, 0, 0, 0, 0, FAR
        for k in range(held):
            i = running[k]
            todo = prompt[i] - computed[i]
            if todo <= 0:
                todo = 1
                n_decode += 1
                context += computed[i] + 1
                least = min(least, prompt[i] + output[i] - 1 - computed[i])
            else:
                todo = min(todo, left)
                n_prefill += 1
                tokens += todo
                pairs += todo * computed[i] + todo * (todo + 1) // 2
            more = blocks_for(computed[i] + todo, size) - blocks[i]
            blocks[i] += more
            free -= more
            take[k] = todo
            left -= todo
        while head < tail and held < lim.max_num_seqs and left > 0:
            if blocks_for(prompt[head] + output[head], size) > free:
                break
            todo = min(prompt[head], left)
            blocks[head] = blocks_for(todo, size)
            free -= blocks[head]
            running[held], take[held] = head, todo
            n_prefill += 1
            tokens += todo
            pairs += todo * (todo + 1) // 2
            left -= todo
            held += 1
            head += 1
        gap = step_time(cost, n_decode, context, n_prefill, tokens, pairs)
        now += gap
        repeats = 1
        if n_decode > 0:
            itl[itl_bin(gap)] += n_decode
        wide = gap
        if n_prefill == 0:
            until = arrival[tail] if tail < n and held < lim.max_num_seqs else FAR
            while repeats < least and now < until:
                context += n_decode
                gap = step_time(cost, n_decode, context, 0, 0, 0)
                now += gap
                repeats += 1
                itl[itl_bin(gap)] += n_decode
                wide = max(wide, gap)
        steps += repeats
        kept = 0
        for k in range(held):
            i = running[k]
            if computed[i] >= prompt[i]:
                longest[i] = max(longest[i], wide)
                computed[i] += repeats
            else:
                computed[i] += take[k]
            more = blocks_for(computed[i], size) - blocks[i]
            blocks[i] += more
            free -= more
            if computed[i] >= prompt[i] and first[i] == 0:
                first[i] = now
            if computed[i] >= prompt[i] + output[i] - 1:
                last[i] = now
                free += blocks[i]
                done += 1
            else:
                running[kept] = i
                kept += 1
        held = kept
    return steps


_serve: Any = numba.njit(_loop)

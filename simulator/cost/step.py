"""What one engine step costs: three int64 times and a flag, from the counts of the batch.

A `Cost` is filled once per scenario (`cost.roofline` from a datasheet, `cost.calibrated` from measurements,
`cost.unit` for textbook examples). `step_cost` is pure and jitable: both engines call it.

The clock rule (see docs/architecture.md, "two clocks"): a step scheduled at s has its kernels ready to start at
s + prep, its CPU work done at L = s + cpu, and its GPU work done at
    G = max(G_before, s + prep) + gpu        (when eager: not before L)
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.jit import jitable

Whole = Any
"""A whole number: int or numpy.int64."""

FP_BITS = 32
"""Linear coefficients are fixed-point int64 in 2^-32 ns: whole nanoseconds would be 1-3 % off per context token."""
LOW = 2**FP_BITS - 1
"""The low half of an int64."""


class Cost(NamedTuple):
    """Integer step-time model of one replica (model x GPUs x parallelism x engine).

    Tables have shape (2, T+1): row 0 for pure-decode steps, row 1 for steps that hold any prefill token; the
    column is the number of batched tokens, CUDA-graph padding included in the values. Beyond T the last
    column is extended by `slope_fp`.
    """

    dense_ns: npt.NDArray[np.int64]      # GPU time that depends on batched tokens only: GEMMs, norms, head, collectives
    cpu_ns: npt.NDArray[np.int64]        # CPU time of schedule + launch
    prep_ns: npt.NDArray[np.int64]       # part of cpu_ns before the GPU can start
    eager: npt.NDArray[np.int64]         # 1 where kernels are launched one by one (GPU cannot end before the CPU)
    head_ns: npt.NDArray[np.int64]       # part of dense_ns that only the last stage of a pipeline has: head, sampling
    slope_fp: Whole                      # [2^-32 ns/token] dense time beyond the table
    decode_context_fp: Whole             # [2^-32 ns/token] decode attention per context token (the new one counted)
    decode_seq_fp: Whole                 # [2^-32 ns/seq]   decode attention per sequence
    prefill_pair_fp: Whole               # [2^-32 ns/pair]  prefill attention per query-key pair
    prefill_token_fp: Whole              # [2^-32 ns/token] prefill attention per query token
    prefill_seq_fp: Whole                # [2^-32 ns/seq]   prefill attention per sequence
    seen_context_fp: Whole               # [2^-32 ns/token] decode attention of windowed layers per context token seen
    seen_pair_fp: Whole                  # [2^-32 ns/pair]  prefill attention of windowed layers per pair seen
    cpu_seq_ns: Whole                    # [ns/seq] CPU time per scheduled sequence
    prep_seq_ns: Whole                   # [ns/seq] of it before the GPU can start
    frontend_in_ns: Whole                # [ns] submission -> waiting queue
    frontend_each_ns: Whole              # [ns] serial front-end time per request (a burst queues here)
    frontend_out_ns: Whole               # [ns] step output -> client
    # Of a pipeline (engines/pipeline.py); cpu_ns and prep_ns are then those of each stage's worker.
    layers: Whole = 1                    # layers of the model, shared out to its stages
    plan_ns: Whole = 0                   # [ns] the scheduler's part of a step, before it reaches the workers
    plan_seq_ns: Whole = 0               # [ns/seq] of it per scheduled sequence
    pause_ns: Whole = 0                  # [ns] it pauses after it found nothing to plan
    crowded: Whole = 1000                # [1/1000] by which GPU times grow when several stages compute at a time
    hop_ns: Whole = 0                    # [ns] from one stage to the next
    hop_fp: Whole = 0                    # [2^-32 ns/token] of it per batched token
    beside_context_fp: Whole = 0         # [2^-32 ns/token] what a context token costs more in a step with prefill


TABLES: Final = ("dense_ns", "cpu_ns", "prep_ns", "eager", "head_ns")
"""Names of the tables of a Cost; they come first in it."""


@jitable
def scaled(count: int, coefficient_fp: int) -> int:
    """count x coefficient [2^-32 ns] -> whole ns, rounded down; both >= 0. Exact whenever the result fits int64.

    The product of up to 126 bits is made of 32-bit halves; that of the two low halves, which can reach 2^64, of
    16-bit ones, since overflow is undefined in compiled code: numba marks signed products as never wrapping.
    """
    whole = coefficient_fp >> FP_BITS
    part = coefficient_fp & LOW
    upper = ((count & LOW) >> 16) * part
    lower = (count & 0xFFFF) * part
    return count * whole + (count >> FP_BITS) * part + ((upper + (lower >> 16)) >> 16)


@jitable
def rounded_off(count: int, coefficient_fp: int) -> int:
    """[2^-32 ns] that `scaled` leaves out of count x coefficient; 0 <= it < 2^32."""
    part = coefficient_fp & LOW
    upper = ((count >> 16) & 0xFFFF) * part
    return ((count & 0xFFFF) * part + ((upper & 0xFFFF) << 16)) & LOW


@jitable
def dense_time(cost: Cost, kind: int, tokens: int) -> int:
    """[ns] GPU time of the token-parallel part; kind 0 pure decode, 1 with prefill."""
    last = cost.dense_ns.shape[1] - 1
    if tokens <= last:
        return cost.dense_ns[kind, tokens]
    return cost.dense_ns[kind, last] + scaled(tokens - last, cost.slope_fp)


@jitable
def decode_attention_time(cost: Cost, n_decode: int, context: int) -> int:
    """[ns] GPU time of decode attention; `context` is summed over sequences, the new tokens counted."""
    return scaled(context, cost.decode_context_fp) + scaled(n_decode, cost.decode_seq_fp)


@jitable
def prefill_attention_time(cost: Cost, n_prefill: int, tokens: int, pairs: int) -> int:
    """[ns] GPU time of prefill attention over `pairs` causal query-key pairs."""
    return (scaled(pairs, cost.prefill_pair_fp) + scaled(tokens, cost.prefill_token_fp)
            + scaled(n_prefill, cost.prefill_seq_fp))


@jitable
def table_at(table: npt.NDArray[np.int64], kind: int, tokens: int) -> int:
    """Table value, the last column standing for everything beyond it."""
    last = table.shape[1] - 1
    return table[kind, tokens if tokens < last else last]

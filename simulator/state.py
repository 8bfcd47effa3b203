"""State as columns: what a request, a replica and a step are, for both engines.

Shapes: N requests, R replicas, S = max_num_seqs, D = schedule-ahead depth. Ticks are int64 nanoseconds; NEVER
marks a tick that has not come. The compiled engine stores columns as numpy arrays (counts int32, ticks int64),
the SimPy engine as plain lists of Python integers, which cannot overflow; the code that works on them
indexes one element at a time and so runs on both.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.units import NEVER

Column = Any
"""A numpy array (compiled engine) or a list of int (SimPy engine)."""


class Requests(NamedTuple):
    """One row a request, in order of submission. Writer in brackets."""

    arrival: Column      # [tick]   submission by the client [input; engine for closed and grouped loads]
    prompt: Column       # [tokens] prompt length [input]
    output: Column       # [tokens] true output length; policies must not read it unless named oracle_* [input]
    limit: Column        # [tokens] outputs after which planning stops: max_tokens, or the output length [input]
    cached: Column       # [tokens] prompt tokens in the prefix cache; whole blocks of them are used [input]
    pick: Column         # random draw for the random router, empty unless used [input]
    queued: Column       # [tick]   entry into a replica's waiting queue [engine]
    scheduled: Column    # [tick]   first time in a batch [engine]
    first: Column        # [tick]   first token at the client [engine; static batches returned whole: retire]
    last: Column         # [tick]   latest, in the end last, token at the client [engine; ditto]
    itl_max: Column      # [ns]     longest gap between two tokens [engine]
    computed: Column     # [tokens] whose KV is computed or planned to be [engine, preempt]
    planned: Column      # [tokens] outputs planned, in flight or done [engine]
    done: Column         # [tokens] outputs visible [engine]
    blocks: Column       # [blocks] KV blocks held [kv]
    extent: Column       # [blocks] first block of a contiguous reservation [kv]
    slot: Column         # index of the batch slot last held, -1 before [admit]
    replica: Column      # index of the replica, -1 before routing [engine]
    preempted: Column    # times preempted [preempt]
    status: Column       # one of the status codes below [engine, admit, preempt]
    next: Column         # next in the waiting queue, -1 at its end [queues]


COUNT_FIELDS: Final = ("prompt", "output", "limit", "cached", "computed", "planned", "done", "blocks", "extent",
                       "slot", "replica", "preempted", "status", "next")
"""Columns that fit int32; the others are ticks (int64)."""

# Status of a request.
FUTURE: Final = 0
WAITING: Final = 1
RUNNING: Final = 2
FINISHED: Final = 3
REJECTED_LENGTH: Final = 4       # prompt + output longer than max_model_len
REJECTED_KV: Final = 5           # needs more KV blocks than the replica has
REJECTED_BUDGET: Final = 6       # prompt longer than the token budget of a policy that does not chunk
STATUS_NAMES: Final = ("future", "waiting", "running", "finished", "rejected: longer than max_model_len",
                       "rejected: needs more KV blocks than there are",
                       "rejected: prompt longer than max_num_batched_tokens")


class Replica(NamedTuple):
    """One replica as its policy sees it. `c` holds the scalars, by the index names below."""

    running: Column      # (S,) requests holding a slot, in order of admission
    slots: Column        # (S,) request in each slot, -1 = empty
    extents: Column      # (S,) requests by the place of their contiguous reservation
    batch: Column        # (S,) requests of the step being planned          [policy writes]
    tokens: Column       # (S,) tokens to compute for each of them          [policy writes]
    flight: Column       # (D+1, S) per step in flight: requests that get a token from it
    steps: Column        # (D+1, STEP_FIELDS) per step in flight: its counts and clocks
    c: Column            # (COUNTERS,) scalars


NOBODY: Final = 2**32 - 1
"""Fill of id columns where nobody is."""

# Scalars of a replica, rep.c[NAME].
NOW: Final = 0             # [tick] the only clock a policy may read
N_RUNNING: Final = 1
N_WAITING: Final = 2
HEAD: Final = 3            # first waiting request, -1 = none
TAIL: Final = 4
N_BATCH: Final = 5         # entries of batch / tokens that the policy has filled
FREE_BLOCKS: Final = 6
WAKE: Final = 7            # [tick] the policy asks to be called again, NEVER = no
HOLD: Final = 8            # steps for which the policy promises the same pure-decode decision, barring events
VERSION: Final = 9         # changes with all that can change a decision: arrival, admission, preemption,
                           # a finish while somebody waits
PAD_ROWS: Final = 10       # finished sequences computed all the same (static batch)    [policy writes]
PAD_CONTEXT: Final = 11    # [tokens] context read for padding                          [policy writes]
PAD_TOKENS: Final = 12     # [tokens] prefill padding                                   [policy writes]
PAD_PAIRS: Final = 13      # query-key pairs of prefill padding                         [policy writes]
N_FLIGHT: Final = 14       # steps in flight
FIRST_FLIGHT: Final = 15   # ring index of the oldest
KV_TOKENS: Final = 16      # [tokens] computed and held in KV memory
N_EXTENTS: Final = 17
LARGEST_GAP: Final = 18    # [blocks] longest free run (contiguous layout)
OUTSTANDING: Final = 19    # requests routed here and not ended
EVENT_TICK: Final = 20     # [tick] of this replica's next event
EVENT_PHASE: Final = 21
GPU_FREE: Final = 22       # [tick] G of the last launched step
CPU_FREE: Final = 23       # [tick] L of the last launched step
LAST_OUTPUT: Final = 24    # [tick] output of the last collected step
VISIBLE: Final = 25        # [tick] at the client, of the step being collected
N_ENDED: Final = 26        # requests that ended in the step being collected
LOG_ROW: Final = 27        # row of the step log that may be extended, -1 = none
LOG_VERSION: Final = 28    # VERSION of the steps in it
BOUND: Final = 29          # [tick] OUTSTANDING cannot change before this (compiled engine)
SCATTERED: Final = 30      # admissions refused although enough blocks were free in all (contiguous layout)
SCATTERED_FOR: Final = 31  # the request last counted there
COUNTERS: Final = 32

# A step in flight, rep.steps[k][NAME].
S_START: Final = 0         # [tick] scheduled
S_GPU_END: Final = 1       # [tick]
S_YIELD: Final = 2         # rows of flight[k]
S_DECODE: Final = 3        # decode sequences
S_CONTEXT: Final = 4       # [tokens] their summed context
S_PREFILL: Final = 5       # prefill sequences
S_PREFILL_TOKENS: Final = 6
S_PAIRS: Final = 7
S_RUNNING: Final = 8       # slots held
S_WAITING: Final = 9
S_BLOCKS: Final = 10       # KV blocks in use
S_KV_TOKENS: Final = 11
S_GPU_NS: Final = 12
S_VERSION: Final = 13
S_PLAIN: Final = 14        # 1 = pure decode in which every row gets a token
S_PAD_ROWS: Final = 15
S_GAP: Final = 16          # [blocks] free but not in the longest free run
STEP_FIELDS: Final = 17


class Limits(NamedTuple):
    """What a policy must keep to; the same for every replica."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int   # [tokens] 0 = none
    watermark_blocks: int               # [blocks] kept free when admitting
    reserve_prompt: int                 # 1 = admit only when the whole prompt fits, not just its first chunk
    block_size: int                     # [tokens]
    num_blocks: int                     # [blocks] usable
    max_model_len: int                  # [tokens]
    contiguous: int                     # 1 = one run of blocks a request, reserved at admission
    reserve_tokens: int                 # [tokens] reserved then, or prompt + limit where that is more
    batch_window: int                   # [ns] static: wait this long for a fuller batch
    length_bucket: int                  # [tokens] static: batch prompts of one bucket only; 0 = off
    stream: int                         # 0 = static: return everything at the end of the batch
    schedule_ahead: int                 # D: steps planned before the oldest output is seen
    whole_prompt: int                   # 1 = a prompt above the token budget, or leaving no watermark, can never run


# Totals of a replica, stats[r][NAME]. "w" is the wall time of a step: output minus the later of its start
# and the output before.
T_STEPS: Final = 0
T_OUTPUT: Final = 1            # [tokens]
T_PREFILL: Final = 2           # [tokens] computed by prefill, recomputation included
T_WASTED: Final = 3            # rows computed for nobody: after the end of a sequence
T_PAD_ROWS: Final = 4
T_PAD_TOKENS: Final = 5
T_PREEMPTIONS: Final = 6
T_WALL: Final = 7              # [ns] sum of w
T_GPU: Final = 8               # [ns]
T_DENSE: Final = 9             # [ns] of it GEMMs, norms, head, collectives
T_DECODE_ATTENTION: Final = 10
T_PREFILL_ATTENTION: Final = 11
T_ROWS: Final = 12             # [rows ns]    scheduled sequences x w
T_RUNNING: Final = 13          # [slots ns]   held slots x w
T_WAITING: Final = 14          # [requests ns / 1024] as all below, so that sums stay within int64
T_BLOCKS: Final = 15           # [blocks ns / 1024]
T_KV_TOKENS: Final = 16        # [tokens ns / 1024]
T_GAPS: Final = 17             # [blocks ns / 1024] free blocks outside the longest free run
T_WALL_SHORT: Final = 18       # [ns / 1024]
T_EAGER: Final = 19            # steps launched kernel by kernel
T_PEAK_BLOCKS: Final = 20
T_PEAK_RUNNING: Final = 21
T_PEAK_WAITING: Final = 22
T_FRAGMENTED: Final = 23       # SCATTERED at the end
T_LAST: Final = 24             # [tick] of the last output
TOTALS: Final = 25

# The step log: one row for a run of equal steps.
LOG_FIELDS: Final = ("replica", "start", "end", "steps", "decode", "context", "prefill", "prefill_tokens", "pairs",
                     "running", "waiting", "blocks", "kv_tokens", "gpu_ns", "wall_ns", "pad_rows")

ITL_BITS: Final = 8
"""Histogram bins per octave = 2^8: a bin is at most 0.4 % wide."""
ITL_BINS: Final = 64 * 2**ITL_BITS


def log_bin_edges() -> npt.NDArray[np.float64]:
    """[ns] lower edges of the ITL bins, shape (ITL_BINS + 1,); exact below 2^8 ns."""
    index = np.arange(ITL_BINS + 1, dtype=np.float64)
    octave = np.floor(index / 2**ITL_BITS)
    fine = index - octave * 2**ITL_BITS
    return np.where(octave == 0, fine, (2**ITL_BITS + fine) * 2.0 ** (octave - 1))


def empty_replica_counters(num_blocks: int) -> list[int]:
    """Scalars of a replica before anything has happened, in order of the index names."""
    c = [0] * COUNTERS
    c[HEAD] = c[TAIL] = c[LOG_ROW] = c[SCATTERED_FOR] = -1
    c[EVENT_TICK], c[EVENT_PHASE] = NEVER, 3
    c[FREE_BLOCKS] = c[LARGEST_GAP] = num_blocks
    return c

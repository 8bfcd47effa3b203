"""State as columns: what a request, a replica and a step are, for both engines.

Shapes: N requests, R replicas, S = max_num_seqs, D = schedule-ahead depth. Ticks are int64 nanoseconds; NEVER
marks a tick that has not come. The compiled engine stores columns as numpy arrays (counts int32, ticks int64),
the SimPy engine as plain lists of Python integers, which cannot overflow; the code that works on them
indexes one element at a time and so runs on both. Scalars that belong together are one record of int64: an element
of a structured numpy array there, an object with slots here; `rep.c.now` reads both.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.records import Counters, Front, Totals

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
    group: Column        # requests for the same pools (policies.routers), empty unless used [input]
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
    due: Column          # Counters.rounds from which it may be planned again; empty without pipelines [pipeline]
    drafts: Column       # [tokens] drafted for its next step; empty unless drafts are made [speculation, preempt]
    swapped: Column      # [blocks] of its KV in host memory; empty unless preemption is by swap [swap]
    # The prefix cache; these five are empty unless it is on.
    chain_end: Column    # end of its shared leading blocks in prefix.chain; they begin where i - 1's end [input]
    found: Column        # [tokens] found in the prefix cache when first admitted [prefix]
    known: Column        # [blocks] of the shared ones that are registered while it runs [prefix]
    settled: Column      # [tokens] computed and visible when last planned: full blocks are known [prefix, engine]
    own: Column          # node with its private blocks since it was preempted, -1 = none [prefix]
    # Host memory behind it; these two are empty unless there is some.
    fetched: Column      # [tokens] of `found` that came from host memory [prefix]
    ready: Column        # [tick]   its blocks from host memory have come [prefix]
    # What a policy asks for by name (registry.Policy.needs); each is empty unless it does.
    priority: Column     # smaller goes first [input]
    tenant: Column       # index of the tenant [input]
    predicted: Column    # [tokens] predicted output length [input]
    target: Column       # [ns]     time to first token that the client wants [input]
    joins: Column        # level that it joins (policies.fastserve) [input]
    # Where that is so, too.
    level: Column        # its level; 0 is served first [fastserve]
    used: Column         # [ns]     for which it has run there [fastserve]
    ran: Column          # [tick]   of its last step, or of its entry [fastserve]
    # The waiting queue in another order than first come, first served; both are empty unless it is.
    key: Column          # smaller goes first, ties by index [engine]
    child: Column        # first child in the heap, its siblings are linked by next, -1 = none [heap]
    # Clients who give up or try again; these three are empty unless they do.
    sent: Column         # [tick]   latest submission [engine]
    attempts: Column     # submissions so far [engine]
    watched: Column      # bits: whether a look of its client is pending, ... (engines/again.py) [engine]
    # Requests that a gateway submits again so often and no more; these two are empty unless that is limited.
    losses: Column       # times lost with a replica since the client submitted it [engine]
    lost_at: Column      # [tick]   when it was, for good [engine]
    # Requests that get their first token from one replica and the others from another; empty unless some do [handover].
    whole: Column        # [tokens] `limit` on the second half of its way; it is 1 on the first
    source: Column       # index of the replica of its first half, -1 before it is left
    held: Column         # [blocks] KV blocks it holds there still
    carried: Column      # whether its KV came with it, a code of handover
    landed: Column       # [tick]   its KV has come to the second half


COUNT_FIELDS: Final = ("prompt", "output", "limit", "cached", "group", "computed", "planned", "done", "blocks",
                       "extent", "slot", "replica", "preempted", "status", "next", "due", "drafts", "swapped", "found",
                       "known", "settled", "own", "fetched", "tenant", "predicted", "joins", "level", "child",
                       "whole", "source", "held", "carried", "attempts", "watched", "losses")
"""Columns that fit int32; the others are ticks (int64)."""
LARGEST_COUNT: Final = 2**31 - 1
"""Most tokens of a request, and most KV blocks of a replica; checked where they come in."""

# Status of a request.
FUTURE: Final = 0
WAITING: Final = 1
RUNNING: Final = 2
FINISHED: Final = 3
REJECTED_LENGTH: Final = 4       # prompt + output longer than max_model_len
REJECTED_KV: Final = 5           # needs more KV blocks than the replica has
REJECTED_BUDGET: Final = 6       # prompt longer than the token budget of a policy that does not chunk
REJECTED_QUEUE: Final = 7        # as many waited as may (HTTP 429)
REJECTED_SLOW: Final = 8         # its first token was predicted to come too late (HTTP 429)
ABORTED: Final = 9               # its client gave up
NOT_SENT: Final = 10             # an earlier turn of its conversation has no answer
LOST: Final = 11                 # with its replica, and not submitted again
REFUSALS: Final = (REJECTED_LENGTH, REJECTED_SLOW)
"""First and last status of a request that the engine refused."""
SENT: Final = 1
TAKEN: Final = 2
"""Requests.carried: its KV waits at the replica where it was computed; it was taken from there. 0: it has none."""

STATUS_NAMES: Final = ("future", "waiting", "running", "finished", "rejected: longer than max_model_len",
                       "rejected: needs more KV blocks than there are",
                       "rejected: prompt longer than max_num_batched_tokens", "rejected: queue full",
                       "rejected: first token predicted too late", "aborted", "not sent", "lost with its replica")


class Prefix(NamedTuple):
    """What the prefix cache of a replica knows; L shared leading blocks of all requests with K different numbers."""

    chain: Column        # (L,) number of each, one request after the other; the same for every replica [input]
    held: Column         # (L,) node of each while its request runs
    found: Column        # (K,) oldest node with that number, 0 = none
    nodes: Column        # (num_blocks or fewer,) Node
    host: Column         # (2 K + 1,) HostBlocks: of each number, then of runs of private ones; (0,) without any


class Replica(NamedTuple):
    """One replica as its policy sees it."""

    running: Column      # (S,) requests holding a slot, in order of admission, but for those in the lane
    slots: Column        # (S,) request in each slot, -1 = empty
    vacant: Column       # (S / VACANT_BITS,) free slots, a bit each
    seats: Column        # (S,) Seat of each slot
    extents: Column      # (S,) requests by the place of their contiguous reservation
    ended: Column        # (S,) requests that ended in the step being collected, or whose batch was returned
    batch: Column        # (S,) requests of the step being planned          [policy writes]
    tokens: Column       # (S,) tokens to compute for each of them          [policy writes]
    flight: Column       # (D+1, S) per step in flight: requests that get a token from it
    gains: Column        # (D+1, S) most tokens each of them may get: 1 + its drafts; (1, 1) unless drafts are made
    steps: Column        # (D+1,) StepInFlight: counts and clocks of each
    stage_gpu: Column    # (stages,) [tick] G of the last step launched on each stage of a pipeline
    stage_cpu: Column    # (stages,) [tick] L of it, of that stage's worker
    phase: Column        # (block_size,) blocks that sequences of the lane take, by Seat.crossing
    frees: Column        # (block_size,) blocks that they give back as their windows move, likewise
    calendar: Column     # (CALENDAR,) first slot of the lane whose Seat.end is this (mod CALENDAR), -1 = none
    gap_step: Column     # (GAPS,) step of the lane at whose output ...
    gap_ns: Column       # (GAPS,) ... a gap was longer than all later ones
    prefix: Prefix
    aux: Column          # numbers that the policy keeps
    stats: Totals        # totals
    front: Front         # scalars that others read
    c: Counters          # scalars


VACANT_BITS: Final = 32
"""Slots in a word of Replica.vacant."""
CALENDAR: Final = 1024
GAPS: Final = 1024


NOBODY: Final = 2**32 - 1
"""Fill of id columns where nobody is."""


class Limits(NamedTuple):
    """What a policy must keep to; the same for every replica of a pool."""

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
    prefix: int = 0                     # 1 = blocks of earlier requests with the same tokens are used again
    window: int = 0                     # [tokens] that windowed layers see, 0 = every layer sees all
    chunked: int = 0                    # 1 = of the current chunk of so many tokens
    full_groups: int = 1                # groups of layers that hold blocks for every token
    window_groups: int = 0              # and for those in the window
    padding: int = 0                    # static: what is computed for nobody (policies.static.PADDINGS), 0 = naive
    draft_tokens: int = 0               # [tokens] drafted for a sequence after each of its steps, 0 = no speculation
    lookahead: int = 0                  # [tokens] KV slots kept for the next drafts
    rehearse: int = 0                   # 1 = the draft needs hidden states of the last block of a prefix found
    order: int = 0                      # policies in order of a key: which key (policies.by_key.KEYS)
    aging: int = 0                      # [ns] of waiting that count as one priority; 0 = none
    hand_over: int = 0                  # 1 = computes prompts and their first tokens only, then hands requests over
    max_waiting: int = 0                # a request that finds so many waiting at its replica is refused, 0 = none is
    shed_waiting: int = 0               # so is one of these priorities and above (less urgent) that finds so many, 0 =
    shed_priority: int = 0              # none is
    preferred_sizes: int = 0            # static: sizes of batches that start at once, packed (policies.static)
    served_ratio: int = 0               # [2^-16] tgi: new requests taken in at least, of those that run
    max_waiting_tokens: int = 0         # tgi: decode steps after which fewer are
    swap_blocks: int = 0                # [blocks] of host memory for preempted sequences, 0 = they are computed again
    swap_ns: int = 0                    # [ns] to copy a block to host memory or back
    stages: int = 0                     # of a pipeline, 0 = none; schedule_ahead is then this many, or one less where
                                        # a request waits for its token to be seen (engines/pipeline.py)
    offload_blocks: int = 0             # [blocks] of host memory behind the prefix cache, 0 = there is none
    offload_ns: int = 0                 # [ns] to copy a block from there
    quantum: int = 0                    # [ns] fastserve: of the first level
    starvation: int = 0                 # [ns] fastserve: who has not run for so long goes up to it
    max_batch: int = 0                  # fastserve: most requests of a step, 0 = as many as there are slots
    predicted_ttft: int = 0             # [ns] so is one whose first token is predicted to come later, 0 = none is
    rule: int = 0                       # which of the policies that share a compiled engine [engines/rules]
    block_bits: int = 0                 # block_size = 2^(block_bits - 1), 0 = not so or not known [job]


ITL_BITS: Final = 8
"""Histogram bins per octave = 2^8: a bin is at most 0.4 % wide."""
ITL_BINS: Final = 64 * 2**ITL_BITS


def log_bin_edges() -> npt.NDArray[np.float64]:
    """[ns] lower edges of the ITL bins, shape (ITL_BINS + 1,); exact below 2^8 ns."""
    index = np.arange(ITL_BINS + 1, dtype=np.float64)
    octave = np.floor(index / 2**ITL_BITS)
    fine = index - octave * 2**ITL_BITS
    return np.where(octave == 0, fine, (2**ITL_BITS + fine) * 2.0 ** (octave - 1))



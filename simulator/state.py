"""State as columns: what a request, a replica and a step are, for both engines.

Shapes: N requests, R replicas, S = max_num_seqs, D = schedule-ahead depth. Ticks are int64 nanoseconds; NEVER
marks a tick that has not come. The compiled engine stores columns as numpy arrays (counts int32, ticks int64),
the SimPy engine as plain lists of Python integers, which cannot overflow; the code that works on them
indexes one element at a time and so runs on both. Scalars that belong together are one record of int64: an element
of a structured numpy array there, an object with slots here; `rep.c.now` reads both.
"""

import functools
from dataclasses import dataclass, fields
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
    drafts: Column       # [tokens] drafted for its next step; empty unless drafts are made [speculation, preempt]
    # The prefix cache; these five are empty unless it is on.
    chain_end: Column    # end of its shared leading blocks in prefix.chain; they begin where i - 1's end [input]
    found: Column        # [tokens] found in the prefix cache when first admitted [prefix]
    known: Column        # [blocks] of the shared ones that are registered while it runs [prefix]
    settled: Column      # [tokens] computed and visible when last planned: full blocks are known [prefix, engine]
    own: Column          # node with its private blocks since it was preempted, -1 = none [prefix]
    # What a policy asks for by name (registry.Policy.needs); each is empty unless it does.
    priority: Column     # smaller goes first [input]
    tenant: Column       # index of the tenant [input]
    predicted: Column    # [tokens] predicted output length [input]
    target: Column       # [ns]     time to first token that the client wants [input]
    # The waiting queue in another order than first come, first served; both are empty unless it is.
    key: Column          # smaller goes first, ties by index [engine]
    child: Column        # first child in the heap, its siblings are linked by next, -1 = none [heap]
    # Clients who give up or try again; these two are empty unless they do.
    sent: Column         # [tick]   latest submission [engine]
    attempts: Column     # submissions so far [engine]
    # Requests that get their first token from one replica and the others from another; empty unless some do [handover].
    whole: Column        # [tokens] `limit` on the second half of its way; it is 1 on the first
    source: Column       # index of the replica of its first half, -1 before it is left
    held: Column         # [blocks] KV blocks it holds there still
    carried: Column      # whether its KV came with it, a code of handover
    landed: Column       # [tick]   its KV has come to the second half


COUNT_FIELDS: Final = ("prompt", "output", "limit", "cached", "group", "computed", "planned", "done", "blocks",
                       "extent", "slot", "replica", "preempted", "status", "next", "drafts", "found", "known",
                       "settled", "own", "tenant", "predicted", "child", "whole", "source", "held", "carried",
                       "attempts")
"""Columns that fit int32; the others are ticks (int64)."""
LARGEST_COUNT: Final = 2**31 - 1
"""Most tokens of a request, and most KV blocks of a replica; checked where they come in."""

COMPLETE: Final = 0
TRANSFER: Final = 1
ARRIVE: Final = 2
DEADLINE: Final = 3
CONTROL: Final = 4
TIMER: Final = 5
SCHEDULE: Final = 6
"""Phases of a tick. Those of a replica are COMPLETE, TIMER and SCHEDULE; the others come from outside, between them.
TRANSFER is for requests that change replicas, CONTROL for changes of the fleet."""

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
REFUSALS: Final = (REJECTED_LENGTH, REJECTED_SLOW)
"""First and last status of a request that the engine refused."""
STATUS_NAMES: Final = ("future", "waiting", "running", "finished", "rejected: longer than max_model_len",
                       "rejected: needs more KV blocks than there are",
                       "rejected: prompt longer than max_num_batched_tokens", "rejected: queue full",
                       "rejected: first token predicted too late", "aborted", "not sent")


@dataclass(slots=True)
class Counters:
    """Scalars of a replica, rep.c."""

    now: int = 0            # [tick] the only clock a policy may read
    n_running: int = 0
    n_waiting: int = 0
    head: int = 0           # first waiting request, -1 = none
    tail: int = 0
    n_batch: int = 0        # entries of batch / tokens that the policy has filled
    free_blocks: int = 0
    wake: int = 0           # [tick] the policy asks to be called again, NEVER = no
    hold: int = 0           # steps for which the policy promises the same pure-decode decision, barring events
    version: int = 0        # changes with all that can change a decision: arrival, admission, preemption,
                            # a finish while somebody waits
    pad_rows: int = 0       # finished sequences computed all the same (static batch)    [policy writes]
    pad_context: int = 0    # [tokens] context read for padding                          [policy writes]
    pad_tokens: int = 0     # [tokens] prefill padding                                   [policy writes]
    pad_pairs: int = 0      # query-key pairs of prefill padding                         [policy writes]
    n_flight: int = 0       # steps in flight
    first_flight: int = 0   # ring index of the oldest
    kv_tokens: int = 0      # [tokens] computed and held in KV memory
    n_extents: int = 0
    largest_gap: int = 0    # [blocks] longest free run (contiguous layout)
    gpu_free: int = 0       # [tick] G of the last launched step
    cpu_free: int = 0       # [tick] L of the last launched step
    last_output: int = 0    # [tick] output of the last collected step
    visible: int = 0        # [tick] at the client, of the step being collected
    n_ended: int = 0        # requests that ended in the step being collected: entries of `ended`
    log_row: int = 0        # row of the step log that may be extended, -1 = none
    log_version: int = 0    # `version` of the steps in it
    scattered: int = 0      # admissions refused although enough blocks were free in all (contiguous layout)
    scattered_for: int = 0  # the request last counted there
    vacant_from: int = 0    # words of rep.vacant before this one are 0
    turn: int = 0           # admissions so far
    lane: int = 0           # sequences in the lane (compiled engine; see engines/lane.py)
    with_lane: int = 0      # 1 = the lane takes part in the step being planned           [policy writes]
    lane_took: int = 0      # [blocks] taken for it
    singles: int = 0        # 1 = the policy must see every sequence: spill the lane      [policy writes]
    lane_context: int = 0   # [tokens] summed context of the lane at its next step
    lane_seen_context: int = 0  # [tokens] of it that windowed layers see (windows.py)
    lane_short: int = 0     # sequences of it within their window: what they see grows
    lane_steps: int = 0     # steps launched with the lane
    lane_seen: int = 0      # of them collected
    lane_ahead: int = 0     # steps in flight when the newest of them was planned
    lane_output: int = 0    # [tick] when all of the lane last got a token
    lane_end: int = 0       # step of the lane after which its first sequence leaves, NEVER = none
    lane_head: int = 0      # slot of its first admitted sequence, -1 = none
    lane_tail: int = 0
    lane_rest: int = 0      # steps for which nobody joins after a spill
    n_gaps: int = 0         # entries of gap_step / gap_ns
    # The prefix cache: its free queue (prefix.nodes).
    kept: int = 0           # [blocks] in it
    oldest: int = -1
    newest: int = -1
    spare: int = -1         # first node given back
    n_nodes: int = 0        # nodes ever used


@dataclass(slots=True)
class Front:
    """What the router and the event loop read of a replica, rep.front; small, for they read that of every replica."""

    outstanding: int = 0    # requests routed here and not ended
    pool: int = 0           # index of its pool
    work: int = 0           # [tokens] prompt + limit of those requests
    speed: int = 1          # of its pool, relative to others
    used_blocks: int = 0    # KV blocks that running requests hold (kept up to date for the router least_kv)
    blocks: int = 1         # KV blocks it has
    bound: int = 0          # [tick] `outstanding` cannot change before this (compiled engine)
    event_tick: int = NEVER   # [tick] of this replica's next event (compiled engine)
    event_phase: int = TIMER
    state: int = 0          # in service, draining or down; a code of engines/changes.py
    listed: int = 1         # 1 = the router thinks it in service
    since: int = 0          # [tick] when it went down
    rest: int = 0           # [ns] for which it will be down when drained


@dataclass(slots=True)
class StepInFlight:
    """A step in flight, rep.steps[k]."""

    start: int = 0           # [tick] scheduled
    gpu_end: int = 0         # [tick]
    yields: int = 0          # rows of flight[k]
    decode: int = 0          # decode sequences
    context: int = 0         # [tokens] their summed context
    prefill: int = 0         # prefill sequences
    prefill_tokens: int = 0
    pairs: int = 0
    running: int = 0         # slots held
    waiting: int = 0
    blocks: int = 0          # KV blocks in use
    kv_tokens: int = 0
    gpu_ns: int = 0
    version: int = 0
    plain: int = 0           # 1 = pure decode in which every row gets a token
    pad_rows: int = 0
    gap: int = 0             # [blocks] free but not in the longest free run
    lane: int = 0            # decode sequences of the lane, beside the rows of flight[k]
    lane_step: int = 0       # number of this step among those with the lane, 0 = without
    seen_context: int = 0    # [tokens] of `context` that windowed layers see
    seen_pairs: int = 0      # of `pairs`, those of windowed layers
    joined: int = 0          # 1 = sequences joined the lane with their token of this step
    drafts: int = 0          # [tokens] drafted ones among those computed
    dropped: int = 0         # rows whose clients gave up since


@dataclass(slots=True)
class Node:
    """An entry of the free queue of the prefix cache, prefix.nodes[k]: one shared block, or a run of private ones."""

    before: int = -1
    after: int = -1
    owner: int = 0           # the preempted request of private blocks, prefix.DEAD or prefix.SHARED
    count: int = 0           # [blocks]
    chain: int = -1          # number of a shared block
    refs: int = 0            # requests that hold it
    twin: int = -1           # next node with the same tokens


class Prefix(NamedTuple):
    """What the prefix cache of a replica knows; L shared leading blocks of all requests with K different numbers."""

    chain: Column        # (L,) number of each, one request after the other; the same for every replica [input]
    held: Column         # (L,) node of each while its request runs
    found: Column        # (K,) oldest node with that number, -1 = none
    nodes: Column        # (num_blocks or fewer,) Node


@dataclass(slots=True)
class Totals:
    """Totals of a replica. "w" is the wall time of a step: output minus the later of its start and the output
    before."""

    steps: int = 0
    output: int = 0             # [tokens]
    prefill: int = 0            # [tokens] computed by prefill, recomputation included
    wasted: int = 0             # rows computed for nobody: after the end of a sequence
    pad_rows: int = 0
    pad_tokens: int = 0
    preemptions: int = 0
    wall: int = 0               # [ns] sum of w
    gpu: int = 0                # [ns]
    dense: int = 0              # [ns] of it GEMMs, norms, head, collectives
    decode_attention: int = 0
    prefill_attention: int = 0
    rows: int = 0               # [rows ns]    scheduled sequences x w
    running: int = 0            # [slots ns]   held slots x w
    waiting: int = 0            # [requests ns / 1024] as all below, so that sums stay within int64
    blocks: int = 0             # [blocks ns / 1024]
    kv_tokens: int = 0          # [tokens ns / 1024]
    gaps: int = 0               # [blocks ns / 1024] free blocks outside the longest free run
    wall_short: int = 0         # [ns / 1024]
    eager: int = 0              # steps launched kernel by kernel
    peak_blocks: int = 0
    peak_running: int = 0
    peak_waiting: int = 0
    fragmented: int = 0         # Counters.scattered at the end
    last: int = 0               # [tick] of the last output
    failed: int = 0             # requests lost with it, or sent to it while it was down
    failed_tokens: int = 0      # [tokens] of their answers that were visible by then
    down: int = 0               # [ns] out of service, up to its last return
    drafts: int = 0             # [tokens] drafted and computed for sequences that were still running
    accepted: int = 0           # [tokens] of them right
    drafted_rows: int = 0       # their sequences, one a step


@dataclass(slots=True)
class Seat:
    """A slot, rep.seats[slot]; but for `turn` of use while its sequence is in the lane."""

    turn: int = 0            # admissions when it was taken
    born: int = 0            # first step of the lane with this sequence
    end: int = 0             # last one: all its tokens are planned then
    crossing: int = 0        # lane step (mod block_size) at which it needs a block, -1 = never
    link: int = 0            # next slot with the same place in the calendar, -1 = none
    before: int = 0          # slot of the sequence admitted before it, in the lane; -1 = none
    after: int = 0


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
    predicted_ttft: int = 0             # [ns] so is one whose first token is predicted to come later, 0 = none is


@dataclass(slots=True)
class LogRow:
    """The step log: one row for a run of equal steps. [tick], [ns], [tokens] as in StepInFlight."""

    replica: int = 0
    start: int = 0
    end: int = 0
    steps: int = 0
    decode: int = 0
    context: int = 0
    prefill: int = 0
    prefill_tokens: int = 0
    pairs: int = 0
    running: int = 0
    waiting: int = 0
    blocks: int = 0
    kv_tokens: int = 0
    gpu_ns: int = 0
    wall_ns: int = 0
    pad_rows: int = 0
    drafts: int = 0


@dataclass(slots=True)
class Control:
    """Scalars of a whole run."""

    started: int = 0         # 1 = the load has begun
    next: int = 0            # next request of the stream (open), or of the list that clients take from
    submitted: int = 0       # submissions so far
    n_future: int = 0        # pending events of the heap
    group_left: int = 0      # grouped load: requests of the current group not ended
    in_flight: int = 0       # requests in flight, where their number is limited
    held_head: int = 0       # first request that waits at its client for a place, -1 = none
    held_tail: int = 0
    again_ns: int = 0        # [ns] from first to last token of attempts that a later one replaces
    log_rows: int = 0        # rows of the step log written
    n_parked: int = 0        # requests that wait at the gateway for a replica in service
    parked: int = 0          # the first of them
    last_parked: int = 0


@functools.cache
def dtype_of(record: type) -> np.dtype[np.void]:
    """The record as an element of a numpy array: one int64 a field."""
    return np.dtype([(field.name, np.int64) for field in fields(record)], align=True)


LOG_FIELDS: Final = tuple(field.name for field in fields(LogRow))

ITL_BITS: Final = 8
"""Histogram bins per octave = 2^8: a bin is at most 0.4 % wide."""
ITL_BINS: Final = 64 * 2**ITL_BITS


def log_bin_edges() -> npt.NDArray[np.float64]:
    """[ns] lower edges of the ITL bins, shape (ITL_BINS + 1,); exact below 2^8 ns."""
    index = np.arange(ITL_BINS + 1, dtype=np.float64)
    octave = np.floor(index / 2**ITL_BITS)
    fine = index - octave * 2**ITL_BITS
    return np.where(octave == 0, fine, (2**ITL_BITS + fine) * 2.0 ** (octave - 1))


def empty_replica_counters(num_blocks: int) -> Counters:
    """Scalars of a replica before anything has happened."""
    return Counters(head=-1, tail=-1, log_row=-1, scattered_for=-1, free_blocks=num_blocks, largest_gap=num_blocks,
                    lane_head=-1, lane_tail=-1, lane_end=NEVER)

"""Records: scalars that belong together, of a replica, a step, a slot, a run. `state` holds the columns beside them.

A record is one int64 a field: an element of a structured numpy array in the compiled engine, an object with slots in
the SimPy engine; `rep.c.now` reads both. Ticks are int64 nanoseconds; NEVER marks a tick that has not come.
"""

import functools
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from simulator.units import NEVER

COMPLETE: Final = 0
TRANSFER: Final = 1
ARRIVE: Final = 2
DEADLINE: Final = 3
CONTROL: Final = 4
TIMER: Final = 5
SCHEDULE: Final = 6
"""Phases of a tick. Those of a replica are COMPLETE, TIMER and SCHEDULE; the others come from outside, between them.
TRANSFER is for requests that change replicas, CONTROL for changes of the fleet."""


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
    rounds: int = 0         # times the policy of a pipeline was asked for a plan
    awaited: int = 0        # requests that get a token from the step last launched on the stages of a pipeline
    pause: int = 0          # [ns] until it is asked again, after it planned nothing for a pipeline
    slow: int = 0           # [1/SLOW_UNIT] by which GPU times are multiplied, 0 = not
    lane: int = 0           # sequences in the lane (compiled engine; see engines/lane.py)
    with_lane: int = 0      # 1 = the lane takes part in the step being planned           [policy writes]
    lane_took: int = 0      # [blocks] taken for it
    lane_gives: int = 0     # [blocks] that it is yet to give back in the step being planned
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
    n_nodes: int = 1        # nodes ever used, and the one that stands for none
    n_swapped: int = 0      # first requests of the waiting queue whose KV is in host memory
    host_blocks: int = 0    # [blocks] there
    copy_ns: int = 0        # [ns] of copies to be done before the next step
    spared: int = 0         # [blocks] that running requests would hold more, did they share none
    # Host memory behind the prefix cache (prefix.host): its blocks in order of use.
    hosted: int = 0         # [blocks] there
    host_oldest: int = -1
    host_newest: int = -1
    host_spare: int = -1    # first record of a run given back
    n_host_runs: int = 0    # records of runs ever used
    on_host: int = 0        # [blocks] that the request looked at last would load, -1 = it must wait for one
    link_free: int = 0      # [tick] the last copy from there has come



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
    state: int = 0          # in service, draining, down, ...; a code of engines/members.py
    listed: int = 1         # 1 = the router thinks it in service
    since: int = 0          # [tick] when it came into that state
    hung: int = NEVER       # [tick] since when it makes no step, though nobody knows yet
    repair: int = 0         # [ns] for which it will be down when that is found
    rest: int = 0           # draining: [ns] for which it will be down, NEVER = released; down: [tick] when it is back



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
    """An entry of the free queue of the prefix cache, prefix.nodes[k]: one shared block, or a run of private ones;
    none is at 0."""

    before: int = -1
    after: int = -1
    owner: int = 0           # the preempted request of private blocks, prefix.DEAD or prefix.SHARED
    count: int = 0           # [blocks]
    chain: int = -1          # number of a shared block
    refs: int = 0            # requests that hold it
    twin: int = 0            # next node with the same tokens, 0 = none



@dataclass(slots=True)
class HostBlocks:
    """A shared block in host memory behind the prefix cache, or a run of private ones there, prefix.host[k]."""

    before: int = -1
    after: int = -1
    count: int = 0           # [blocks] 0 = it is not there
    lands: int = 0           # [tick] it is copied to the GPU until then



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
    peak_spared: int = 0        # of Counters.spared
    copies: int = 0             # [ns] of `gpu` for KV copied to host memory and back
    swapped_out: int = 0        # [blocks]
    swapped_in: int = 0         # [blocks]
    peak_host: int = 0          # [blocks] of host memory
    loaded: int = 0             # [blocks] copied from there behind the prefix cache
    loading: int = 0            # [ns] of the link for that
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
class FleetRow:
    """What happened to the fleet: a replica came into a state, or an autoscaler decided (replica -1)."""

    tick: int = 0
    pool: int = 0
    replica: int = 0         # -1 = a decision
    state: int = 0           # of the replica; of a decision: replicas that serve
    metric: int = 0          # [1/1000] that the autoscaler read, -1 = none
    recommended: int = 0     # replicas, by the formula alone
    wanted: int = 0          # replicas after windows and limits



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
    n_parked: int = 0        # requests that have had to wait at the gateway for a replica in service
    parked: int = 0          # first that waits there, -1 = none; the others in order by Requests.next
    parked_last: int = 0
    entering: int = 0        # of those, who try to enter now, as a replica has come into service
    entering_at: int = 0     # [tick]
    fleet_rows: int = 0      # rows written of what happened to the fleet
    still: int = 0           # times in a row that an autoscaler found requests and nobody at work



@functools.cache
def dtype_of(record: type) -> np.dtype[np.void]:
    """The record as an element of a numpy array: one int64 a field."""
    return np.dtype([(field.name, np.int64) for field in fields(record)], align=True)

LOG_FIELDS: Final = tuple(field.name for field in fields(LogRow))



def empty_replica_counters(num_blocks: int) -> Counters:
    """Scalars of a replica before anything has happened."""
    return Counters(head=-1, tail=-1, log_row=-1, scattered_for=-1, free_blocks=num_blocks, wake=NEVER,
                    largest_gap=num_blocks, lane_head=-1, lane_tail=-1, lane_end=NEVER)

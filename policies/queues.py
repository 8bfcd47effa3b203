"""The waiting queue and the slots of a replica: the verbs every policy is written in.

The queue is a linked list through `req.next`, so it has no capacity, and a preempted request goes back to
its head; or, where requests have a key, a heap in its order (policies.heap). All functions change their arguments
in place and allocate nothing.
"""

from policies import heap
from simulator.jit import jitable
from simulator.prefix import disown, give_up
from simulator.state import RUNNING, VACANT_BITS, WAITING, Limits, Replica, Requests
from simulator.windows import phase_of


@jitable
def push_back(req: Requests, rep: Replica, i: int) -> None:
    """Append request i to the waiting queue."""
    req.next[i] = -1
    if rep.c.tail < 0:
        rep.c.head = i
    else:
        req.next[rep.c.tail] = i
    rep.c.tail = i
    rep.c.n_waiting += 1
    req.status[i] = WAITING


@jitable
def push_front(req: Requests, rep: Replica, i: int) -> None:
    """Put request i before all that wait."""
    req.next[i] = rep.c.head
    rep.c.head = i
    if rep.c.tail < 0:
        rep.c.tail = i
    rep.c.n_waiting += 1
    req.status[i] = WAITING


@jitable
def take_after(req: Requests, rep: Replica, before: int) -> int:
    """Take the request behind `before` (-1: the head) out of the waiting queue and return it."""
    i = rep.c.head if before < 0 else req.next[before]
    after = req.next[i]
    if before < 0:
        rep.c.head = after
    else:
        req.next[before] = after
    if after < 0:
        rep.c.tail = before
    req.next[i] = -1
    rep.c.n_waiting -= 1
    return i


@jitable
def push(req: Requests, rep: Replica, i: int) -> None:
    """Request i, new, joins the waiting queue."""
    if len(req.key) == 0:
        push_back(req, rep, i)
    else:
        heap.push(req, rep, i)


@jitable
def take_head(req: Requests, rep: Replica) -> int:
    """Take the first of the waiting queue out of it and return it."""
    if len(req.key) == 0:
        return take_after(req, rep, -1)
    return heap.pop(req, rep)


@jitable
def take_out(req: Requests, rep: Replica, lim: Limits, i: int) -> None:
    """Take request i, somewhere in the waiting queue, out of it for good; its status is the caller's business."""
    disown(req, rep, lim, i)
    if lim.swap_blocks > 0:
        leave_host(req, rep, i)
    rep.c.version += 1
    if len(req.key) > 0:
        heap.leave(req, rep, i)
        return
    before = -1
    at = rep.c.head
    while at != i:
        before = at
        at = req.next[at]
    take_after(req, rep, before)


@jitable
def leave_host(req: Requests, rep: Replica, i: int) -> None:
    """The KV that waiting request i may have in host memory is no longer needed there (policies.swap)."""
    if req.swapped[i] > 0:
        rep.c.n_swapped -= 1
        rep.c.host_blocks -= req.swapped[i]
        req.swapped[i] = 0


@jitable
def wanted(req: Requests, i: int) -> int:
    """[tokens] known but not yet computed: the rest of the prompt, 1 when decoding, 0 when all is planned."""
    if req.planned[i] >= req.limit[i]:
        return 0
    return req.prompt[i] + req.planned[i] - req.computed[i]


@jitable
def wanted_in_turn(req: Requests, rep: Replica, lim: Limits, i: int) -> int:
    """[tokens] that running request i of a pipeline wants in this round. Where steps are planned ahead, as many rounds
    as stages lie between two of its tokens (vLLM 0.24 vllm/v1/core/sched/scheduler.py, next_decode_eligible_step);
    else it goes on from what has been seen of its answer."""
    tokens = int(wanted(req, i))
    if lim.schedule_ahead < lim.stages:
        return max(0, min(tokens, int(req.prompt[i]) + int(req.done[i]) - int(req.computed[i])))
    return tokens if req.due[i] <= rep.c.rounds else 0


@jitable
def wanted_with_drafts(req: Requests, lim: Limits, i: int) -> int:
    """[tokens] known but not yet computed and those drafted, up to the model's length; 0 when what is in flight ends
    the answer even if every draft is wrong (vLLM 0.24 vllm/v1/core/sched/scheduler.py, Scheduler.schedule)."""
    flying = req.planned[i] - req.done[i]
    if flying > 0 and req.computed[i] + 2 - flying >= req.prompt[i] + req.limit[i]:
        return 0
    tokens = req.prompt[i] + req.planned[i] + req.drafts[i] - req.computed[i]
    return min(int(tokens), lim.max_model_len - 1 - int(req.computed[i]))


@jitable
def slots_for(lim: Limits, tokens: int) -> int:
    """[tokens] that need a KV slot when the first `tokens` are computed: with those that the draft writes next."""
    return min(tokens + lim.lookahead, lim.max_model_len)


@jitable
def plan(rep: Replica, i: int, tokens: int) -> None:
    """Add request i with `tokens` tokens to the step being planned."""
    n = rep.c.n_batch
    rep.batch[n] = i
    rep.tokens[n] = tokens
    rep.c.n_batch = n + 1


@jitable
def unplan(rep: Replica, i: int) -> int:
    """Take request i out of the step being planned; returns the tokens it was to compute, 0 when it is not in it."""
    kept = 0
    tokens = 0
    for k in range(rep.c.n_batch):
        if rep.batch[k] == i:
            tokens = rep.tokens[k]
        else:
            rep.batch[kept] = rep.batch[k]
            rep.tokens[kept] = rep.tokens[k]
            kept += 1
    rep.c.n_batch = kept
    return int(tokens)


@jitable
def admit(req: Requests, rep: Replica, i: int) -> None:
    """Give request i (already out of the queue) the lowest free slot; its KV blocks are the caller's business.

    A decision that admits is not repeated: HOLD is 0.
    """
    rep.c.hold = 0
    slot = _lowest_vacant(rep)
    rep.slots[slot] = i
    req.slot[i] = slot
    rep.c.turn += 1
    rep.seats[slot].turn = rep.c.turn
    rep.running[rep.c.n_running] = i
    rep.c.n_running += 1
    rep.c.version += 1
    rep.c.kv_tokens += req.computed[i]
    req.status[i] = RUNNING


@jitable
def _lowest_vacant(rep: Replica) -> int:
    """Take the lowest free slot."""
    at = rep.c.vacant_from
    while rep.vacant[at] == 0:
        at += 1
    rep.c.vacant_from = at
    word = rep.vacant[at]
    rep.vacant[at] = word & (word - 1)
    return int(at * VACANT_BITS + (word & -word).bit_length() - 1)


@jitable
def _return_slot(rep: Replica, slot: int) -> None:
    """Slot `slot` is free again."""
    at = slot // VACANT_BITS
    rep.vacant[at] |= 1 << (slot % VACANT_BITS)
    rep.c.vacant_from = min(rep.c.vacant_from, at)


@jitable
def held(rep: Replica) -> int:
    """Slots held: by single sequences and by the lane."""
    return rep.c.n_running + rep.c.lane


@jitable
def run_lane(rep: Replica, lim: Limits, keep_free: int) -> bool:
    """Let the sequences of the lane decode in the step being planned, their KV blocks taken.

    The lane is a row of the compiled engine for sequences that only decode (engines/lane.py); the SimPy engine
    leaves it empty. False when `keep_free` blocks would not be left: then the policy must return, and is asked
    again with every sequence in `running`. Blocks that windowed layers give back are free from `lane_gives_back` on.
    """
    if rep.c.lane == 0:
        return True
    at = phase_of(lim, rep.c.lane_steps + 1)
    need = rep.phase[at]
    if need > rep.c.free_blocks - keep_free:
        rep.c.singles = 1
        return False
    if lim.window > 0:
        rep.c.lane_gives = rep.frees[at]
    rep.c.free_blocks -= need
    rep.c.lane_took = need
    rep.c.with_lane = 1
    return True


@jitable
def lane_gives_back(rep: Replica) -> None:
    """Free the blocks that the lane's windowed layers no longer see: every sequence of `running` has had its own.

    Not before: the block that one of the lane gives back must not be had by a sequence that comes before it.
    """
    rep.c.free_blocks += rep.c.lane_gives
    rep.c.lane_took -= rep.c.lane_gives
    rep.c.lane_gives = 0


@jitable
def lane_planned(req: Requests, rep: Replica) -> int:
    """[tokens] outputs planned for the first sequence of the lane, 0 when nobody is in it."""
    if rep.c.lane == 0:
        return 0
    slot = rep.c.lane_head
    return int(req.planned[rep.slots[slot]] + rep.c.lane_steps + 1 - rep.seats[slot].born)


@jitable
def must_see_all(rep: Replica) -> bool:
    """True when the lane hides sequences, as it must not when one is preempted: the policy must return then."""
    if rep.c.lane > 0:
        rep.c.singles = 1
    return rep.c.lane > 0


@jitable
def vacate(req: Requests, rep: Replica, lim: Limits, i: int) -> None:
    """Take slot and KV memory from request i; the caller removes it from `running`."""
    rep.slots[req.slot[i]] = -1
    _return_slot(rep, req.slot[i])
    rep.c.kv_tokens -= req.computed[i]
    give_up(req, rep, lim, i)


@jitable
def last_admitted(req: Requests, rep: Replica, lim: Limits) -> int:
    """Place in `running` of the sequence admitted last."""
    return rep.c.n_running - 1


@jitable
def largest_key(req: Requests, rep: Replica, lim: Limits) -> int:
    """Place in `running` of the sequence that would be last in the waiting queue."""
    worst = 0
    for k in range(1, rep.c.n_running):
        if heap.before(req, rep.running[worst], rep.running[k]):
            worst = k
    return worst


@jitable
def preempt(req: Requests, rep: Replica, lim: Limits, place: int) -> int:
    """Preempt the sequence at this place of `running` by recomputation and return it.

    Its KV is dropped; its tokens, visible or still in flight, are kept and become part of what must be computed
    again; it waits at the head of the queue, or where its key puts it. The next decision may differ from this one:
    HOLD is 0. As vLLM 0.24 vllm/v1/core/sched/scheduler.py, Scheduler._preempt_request.
    """
    rep.c.hold = 0
    rep.c.version += 1
    i = rep.running[place]
    rep.c.n_running -= 1
    for k in range(place, rep.c.n_running):
        rep.running[k] = rep.running[k + 1]
    vacate(req, rep, lim, i)
    req.computed[i] = 0
    if lim.draft_tokens > 0:
        req.drafts[i] = 0
    req.preempted[i] += 1
    if len(req.key) == 0:
        push_front(req, rep, i)
    else:
        heap.push(req, rep, i)
    return i


@jitable
def preempt_last(req: Requests, rep: Replica, lim: Limits) -> int:
    """Preempt the last admitted sequence and return it."""
    return preempt(req, rep, lim, rep.c.n_running - 1)


@jitable
def retire_finished(req: Requests, rep: Replica, lim: Limits) -> None:
    """Free slot and KV memory of every sequence that has ended; the others keep their order.

    What is freed can change the next decision only when somebody waits for it.
    """
    if rep.c.n_waiting > 0:
        rep.c.version += 1
    kept = 0
    for k in range(rep.c.n_running):
        i = rep.running[k]
        if req.status[i] == RUNNING:
            rep.running[kept] = i
            kept += 1
        else:
            vacate(req, rep, lim, i)
    rep.c.n_running = kept

"""What each policy plans, as its paper and docstring have it, on a replica of plain objects."""

from collections.abc import Callable

from oracle.replica import Replica
from oracle.sequence import Seq, Work


def orca(rep: Replica, now: int) -> Work:
    """Admit while a slot and memory for prompt + limit are there; all admitted run in every step."""
    while rep.waiting and len(rep.running) < rep.lim.max_num_seqs:
        seq = rep.waiting[0]
        if not rep.memory.take(seq, seq.prompt + seq.limit):
            break
        rep.admit(rep.waiting.popleft(), rep.hit(seq, seq.prompt))
    return Work([(seq, seq.missing) for seq in rep.running if seq.missing])


def vllm_v0(rep: Replica, now: int) -> Work:
    """Whole prompts of waiting requests if any can be admitted, else one token for everybody."""
    work = Work() if rep.swapped else _v0_prompts(rep)
    if work.rows:
        return work
    before = sum(seq.preempted for seq in rep.running)
    seqs = list(rep.running)
    work = _v0_decodes(rep)
    if rep.swapped:
        if not rep.running or sum(seq.preempted for seq in seqs) == before:
            rep.swap_in(work)
    elif not rep.running:  # nothing left to wait for: the engine plans again
        work = _v0_prompts(rep)
    return work


def _v0_prompts(rep: Replica) -> Work:
    """A recomputed sequence may have outgrown budget or watermark: it goes alone, or it would wait for ever."""
    work, budget, lim = Work(), rep.lim.max_num_batched_tokens, rep.lim
    while rep.waiting and len(rep.running) < lim.max_num_seqs:
        seq = rep.waiting[0]
        computed = rep.hit(seq, seq.known)
        tokens = seq.known - computed
        keep = lim.watermark_blocks
        if not rep.running and rep.memory.need(seq, seq.known) + keep > lim.num_blocks:
            keep = 0
        if (tokens > budget and work.rows) or not rep.memory.take(seq, seq.known, keep):
            break
        rep.admit(rep.waiting.popleft(), computed)
        work.rows.append((seq, tokens))
        budget -= tokens
    return work


def _v0_decodes(rep: Replica) -> Work:
    """Who finds no free block (paged), needed or not, preempts the last until there is one, itself in the end."""
    work = Work()
    for seq in list(rep.running):
        if seq.state != "running" or not seq.missing:
            continue
        while seq.state == "running" and not rep.memory.contiguous and rep.memory.free < 1:
            if rep.lim.swap_blocks:
                rep.move_out(rep.running[-1], paid=True)
            else:
                rep.preempt_last()
        if seq.state == "running":
            assert rep.memory.take(seq, seq.computed + 1)
            work.rows.append((seq, 1))
    return work


def chunked(rep: Replica, now: int) -> Work:
    """One token budget: running sequences first, the rest to waiting; a step that preempts admits nobody."""
    work, budget, preempted, lim = Work(), rep.lim.max_num_batched_tokens, False, rep.lim
    most = lim.long_prefill_token_threshold or 10**9
    for seq in list(rep.running):
        tokens = min(seq.missing, most, budget)
        if seq.state != "running" or tokens == 0:
            continue
        if seq.ready > now:
            rep.alarm = min(rep.alarm or seq.ready, seq.ready)
            continue
        got, hit = rep.make_room(seq, seq.computed + tokens)
        preempted |= hit
        if got:
            rep.plan(work, seq, tokens)
            budget -= tokens
    while not preempted and rep.waiting and budget and len(rep.running) < lim.max_num_seqs:
        seq = rep.waiting[0]
        seen = seq.prompt + seq.done  # the engine's num_tokens: without what is in flight
        hits = rep.hit(seq, seen)
        loads = rep.loads(seq, hits, now)
        if loads is None:
            break
        computed = hits + loads * lim.block_size
        tokens = 0 if loads else min(seen - computed, most, budget)
        if lim.reserve_prompt and not rep.memory.could(seq, seen, rep.keep_free()):
            break
        if not rep.memory.take(seq, computed + tokens, rep.keep_free()):
            break
        rep.fetch(seq, hits // lim.block_size, loads, now)
        rep.admit(rep.waiting.popleft(), computed)
        if tokens:
            rep.plan(work, seq, tokens)
        budget -= tokens
    return work


def splitfuse(rep: Replica, now: int) -> Work:
    """Decodes, then as much of the prompts as the budget takes; nobody preempts, until nobody can go on."""
    work = _composed(rep)
    if not work.rows and rep.running and not rep.flight:
        while rep.running:
            rep.preempt_last()
        work = _composed(rep)
    return work


def _composed(rep: Replica) -> Work:
    work, budget = Work(), rep.lim.max_num_batched_tokens
    for seq in rep.running:
        if seq.missing == 1 and budget and rep.memory.take(seq, seq.computed + 1):
            work.rows.append((seq, 1))
            budget -= 1
    for seq in [seq for seq in rep.running if seq.missing > 1]:
        if not budget:
            return work
        if not rep.memory.could(seq, seq.known):
            return work
        tokens = min(seq.missing, budget)
        assert rep.memory.take(seq, seq.computed + tokens)
        work.rows.append((seq, tokens))
        budget -= tokens
    while rep.waiting and budget and len(rep.running) < rep.lim.max_num_seqs:
        seq = rep.waiting[0]
        whole = seq.prompt + seq.done
        computed = rep.hit(seq, whole)
        tokens = min(whole - computed, budget)
        if not rep.memory.could(seq, whole) or not rep.memory.take(seq, computed + tokens):
            return work
        rep.admit(rep.waiting.popleft(), computed)
        work.rows.append((seq, tokens))
        budget -= tokens
    return work


def max_utilization(rep: Replica, now: int) -> Work:
    """Running first, then whole prompts that fit slots, tokens and memory; a step that pauses admits nobody."""
    return _inflight(rep, lambda seq: seq.prompt + seq.done)


def guaranteed_no_evict(rep: Replica, now: int) -> Work:
    """As above with memory for the longest answer, so that nobody is ever paused."""
    return _inflight(rep, lambda seq: seq.prompt + seq.limit)


def _inflight(rep: Replica, room: Callable[[Seq], int]) -> Work:
    work, budget, preempted = Work(), rep.lim.max_num_batched_tokens, False
    for seq in list(rep.running):
        if seq.state != "running" or not seq.missing or not budget:
            continue
        got, hit = rep.make_room(seq, seq.computed + 1)
        preempted |= hit
        if got:
            work.rows.append((seq, 1))
            budget -= 1
    while not preempted and rep.waiting and len(rep.running) < rep.lim.max_num_seqs:
        seq = rep.waiting[0]
        computed = rep.hit(seq, seq.prompt + seq.done)
        tokens = seq.prompt + seq.done - computed
        if tokens > budget and work.rows:
            break
        if not rep.memory.take(seq, room(seq)):
            break
        rep.admit(rep.waiting.popleft(), computed)
        rep.plan(work, seq, tokens)
        budget -= tokens
    return work


def tgi(rep: Replica, now: int) -> Work:
    """Enough new requests, or any after a while, have their prompts computed; else all that run get a token."""
    lim, running = rep.lim, len(rep.running)
    if rep.waiting and (not running or not rep.decodes_next):
        least = 1 if not running or rep.since >= lim.max_waiting_tokens else running * lim.served_ratio // 2**16
        budget = -(-lim.max_num_batched_tokens // lim.block_size) * lim.block_size
        free, batch = rep.memory.free, list[Seq]()
        for seq in list(rep.waiting)[: lim.max_num_seqs - running]:
            budget -= seq.prompt
            free -= rep.memory.need(seq, seq.prompt + seq.limit - 1)
            if budget < 0 or free < 0:
                break
            batch.append(seq)
        work = Work()
        for seq in batch if len(batch) >= least else ():
            if not rep.memory.take(seq, seq.prompt + seq.limit - 1):
                break
            rep.waiting.remove(seq)
            rep.admit(seq, rep.hit(seq, seq.prompt))
            work.rows.append((seq, seq.prompt - seq.computed))
        if work.rows:
            rep.since, rep.decodes_next = 1, running > 0
            return work
    work = Work([(seq, 1) for seq in rep.running if seq.missing])
    if work.rows:
        rep.since += 1
        rep.decodes_next = False
    return work


def static(rep: Replica, now: int) -> Work:
    """A batch runs until its longest answer ends; what is computed for nobody until then is `padding`:

    0 prompts to the longest and all ended slots, 1 of prompts the attention only and of ended slots all but the
    attention, 2 nothing.
    """
    return _static_decode(rep) if rep.running else _static_start(rep, now)


def _static_start(rep: Replica, now: int) -> Work:
    if not rep.waiting:
        return Work()
    lim, head = rep.lim, rep.waiting[0]

    def bucket(seq: Seq) -> int:
        return seq.prompt // lim.length_bucket if lim.length_bucket else 0

    batch: list[Seq] = []
    candidates = [seq for seq in rep.waiting if bucket(seq) == bucket(head)]
    preferred = (lim.preferred_sizes % 2**20, lim.preferred_sizes // 2**20)
    liked = [size for size in preferred if 0 < size <= len(candidates)]
    candidates = candidates[: max(liked, default=lim.max_num_seqs)][: lim.max_num_seqs]
    assert head.queued is not None
    if not liked and len(candidates) < lim.max_num_seqs and now < head.queued + lim.batch_window:
        rep.alarm = head.queued + lim.batch_window
        return Work()
    for seq in candidates:
        tokens = max(s.prompt for s in [*batch, seq]) + max(s.limit for s in [*batch, seq])
        if not all([rep.memory.take(other, tokens) for other in [*batch, seq]]):
            rep.memory.give_back(seq)
            break
        batch.append(seq)
        rep.waiting.remove(seq)
        rep.admit(seq, 0)
    rep.longest = max(seq.prompt for seq in batch)
    work = Work([(seq, seq.prompt) for seq in batch])
    if lim.padding == 0:
        work.pad_tokens = sum(rep.longest - seq.prompt for seq in batch)
    if lim.padding in (0, 1):
        work.pad_pairs = sum(triangle(rep.longest) - triangle(seq.prompt) for seq in batch)
    return work


def _static_decode(rep: Replica) -> Work:
    rows = [(seq, 1) for seq in rep.running if seq.state == "running" and seq.missing]
    if not rows:
        return Work()
    work, ended = Work(rows), len(rep.running) - len(rows)
    width = rep.longest + rows[0][0].planned
    if rep.lim.padding in (0, 1):
        work.pad_rows = ended
        work.pad_context = sum(width - seq.known for seq, _ in rows)
    if rep.lim.padding == 0:
        work.pad_context += ended * width
    return work


def triangle(n: int) -> int:
    """Causal query-key pairs of n tokens."""
    return n * (n + 1) // 2

"""FastServe's feedback queue on plain objects: everybody in one sorted list, looked at from the top."""

from oracle.replica import Replica
from oracle.sequence import Seq, Work


def rank(seq: Seq) -> tuple[int, int]:
    return seq.level, seq.index


def fastserve(rep: Replica, now: int) -> Work:
    """By level, then by age: the highest run, the lowest make room for them in host memory."""
    age(rep, now)
    work, seen, lowered = compose(rep)
    if work.rows:
        for seq, _ in work.rows:
            seq.ran = now
        rep.served = {seq: now for seq in rep.running if seq.ran == now}  # a step planned at the same tick counts too
        ahead_of_need(rep, seen, lowered)
    return work


def age(rep: Replica, now: int) -> None:
    """Who was in the last step goes down when it has run for longer than its level's quantum, the starving go up."""
    for seq in [*rep.running, *rep.waiting, *rep.swapped]:
        if seq in rep.served and seq.state == "running":
            seq.used += now - rep.served[seq]
            if seq.used > rep.lim.quantum * 2**seq.level and seq.level < 30:
                seq.level, seq.used = seq.level + 1, 0
        elif seq.level and now - (seq.queued or 0 if seq.ran is None else seq.ran) >= rep.lim.starvation:
            seq.level, seq.used = 0, 0
    rep.served = {}


def compose(rep: Replica) -> tuple[Work, set[Seq], bool]:
    """The step, whom of those running it looked at, and whether anybody had to leave memory for it."""
    lim, work, budget, lowered = rep.lim, Work(), rep.lim.max_num_batched_tokens, False
    seen: set[Seq] = set()
    left = sorted([*rep.running, *rep.waiting, *rep.swapped], key=rank)
    while left and len(work.rows) < (lim.max_batch or lim.max_num_seqs):
        seq = left.pop(0)
        if not seq.missing:
            if seq.state == "running":
                seen.add(seq)
            continue
        waits = seq.state == "waiting"
        if not waits:
            seen.add(seq)
        start = seq.computed or rep.hit(seq, seq.known)
        if not seq.computed:
            if seq.known - start > budget and work.rows:
                break
            budget -= seq.known - start
        lower = sorted((other for other in rep.running if rank(other) > rank(seq)), key=rank)
        free = rep.memory.free + sum(rep.memory.held.get(other, 0) for other in lower)
        if waits and len(rep.running) - len(lower) == lim.max_num_seqs:
            break
        if rep.memory.need(seq, seq.known) - rep.memory.held.get(seq, 0) > free:
            break
        while (waits and len(rep.running) == lim.max_num_seqs) or not rep.memory.take(seq, seq.known):
            if not lower:
                return work, seen, lowered
            lowered = True
            victim = lower.pop()
            rep.move_out(victim, paid=True)
            left = [other for other in left if rank(other) < rank(victim)]
        if waits:
            rep.move_in(seq, start, paid=True)
            seen.add(seq)
        work.rows.append((seq, seq.known - start))
    return work, seen, lowered


def ahead_of_need(rep: Replica, seen: set[Seq], lowered: bool) -> None:
    """Beside the step: a block for each of a batch is kept free; what is free beyond is for who was swapped out."""
    lim, batch = rep.lim, rep.lim.max_batch or rep.lim.max_num_seqs
    if rep.memory.free < batch:
        for seq in sorted(set(rep.running) - seen, key=rank, reverse=True):
            if rep.memory.free >= batch or rep.memory.held.get(seq, 0) + sum(rep.host.values()) > lim.swap_blocks:
                break
            rep.move_out(seq, paid=False)
        return
    for seq in sorted((seq for seq in rep.swapped if seq.missing), key=rank):
        if lowered or len(rep.running) == lim.max_num_seqs or not rep.memory.take(seq, seq.computed, batch):
            break
        rep.move_in(seq, seq.computed, paid=False)

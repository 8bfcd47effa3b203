"""What each policy plans, as its paper and docstring have it, on a replica of plain objects."""

from collections import deque
from collections.abc import Callable
from typing import Any

from oracle.memory import Memory, SharedMemory
from oracle.sequence import Seq, Step, Work


class Replica:
    """Waiting queue, slots, memory, steps in flight and the two clocks of one engine."""

    def __init__(self, index: int, lim: Any) -> None:
        self.index, self.lim = index, lim
        self.memory = SharedMemory(lim) if lim.prefix else Memory(lim)
        self.waiting: deque[Seq] = deque()
        self.running: list[Seq] = []
        self.flight: deque[Step] = deque()
        self.cpu_free = self.gpu_free = 0
        self.asleep, self.naps = True, 0
        self.swapped: deque[Seq] = deque()
        self.host: dict[Seq, int] = {}
        self.since, self.decodes_next = 0, False
        self.copied = 0
        self.served: dict[Seq, int] = {}
        self.alarm: int | None = None
        self.longest = 0
        self.unended = 0
        self.steps = self.tokens_out = self.prefilled = self.wasted = self.gpu_ns = self.peak_blocks = 0
        self.peak_running = self.peak_waiting = self.eager_steps = 0
        self.out_blocks = self.in_blocks = self.peak_host = 0

    @property
    def loaded(self) -> int:
        """Blocks copied from the host memory behind the prefix cache."""
        return self.memory.host.loaded if isinstance(self.memory, SharedMemory) else 0

    @property
    def most_on_host(self) -> int:
        """Most blocks in host memory at a time."""
        behind = self.memory.host.peak if isinstance(self.memory, SharedMemory) else 0
        return max(self.peak_host, behind)

    def admit(self, seq: Seq, computed: int) -> None:
        taken = {other.slot for other in self.running}
        seq.slot = next(slot for slot in range(self.lim.max_num_seqs) if slot not in taken)
        seq.computed, seq.state = computed, "running"
        self.running.append(seq)

    def preempt_last(self) -> Seq:
        """The last admitted loses its KV and waits at the head; its tokens in flight still come."""
        seq = self.running.pop()
        self.memory.give_back(seq)
        seq.computed, seq.state = 0, "waiting"
        seq.preempted += 1
        self.waiting.appendleft(seq)
        return seq

    def swap_last_out(self) -> None:
        """The KV of the last admitted goes to host memory, or is lost where there is no room; it waits its turn."""
        seq = self.running[-1]
        computed, blocks = seq.computed, self.memory.held.get(seq, 0)
        self.preempt_last()
        if blocks + sum(self.host.values()) <= self.lim.swap_blocks:
            self.swapped.append(self.waiting.popleft())
            self.host[seq], seq.computed = blocks, computed
            self.out_blocks += blocks
            self.copied += blocks
            self.peak_host = max(self.peak_host, sum(self.host.values()))

    def move_out(self, seq: Seq, paid: bool) -> None:
        """`seq` leaves KV memory: for the host's where there is room; `paid`: the next step waits for that."""
        computed, blocks = seq.computed, self.memory.held.get(seq, 0)
        self.running.remove(seq)
        self.memory.give_back(seq)
        seq.state, seq.preempted, seq.computed = "waiting", seq.preempted + 1, 0
        if blocks + sum(self.host.values()) > self.lim.swap_blocks:
            self.waiting.appendleft(seq)
            return
        self.swapped.append(seq)
        self.host[seq], seq.computed = blocks, computed
        self.out_blocks += blocks
        self.copied += blocks if paid else 0
        self.peak_host = max(self.peak_host, sum(self.host.values()))

    def move_in(self, seq: Seq, computed: int, paid: bool) -> None:
        """`seq`, whose blocks are there, is admitted, its KV copied from the host if that has it."""
        (self.swapped if seq in self.host else self.waiting).remove(seq)
        blocks = self.host.pop(seq, 0)
        self.in_blocks += blocks
        self.copied += blocks if paid else 0
        self.admit(seq, computed)

    def swap_in(self, work: Work) -> None:
        """Who has been out longest comes back first, for its next token, when the watermark stays free."""
        while self.swapped and len(self.running) < self.lim.max_num_seqs:
            seq = self.swapped[0]
            keep = self.lim.watermark_blocks
            if not self.running and self.memory.need(seq, seq.computed + 1) + keep > self.lim.num_blocks:
                keep = 0
            if not seq.missing or len(work.rows) >= self.lim.max_num_batched_tokens:
                break
            if not self.memory.take(seq, seq.computed + 1, keep):
                break
            blocks = self.host.pop(self.swapped.popleft())
            self.in_blocks += blocks
            self.copied += blocks
            self.admit(seq, seq.computed)
            work.rows.append((seq, 1))

    def hit(self, seq: Seq, tokens: int) -> int:
        """Tokens found in the prefix cache: whole blocks, and one token at least is left to compute."""
        if isinstance(self.memory, SharedMemory):
            return self.memory.find(seq, tokens)
        return min(seq.cached, tokens - 1) // self.lim.block_size * self.lim.block_size

    def plan(self, work: Work, seq: Seq, tokens: int) -> None:
        """Add a row; the blocks that it fills, of the prompt or of outputs already seen, will be known."""
        work.rows.append((seq, tokens))
        if isinstance(self.memory, SharedMemory):
            after = seq.computed + tokens
            seq.settled = min(after, seq.prompt + seq.done)
            names = self.memory.names(seq, min(after, seq.prompt))
            self.memory.pool.learn(self.memory.has[seq], names)
            shared = min(len(names), len(seq.chain))
            if shared > seq.kept:
                seq.kept = shared
                self.memory.host.keep(names[:shared])

    def loads(self, seq: Seq, computed: int, now: int) -> int | None:
        """Blocks of waiting `seq` behind `computed` tokens that the host has; None: another loads one of them."""
        if not isinstance(self.memory, SharedMemory):
            return 0
        names = self.memory.names(seq, seq.prompt + seq.done - 1)[computed // self.lim.block_size : len(seq.chain)]
        count, busy = self.memory.host.look(names, now)
        if busy:
            self.alarm = min(self.alarm or busy, busy)
        return None if busy else count

    def fetch(self, seq: Seq, hits: int, count: int, now: int) -> None:
        """Admitted `seq` uses what it found, `hits` blocks in KV memory and `count` that must be copied there."""
        if isinstance(self.memory, SharedMemory):
            names, host = self.memory.names(seq, seq.prompt + seq.done), self.memory.host
            seq.kept, seq.settled, seq.ready = min(hits, len(seq.chain)), hits * self.lim.block_size, 0
            host.keep(names[: seq.kept + count])
            if count:
                seq.ready = host.load(names[hits : hits + count], now)
                self.alarm = min(self.alarm or seq.ready, seq.ready)

    def keep_free(self) -> int:
        """The watermark holds for admissions beside others; an empty replica may use all its memory."""
        return self.lim.watermark_blocks if self.running else 0

    def make_room(self, seq: Seq, tokens: int) -> tuple[bool, bool]:
        """Blocks for a running sequence, by preempting from the end: (got them, preempted somebody)."""
        preempted = False
        while not self.memory.take(seq, tokens):
            preempted = True
            if self.preempt_last() is seq:
                return False, preempted
        return True, preempted


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
                rep.swap_last_out()
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

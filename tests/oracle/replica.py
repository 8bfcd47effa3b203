"""A replica of plain objects, and the verbs that policies are told in (oracle/rules.py)."""

from collections import deque
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

    def preempt(self, seq: Seq) -> None:
        """`seq` loses its KV and waits at the head; its tokens in flight still come."""
        self.running.remove(seq)
        self.memory.give_back(seq)
        seq.computed, seq.state = 0, "waiting"
        seq.preempted += 1
        self.waiting.appendleft(seq)

    def preempt_last(self) -> Seq:
        """The last admitted is preempted."""
        seq = self.running[-1]
        self.preempt(seq)
        return seq

    def move_out(self, seq: Seq, paid: bool) -> None:
        """`seq` is preempted, its KV kept in host memory where there is room; `paid`: the next step waits for that."""
        computed, blocks = seq.computed, self.memory.held.get(seq, 0)
        self.preempt(seq)
        if blocks + sum(self.host.values()) <= self.lim.swap_blocks:
            self.swapped.append(self.waiting.popleft())
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
            self.move_in(seq, seq.computed, paid=True)
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

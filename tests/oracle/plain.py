"""The oracle: a second simulator of plain objects, written from the rules, sharing no code with the engines.

Requests are objects in deques, memory is a dictionary, one heap orders the events, every number is
a Python int. It is slow and it is meant to be read beside the rules it states:

- a replica repeats: plan and launch a step, up to `schedule_ahead` steps beyond the oldest one not yet seen;
  then collect the oldest output (the loop of vLLM's EngineCore.step_with_batch_queue);
- two clocks: a step scheduled at s is launched by the CPU at L = s + cpu, its GPU work ends at
  G = max(G before, s + prep) + gpu, not before L when eager; its output is seen at max(G, last L);
- at one tick: outputs, then arrivals, then alarms, then planning; within each by index;
- the policies as their papers and docstrings have them.

`Oracle` takes the numbers of a scenario (Limits, Cost: data, no behaviour); `run` fills in its requests.
"""

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from oracle.pool import Block, Own, Pool
from oracle.routing import choose

OUTPUT, ARRIVAL, ALARM, PLAN = range(4)


@dataclass(eq=False)
class Seq:
    """One request. Times are ticks [ns], None = has not happened."""

    index: int
    arrival: int
    prompt: int
    output: int
    limit: int
    cached: int = 0
    pick: int = 0
    chain: tuple[int, ...] = ()
    queued: int | None = None
    scheduled: int | None = None
    first: int | None = None
    last: int | None = None
    computed: int = 0
    settled: int = 0
    planned: int = 0
    done: int = 0
    preempted: int = 0
    replica: int | None = None
    slot: int | None = None
    state: str = "future"

    @property
    def known(self) -> int:
        """[tokens] whose values the engine knows or will know when planned steps have run."""
        return self.prompt + self.planned

    @property
    def missing(self) -> int:
        """[tokens] to compute before the next token can be sampled; 0 when all asked for is planned."""
        return 0 if self.planned >= self.limit else self.known - self.computed


@dataclass
class Work:
    """What a policy decided: (sequence, tokens) pairs, and padding that is computed for nobody."""

    rows: list[tuple[Seq, int]] = field(default_factory=list)
    pad_rows: int = 0
    pad_context: int = 0
    pad_tokens: int = 0
    pad_pairs: int = 0


@dataclass
class Step:
    """A launched step: who gets a token from it and when its GPU work ends."""

    start: int
    gpu_end: int
    gets: list[Seq]
    blocks: int


class Memory:
    """KV blocks of one replica: counted (paged) or as intervals placed first-fit (contiguous)."""

    def __init__(self, lim: Any) -> None:
        self.total, self.block, self.contiguous = lim.num_blocks, lim.block_size, bool(lim.contiguous)
        self.reserve = lim.reserve_tokens
        self.held: dict[Seq, int] = {}
        self.start: dict[Seq, int] = {}

    @property
    def free(self) -> int:
        return self.total - sum(self.held.values())

    def need(self, seq: Seq, tokens: int) -> int:
        """Blocks that `seq` must hold for `tokens` tokens."""
        if self.contiguous:
            tokens = max(seq.prompt + seq.limit, self.reserve)
        return -(-tokens // self.block)

    def could(self, seq: Seq, tokens: int, keep: int = 0) -> bool:
        """Whether blocks enough are free for that, with `keep` left over."""
        return self.need(seq, tokens) - self.held.get(seq, 0) + keep <= self.free

    def take(self, seq: Seq, tokens: int, keep: int = 0) -> bool:
        """Take what is lacking for `tokens` tokens; False, and nothing taken, when it cannot be had."""
        need = self.need(seq, tokens)
        if need <= self.held.get(seq, 0):
            return True
        if not self.could(seq, tokens, keep):
            return False
        if self.contiguous:
            place = self.first_fit(need)
            if place is None:
                return False
            self.start[seq] = place
        self.held[seq] = need
        return True

    def first_fit(self, size: int) -> int | None:
        used = {cell for seq, at in self.start.items() for cell in range(at, at + self.held[seq])}
        for at in range(self.total - size + 1):
            if used.isdisjoint(range(at, at + size)):
                return at
        return None

    def give_back(self, seq: Seq) -> None:
        self.held.pop(seq, None)
        self.start.pop(seq, None)


class SharedMemory(Memory):
    """Paged blocks that stay known when they are free, and are used again by who begins with the same tokens."""

    def __init__(self, lim: Any) -> None:
        super().__init__(lim)
        self.pool = Pool(lim.num_blocks)
        self.has: dict[Seq, list[Block]] = {}
        self.offer: list[Block] = []

    @property
    def free(self) -> int:
        return len(self.pool.free)

    def names(self, seq: Seq, tokens: int) -> list[Hashable]:
        """What the full blocks of the first `tokens` tokens of `seq` are called."""
        return [seq.chain[j] if j < len(seq.chain) else Own((seq.index, j)) for j in range(tokens // self.block)]

    def find(self, seq: Seq, tokens: int) -> int:
        """Tokens of waiting `seq` that are known; the last of `tokens` is always computed."""
        self.offer = self.pool.hits(self.names(seq, tokens - 1))
        return len(self.offer) * self.block

    def could(self, seq: Seq, tokens: int, keep: int = 0) -> bool:
        if seq in self.has:
            return self.need(seq, tokens) - len(self.has[seq]) + keep <= self.free
        idle = sum(block.holders == 0 for block in self.offer)
        return self.need(seq, tokens) - len(self.offer) + idle + keep <= self.free

    def take(self, seq: Seq, tokens: int, keep: int = 0) -> bool:
        if seq in self.has and self.need(seq, tokens) <= len(self.has[seq]):
            return True
        if not self.could(seq, tokens, keep):
            return False
        if seq not in self.has:
            self.pool.hold(self.offer)
            self.has[seq] = list(self.offer)
        self.has[seq] += self.pool.take(self.need(seq, tokens) - len(self.has[seq]))
        return True

    def give_back(self, seq: Seq) -> None:
        tokens = seq.prompt + seq.done - 1 if seq.state == "finished" else seq.settled
        self.pool.learn(self.has[seq], self.names(seq, tokens))
        self.pool.give_back(self.has.pop(seq))


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
        self.alarm: int | None = None
        self.longest = 0
        self.unended = 0
        self.steps = self.tokens_out = self.prefilled = self.wasted = self.gpu_ns = self.peak_blocks = 0
        self.peak_running = self.peak_waiting = self.eager_steps = 0

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
            self.memory.pool.learn(self.memory.has[seq], self.memory.names(seq, min(after, seq.prompt)))

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
    work = _v0_prompts(rep)
    if not work.rows:
        work = _v0_decodes(rep)
        if not rep.running:  # nothing left to wait for: the engine plans again
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
        got, hit = rep.make_room(seq, seq.computed + tokens)
        preempted |= hit
        if got:
            rep.plan(work, seq, tokens)
            budget -= tokens
    while not preempted and rep.waiting and budget and len(rep.running) < lim.max_num_seqs:
        seq = rep.waiting[0]
        seen = seq.prompt + seq.done  # the engine's num_tokens: without what is in flight
        computed = rep.hit(seq, seen)
        tokens = min(seen - computed, most, budget)
        if lim.reserve_prompt and not rep.memory.could(seq, seen, rep.keep_free()):
            break
        if not rep.memory.take(seq, computed + tokens, rep.keep_free()):
            break
        rep.admit(rep.waiting.popleft(), computed)
        rep.plan(work, seq, tokens)
        budget -= tokens
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
    candidates = [seq for seq in rep.waiting if bucket(seq) == bucket(head)][: lim.max_num_seqs]
    assert head.queued is not None
    if len(candidates) < lim.max_num_seqs and now < head.queued + lim.batch_window:
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


def fixed_point(count: int, coefficient: int) -> int:
    """[ns] count x coefficient [2^-32 ns], rounded down."""
    return count * coefficient // 2**32


class Oracle:
    """One run: clients, router, replicas, one heap of (tick, phase, index)."""

    def __init__(
        self,
        seqs: Iterable[Seq],
        policy: str,
        lim: Any,
        cost: Any,
        replicas: int = 1,
        router: str = "round_robin",
        load: str = "open",
        width: int = 1,
        until: int | None = None,
    ) -> None:
        self.seqs, self.lim, self.cost, self.until = list(seqs), lim, cost, until
        self.policy: Callable[[Replica, int], Work] = {
            "static": static,
            "orca": orca,
            "vllm_v0": vllm_v0,
            "chunked": chunked,
        }[policy]
        self.whole_batch = policy == "static"
        self.router, self.load, self.width = router, load, width
        self.reps = [Replica(r, lim) for r in range(replicas)]
        self.heap: list[tuple[int, int, int, int]] = []
        self.now = 0
        self.front_free = [0] * len(self.reps)
        self.released = self.group_left = 0

    def run(self) -> "Oracle":
        count = len(self.seqs) if self.load == "open" else min(self.width, len(self.seqs))
        self.group_left = count
        for seq in self.seqs[:count]:
            self.submit(seq.arrival if self.load == "open" else self.seqs[0].arrival)
        while self.heap and (self.until is None or self.heap[0][0] <= self.until):
            self.now, phase, index, nap = heapq.heappop(self.heap)
            if phase == ARRIVAL:
                self.arrive(self.seqs[index])
            elif phase == OUTPUT:
                self.collect(self.reps[index])
                self.push(self.now, PLAN, index)
            elif phase == PLAN:
                self.plan(self.reps[index])
            elif self.reps[index].asleep and self.reps[index].naps == nap:
                self.wake(self.reps[index])
        return self

    def push(self, tick: int, phase: int, index: int, nap: int = 0) -> None:
        heapq.heappush(self.heap, (tick, phase, index, nap))

    def submit(self, tick: int) -> None:
        """The next request in order goes through a front end: one a replica, in turn, each serving one at a time.

        Clients who wait for an answer never submit what would be after the horizon.
        """
        if self.load != "open" and self.until is not None and tick > self.until:
            return
        seq = self.seqs[self.released]
        self.released += 1
        seq.arrival = tick
        mine = seq.index % len(self.reps)
        self.front_free[mine] = max(self.front_free[mine], tick) + int(self.cost.frontend_each_ns)
        seq.queued = self.front_free[mine] + int(self.cost.frontend_in_ns)
        self.push(seq.queued, ARRIVAL, seq.index)

    def answered(self, count: int, tick: int) -> None:
        """`count` clients have their answer (or refusal) at `tick` and may submit the next request."""
        more = 0
        if self.load == "closed":
            more = count
        elif self.load == "grouped":
            self.group_left -= count
            if count and self.group_left == 0:
                more = self.group_left = min(self.width, len(self.seqs) - self.released)
        for _ in range(min(more, len(self.seqs) - self.released)):
            self.submit(tick)

    def arrive(self, seq: Seq) -> None:
        rep: Replica = choose(self.router, seq, self.reps, self.seqs)
        seq.replica = rep.index
        total = seq.prompt + seq.limit
        if total > self.lim.max_model_len:
            seq.state = "rejected: length"
        elif self.lim.whole_prompt and seq.prompt > self.lim.max_num_batched_tokens:
            seq.state = "rejected: budget"
        elif rep.memory.need(seq, total) > self.lim.num_blocks or self.leaves_no_watermark(rep, seq):
            seq.state = "rejected: memory"
        else:
            seq.state = "waiting"
            rep.waiting.append(seq)
            rep.unended += 1
            rep.peak_waiting = max(rep.peak_waiting, len(rep.waiting))
            if rep.asleep:
                self.wake(rep)
            return
        self.answered(1, self.now + int(self.cost.frontend_out_ns))

    def leaves_no_watermark(self, rep: Replica, seq: Seq) -> bool:
        """Whether vLLM v0 would never admit this prompt."""
        whole, keep = self.lim.whole_prompt, self.lim.watermark_blocks
        return bool(whole) and rep.memory.need(seq, seq.prompt) + keep > self.lim.num_blocks

    def wake(self, rep: Replica) -> None:
        rep.asleep = False
        self.push(self.now, PLAN, rep.index)

    def plan(self, rep: Replica) -> None:
        """Launch a step if allowed and wanted; then plan again, wait for the oldest output, or sleep."""
        rep.alarm = None
        if len(rep.flight) <= self.lim.schedule_ahead:
            work = self.policy(rep, self.now)
            if work.rows:
                self.launch(rep, work)
                if len(rep.flight) <= self.lim.schedule_ahead:
                    self.push(rep.cpu_free, PLAN, rep.index)
                    return
        if rep.flight:
            self.push(max(rep.flight[0].gpu_end, rep.cpu_free, self.now), OUTPUT, rep.index)
            return
        rep.asleep = True
        rep.naps += 1
        if rep.alarm is not None:
            self.push(rep.alarm, ALARM, rep.index, rep.naps)

    def launch(self, rep: Replica, work: Work) -> None:
        decode = context = prefill = new = pairs = 0
        gets: list[Seq] = []
        for seq, tokens in work.rows:
            if seq.scheduled is None:
                seq.scheduled = self.now
            if tokens == 1 and seq.planned and seq.computed + 1 == seq.known:
                decode += 1
                context += seq.known
            else:
                prefill += 1
                new += tokens
                pairs += sum(range(seq.computed + 1, seq.computed + tokens + 1))
            seq.computed += tokens
            if seq.computed == seq.known:
                seq.planned += 1
                gets.append(seq)
        rep.prefilled += new
        gpu = self.gpu_time(
            decode + work.pad_rows,
            context + work.pad_context,
            prefill,
            new + work.pad_tokens,
            pairs + work.pad_pairs,
        )
        kind, tokens = int(prefill > 0), decode + work.pad_rows + new + work.pad_tokens
        rows = decode + prefill
        ready = self.now + self.table("prep_ns", kind, tokens) + rows * int(self.cost.prep_seq_ns)
        rep.cpu_free = self.now + self.table("cpu_ns", kind, tokens) + rows * int(self.cost.cpu_seq_ns)
        rep.gpu_free = max(rep.gpu_free, ready) + gpu
        if self.table("eager", kind, tokens):
            rep.gpu_free = max(rep.gpu_free, rep.cpu_free)
            rep.eager_steps += 1
        rep.gpu_ns += gpu
        rep.flight.append(Step(self.now, rep.gpu_free, gets, rep.lim.num_blocks - rep.memory.free))
        rep.peak_running = max(rep.peak_running, len(rep.running))

    def table(self, name: str, kind: int, tokens: int) -> int:
        row = getattr(self.cost, name)[kind]
        return int(row[min(tokens, len(row) - 1)])

    def gpu_time(self, decode: int, context: int, prefill: int, new: int, pairs: int) -> int:
        """[ns] dense part (extended by its slope beyond the table) + attention of decodes and of prefills."""
        cost, last = self.cost, self.cost.dense_ns.shape[1] - 1
        total = self.table("dense_ns", int(prefill > 0), decode + new)
        if decode + new > last:
            total += fixed_point(decode + new - last, int(cost.slope_fp))
        total += fixed_point(context, int(cost.decode_context_fp)) + fixed_point(decode, int(cost.decode_seq_fp))
        if prefill:
            total += (
                fixed_point(pairs, int(cost.prefill_pair_fp))
                + fixed_point(new, int(cost.prefill_token_fp))
                + fixed_point(prefill, int(cost.prefill_seq_fp))
            )
        return total

    def collect(self, rep: Replica) -> None:
        """Tokens of the oldest step reach their clients; what has ended leaves the batch."""
        step = rep.flight.popleft()
        seen = self.now + int(self.cost.frontend_out_ns)
        ended = 0
        for seq in step.gets:
            if seq.state == "finished":
                rep.wasted += 1
                continue
            rep.tokens_out += 1
            seq.done += 1
            if self.lim.stream:
                seq.first = seen if seq.first is None else seq.first
                seq.last = seen
            if seq.done == seq.output:
                if seq.state == "waiting":
                    rep.waiting.remove(seq)
                seq.state = "finished"
                ended += 1
        rep.steps += 1
        rep.peak_blocks = max(rep.peak_blocks, step.blocks)
        rep.unended -= ended
        if ended:
            self.retire(rep, ended, seen)

    def retire(self, rep: Replica, ended: int, seen: int) -> None:
        if self.whole_batch:
            unfinished = any(seq.state != "finished" for seq in rep.running)
            if not self.lim.stream:
                ended = 0 if unfinished else len(rep.running)
                for seq in rep.running if not unfinished else ():
                    seq.first = seq.last = seen
            if unfinished:
                self.answered(ended, seen)
                return
        for seq in [seq for seq in rep.running if seq.state == "finished"]:
            rep.running.remove(seq)
            rep.memory.give_back(seq)
        self.answered(ended, seen)

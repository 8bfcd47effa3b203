"""The oracle: a second simulator of plain objects, written from the rules, sharing no code with the engines.

Requests are objects in deques, memory is a dictionary, one heap orders the events, every number is
a Python int. It is slow and it is meant to be read beside the rules it states:

- a replica repeats: plan and launch a step, up to `schedule_ahead` steps beyond the oldest one not yet seen;
  then collect the oldest output (the loop of vLLM's EngineCore.step_with_batch_queue);
- two clocks: a step scheduled at s is launched by the CPU at L = s + cpu, its GPU work ends at
  G = max(G before, s + prep) + gpu, not before L when eager; its output is seen at max(G, last L);
- at one tick: outputs, then arrivals, then alarms, then planning; within each by index;
- the policies as their papers and docstrings have them.

`Oracle` takes the numbers of a scenario (Limits, Cost: data, no behaviour); `run` fills in its requests. What a
request is stands in `sequence`, KV memory in `memory` and `pool`, what policies plan in `rules`, who gets a request in
`routing`.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from oracle.levels import fastserve
from oracle.replica import Replica
from oracle.routing import choose
from oracle.rules import chunked, guaranteed_no_evict, max_utilization, orca, splitfuse, static, tgi, vllm_v0
from oracle.sequence import Seq, Step, Work

OUTPUT, ARRIVAL, ALARM, PLAN = range(4)


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
            "max_utilization": max_utilization,
            "fastserve": fastserve,
            "splitfuse": splitfuse,
            "tgi": tgi,
            "guaranteed_no_evict": guaranteed_no_evict,
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
            rep.peak_waiting = max(rep.peak_waiting, len(rep.waiting) + len(rep.swapped))
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
        gpu += rep.copied * self.lim.swap_ns
        rep.copied = 0
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
                + fixed_point(context, int(cost.beside_context_fp))
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
                    (rep.swapped if seq in rep.host else rep.waiting).remove(seq)
                    rep.host.pop(seq, None)
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

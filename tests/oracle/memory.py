"""KV memory of one replica in the oracle: blocks counted, placed first-fit, or shared between requests."""

from collections.abc import Hashable
from typing import Any

from oracle.host import Host
from oracle.pool import Block, Own, Pool
from oracle.sequence import Seq


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
        self.host = Host(lim.offload_blocks, lim.offload_ns)

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
        names = self.names(seq, tokens)[: len(self.has[seq])]
        self.pool.learn(self.has[seq], names)
        shared = min(len(names), len(seq.chain))
        if seq.state == "finished":
            self.host.keep(names[shared:])
        self.host.keep(names[:shared])
        self.pool.give_back(self.has.pop(seq))

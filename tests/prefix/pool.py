"""A KV block pool of single blocks, written from the rules of vLLM's: a queue of blocks, a dictionary of contents."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(eq=False)
class Block:
    """One block; `content` is what it is known by, None = never filled."""

    content: tuple[int, ...] | None = None
    holders: int = 0


@dataclass
class Pool:
    """`size` usable blocks of `block_size` tokens."""

    size: int
    block_size: int
    free: deque[Block] = field(default_factory=deque)
    known: dict[tuple[int, ...], list[Block]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = deque(Block() for _ in range(self.size))

    def hits(self, tokens: list[int]) -> list[Block]:
        """The known blocks that `tokens` begin with; at least the last token is left out."""
        found = []
        for end in range(self.block_size, len(tokens), self.block_size):
            twins = self.known.get(tuple(tokens[:end]))
            if not twins:
                break
            found.append(twins[0])
        return found

    def hold(self, found: list[Block]) -> None:
        """Use known blocks: those nobody holds leave the free queue."""
        for block in found:
            if block.holders == 0:
                self.free.remove(block)
            block.holders += 1

    def take(self, count: int) -> list[Block]:
        """New blocks from the front of the free queue; what was in them is forgotten."""
        blocks = [self.free.popleft() for _ in range(count)]
        for block in blocks:
            if block.content is not None:
                twins = self.known[block.content]
                twins.remove(block)
                if not twins:
                    del self.known[block.content]
                block.content = None
            block.holders = 1
        return blocks

    def learn(self, blocks: list[Block], tokens: list[int]) -> None:
        """Blocks that `tokens` fill become known."""
        for k, block in enumerate(blocks[: len(tokens) // self.block_size]):
            if block.content is None:
                block.content = tuple(tokens[: (k + 1) * self.block_size])
                self.known.setdefault(block.content, []).append(block)

    def give_back(self, blocks: list[Block]) -> None:
        """Free from the last to the first; never filled ones to the front, the others to the end of the queue."""
        for block in reversed(blocks):
            block.holders -= 1
            if block.holders == 0:
                if block.content is None:
                    self.free.appendleft(block)
                else:
                    self.free.append(block)

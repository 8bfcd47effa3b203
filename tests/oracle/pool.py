"""A KV block pool of single blocks, written from the rules of vLLM's: a queue of blocks, a dictionary of contents."""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Block:
    """One block; `name` says what is in it, down from the first token: None = never filled."""

    name: Hashable = None
    holders: int = 0


class Own(tuple[int, int]):
    """Name of a block that no other request has: (request, place)."""


@dataclass
class Pool:
    """`size` usable blocks. Of two blocks with one name the older is found; of a request's own (`own`), the newer."""

    size: int
    free: deque[Block] = field(default_factory=deque)
    known: dict[Hashable, list[Block]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = deque(Block() for _ in range(self.size))

    def hits(self, names: Sequence[Hashable]) -> list[Block]:
        """The known blocks among the leading ones called `names`."""
        found = []
        for name in names:
            twins = self.known.get(name)
            if not twins:
                break
            found.append(twins[-1] if isinstance(name, Own) else twins[0])
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
            if block.name is not None:
                twins = self.known[block.name]
                twins.remove(block)
                if not twins:
                    del self.known[block.name]
                block.name = None
            block.holders = 1
        return blocks

    def learn(self, blocks: list[Block], names: Sequence[Hashable]) -> None:
        """The leading blocks are full, and become known by their names."""
        for block, name in zip(blocks, names, strict=False):
            if block.name is None:
                block.name = name
                self.known.setdefault(name, []).append(block)

    def give_back(self, blocks: list[Block]) -> None:
        """Free from the last to the first; never filled ones to the front, the others to the end of the queue."""
        for block in reversed(blocks):
            block.holders -= 1
            if block.holders == 0:
                if block.name is None:
                    self.free.appendleft(block)
                else:
                    self.free.append(block)

"""Host memory behind the prefix cache, block by block: names in order of use, and when each block's copy has come."""

from collections.abc import Hashable, Sequence


class Host:
    """Up to `size` blocks; the one used least recently goes. One link, one copy after the other."""

    def __init__(self, size: int, copy_ns: int) -> None:
        self.size, self.copy_ns = size, copy_ns
        self.lands: dict[Hashable, int] = {}
        self.link_free = self.loaded = self.peak = 0

    def keep(self, names: Sequence[Hashable]) -> None:
        """They are in, the first of them used last of all."""
        for name in reversed(names):
            self.lands[name] = self.lands.pop(name, 0)
        for name in list(self.lands)[: max(0, len(self.lands) - self.size)]:
            del self.lands[name]
        self.peak = max(self.peak, len(self.lands))

    def look(self, names: Sequence[Hashable], now: int) -> tuple[int, int]:
        """How many of the leading names are in, and when the last copy of one of them to the GPU ends, 0 = now."""
        count = 0
        while count < len(names) and names[count] in self.lands:
            if self.lands[names[count]] > now:
                return 0, self.lands[names[count]]
            count += 1
        return count, 0

    def load(self, names: Sequence[Hashable], now: int) -> int:
        """When all of them have been copied to the GPU."""
        self.link_free = max(now, self.link_free) + len(names) * self.copy_ns
        self.lands.update({name: self.link_free for name in names if name in self.lands})
        self.loaded += len(names)
        return self.link_free

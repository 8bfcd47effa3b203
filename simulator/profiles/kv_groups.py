"""KV blocks of models whose layers do not all keep every token: vLLM's groups of layers with block tables of their own.

vLLM 0.24, v1/core/kv_cache_utils.py: layers of one kind (full attention, sliding window, chunk) form groups of equal
size; a block holds `block_size` tokens of one group, and one pool of blocks serves all groups. The group size is the
number of layers of the rarer kind, or of the commoner one where that is less than 1.5 times as many. A sequence
holds blocks for all of its tokens in a full group, in a windowed group for the window and the tokens of a step.
"""

from dataclasses import dataclass

from simulator.profiles.shape import ModelShape


@dataclass(frozen=True)
class KvGroups:
    """`size` layers a group; `windows` has one entry a group: its window [tokens], 0 for full attention."""

    size: int
    windows: tuple[int, ...]
    chunked: bool = False

    def blocks(self, context: int, step: int, block_size: int) -> int:
        """Blocks of all groups that a sequence of `context` tokens holds at most, `step` tokens computed at once."""
        return sum(self._group_blocks(window, context, step, block_size) for window in self.windows)

    def _group_blocks(self, window: int, context: int, step: int, block_size: int) -> int:
        if not window:
            return -(-context // block_size)
        if self.chunked:
            return -(-min(window + step, context) // block_size)
        return -(-min(window - 1 + step, context) // block_size) + 1  # a window may begin inside a block


def kv_groups(model: ModelShape) -> KvGroups:
    """Groups of a model's layers; one of all layers where they keep the same tokens."""
    if len(set(model.windows)) <= 1:
        return KvGroups(model.layers, (model.window,), model.chunked)
    counts = {window: model.windows.count(window) for window in sorted(set(model.windows))}
    fewest, most = min(counts.values()), max(counts.values())
    size = most if most < 1.5 * fewest else fewest
    return KvGroups(size, tuple(window for window, count in counts.items() for _ in range(-(-count // size))),
                    model.chunked)

"""What traces say of conversations and shared prefixes, beside the requests: what the prefix cache finds again."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NONE: Final = -1
"""Stands for `not given` in every column here."""


@dataclass(frozen=True, eq=False)
class Extras:
    """Columns beside those of a Trace of N requests; None where the trace has no such column.

    session     int64 (N,)    number of the conversation, in order of appearance
    turn        int64 (N,)    turn within it, as the trace counts
    delay_ns    int64 (N,)    [ns] the client waits after the answer before (think time)
    hash_ids    int64 (M,)    ids of the prompts' prefix blocks, one request after the other
    hash_ends   int64 (N,)    request i has hash_ids[hash_ends[i - 1] : hash_ends[i]]
    hash_block  [tokens] of prompt an id stands for; the last block of a prompt may be shorter
    opening     int64 (N,)    number of the text the prompt begins with (a system prompt)
    opening_tokens  int64 (N,)    [tokens] of it
    """

    session: Int64s | None = None
    turn: Int64s | None = None
    delay_ns: Int64s | None = None
    hash_ids: Int64s | None = None
    hash_ends: Int64s | None = None
    hash_block: int = 0
    opening: Int64s | None = None
    opening_tokens: Int64s | None = None

    def __bool__(self) -> bool:
        return any(value is not None for _, value in self.columns())

    def columns(self) -> list[tuple[str, Int64s | None]]:
        """(name, column or None)."""
        return [(each.name, getattr(self, each.name)) for each in fields(self) if each.name != "hash_block"]

    def unused(self) -> tuple[str, ...]:
        """What is there and changes nothing, in words for reports: requests are sent when the trace says."""
        return ("think times",) if self.delay_ns is not None else ()

    def in_turns(self) -> tuple[Int64s, Bools]:
        """Requests conversation by conversation in the order of turns, (N,), and whether the next one there is a turn
        of the same conversation, (N - 1,); only where sessions and turns are known."""
        assert self.session is not None and self.turn is not None
        order: Int64s = np.lexsort((self.turn, self.session))
        session = self.session[order]
        return order, (session[1:] == session[:-1]) & (session[1:] != NONE)

    def hashes(self, row: int) -> Int64s:
        """Prefix block ids of one request."""
        if self.hash_ids is None or self.hash_ends is None:
            return np.zeros(0, dtype=np.int64)
        return self.hash_ids[int(self.hash_ends[row - 1]) if row else 0 : int(self.hash_ends[row])]

    def take(self, rows: Int64s | slice, total: int) -> "Extras":
        """The rows asked for, in that order; `total` is the number of requests there are."""
        if not self:
            return self
        chosen: Int64s = np.arange(total, dtype=np.int64)[rows]
        plain: dict[str, Any] = {name: value[chosen] for name, value in self.columns()
                                 if value is not None and not name.startswith("hash")}
        if self.hash_ids is not None and self.hash_ends is not None:
            begins = np.concatenate(([0], self.hash_ends[:-1]))
            lengths = (self.hash_ends - begins)[chosen]
            ends = np.cumsum(lengths)
            within = np.arange(int(ends[-1]) if ends.size else 0) - np.repeat(ends - lengths, lengths)
            plain |= {"hash_ids": self.hash_ids[np.repeat(begins[chosen], lengths) + within], "hash_ends": ends}
        return replace(self, **plain)

    def copied(self, order: Int64s, total: int) -> "Extras":
        """Rows `order` of copies laid one after the other, `total` requests each: every copy is other people,
        with conversations and prefixes of their own, who meet the same system prompts."""
        if not self:
            return self
        copy = order // total
        taken = self.take(order % total, total)
        moved: dict[str, Any] = {}
        if taken.session is not None and self.session is not None:
            step = int(self.session.max()) + 1
            moved["session"] = np.where(taken.session == NONE, NONE, taken.session + copy * step)
        if taken.hash_ids is not None and taken.hash_ends is not None and self.hash_ids is not None:
            step = int(self.hash_ids.max(initial=0)) + 1
            moved["hash_ids"] = taken.hash_ids + np.repeat(copy, np.diff(taken.hash_ends, prepend=0)) * step
        return replace(taken, **moved)


def rooted(chats: Sequence[str], parents: Sequence[str]) -> Int64s:
    """Conversation of every row from chat and parent ids: that of its parent where a row above is it, else a
    new one (Bailian: each turn is a chat of its own that names the one before)."""
    session_of: dict[str, int] = {}
    rows = np.zeros(len(chats), dtype=np.int64)
    count = 0
    for row, (chat, parent) in enumerate(zip(chats, parents, strict=True)):
        known = session_of.get(parent)
        if known is None:
            known, count = count, count + 1
        session_of[chat] = rows[row] = known
    return rows

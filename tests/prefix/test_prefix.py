"""The counted prefix cache against a pool of single blocks: the same hits, the same free blocks, at every step."""

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from oracle.pool import Block, Pool

from simulator import prefix
from simulator.windows import blocks_for


class Node(SimpleNamespace):
    """A node of the free queue as the SimPy engine keeps it."""


@dataclass
class Sequence:
    """A request of the test: its tokens (prompt, then answer) and what the plain pool gave it."""

    tokens: list[int]
    prompt: int
    done: int = 0
    held: list[Block] = field(default_factory=list)
    state: str = "waiting"

    def names(self, block_size: int, tokens: int) -> list[tuple[int, ...]]:
        """What the full blocks of the first `tokens` tokens hold, down from the first token."""
        return [tuple(self.tokens[:end]) for end in range(block_size, tokens + 1, block_size)]


def shared_prefixes(sequences: list[Sequence], block_size: int) -> list[list[int]]:
    """Per sequence the numbers of its leading blocks that another sequence has too."""
    count: dict[tuple[int, ...], int] = {}
    for s in sequences:
        for end in range(block_size, len(s.tokens) + 1, block_size):
            key = tuple(s.tokens[:end])
            count[key] = count.get(key, 0) + 1
    numbers: dict[tuple[int, ...], int] = {}
    chains = []
    for s in sequences:
        chain = []
        for end in range(block_size, len(s.tokens) + 1, block_size):
            key = tuple(s.tokens[:end])
            if count[key] < 2:
                break
            chain.append(numbers.setdefault(key, len(numbers)))
        chains.append(chain)
    return chains


def columns(sequences: list[Sequence], block_size: int, num_blocks: int) -> tuple[Any, Any, Any]:
    """The same sequences as columns: requests, replica, limits."""
    chains = shared_prefixes(sequences, block_size)
    flat = [number for chain in chains for number in chain]
    n = len(sequences)
    req = SimpleNamespace(
        prompt=[s.prompt for s in sequences], planned=[0] * n, blocks=[0] * n, known=[0] * n, own=[-1] * n,
        chain_end=[sum(len(chain) for chain in chains[: k + 1]) for k in range(n)],
    )  # fmt: skip
    nodes = [Node(before=-1, after=-1, count=0, chain=-1, owner=0, refs=0, twin=0) for _ in range(num_blocks + 1)]
    found = SimpleNamespace(chain=flat, held=[-1] * len(flat), found=[0] * (max(flat, default=0) + 1), nodes=nodes)
    c = SimpleNamespace(free_blocks=num_blocks, kept=0, oldest=-1, newest=-1, spare=-1, n_nodes=1, spared=0)
    rep = SimpleNamespace(c=c, prefix=found, stats=SimpleNamespace(peak_spared=0))
    return req, rep, SimpleNamespace(block_size=block_size, rehearse=0, offload_blocks=0, block_bits=0)


def some_sequences(draw: random.Random) -> list[Sequence]:
    """Prompts that begin alike, conversations whose turns repeat all before them, equal prompts, private ones."""
    made: list[Sequence] = []
    for name in range(draw.randint(2, 9)):
        kind = draw.choice(["private", "turn", "branch", "twin"])
        before = draw.choice(made) if made else None
        start: list[int] = []
        if before is not None and kind == "turn":
            start = before.tokens
        elif before is not None and kind == "branch":
            start = before.tokens[: draw.randint(0, len(before.tokens))]
        elif before is not None and kind == "twin":
            start = before.tokens[: before.prompt]
        fresh = 0 if kind == "twin" and start else draw.randint(1, 12)
        prompt = start + [1000 * name + k for k in range(fresh)]
        answer = [-1000 * name - k - 1 for k in range(draw.randint(1, 10))]
        made.append(Sequence(prompt + answer, len(prompt)))
    return made


def run(seed: int) -> dict[str, int]:
    """Admit, grow, finish and preempt at random on both; returns how often each thing was seen."""
    draw = random.Random(seed)
    block_size = draw.choice([1, 2, 3, 4])
    sequences = some_sequences(draw)
    longest = max(blocks_for(len(s.tokens), block_size) for s in sequences)
    size = longest + draw.randint(0, 12)
    pool = Pool(size)
    req, rep, lim = columns(sequences, block_size, size)
    seen = {"hits": 0, "preempted found again": 0, "evicted": 0}
    preempted: set[int] = set()
    for _ in range(200):
        i = draw.randrange(len(sequences))
        s = sequences[i]
        if s.state == "waiting":
            whole = s.prompt + s.done
            found = pool.hits(s.names(block_size, whole - 1))  # the last token is always computed
            prefix.settle(req, rep)
            hits = prefix.match(req, rep, lim, i, whole)
            assert hits == len(found)
            idle = prefix.idle_blocks(req, rep, i, hits)
            assert idle == sum(block.holders == 0 for block in found)
            more = blocks_for(s.prompt + s.done, block_size) - hits
            if more + idle > len(pool.free):
                continue
            if left_behind(req, rep, i, hits):
                return seen
            seen["hits"] += hits
            seen["preempted found again"] += hits * (i in preempted)
            pool.hold(found)
            s.held = found + pool.take(more)
            prefix.claim(req, rep, i, hits)
            req.blocks[i] += more
            rep.c.free_blocks -= more
            s.state = "running"
            learn(pool, s, req, rep, lim, i, s.prompt + s.done)
        elif s.state == "running":
            act = draw.choice(["grow", "grow", "grow", "finish", "preempt"])
            if act == "grow" and s.prompt + s.done < len(s.tokens):
                if blocks_for(s.prompt + s.done + 1, block_size) > len(s.held):
                    if not pool.free:
                        continue
                    s.held += pool.take(1)
                    req.blocks[i] += 1
                    rep.c.free_blocks -= 1
                s.done += 1
                req.planned[i] = s.done
                learn(pool, s, req, rep, lim, i, s.prompt + s.done)
            elif act in ("finish", "preempt"):
                pool.give_back(s.held)
                prefix.put_back(req, rep, lim, i, s.prompt + s.done, act == "preempt")
                s.held = []
                s.state = "ended" if act == "finish" else "waiting"
                if act == "preempt":
                    preempted.add(i)
        assert rep.c.free_blocks == len(pool.free)
        assert rep.c.spared == sum(len(each.held) for each in sequences) - (size - len(pool.free))
    seen["evicted"] = sum(block.name is None for block in pool.free)
    return seen


def left_behind(req: Any, rep: Any, i: int, hits: int) -> bool:
    """Whether a block of i alone stays in the queue while i computes it again: then two blocks have its tokens, which a
    count cannot tell apart."""
    private = hits - prefix.shared_blocks(req, i)
    return req.own[i] >= 0 and private >= 0 and rep.prefix.nodes[req.own[i]].count > private


def learn(pool: Pool, s: Sequence, req: Any, rep: Any, lim: Any, i: int, tokens: int) -> None:
    pool.learn(s.held, s.names(lim.block_size, tokens))
    prefix.learn(req, rep, lim, i, tokens)


@pytest.mark.parametrize("part", range(4))
def test_same_hits_and_free_blocks_as_a_pool_of_single_blocks(part: int) -> None:
    seen = [run(seed) for seed in range(part * 500, part * 500 + 500)]
    assert sum(each["hits"] for each in seen) > 500
    assert sum(each["preempted found again"] for each in seen) > 100

"""Numbers of shared blocks against the tokens themselves, written out."""

import random
from typing import Any

import numpy as np
import pytest

from simulator.workload.extras import Extras
from simulator.workload.shared import shared_blocks


def trace(prompt: list[int], output: list[int], **extras: Any) -> Any:
    columns: dict[str, Any] = {k: np.array(v, np.int64) if isinstance(v, list) else v for k, v in extras.items()}
    return _Trace(np.array(prompt), np.array(output), Extras(**columns))


class _Trace:
    def __init__(self, prompt: Any, output: Any, extras: Any) -> None:
        self.prompt, self.output, self.extras = prompt, output, extras

    def __len__(self) -> int:
        return len(self.prompt)


def per_request(found: Any) -> list[list[int]]:
    begins = [0, *found.ends.tolist()[:-1]]
    return [found.numbers[a:b].tolist() for a, b in zip(begins, found.ends, strict=True)]


def written_out(tokens: list[list[int]], block: int) -> list[list[tuple[int, ...]]]:
    """Per request the contents of its leading full blocks, as long as another request begins alike."""
    whole = [[tuple(t[:e]) for e in range(block, len(t) + 1, block)] for t in tokens]
    count: dict[tuple[int, ...], int] = {}
    for blocks in whole:
        for each in blocks:
            count[each] = count.get(each, 0) + 1
    return [[b for b in blocks if count[b] > 1] for blocks in whole]


def same_pattern(numbers: list[list[int]], contents: list[list[tuple[int, ...]]]) -> None:
    """Equal numbers exactly where the contents are equal."""
    assert [len(n) for n in numbers] == [len(c) for c in contents]
    pairs = {(a, b) for n, c in zip(numbers, contents, strict=True) for a, b in zip(n, c, strict=True)}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


@pytest.mark.parametrize("seed", range(60))
def test_hashes_of_prompts(seed: int) -> None:
    """A hash stands for its tokens and all before them, as in the Mooncake and Bailian traces; whole blocks fit."""
    draw = random.Random(seed)
    block = draw.choice([1, 2, 4])
    hash_block = block * draw.choice([1, 2, 3]) + (block // 2 if seed % 3 == 0 else 0)  # a block may lie in two hashes
    tokens: list[list[int]] = []
    for k in range(draw.randint(1, 8)):
        start = draw.choice(tokens)[: draw.randint(0, 12)] if tokens and draw.random() < 0.7 else []
        tokens.append(start + [100 * k + j for j in range(draw.randint(1, 12))])
    names: dict[tuple[int, ...], int] = {}
    ids = [[names.setdefault(tuple(t[: e + hash_block]), len(names)) for e in range(0, len(t), hash_block)]
           for t in tokens]  # fmt: skip
    found = shared_blocks(
        trace([len(t) for t in tokens], [1] * len(tokens), hash_ids=[i for each in ids for i in each],
              hash_ends=np.cumsum([len(each) for each in ids]), hash_block=hash_block), block)  # fmt: skip
    # requests that differ within one hash share none of its blocks: the trace hides how far they agree
    by_hash = [[(*i[: (j * block + block - 1) // hash_block + 1], j) for j in range(len(t) // block)]
               for i, t in zip(ids, tokens, strict=True)]  # fmt: skip
    count: dict[tuple[int, ...], int] = {}
    for each in by_hash:
        for b in each:
            count[b] = count.get(b, 0) + 1
    wanted = [[b for b in each if count[b] > 1] for each in by_hash]
    same_pattern(per_request(found), wanted)
    alike = written_out(tokens, block)
    assert all(len(w) <= len(c) for w, c in zip(wanted, alike, strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_turns_of_conversations(seed: int) -> None:
    """The next prompt repeats prompt and answer; the last token of an answer is never computed."""
    draw = random.Random(seed)
    block = draw.choice([1, 2, 4])
    prompt, output, session, turn, tokens = [], [], [], [], []
    for name in range(draw.randint(1, 5)):
        said: list[int] = []
        for k in range(draw.randint(1, 4)):
            most = 9
            if len(said) > 1 and draw.random() < 0.2:  # the client drops the context: a shorter prompt shows it
                said, most = [], min(9, len(said) - 1)
            said = said + [1000 * name + 100 * k + j for j in range(draw.randint(1, most))]
            answer = [-(1000 * name + 100 * k + j) - 1 for j in range(draw.randint(1, 9))]
            prompt.append(len(said))
            output.append(len(answer))
            session.append(name)
            turn.append(k)
            said = said + answer
            tokens.append(said[:-1])
    order = list(range(len(prompt)))
    draw.shuffle(order)
    found = shared_blocks(
        trace([prompt[i] for i in order], [output[i] for i in order], session=[session[i] for i in order],
              turn=[turn[i] for i in order]), block)  # fmt: skip
    same_pattern(per_request(found), written_out([tokens[i] for i in order], block))


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("talking", [False, True])
def test_texts_that_prompts_begin_with(seed: int, talking: bool) -> None:
    """A system prompt of any length before what is the request's own, alone or at the head of a conversation."""
    draw = random.Random(seed)
    block = draw.choice([1, 2, 4])
    texts = [[-(10_000 * (g + 1) + j) for j in range(draw.randint(1, 13))] for g in range(3)]
    columns: dict[str, list[int]] = {name: [] for name in ("session", "turn", "opening", "opening_tokens")}
    prompt, output, tokens = [], [], []
    for name in range(draw.randint(1, 6)):
        group = draw.choice([-1, 0, 1, 2])
        said = [] if group < 0 else texts[group]
        for k in range(draw.randint(1, 3) if talking else 1):
            said = said + [1000 * name + 100 * k + j for j in range(draw.randint(1, 9))]
            answer = [-(1000 * name + 100 * k + j) - 1 for j in range(draw.randint(1, 9))]
            prompt.append(len(said))
            output.append(len(answer))
            row = (name, k, group, len(texts[group]) if group >= 0 else 0)
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
            said = said + answer
            tokens.append(said[:-1] if talking else said[:prompt[-1]])
    given = columns if talking else {name: columns[name] for name in ("opening", "opening_tokens")}
    found = shared_blocks(trace(prompt, output, hash_block=0, **given), block)
    same_pattern(per_request(found), written_out(tokens, block))


def test_nothing_said_nothing_shared() -> None:
    found = shared_blocks(trace([5, 6], [1, 1]), 2)
    assert found.count == 0 and found.ends.tolist() == [0, 0]

"""Speculative decoding: how many drafts of a step prove right, and what a request gets from it.

A step computes a sequence's next token and checks its drafts; those that are right up to the first wrong one are
tokens of the answer, and one more comes from the model itself (Leviathan et al. 2023, arXiv:2211.17192, algorithm 1).
Which are right is drawn by a counter: a hash of the request and of the tokens it has, so that it depends on neither
engine, replica nor order (Salmon et al. 2011, doi:10.1145/2063384.2063405).
"""

from typing import Final

from policies.queues import take_out
from simulator.engines.gaps import itl_bin
from simulator.engines.world import Acceptance, World
from simulator.jit import jitable
from simulator.state import FINISHED, RUNNING, WAITING, Column, Limits, Replica, Requests

WORD: Final = 2**32 - 1
FIRST, SECOND = 0x21F0AAAD, 0x735A2D97
"""Multipliers below 2^31: a product with a word stays within int64 (Wellons, hash-prospector, 32 bits, two rounds)."""


@jitable
def mixed(word: int) -> int:
    """A 32-bit word scattered over all 32-bit words, one to one."""
    word = ((word ^ (word >> 16)) * FIRST) & WORD
    word = ((word ^ (word >> 15)) * SECOND) & WORD
    return word ^ (word >> 15)


@jitable
def accepted(acceptance: Acceptance, i: int, done: int, drafts: int) -> int:
    """Right ones among the `drafts` of a step of request i that has `done` tokens of its answer."""
    word = mixed(mixed((acceptance.salts[0] + i) & WORD) ^ mixed((acceptance.salts[1] + done) & WORD))
    count = 0
    while count < drafts and word < acceptance.chances[count]:
        count += 1
    return count


@jitable
def undraft(req: Requests, rep: Replica, i: int, wrong: int) -> None:
    """Take back `wrong` tokens of request i that were computed for nothing; one preempted since has lost all."""
    req.planned[i] -= wrong
    if req.computed[i] > 0:
        req.computed[i] -= wrong
        rep.c.kv_tokens -= wrong


@jitable
def settle_known(req: Requests, lim: Limits, i: int) -> None:
    """The tokens of request i that have come out are known to the prefix cache (vLLM 0.24
    vllm/v1/core/sched/async_scheduler.py, AsyncScheduler._update_request_with_output)."""
    if lim.prefix == 1 and lim.schedule_ahead > 0 and req.status[i] == RUNNING:
        req.settled[i] = max(req.settled[i], min(req.computed[i], req.prompt[i] + req.done[i] - 1))


@jitable
def deliver_drafted(world: World, rep: Replica, flight: Column, gains: Column, count: int) -> int:
    """`booking.deliver` for a step with drafts: up to gains[k] tokens for the k-th request; returns how many in all.

    Tokens of one step reach the client together: a gap before the first, none between them. An answer may end amid
    them.
    """
    req, stats, visible = world.req, rep.stats, rep.c.visible
    ended = 0
    given = 0
    for k in range(count):
        i = flight[k]
        if req.status[i] > RUNNING:
            stats.wasted += 1
            continue
        drafts = int(gains[k]) - 1
        right = accepted(world.acceptance, i, int(req.done[i]), drafts)
        undraft(req, rep, i, drafts - right)
        stats.drafts += drafts
        stats.accepted += right
        stats.drafted_rows += 1 if drafts > 0 else 0
        taken = min(1 + right, int(req.output[i] - req.done[i]))
        if req.done[i] == 0:
            req.first[i] = visible
        else:
            gap = visible - req.last[i]
            world.itl[itl_bin(gap)] += 1
            req.itl_max[i] = max(req.itl_max[i], gap)
        world.itl[0] += taken - 1
        req.last[i] = visible
        req.done[i] += taken
        given += taken
        settle_known(req, world.lim, i)
        if req.done[i] == req.output[i]:
            if req.status[i] == WAITING:
                take_out(req, rep, world.lim, i)
            req.status[i] = FINISHED
            rep.ended[ended] = i
            ended += 1
    rep.c.n_ended = ended
    return given

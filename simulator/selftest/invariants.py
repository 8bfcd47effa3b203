"""What holds in every run, whatever was drawn; docs/invariants.md says each in words, by the same number.

Each check takes a case and its finished job of the compiled engine (with step log) and returns whether it holds.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np

from policies.by_key import KEYS
from policies.registry import POLICIES
from simulator import state as s
from simulator.engines.again import BEGUN
from simulator.engines.changes import CRASH, HANG, RECLAIM, SLOW
from simulator.engines.job import Job
from simulator.engines.world import LINK_BITS
from simulator.selftest.cases import Case
from simulator.selftest.fleets import limits_of
from simulator.units import NEVER

OVER: Final = s.REJECTED_LENGTH
"""First status of a request that is over without an answer."""
LOSING: Final = (CRASH, HANG, RECLAIM)
"""Changes that may end steps under way."""
Holds = Iterator[Any]
"""Truth values, all of which must be true."""
Check = Callable[[Case, Job], Holds]


def requests_are_conserved(case: Case, done: Job) -> Holds:
    """Without a horizon all are answered in full, refused, given up, or never submitted after a turn that was; nobody
    gets more than was asked for, and only who can is refused, given up or not submitted."""
    req, habits = done.req, case.habits
    over, ended, gone, unsent = (req.status >= OVER, req.status == s.FINISHED, req.status == s.ABORTED,
                                 req.status == s.NOT_SENT)
    yield np.all(req.done <= req.output) and np.all(req.done[ended] == req.output[ended])
    yield np.all(req.done[over & ~gone] == 0) and np.all(req.first[over & ~gone] == NEVER)
    yield np.all(req.done[gone] < req.output[gone]) and (habits.ttft_ns + habits.total_ns > 0 or not gone.any())
    yield np.all(req.queued[unsent] == NEVER) and (len(case.talk) > 0 or not unsent.any())
    for code, names in ((s.REJECTED_QUEUE, ("max_waiting", "shed_waiting")), (s.REJECTED_SLOW, ("predicted_ttft",))):
        yield any(_most(case, name) > 0 for name in names) or not np.any(req.status == code)
    yield case.until is not None or np.all(over | ended)
    yield done.reps.front["outstanding"].sum() == np.isin(req.status, (s.WAITING, s.RUNNING)).sum()


def tokens_are_conserved(case: Case, done: Job) -> Holds:
    """Tokens in the step log, in the totals and at the requests are the same; prompts are computed once."""
    req, stats, rows = done.req, done.stats, done.logged
    kept = stats["output"].sum() - stats["failed_tokens"].sum()
    yield kept >= req.done.sum()  # tokens of attempts before the last are at no request
    yield case.habits.attempts > 1 or kept == req.done.sum()
    yield rows["steps"].sum() == stats["steps"].sum()
    lost = _ends_steps(case)  # those are in the totals, not in the log
    yield rows["prefill_tokens"].sum() <= stats["prefill"].sum()
    if case.until is None and not lost:
        yield rows["prefill_tokens"].sum() == stats["prefill"].sum()
        recomputed = req.preempted.any() and case.limits.swap_blocks < 10**6  # with so much host memory nothing is
        again = recomputed or req.sent.size or stats["failed"].any() or case.limits.prefix
        if not again and len({lim.block_size for lim in limits_of(case)}) == 1:
            yield stats["prefill"].sum() == _prompts_to_compute(case, done)


def _prompts_to_compute(case: Case, done: Job) -> int:
    """[tokens] of the answered prompts that no cache holds."""
    req, block = done.req, case.limits.block_size
    found = 0 if case.policy == "static" else np.minimum(req.cached, req.prompt - 1) // block * block
    return int((req.prompt - found)[req.status == s.FINISHED].sum())


def blocks_are_conserved(case: Case, done: Job) -> Holds:
    """Every block is free or held by one request; when all is over, all are free and no slot is taken."""
    c, req, total = done.reps.c, done.req, np.array([lim.num_blocks for lim in limits_of(case)])
    if case.limits.prefix == 0:
        held = np.bincount(np.maximum(req.replica, 0), req.blocks, minlength=done.replicas)
        if case.link:  # some wait at the replica of the first half to be fetched
            held += np.bincount(np.maximum(req.source, 0), req.held, minlength=done.replicas)
        yield np.all(c["free_blocks"] + held == total)
    if case.until is None:
        yield np.all(c["free_blocks"] == total) and np.all(c["largest_gap"] == total)
        yield all(not np.any(c[idle]) for idle in ("n_running", "n_waiting", "n_flight", "n_extents", "kv_tokens"))
        yield np.all(done.reps.slots == -1) and not np.any(req.blocks)
        yield not np.any(c["host_blocks"]) and not np.any(c["n_swapped"])


def gaps_are_conserved(case: Case, done: Job) -> Holds:
    """n tokens have n - 1 gaps; they add up to last - first, and none is longer than the longest."""
    if case.limits.stream == 0:
        return
    req = done.req
    again = case.habits.attempts > 1 or done.stats["failed"].any()  # what was lost had gaps too
    yield again or done.itl.sum() == (req.done - 1)[req.done > 0].sum()
    some = req.done > 0
    gaps, span, longest = req.done[some] - 1, (req.last - req.first)[some], req.itl_max[some]
    yield np.all(longest <= span) and np.all(span <= longest * gaps)


def causes_come_first(case: Case, done: Job) -> Holds:
    """arrival <= queued <= scheduled <= first <= last."""
    req = done.req
    for before, after in pairwise((req.arrival, req.queued, req.scheduled, req.first, req.last)):
        yield np.all((before <= after) | (after == NEVER))


def clocks_only_go_forward(case: Case, done: Job) -> Holds:
    """Requests enter in the order of submission; the steps of a replica end in the order they began."""
    req = done.req
    released = req.queued != NEVER
    yield len(case.talk) > 0 or np.all(np.diff(req.arrival[released]) >= 0)
    if case.habits.attempts == 1 and not case.changes:  # of several the columns have the last
        order = np.lexsort((req.queued[released], req.arrival[released]))  # within a tick in any order
        yield np.all(np.diff(req.queued[released][order]) >= 0)
    for rows in _of_each(done):
        yield np.all(rows["start"] <= rows["end"])
        yield np.all(np.diff(rows["end"]) >= 0) and np.all(np.diff(rows["start"]) >= 0)


def busy_within_the_horizon(case: Case, done: Job) -> Holds:
    """Wall and GPU time of a replica fit between its first start and its last output; parts add up."""
    stats = done.stats
    work = stats["dense"] + stats["decode_attention"] + stats["prefill_attention"]
    yield np.all(work + stats["copies"] == stats["gpu"])
    yield done.rows_time.sum() == stats["wall"].sum()
    for r, rows in enumerate(_of_each(done)):
        if len(rows):
            yield stats["wall"][r] <= rows["end"][-1] - rows["start"][0]
            yield rows["wall_ns"].sum() == stats["wall"][r] and rows["gpu_ns"].sum() <= stats["gpu"][r]
            if case.until is None and not _ends_steps(case, r):
                stages = max(1, limits_of(case)[r].stages)
                yield stats["gpu"][r] <= stages * (rows["end"][-1] - rows["start"][0])
                yield rows["gpu_ns"].sum() == stats["gpu"][r]
    if case.until is not None:
        times = np.concatenate([done.req.scheduled, done.req.first, done.req.last])
        yield np.all((times <= case.until + case.cost.frontend_out_ns) | (times == NEVER))


def steps_keep_the_limits(case: Case, done: Job) -> Holds:
    """Slots, blocks, KV tokens and the token budget, in every step."""
    for rows, lim in zip(_of_each(done), limits_of(case), strict=True):
        yield np.all(rows["running"] <= lim.max_num_seqs)
        yield np.all(rows["decode"] + rows["prefill"] <= rows["running"])
        yield np.all(rows["blocks"] <= lim.num_blocks)
        if lim.prefix == 0 and lim.window == 0:  # a window gives blocks back whose tokens it has computed
            yield np.all(rows["kv_tokens"] <= rows["blocks"] * lim.block_size)
        if case.policy == "chunked" or case.policy in KEYS:
            yield np.all(rows["decode"] + rows["drafts"] + rows["prefill_tokens"] <= lim.max_num_batched_tokens)
            yield np.all(rows["drafts"] <= rows["decode"] * lim.draft_tokens)
    yield done.stats["accepted"].sum() <= done.stats["drafts"].sum() <= done.logged["drafts"].sum()


def littles_law(case: Case, done: Job) -> Holds:
    """Slots held x time, summed over steps, is the time requests hold slots; waiting likewise, from below."""
    if case.until is not None or _most(case, "schedule_ahead") or case.policy == "static" or done.req.preempted.any():
        return
    if done.req.sent.size or _changes(case) or case.link:  # who gives up, is lost or goes on elsewhere
        return
    if case.limits.offload_blocks:  # who loads holds a slot before it is scheduled
        return
    req, rows = done.req, done.logged
    started = req.scheduled != NEVER
    yield (rows["waiting"] * rows["wall_ns"]).sum() <= (req.scheduled - req.queued)[started].sum()
    held = (req.last - req.scheduled)[started].sum() - case.cost.frontend_out_ns * started.sum()
    yield (rows["running"] * rows["wall_ns"]).sum() == held


def work_is_conserved(case: Case, done: Job) -> Holds:
    """No replica is idle while one of its requests is there and not ended, but for a static batch's window and the
    pauses of a pipeline."""
    if case.limits.batch_window > 0 or case.until is not None or _changes(case) or case.link:
        return
    if case.limits.offload_blocks:  # all may wait for what is copied from host memory
        return
    req = done.req
    for r, rows in enumerate(_of_each(done)):
        if limits_of(case)[r].stages > 1:
            continue
        here = (req.replica == r) & (req.status == s.FINISHED)
        since, ended = req.queued[here], req.last[here] - case.cost.frontend_out_ns
        idle = rows["start"][1:] > rows["end"][:-1]
        for start, end in zip(rows["end"][:-1][idle], rows["start"][1:][idle], strict=True):
            yield not np.any((since < end) & (ended > start))
        if len(rows) and not req.sent.size:
            yield rows["start"][0] == since.min()


def nobody_is_overtaken(case: Case, done: Job) -> Holds:
    """First come, first served: the requests of a replica are first scheduled in the order they were queued."""
    policy = POLICIES[case.policy]
    if case.limits.length_bucket > 0 or policy.ordered or policy.aux_per_tenant > 0 or "joins" in policy.needs:
        return
    if done.stats["loaded"].any():  # who loads is overtaken by who need not
        return
    if done.stats["failed"].any():  # those start again at the end of a queue, with the time of their first
        return
    req = done.req
    begun = np.where(req.source >= 0, req.source, req.replica) if case.link else req.replica
    for r in range(done.replicas):
        here = (begun == r) & (req.status > s.FUTURE) & (req.status < OVER)
        order = np.lexsort((req.scheduled[here], req.queued[here]))  # of one tick the events' order decides
        yield np.all(np.diff(req.scheduled[here][order]) >= 0)  # NEVER is the latest of all


def answers_take_steps(case: Case, done: Job) -> Holds:
    """A step gives a request one token at most and its drafts, and not more rows than it holds slots."""
    req, rows, most = done.req, done.logged, 1 + case.limits.draft_tokens
    steps = done.stats["steps"][np.maximum(req.replica, 0)]
    if case.link:
        steps = steps + done.stats["steps"][np.maximum(req.source, 0)]
    yield np.all(req.done <= steps * most)
    held = (rows["steps"] * rows["running"]).sum()
    yield done.stats["output"].sum() + most * done.stats["wasted"].sum() <= most * held


def clients_keep_their_habits(case: Case, done: Job) -> Holds:
    """Turns follow answers by their pause, at most so many are in flight, attempts are counted and spaced, and nobody
    has a token or an answer after giving up."""
    req, habits, out = done.req, case.habits, case.cost.frontend_out_ns
    last: dict[int, int] = {}
    for i, talk in enumerate(case.talk):
        before = last.get(talk)
        if before is not None and req.queued[i] < NEVER:
            yield req.status[before] == s.FINISHED
            yield case.limits.stream == 0 or req.arrival[i] == req.last[before] + case.pause[before]
        last[talk] = i
    if req.sent.size:
        tried = (req.attempts > 1) & (req.sent < NEVER)
        yield np.all(req.attempts <= habits.attempts)
        yield np.all((req.sent >= req.arrival + habits.backoff_ns)[tried])
        yield np.all((req.sent == req.arrival)[req.attempts == 1])
        late = np.maximum(req.queued - req.sent, 0)  # the engine cannot drop what it has not got
        for limit, column, exempt in ((habits.ttft_ns, req.first, BEGUN), (habits.total_ns, req.last, 0)):
            some = (column < NEVER) & (req.watched & exempt == 0)  # of a lost attempt the first token may have come
            yield limit == 0 or np.all((column - out - req.sent <= np.maximum(limit, late))[some])
    if habits.max_in_flight and case.limits.stream:
        ended = req.status == s.FINISHED
        edges = np.concatenate([2 * req.last[ended], 2 * req.arrival[ended] + 1])  # at one tick ends come first
        change = np.concatenate([-np.ones(ended.sum()), np.ones(ended.sum())])
        yield np.cumsum(change[np.argsort(edges, kind="stable")]).max(initial=0) <= habits.max_in_flight


def what_is_handed_over_arrives(case: Case, done: Job) -> Holds:
    """First token, then KV over the link, one request at a time, then the rest; only who has more to say goes. Sent by
    layers, it is on its way no earlier than the first of them is computed."""
    if case.link is None:
        return
    req, out, (rate, latency, layers) = done.req, case.cost.frontend_out_ns, case.link
    gone = req.landed < NEVER
    yield np.all((req.source >= 0) == gone)
    least = np.where(req.carried > 0, latency, 0)  # KV lost on its way, with its replica, takes no time
    yield np.all((req.first - out + least <= req.landed)[gone]) and np.all((req.output > 1)[gone])
    ended = gone & (req.status == s.FINISHED)
    yield np.all(req.landed[ended] <= req.last[ended] - out) and np.all(req.replica[ended] >= case.replicas)
    if _changes(case) or req.sent.size:
        return  # the way of who began anew is not in the columns
    for r in range(case.replicas):
        mine = np.flatnonzero(gone & (req.source == r))
        at = np.sort(req.landed[mine]) - latency
        sizes = np.where(req.carried[mine] > 0, req.prompt[mine], 0)[np.argsort(req.landed[mine], kind="stable")]
        takes = sizes.astype(np.int64) * rate >> LINK_BITS
        if layers == 0:
            yield np.all(np.diff(at)[np.diff(at) > 0] >= takes[1:][np.diff(at) > 0])
        elif len(mine):
            yield np.all(at - req.scheduled[mine].min() >= np.cumsum(takes))


def the_dead_do_no_work(case: Case, done: Job) -> Holds:
    """No step is under way when its replica crashes, and none begins before it is back."""
    if not case.changes or case.scalers:  # absent ones do not crash
        return
    for r, rows in enumerate(_of_each(done)):
        mine, back = [row for row in case.changes if row[2] == r and row[1] != SLOW], -1
        if any(kind != CRASH for _, kind, _, _ in mine):
            continue  # when it is down depends on the run, and a step planned ahead of the last answer's end runs out
        for tick, _, _, lasts in mine:
            if tick >= back:
                back = tick + lasts
                yield not np.any((rows["start"] < back) & (rows["end"] > tick))


def gateways_keep_count(case: Case, done: Job) -> Holds:
    """Who is lost for good was submitted again as often as may be, the others no more often; every loss is counted."""
    req = done.req
    lost = req.status == s.LOST
    if case.retries is None:
        yield not lost.any()
        return
    yield np.all((req.losses == case.retries + 1) == lost) and np.all(req.losses <= case.retries + 1)
    yield np.all((req.lost_at < NEVER) == lost) and np.all((req.lost_at >= req.queued)[lost])
    yield req.losses.sum() <= done.stats["failed"].sum()
    yield case.habits.attempts > 1 or req.losses.sum() == done.stats["failed"].sum()


INVARIANTS: Final[tuple[Check, ...]] = (
    requests_are_conserved, tokens_are_conserved, blocks_are_conserved, gaps_are_conserved, causes_come_first,
    clocks_only_go_forward, busy_within_the_horizon, steps_keep_the_limits, littles_law, work_is_conserved,
    nobody_is_overtaken, answers_take_steps, clients_keep_their_habits, what_is_handed_over_arrives,
    the_dead_do_no_work, gateways_keep_count,
)  # fmt: skip
"""Number 1 is the first; docs/invariants.md has the same order."""


def broken(case: Case, done: Job) -> Iterator[str]:
    """The invariants that a run breaks, as `3 blocks are conserved`."""
    for number, check in enumerate(INVARIANTS, 1):
        if not all(check(case, done)):
            yield f"{number} {check.__name__.replace('_', ' ')}"


def _most(case: Case, limit: str) -> int:
    """The largest value of a limit in any pool."""
    return max(int(getattr(lim, limit)) for lim in limits_of(case))


def _changes(case: Case) -> bool:
    """Whether anything happens to the fleet."""
    return bool(case.changes or case.scalers)


def _ends_steps(case: Case, r: int | None = None) -> bool:
    """Whether steps under way may end with a replica, of number r or any."""
    rows = any(row[1] in LOSING and r in (None, row[2]) for row in case.changes)
    return rows or any(each.grace > 0 and (r is None or each.first <= r < each.first + each.count)
                       for each in case.scalers)


def _of_each(done: Job) -> Iterator[Any]:
    """The step log of each replica."""
    rows = done.logged
    for r in range(done.replicas):
        yield rows[rows["replica"] == r]

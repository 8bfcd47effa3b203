"""Random small simulations, full of ties: arrivals and steps of few ticks, memories of few blocks.

A case is drawn row by row from TABLE. A new feature is a row there: where it is a limit, its name in `Limits`;
where it belongs to the run or to the requests, its name in `Case`.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any, Final, Protocol

import numpy as np

from policies.registry import ORDERS, POLICIES
from policies.routers import ROUTERS
from simulator.cost.check import check_cost
from simulator.cost.step import Cost
from simulator.engines.clients import CLOSED, GROUPED, OPEN, Habits, Talks
from simulator.engines.fast import run_fast
from simulator.engines.fleet import add_changes
from simulator.engines.job import Job, array_job, links_of, list_job, request_columns, talks_of
from simulator.engines.plans import Plans
from simulator.engines.pools import Pool
from simulator.engines.reference import run_reference
from simulator.engines.scaler import Scaler, Shift
from simulator.engines.signals import KNOWS_ALL, Knows, add_signals
from simulator.engines.world import Acceptance
from simulator.selftest.knowing import some_asks, some_knowledge
from simulator.state import Limits
from simulator.units import NEVER

LOADS: Final = {"open": OPEN, "closed": CLOSED, "grouped": GROUPED}
PATIENT: Final = Habits()
"""Clients who only wait for their answers."""
ONE: Final = 2**32
"""A linear coefficient of 1 ns."""
ENGINES: Final = ("reference", "fast", "fast without leaps")
"""The SimPy engine; the compiled one; the compiled one without lane and quiet runs."""


@dataclass(frozen=True)
class Case:
    """Everything a run needs. Request columns are tuples of length N."""

    policy: str
    arrival: tuple[int, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    limit: tuple[int, ...]
    cached: tuple[int, ...]
    pick: tuple[int, ...]
    limits: Limits
    cost: Cost
    replicas: int = 1
    router: str = "round_robin"
    load: str = "open"
    width: int = 1
    until: int | None = None
    chains: tuple[tuple[int, ...], ...] = ()
    """Numbers of each request's shared leading blocks; given when the prefix cache is on."""
    asks: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Columns that the policy needs (registry.ASKS)."""
    salts: tuple[int, ...] = ()
    chances: tuple[int, ...] = ()
    """Of engines.world.Acceptance; given when drafts are made."""
    talk: tuple[int, ...] = ()
    """Conversation of each request, in which turns follow answers; empty: each stands alone."""
    pause: tuple[int, ...] = ()
    """[ns] that a client lets pass after the answer to each request; empty: none."""
    habits: Habits = PATIENT
    others: tuple[Pool, ...] = ()
    """Pools beside the one of `limits`, `cost` and `replicas`; this and what follows is drawn by fleets.py."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Pools that requests may go to: requests belong to these groups in turn. With a link the second half of them is
    for the second half of the way of those in the first."""
    link: tuple[int, int, int] | None = None
    """[2^-LINK_BITS ns] a token, [ns] latency and layers of hand-overs (engines.world.Links)."""
    changes: tuple[tuple[int, int, int, int], ...] = ()
    """What happens to replicas (engines.plans.Plans), when that is found and tried again, and the notice [ns]."""
    found_after: int = 0
    retry: int = 1
    notice: int = 0
    retries: int | None = None
    """How often the gateway submits again what was lost; None: any number of times."""
    knows: Knows = KNOWS_ALL
    scalers: tuple[Scaler, ...] = ()
    shifts: tuple[Shift, ...] = ()


class Choose(Protocol):
    """Where the numbers of a case come from."""

    def among(self, *options: Any) -> Any:
        """One of the options; repeat one to make it likelier."""

    def numbers(self, n: int, low: int, high: int) -> list[int]:
        """n numbers from low to high."""


class Uniform:
    """Numbers from a seed: every choice equally likely, so that rare combinations come up."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def among(self, *options: Any) -> Any:
        return options[int(self.random.random() * len(options))]

    def numbers(self, n: int, low: int, high: int) -> list[int]:
        span, number = high - low + 1, self.random.random
        return [low + int(number() * span) for _ in range(n)]


Draft = Any
"""What has been drawn so far, by name."""
Row = tuple[str, Callable[[Choose, Draft], Any]]

TABLE: Final[tuple[Row, ...]] = (
    ("policy", lambda c, d: c.among(*sorted(POLICIES))),
    ("tick", lambda c, d: c.among(1, 1, 1_000, 1_000_000)),
    ("n", lambda c, d: c.numbers(1, 1, d.most)[0]),
    # the requests
    ("prompt", lambda c, d: c.numbers(d.n, 1, c.among(3, d.longest_prompt))),
    ("output", lambda c, d: c.numbers(d.n, 1, c.among(3, d.longest_output))),
    ("limit", lambda c, d: _added(d.output, c.numbers(d.n, 0, c.among(0, 0, 4)))),
    ("cached", lambda c, d: [min(both) for both in zip(c.numbers(d.n, 0, c.among(0, 0, 25)), d.prompt, strict=True)]),
    ("pick", lambda c, d: c.numbers(d.n, 0, 99)),
    ("arrival", lambda c, d: [t * d.tick for t in sorted(c.numbers(d.n, 0, c.among(0, 3, 20, 100)))]),
    # the limits
    ("max_num_seqs", lambda c, d: c.among(1, 2, 3, 4, 6)),
    ("max_num_batched_tokens", lambda c, d: max(d.max_num_seqs, c.among(1, 8, 20, 200))),
    ("long_prefill_token_threshold", lambda c, d: c.among(0, 0, 5)),
    ("watermark_blocks", lambda c, d: c.among(0, 1, 2)),
    ("reserve_prompt", lambda c, d: c.among(0, 1)),
    ("block_size", lambda c, d: c.among(1, 3, 4, 16)),
    ("num_blocks", lambda c, d: c.among(4, 7, 12, 30, 1000)),
    ("max_model_len", lambda c, d: c.among(40, 10**6, 10**6)),
    ("contiguous", lambda c, d: c.among(0, 0, 1)),
    ("reserve_tokens", lambda c, d: c.among(0, 40) if d.contiguous else 0),
    ("batch_window", lambda c, d: c.among(0, 3, 5) * d.tick if d.policy == "static" else 0),
    ("length_bucket", lambda c, d: c.among(0, 0, 4) if d.policy == "static" else 0),
    ("stream", lambda c, d: c.among(0, 1) if d.policy == "static" else 1),
    ("padding", lambda c, d: c.among(0, 1, 2) if d.policy == "static" else 0),
    ("stages", lambda c, d: c.among(0, 0, 0, 2, 3, 4) if POLICIES[d.policy].pipelines else 0),
    ("schedule_ahead", lambda c, d: d.stages - c.among(0, 0, 1) if d.stages else c.among(0, 1, 1, 2)),
    ("whole_prompt", lambda c, d: int(POLICIES[d.policy].whole_prompt)),
    ("prefix", lambda c, d: c.among(0, 1) if POLICIES[d.policy].prefix_cache and not d.contiguous else 0),
    ("window", lambda c, d: c.among(0, 1, 3, 4, 8, 16, 30)
     if d.policy == "chunked" and not d.contiguous and not d.prefix and not d.stages else 0),
    ("chunked", lambda c, d: c.among(0, 0, 1) if d.window else 0),
    ("full_groups", lambda c, d: c.among(0, 1, 1, 2) if d.window else 1),
    ("window_groups", lambda c, d: c.among(1, 1, 2, 5) if d.window else 0),
    ("draft_tokens", lambda c, d: c.among(0, 0, 1, 2, 4)
     if POLICIES[d.policy].drafts and not d.contiguous and not d.window and not d.stages else 0),
    ("lookahead", lambda c, d: c.among(0, d.draft_tokens)),
    ("rehearse", lambda c, d: c.among(0, 1) if d.draft_tokens else 0),
    ("order", lambda c, d: ORDERS.get(d.policy, 0)),
    ("aging", lambda c, d: c.among(0, 0, 3, 20) * d.tick if d.policy == "priority" else 0),
    ("shed_waiting", lambda c, d: c.among(0, 0, 0, 1, 3)),
    ("shed_priority", lambda c, d: c.among(0, 1, 2) if d.shed_waiting else 0),
    ("asks", lambda c, d: some_asks(c, d.policy, d.shed_waiting, d.n, d.tick)),
    ("max_waiting", lambda c, d: c.among(0, 0, 0, 1, 3)),
    ("predicted_ttft", lambda c, d: 0 if POLICIES[d.policy].ordered else c.among(0, 0, 0, 4, 20) * d.tick),
    ("preferred_sizes", lambda c, d: c.among(0, 0, 1, *(size + (size - 1) * 2**20 for size in (2, 3, 4)
     if size <= d.max_num_seqs)) if d.policy == "static" else 0),
    ("served_ratio", lambda c, d: c.among(0, 2**15, 2**16, 3 * 2**16) if d.policy == "tgi" else 0),
    ("max_waiting_tokens", lambda c, d: c.among(0, 1, 3, 20) if d.policy == "tgi" else 0),
    ("quantum", lambda c, d: c.among(1, 3, 20) * d.tick if d.policy == "fastserve" else 0),
    ("starvation", lambda c, d: c.among(5, 40, 10**6) * d.tick if d.policy == "fastserve" else 0),
    ("max_batch", lambda c, d: c.among(0, 1, 2) if d.policy == "fastserve" else 0),
    ("swap_blocks", lambda c, d: c.among(0, 3, 12, 10**6) if POLICIES[d.policy].swaps and not d.contiguous else 0),
    ("offload_blocks", lambda c, d: c.among(0, 0, 3, 12, 9999) if d.prefix and not (d.draft_tokens or d.stages) else 0),
    ("offload_ns", lambda c, d: c.among(1, d.tick, 3 * d.tick) if d.offload_blocks else 0),
    ("swap_ns", lambda c, d: c.among(0, 1, 3) * d.tick if d.swap_blocks else 0),
    ("hand_over", lambda c, d: 0),  # of fleets.handing_over
    # the run
    ("salts", lambda c, d: c.numbers(2, 0, 2**32 - 1) if d.draft_tokens else ()),
    ("chances", lambda c, d: sorted((c.among(0, 2**30, 2**31, 2**32) for _ in range(d.draft_tokens)), reverse=True)),
    ("chains", lambda c, d: some_chains(c, d.prompt, d.output, d.block_size) if d.prefix else ()),
    ("cost", lambda c, d: some_cost(c, d.tick)),
    ("replicas", lambda c, d: c.among(1, 1, 2, 3)),
    ("router", lambda c, d: c.among(*sorted(ROUTERS))),
    ("knows", lambda c, d: some_knowledge(c, d.router, d.prefix, d.tick)),
    ("load", lambda c, d: c.among("open", "open", "closed", "grouped")),
    ("width", lambda c, d: 1 if d.load == "open" else c.among(1, 2, 3, 5)),
    ("until", lambda c, d: c.among(None, None, 30 * d.tick)),
    # the clients
    ("talk", lambda c, d: c.numbers(d.n, 0, c.among(2, 9)) if d.load != "grouped" and c.among(0, 0, 1) else ()),
    ("pause", lambda c, d: some_pauses(c, d) if d.talk or (d.load == "closed" and c.among(0, 1)) else ()),
    ("habits", lambda c, d: some_habits(c, d) if c.among(0, 0, 1) else PATIENT),
    ("beside", lambda c, d: c.among(0, ONE, ONE // 3)),
)
"""(name, how it is drawn), in this order; a row may look at those above it."""


def some_case(choose: Choose, given: Mapping[str, Any] | None = None, most: int = 20, longest: int = 25) -> Case:
    """A case of up to `most` requests, prompts and outputs up to `longest` tokens; `given` rows are not drawn."""
    draft: Draft = SimpleNamespace(most=most, longest_prompt=longest, longest_output=longest)
    for name, draw in TABLE:
        setattr(draft, name, given[name] if given and name in given else draw(choose, draft))
    if not given or "cost" not in given:
        draft.cost = draft.cost._replace(beside_context_fp=np.int64(draft.beside))
    draft.limits = Limits(**{name: getattr(draft, name) for name in Limits._fields if hasattr(draft, name)})
    drawn = {field.name: getattr(draft, field.name) for field in fields(Case) if hasattr(draft, field.name)}
    columns: dict[str, Any] = {name: tuple(it) if isinstance(it, list) else it for name, it in drawn.items()}
    return Case(**columns)


def _added(column: list[int], more: list[int]) -> list[int]:
    return [a + b for a, b in zip(column, more, strict=True)]


def some_cost(choose: Choose, tick: int) -> Cost:
    """A cost with times of a few ticks: zero-length steps, steps bound by the CPU, eager steps."""
    wide = choose.among(1, 2, 5, 9)

    def table(most: int) -> Any:
        return np.array([choose.numbers(wide, 0, most), choose.numbers(wide, 0, most)], dtype=np.int64)

    def linear() -> np.int64:
        return np.int64(choose.among(0, ONE, ONE // 3, 2 * ONE + 12345))

    def few() -> np.int64:
        return np.int64(choose.among(0, 0, 1, 2) * tick)

    prep, prep_seq = table(choose.among(0, 1)) * tick, few()
    return check_cost(
        Cost(
            dense_ns=(table(5) + choose.among(0, 1)) * tick, cpu_ns=prep + table(choose.among(0, 4)) * tick,
            prep_ns=prep, eager=table(choose.among(0, 1)), head_ns=table(choose.among(0, 2)) * tick,
            slope_fp=linear(), decode_context_fp=linear(),
            decode_seq_fp=linear(), prefill_pair_fp=linear(), prefill_token_fp=linear(), prefill_seq_fp=linear(),
            seen_context_fp=linear(), seen_pair_fp=linear(), cpu_seq_ns=prep_seq + few(),
            prep_seq_ns=prep_seq, frontend_in_ns=few(), frontend_each_ns=few(),
            frontend_out_ns=few(), layers=np.int64(choose.among(1, 3, 4, 7)), plan_ns=few(), plan_seq_ns=few(),
            pause_ns=few(), crowded=np.int64(choose.among(1000, 1250)), hop_ns=few(), hop_fp=linear(),
        )
    )  # fmt: skip


def some_pauses(choose: Choose, draft: Draft) -> list[int]:
    """Pauses after answers, of conversations or of closed clients."""
    return [pause * draft.tick for pause in choose.numbers(draft.n, 0, choose.among(0, 3, 20))]


def some_habits(choose: Choose, draft: Draft) -> Habits:
    """Clients who start one after the other, wait for a place, give up, try again."""
    tick, load = draft.tick, draft.load
    patient = not POLICIES[draft.policy].aborts or draft.draft_tokens > 0 or choose.among(0, 1) == 1
    ttft = 0 if patient else choose.among(0, 2, 6, 30) * tick
    backoff = choose.among(0, 1, 5) * tick
    return Habits(
        ramp_ns=choose.among(0, 7, 40) * tick if load == "closed" else 0,
        max_in_flight=choose.among(0, 1, 2, 4) if load == "open" and not draft.talk else 0, ttft_ns=ttft,
        total_ns=0 if patient else choose.among(0, ttft + choose.among(0, 5, 40) * tick),
        attempts=1 if draft.draft_tokens else choose.among(1, 1, 2, 4), backoff_ns=backoff,
        longest_ns=backoff * choose.among(1, 3),
    )  # fmt: skip


def as_told(case: Case) -> Case:
    """The case with clients who only wait for answers, at replicas that take whoever can run."""
    limits = case.limits._replace(max_waiting=0, predicted_ttft=0, shed_waiting=0)
    return replace(case, talk=(), pause=(), habits=PATIENT, limits=limits)


def some_chains(choose: Choose, prompt: list[int], output: list[int], block_size: int) -> tuple[tuple[int, ...], ...]:
    """A few conversations: requests of one have its blocks, as far as they go, or as far as they follow it."""
    n = len(prompt)
    talk, leaves = choose.numbers(n, 0, choose.among(0, 1, 3)), choose.numbers(n, 0, choose.among(0, 25))
    full = [(p + o - 1) // block_size for p, o in zip(prompt, output, strict=True)]
    return tuple(tuple(100 * t + j for j in range(max(0, f - leave)))
                 for t, f, leave in zip(talk, full, leaves, strict=True))  # fmt: skip


def job(case: Case, compiled: bool, log: bool = True, plans: Plans | None = None) -> Job:
    """The case as a job of one of the engines; `plans`: in place of its changes."""
    link, groups, policy = case.link, case.groups, POLICIES[case.policy]
    begin = len(groups) // 2 if link else len(groups)
    ends = np.cumsum([len(chain) for chain in case.chains]) if case.limits.prefix else None
    habits = case.habits
    restless = habits.ttft_ns > 0 or habits.total_ns > 0 or habits.attempts > 1
    req = request_columns(case.arrival, case.prompt, case.output, case.limit, case.cached, case.pick, ends,
                          np.arange(len(case.arrival)) % begin if groups else (),
                          dict(case.asks), policy.ordered, link is not None, restless, case.limits.swap_blocks > 0,
                          case.limits.offload_blocks > 0, case.retries is not None)
    chain = [number for numbers in case.chains for number in numbers]
    made = (array_job if compiled else list_job)(req, case.limits, case.cost, case.replicas, log, chain,
                                                 case.others, groups, policy.aux + 3 * policy.aux_per_tenant)
    made.router, made.load, made.width = ROUTERS[case.router], LOADS[case.load], case.width
    made.until, made.habits = NEVER if case.until is None else case.until, habits
    talks = following(case)
    made.talks = talks if compiled else Talks(*(column.tolist() for column in talks))
    if (case.changes or case.scalers) and plans is None:
        plans = Plans(case.changes, case.found_after, case.retry, case.notice, case.scalers, case.shifts, case.retries)
    if plans is not None:
        add_changes(made, plans, compiled)
    if case.salts:
        made.acceptance = Acceptance(*(np.array(each) if compiled else each for each in (case.salts, case.chances)))
    if case.knows != KNOWS_ALL:
        add_signals(made, case.knows)
    if link:
        made.links = links_of([link[0]] * made.replicas, link[1], begin, compiled, link[2])
    return made


def following(case: Case) -> Talks:
    """Who follows whom, in the order in which they are listed."""
    talks = talks_of(len(case.prompt) if case.talk else 0)
    before: dict[int, int] = {}
    for i, talk in enumerate(case.talk):
        if talk in before:
            talks.after[before[talk]], talks.follows[i] = i, 1
        before[talk] = i
    return talks._replace(pause=np.array(case.pause, dtype=np.int64))


def run(case: Case, engine: str) -> Job:
    """Run the case on one of ENGINES; columns come back as arrays."""
    return ran(job(case, engine != "reference"), case.policy, engine)


def ran(made: Job, policy: str, engine: str) -> Job:
    """A job made for one of ENGINES, run on it; columns come back as arrays."""
    if engine == "reference":
        return run_reference(made, POLICIES[policy])
    run_fast(made, POLICIES[policy], leaps=engine == "fast")
    return made


def outcome(done: Job) -> dict[str, Any]:
    """All that a run leaves, as plain lists: request columns, totals, histograms, the step log."""
    rows = done.logged
    found = {name: column.tolist() for name, column in done.req._asdict().items()}
    found["totals"] = done.stats.tolist()
    found["itl"] = [(int(k), int(done.itl[k])) for k in np.nonzero(done.itl)[0]]
    found["rows_time"] = done.rows_time.tolist()
    found["fleet"] = done.fleet.tolist()
    found["log"] = rows[np.lexsort((rows["start"], rows["replica"], rows["end"]))].tolist()
    return found


def differences(case: Case, engines: tuple[str, ...] = ENGINES) -> dict[str, Any]:
    """What the other engines leave that the first does not: {"engine: column": (of the first, found)}."""
    return unlike({engine: outcome(run(case, engine)) for engine in engines})


def unlike(outcomes: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The columns in which outcomes differ from the first: {"engine: column": (of the first, found)}."""
    (_, wanted), *others = outcomes.items()
    return {f"{engine}: {name}": (wanted[name], got[name])
            for engine, got in others for name in wanted if got[name] != wanted[name]}

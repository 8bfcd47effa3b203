"""Random small simulations, full of ties: arrivals and steps of few ticks, memories of few blocks."""

import random
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st

from policies.registry import POLICIES
from policies.routers import ROUTERS
from simulator.cost.check import check_cost
from simulator.cost.step import Cost
from simulator.engines.clients import CLOSED, GROUPED, OPEN
from simulator.engines.fast import run_fast
from simulator.engines.job import Job, array_job, list_job, request_columns
from simulator.engines.reference import run_reference
from simulator.engines.world import Acceptance
from simulator.state import Limits
from simulator.units import NEVER

LOADS = {"open": OPEN, "closed": CLOSED, "grouped": GROUPED}
ONE = 2**32
"""A linear coefficient of 1 ns."""


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
    salts: tuple[int, ...] = ()
    chances: tuple[int, ...] = ()
    """Of engines.world.Acceptance; given when drafts are made."""


class Choose(Protocol):
    """Where the numbers of a case come from."""

    def among(self, *options: Any) -> Any:
        """One of the options; repeat one to make it likelier."""

    def numbers(self, n: int, low: int, high: int) -> list[int]:
        """n numbers from low to high."""


class Shrinking:
    """Numbers drawn by hypothesis: favours extremes and repeats, and a failure shrinks to a small case."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def among(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def numbers(self, n: int, low: int, high: int) -> list[int]:
        return list(self.draw(st.lists(st.integers(low, high), min_size=n, max_size=n)))


class Uniform:
    """Numbers from a seed: every choice equally likely, so that rare combinations come up."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def among(self, *options: Any) -> Any:
        return self.random.choice(options)

    def numbers(self, n: int, low: int, high: int) -> list[int]:
        return [self.random.randint(low, high) for _ in range(n)]


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
            prep_ns=prep, eager=table(choose.among(0, 1)), slope_fp=linear(), decode_context_fp=linear(),
            decode_seq_fp=linear(), prefill_pair_fp=linear(), prefill_token_fp=linear(), prefill_seq_fp=linear(),
            cpu_seq_ns=prep_seq + few(), prep_seq_ns=prep_seq, frontend_in_ns=few(), frontend_each_ns=few(),
            frontend_out_ns=few(),
        )
    )  # fmt: skip


def some_limits(choose: Choose, policy: str, tick: int, ahead: int | None) -> Limits:
    """Limits that bind: few slots, budgets the size of a prompt, memories the size of a request."""
    seqs, layout, static = choose.among(1, 2, 3, 4, 6), choose.among(0, 0, 1), policy == "static"
    return Limits(
        max_num_seqs=seqs, max_num_batched_tokens=max(seqs, choose.among(1, 8, 20, 200)),
        long_prefill_token_threshold=choose.among(0, 0, 5), watermark_blocks=choose.among(0, 1, 2),
        reserve_prompt=choose.among(0, 1), block_size=choose.among(1, 3, 4, 16),
        num_blocks=choose.among(4, 7, 12, 30, 1000), max_model_len=choose.among(40, 10**6, 10**6),
        contiguous=layout, reserve_tokens=choose.among(0, 40) if layout else 0,
        batch_window=choose.among(0, 3, 5) * tick if static else 0,
        length_bucket=choose.among(0, 0, 4) if static else 0, stream=choose.among(0, 1) if static else 1,
        schedule_ahead=choose.among(0, 1, 1, 2) if ahead is None else ahead,
        whole_prompt=int(POLICIES[policy].whole_prompt), padding=choose.among(0, 1, 2) if static else 0,
    )  # fmt: skip


def some_case(choose: Choose, ahead: int | None, most: int) -> Case:
    """A whole case of up to `most` requests; arrivals are in order."""
    policy = choose.among(*sorted(POLICIES))
    tick = choose.among(1, 1, 1_000, 1_000_000)
    n = choose.numbers(1, 1, most)[0]
    prompt = choose.numbers(n, 1, choose.among(3, 25))
    output = choose.numbers(n, 1, choose.among(3, 25))
    early = choose.numbers(n, 0, choose.among(0, 0, 4))
    shared = choose.numbers(n, 0, choose.among(0, 0, 25))
    load = choose.among("open", "open", "closed", "grouped")
    limits = some_limits(choose, policy, tick, ahead)
    chains: tuple[tuple[int, ...], ...] = ()
    if policy == "chunked" and limits.contiguous == 0 and choose.among(0, 1) == 1:
        limits = limits._replace(prefix=1)
        chains = some_chains(choose, prompt, output, limits.block_size)
    salts: list[int] = []
    chances: list[int] = []
    if policy == "chunked" and limits.contiguous == 0 and choose.among(0, 1) == 1:
        tokens = choose.among(1, 2, 4)
        limits = limits._replace(draft_tokens=tokens, lookahead=choose.among(0, tokens), rehearse=choose.among(0, 1))
        salts = choose.numbers(2, 0, 2**32 - 1)
        chances = sorted((choose.among(0, 2**30, 2**31, 2**32) for _ in range(tokens)), reverse=True)
    return Case(
        policy, tuple(t * tick for t in sorted(choose.numbers(n, 0, choose.among(0, 3, 20, 100)))), tuple(prompt),
        tuple(output), tuple(a + b for a, b in zip(output, early, strict=True)),
        tuple(min(a, b) for a, b in zip(shared, prompt, strict=True)), tuple(choose.numbers(n, 0, 99)),
        limits, some_cost(choose, tick), replicas=choose.among(1, 1, 2, 3),
        router=choose.among(*sorted(ROUTERS)), load=load, width=1 if load == "open" else choose.among(1, 2, 3, 5),
        until=choose.among(None, None, 30 * tick), chains=chains, salts=tuple(salts), chances=tuple(chances),
    )  # fmt: skip


def some_chains(choose: Choose, prompt: list[int], output: list[int], block_size: int) -> tuple[tuple[int, ...], ...]:
    """A few conversations: requests of one have its blocks, as far as they go, or as far as they follow it."""
    n = len(prompt)
    talk, leaves = choose.numbers(n, 0, choose.among(0, 1, 3)), choose.numbers(n, 0, choose.among(0, 25))
    full = [(p + o - 1) // block_size for p, o in zip(prompt, output, strict=True)]
    return tuple(tuple(100 * t + j for j in range(max(0, f - leave)))
                 for t, f, leave in zip(talk, full, leaves, strict=True))  # fmt: skip


@st.composite
def _shrinking(draw: Any, ahead: int | None, most: int) -> Case:
    return some_case(Shrinking(draw), ahead, most)


def cases(ahead: int | None = None, most: int = 20) -> st.SearchStrategy[Case]:
    """Cases of both kinds: drawn by hypothesis, and uniform from a seed."""
    seeds = st.integers(0, 2**40)
    return st.one_of(_shrinking(ahead, most), seeds.map(lambda seed: some_case(Uniform(seed), ahead, most)))


def job(case: Case, compiled: bool, log: bool = True) -> Job:
    """The case as a job of one of the engines."""
    ends = np.cumsum([len(chain) for chain in case.chains]) if case.limits.prefix else None
    req = request_columns(case.arrival, case.prompt, case.output, case.limit, case.cached, case.pick, ends)
    chain = [number for numbers in case.chains for number in numbers]
    made = (array_job if compiled else list_job)(req, case.limits, case.cost, case.replicas, log, chain)
    made.router, made.load, made.width = ROUTERS[case.router], LOADS[case.load], case.width
    made.until = NEVER if case.until is None else case.until
    if case.salts:
        made.acceptance = Acceptance(*(np.array(each) if compiled else each for each in (case.salts, case.chances)))
    return made


def run(case: Case, engine: str) -> Job:
    """Run the case on "reference", "fast" or "fast without leaps"; columns come back as arrays."""
    made = job(case, engine != "reference")
    if engine == "reference":
        return run_reference(made, POLICIES[case.policy])
    run_fast(made, POLICIES[case.policy], leaps=engine == "fast")
    return made


def outcome(done: Job) -> dict[str, Any]:
    """All that a run leaves, as plain lists: request columns, totals, histograms, the step log."""
    rows = done.logged
    found = {name: column.tolist() for name, column in done.req._asdict().items()}
    found["totals"], found["itl"] = (
        done.stats.tolist(),
        [(int(k), int(done.itl[k])) for k in np.nonzero(done.itl)[0]],
    )
    found["rows_time"] = done.rows_time.tolist()
    found["log"] = rows[np.lexsort((rows["start"], rows["replica"], rows["end"]))].tolist()
    return found

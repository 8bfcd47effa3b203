"""Random small simulations, full of ties: arrivals and steps of few ticks, memories of few blocks."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from policies.registry import POLICIES
from policies.routers import ROUTERS
from simulator.cost.check import check_cost
from simulator.cost.step import Cost
from simulator.engines.booking import CLOSED, GROUPED, LOG_ROWS, OPEN
from simulator.engines.fast import run_fast
from simulator.engines.job import Job, array_job, list_job, request_columns
from simulator.engines.reference import run_reference
from simulator.state import LOG_FIELDS, Limits
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


@st.composite
def tables(draw: Any, tick: int) -> Cost:
    """A cost with times of a few ticks: zero-length steps, steps bound by the CPU, eager steps."""
    wide = draw(st.integers(1, 9))

    def table(most: int) -> Any:
        return np.array(
            draw(st.lists(st.lists(st.integers(0, most), min_size=wide, max_size=wide), min_size=2, max_size=2)),
            dtype=np.int64,
        )

    def linear() -> np.int64:
        return np.int64(draw(st.sampled_from([0, ONE, ONE // 3, 2 * ONE + 12345])))

    def few() -> np.int64:
        return np.int64(draw(st.sampled_from([0, 0, 1, 2])) * tick)

    prep = table(draw(st.sampled_from([0, 1]))) * tick
    prep_seq = few()
    dense = (table(5) + draw(st.sampled_from([0, 1]))) * tick
    return check_cost(
        Cost(
            dense_ns=dense,
            cpu_ns=prep + table(draw(st.sampled_from([0, 4]))) * tick,
            prep_ns=prep,
            eager=table(draw(st.sampled_from([0, 1]))),
            slope_fp=linear(),
            decode_context_fp=linear(),
            decode_seq_fp=linear(),
            prefill_pair_fp=linear(),
            prefill_token_fp=linear(),
            prefill_seq_fp=linear(),
            cpu_seq_ns=prep_seq + few(),
            prep_seq_ns=prep_seq,
            frontend_in_ns=few(),
            frontend_each_ns=few(),
            frontend_out_ns=few(),
        )
    )


@st.composite
def limits(draw: Any, policy: str, tick: int, max_len: int, contiguous: bool | None, ahead: int | None) -> Limits:
    """Limits that bind: few slots, budgets the size of a prompt, memories the size of a request."""
    seqs = draw(st.integers(1, 6))
    layout = draw(st.booleans()) if contiguous is None else contiguous
    return Limits(
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, draw(st.sampled_from([1, 8, 20, 200]))),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 5])),
        watermark_blocks=draw(st.sampled_from([0, 1, 2])),
        reserve_prompt=draw(st.integers(0, 1)),
        block_size=draw(st.sampled_from([1, 3, 4, 16])),
        num_blocks=draw(st.sampled_from([4, 7, 12, 30, 1000])),
        max_model_len=draw(st.sampled_from([max_len, 10**6])),
        contiguous=int(layout),
        reserve_tokens=draw(st.sampled_from([0, 40])) if layout else 0,
        batch_window=draw(st.sampled_from([0, 3, 5])) * tick if policy == "static" else 0,
        length_bucket=draw(st.sampled_from([0, 0, 4])) if policy == "static" else 0,
        stream=draw(st.integers(0, 1)) if policy == "static" else 1,
        schedule_ahead=draw(st.sampled_from([0, 1, 1, 2])) if ahead is None else ahead,
        whole_prompt=int(POLICIES[policy].whole_prompt),
    )


@st.composite
def cases(draw: Any, contiguous: bool | None = None, ahead: int | None = None, most: int = 20) -> Case:
    """A whole case; arrivals are already in order. `most` bounds the number of requests."""
    policy = draw(st.sampled_from(sorted(POLICIES)))
    tick = draw(st.sampled_from([1, 1, 1_000, 1_000_000]))
    n = draw(st.integers(1, most))

    def column(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    span = draw(st.sampled_from([0, 3, 20, 100]))
    prompt, output = column(1, draw(st.sampled_from([3, 25]))), column(1, draw(st.sampled_from([3, 25])))
    early = column(0, draw(st.sampled_from([0, 0, 4])))
    shared = column(0, draw(st.sampled_from([0, 0, 25])))
    lim = draw(limits(policy, tick, 40, contiguous, ahead))
    load = draw(st.sampled_from(["open", "open", "closed", "grouped"]))
    return Case(
        policy,
        tuple(t * tick for t in sorted(column(0, span))),
        tuple(prompt),
        tuple(output),
        tuple(a + b for a, b in zip(output, early, strict=True)),
        tuple(min(a, b) for a, b in zip(shared, prompt, strict=True)),
        tuple(column(0, 99)),
        lim,
        draw(tables(tick)),
        replicas=draw(st.sampled_from([1, 1, 2, 3])),
        router=draw(st.sampled_from(sorted(ROUTERS))),
        load=load,
        width=1 if load == "open" else draw(st.integers(1, 5)),
        until=draw(st.sampled_from([None, None, 30 * tick])),
    )


def job(case: Case, compiled: bool, log: bool = True) -> Job:
    """The case as a job of one of the engines."""
    req = request_columns(case.arrival, case.prompt, case.output, case.limit, case.cached, case.pick)
    made = (array_job if compiled else list_job)(req, case.limits, case.cost, case.replicas, log)
    made.router, made.load, made.width = ROUTERS[case.router], LOADS[case.load], case.width
    made.until = NEVER if case.until is None else case.until
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
    rows = np.asarray(done.log[: done.ctl[LOG_ROWS]], dtype=np.int64).reshape(-1, len(LOG_FIELDS))
    found = {name: column.tolist() for name, column in done.req._asdict().items()}
    found["totals"], found["itl"] = (
        done.stats.tolist(),
        [(int(k), int(done.itl[k])) for k in np.nonzero(done.itl)[0]],
    )
    found["rows_time"] = done.rows_time.tolist()
    found["log"] = rows[np.lexsort((rows[:, 1], rows[:, 0], rows[:, 2]))].tolist()
    return found

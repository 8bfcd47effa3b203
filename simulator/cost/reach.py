"""How far a run can go: the largest counts, the longest step and the longest wait, all checked before it starts.

The engines compute in int64. A step's time is exact as long as it fits (`step.scaled`), so it is enough to know
that the longest step, and what is added up over steps, fits; sums over a whole run are checked at its end
(`engines.job.check_sums`). The bounds are Python integers and generous: nothing that runs on a real GPU meets them.
"""

from typing import Any, Final, NamedTuple

from simulator.cost.step import Cost, decode_attention_time, prefill_attention_time, scaled
from simulator.errors import ConfigError
from simulator.state import Limits
from simulator.units import MAX_TICKS, NS_PER_S

LONGEST_STEP_NS: Final = 2**50
"""[ns] 13 days."""
LAST_TICK: Final = 2**61
"""[tick] 73 years: where a run without a horizon is stopped. A step and every wait after it still fit int64."""


class Reach(NamedTuple):
    """The largest counts that one step of a run can have."""

    rows: int      # sequences
    tokens: int    # tokens computed, padding included
    context: int   # [tokens] summed over the decodes, padding included
    pairs: int     # query-key pairs of its prefills
    answer: int    # [tokens] longest answer
    copies: int    # [ns] to copy every KV block to host memory and back


def reach(lim: Limits, budgeted: bool, prompt: int, answer: int, requests: int) -> Reach:
    """Largest counts for requests of up to `prompt` and `answer` tokens; `budgeted`: the policy has a token budget.

    What is longer than max_model_len is refused and never runs. A sequence may be recomputed with its answer,
    and its last step has drafts beyond that. TGI rounds its budget up to whole blocks (policies/tgi.py).
    """
    answer = min(answer, lim.max_model_len)
    whole = min(prompt, lim.max_model_len) + answer + lim.draft_tokens
    rows = min(lim.max_num_seqs, requests)
    budget = -(-lim.max_num_batched_tokens // lim.block_size) * lim.block_size
    tokens = max(budget, whole) if budgeted else rows * whole
    return Reach(rows, tokens, rows * whole, tokens * whole, answer, 2 * lim.num_blocks * lim.swap_ns)


def longest_step(cost: Cost, most: Reach, stages: int = 0) -> int:
    """[ns] no step of these counts takes longer, GPU and CPU time of all `stages` together."""
    plain = exact(cost)
    gpu = (_longest_dense(plain, most.tokens) + decode_attention_time(plain, most.rows, most.context)
           + prefill_attention_time(plain, most.rows, most.tokens, most.pairs)
           + scaled(most.context, plain.beside_context_fp) + scaled(most.context, plain.seen_context_fp)
           + scaled(most.pairs, plain.seen_pair_fp))
    gpu = gpu * int(plain.crowded) // 1000 + most.copies
    passing = int(plain.plan_ns) + most.rows * int(plain.plan_seq_ns) + int(plain.pause_ns) + stages * (
        int(plain.hop_ns) + scaled(most.tokens, plain.hop_fp))
    return int(gpu) + max(stages, 1) * (int(cost.cpu_ns.max()) + most.rows * int(plain.cpu_seq_ns)) + passing


def exact(cost: Cost) -> Cost:
    """The cost with its coefficients as Python integers, which cannot overflow."""
    fields: Any = (value if getattr(value, "shape", ()) else int(value) for value in cost)
    return Cost(*fields)


def _longest_dense(plain: Cost, tokens: int) -> int:
    """[ns] no dense part of up to `tokens` tokens takes longer."""
    beyond = max(0, tokens - plain.dense_ns.shape[1] + 1)
    return int(plain.dense_ns.max()) + scaled(beyond, plain.slope_fp)


def check_reach(cost: Cost, most: Reach, requests: int, stages: int = 0) -> None:
    """Raise ConfigError when a step, an answer or the front end's queue could leave int64."""
    longest = longest_step(cost, most, stages)
    asked = f"{most.tokens} tokens with {most.context} tokens of context"
    if most.pairs >= 2**62 or most.context >= 2**62:
        raise ConfigError(f"a step could hold {asked}, {most.pairs} query-key pairs; accepted: fewer than 2^62")
    if longest > LONGEST_STEP_NS:
        raise ConfigError(f"a step of {asked} could take {_days(longest)}; accepted: up to {_days(LONGEST_STEP_NS)}")
    decodes = most.answer * _longest_dense(exact(cost), most.rows)
    if decodes > LAST_TICK:
        raise ConfigError(f"an answer of {most.answer} tokens could take {_days(decodes)}; accepted: up to "
                          f"{_days(LAST_TICK)}")
    if requests * int(cost.frontend_each_ns) > MAX_TICKS:
        raise ConfigError(f"the front end would take {_days(requests * int(cost.frontend_each_ns))} for {requests} "
                          f"requests; accepted: up to {_days(MAX_TICKS)}")


def _days(ticks: int) -> str:
    return f"{ticks / NS_PER_S / 86400:.3g} days"

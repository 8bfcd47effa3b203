"""What was asked of a run and is filled in: the scenario that can be rerun, and what became of its drafts."""

from typing import Any

from simulator.result import Result
from simulator.scenario.own import is_own

Block = dict[str, Any]


def resolved_scenario(result: Result) -> Block:
    """The scenario with what the engine profile filled in (policy, limits, block size); can be rerun."""
    setup, limits = result.setup, result.setup.limits
    data: Block = result.scenario.model_dump(mode="json")
    limited = {"max_num_seqs": limits.max_num_seqs, "max_num_batched_tokens": setup.token_budget}
    named = {} if is_own(setup.policy) else {"name": setup.policy.name}
    data["policy"] |= named | {k: v for k, v in limited.items() if k in setup.policy.knobs}
    data["kv"]["block_size"] = limits.block_size
    data["max_model_len"] = limits.max_model_len
    return data


def drafted(result: Result) -> Block:
    """Drafts computed for sequences still running, those that were right, tokens a sequence got from a step with
    drafts (before an answer's end cuts them)."""
    drafts, accepted, rows = (sum(result.totals[name].tolist()) for name in ("drafts", "accepted", "drafted_rows"))
    rate = accepted / drafts if drafts else None
    return {"draft_tokens": drafts, "accepted_tokens": accepted, "acceptance_rate": rate,
            "tokens_per_step": 1 + accepted / rows if rows else None}

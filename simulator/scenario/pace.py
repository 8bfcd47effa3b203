"""The token budget under which no step takes longer than a target, whatever is in it (policies/sarathi.py)."""

from simulator.cost.step import Cost, decode_attention_time, dense_time, prefill_attention_time, scaled, table_at
from simulator.errors import ConfigError
from simulator.scenario.spec import Scenario
from simulator.state import Limits
from simulator.text import seconds
from simulator.units import NS_PER_S, to_ticks


def longest_step_ns(cost: Cost, lim: Limits, tokens: int) -> int:
    """[ns] that no step of up to `tokens` tokens exceeds: every slot decodes, all KV memory that the slots can fill
    is read, and each token is that of a prompt chunk at the end of the longest request; the GPU waits for the CPU's
    preparation."""
    rows = lim.max_num_seqs
    memory = min(lim.num_blocks, rows * -(-lim.max_model_len // lim.block_size)) * lim.block_size
    dense = max(dense_time(cost, 1, tokens), dense_time(cost, 0, min(tokens, rows)))
    gpu = dense + decode_attention_time(cost, rows, memory) + scaled(memory, cost.beside_context_fp)
    gpu += prefill_attention_time(cost, min(rows, tokens), tokens, tokens * lim.max_model_len)
    prep = max(table_at(cost.prep_ns, kind, tokens) for kind in (0, 1)) + rows * cost.prep_seq_ns
    cpu = max(table_at(cost.cpu_ns, kind, tokens) for kind in (0, 1)) + rows * cost.cpu_seq_ns
    return int(max(prep + gpu, cpu))


def paced(scenario: Scenario, cost: Cost, lim: Limits, needed: bool) -> Limits:
    """The limits with the largest token budget, up to theirs, whose steps stay within policy.tbt_s.

    Raises ConfigError where a step that gives every slot its token is longer already, or `needed` is not given.
    """
    target = scenario.policy.tbt_s
    if target is None:
        if needed:
            raise ConfigError(f"{scenario.place('policy.tbt_s')} is needed: the time between tokens to keep "
                              "[s]")
        return lim
    low, high = lim.max_num_seqs, lim.max_num_batched_tokens
    least = longest_step_ns(cost, lim, low)
    if high < low or least > to_ticks(target):
        raise ConfigError(
            f"{scenario.place('policy.tbt_s')}: {target} s cannot be kept: a step that gives each of "
            f"{low} sequences a token may take {seconds(least / NS_PER_S)}; accepted: more, or a smaller max_num_seqs "
            f"({low}), max_model_len ({lim.max_model_len}) or KV memory ({lim.num_blocks} blocks)")
    while low < high:
        middle = (low + high + 1) // 2
        if longest_step_ns(cost, lim, middle) <= to_ticks(target):
            low = middle
        else:
            high = middle - 1
    return lim._replace(max_num_batched_tokens=low)

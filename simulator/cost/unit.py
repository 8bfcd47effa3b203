"""A cost for textbook examples: every step takes the same time, whatever is in the batch."""

import numpy as np

from simulator.cost.check import check_cost
from simulator.cost.step import Cost
from simulator.units import NS_PER_S


def unit_cost(step_ns: int = NS_PER_S) -> Cost:
    """Cost of `step_ns` [ns] per step; all else is 0. Raises ConfigError for a negative time."""
    step = np.full((2, 1), step_ns, dtype=np.int64)
    zeros, zero = np.zeros((2, 1), dtype=np.int64), np.int64(0)
    return check_cost(Cost(
        dense_ns=step, cpu_ns=zeros, prep_ns=zeros.copy(), eager=zeros.copy(), head_ns=zeros.copy(),
        slope_fp=zero,
        decode_context_fp=zero, decode_seq_fp=zero, prefill_pair_fp=zero, prefill_token_fp=zero,
        prefill_seq_fp=zero,
        seen_context_fp=zero, seen_pair_fp=zero, cpu_seq_ns=zero, prep_seq_ns=zero, frontend_in_ns=zero,
        frontend_each_ns=zero,
        frontend_out_ns=zero))

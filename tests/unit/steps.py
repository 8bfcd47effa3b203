"""Small runs whose ticks are worked out by hand."""

from typing import Any

import numpy as np
import pytest
from parity.cases import Case

from simulator.cost.step import Cost
from simulator.cost.unit import unit_cost
from simulator.state import Limits

ENGINES = pytest.mark.parametrize("engine", ["reference", "fast", "fast without leaps"])
LIMITS = Limits(
    max_num_seqs=4, max_num_batched_tokens=100, long_prefill_token_threshold=0, watermark_blocks=0, reserve_prompt=0,
    block_size=4, num_blocks=100, max_model_len=1000, contiguous=0, reserve_tokens=0, batch_window=0,
    length_bucket=0, stream=1, schedule_ahead=0, whole_prompt=0,
)  # fmt: skip


def requests(arrival: list[int], prompt: list[int], output: list[int], policy: str = "chunked", cost: Any = None,
             limit: list[int] | None = None, more: dict[str, Any] | None = None, **limits: int) -> Case:  # fmt: skip
    """A case of these requests; `limits` change LIMITS, `more` changes the case."""
    n = len(arrival)
    return Case(policy, tuple(arrival), tuple(prompt), tuple(output), tuple(limit or output), (0,) * n, (0,) * n,
                LIMITS._replace(**limits), cost or unit_cost(10), **(more or {}))  # fmt: skip


def cost(dense: int, cpu: int = 0, prep: int = 0, eager: int = 0, **more: int) -> Cost:
    """Every step: GPU `dense`, CPU `cpu` of which `prep` before the GPU may start."""
    one = np.ones((2, 1), dtype=np.int64)
    return unit_cost(dense)._replace(cpu_ns=cpu * one, prep_ns=prep * one, eager=eager * one,
                                     **{name: np.int64(value) for name, value in more.items()})  # fmt: skip


def times(done: Any) -> tuple[list[int], list[int], list[int]]:
    return done.req.scheduled.tolist(), done.req.first.tolist(), done.req.last.tolist()

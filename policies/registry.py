"""The policies there are, with the knobs each listens to. A knob a policy does not know is refused, not ignored."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from policies import chunked, orca, static, vllm_v0
from policies.queues import retire_finished
from simulator.errors import UnknownNameError
from simulator.jit import jitable
from simulator.state import Column, Limits, Replica, Requests

Step = Callable[[Requests, Replica, Limits, Column], None]


@jitable
def retire_default(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Free what the finished sequences held."""
    retire_finished(req, rep, lim)


@dataclass(frozen=True)
class Policy:
    """A scheduling policy: `schedule` plans a step, `retire` runs when sequences have ended."""

    name: str
    module: Any
    schedule: Step
    knobs: tuple[str, ...]
    retire: Step = retire_default
    whole_prompt: bool = False
    watermark: float | None = None
    """Share of KV blocks kept free when admitting, where the policy has its own default."""
    prefix_cache: bool = False
    """Whether it looks for known blocks when admitting."""
    drafts: bool = False
    """Whether it plans drafted tokens."""

    @property
    def summary(self) -> str:
        """First line of the module's docstring."""
        return (inspect.getdoc(self.module) or "").splitlines()[0]

    @property
    def reference(self) -> str:
        """Last paragraph of the module's docstring: where the rule comes from."""
        return (inspect.getdoc(self.module) or "").rstrip().split("\n\n")[-1].replace("\n", " ")


_SEQS = "max_num_seqs"
_BUDGET = "max_num_batched_tokens"

POLICIES: Final = {
    p.name: p
    for p in (
        Policy("static", static, static.schedule, 
               (_SEQS, "batch_window_s", "length_bucket", "stream", "padding"), retire=static.retire),
        Policy("orca", orca, orca.schedule, (_SEQS,)),
        Policy("vllm_v0", vllm_v0, vllm_v0.schedule, (_SEQS, _BUDGET, "watermark"), whole_prompt=True,
               watermark=0.01),  # vLLM 0.6 vllm/core/block_manager_v2.py, BlockSpaceManagerV2.__init__
        Policy("chunked", chunked, chunked.schedule,
               (_SEQS, _BUDGET, "long_prefill_token_threshold", "watermark", "reserve_full_prompt"), prefix_cache=True,
               drafts=True),
    )
}


def policy_named(name: str) -> Policy:
    """The policy called `name`. Raises UnknownNameError listing the known ones."""
    if name not in POLICIES:
        raise UnknownNameError("policy", name, POLICIES)
    return POLICIES[name]

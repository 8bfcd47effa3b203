"""The policies there are, with the knobs each listens to. A knob a policy does not know is refused, not ignored."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from policies import (
    by_key,
    chunked,
    earliest_deadline,
    fastserve,
    guaranteed_no_evict,
    max_utilization,
    oracle_sjf,
    orca,
    priority,
    sarathi,
    shortest_predicted,
    shortest_prompt,
    splitfuse,
    static,
    tgi,
    trtllm,
    vllm_v0,
    vtc,
)
from policies.queues import retire_finished
from simulator.errors import UnknownNameError
from simulator.jit import jitable
from simulator.state import Column, Limits, Replica, Requests

Step = Callable[[Requests, Replica, Limits, Column], None]
Key = Callable[[Requests, Limits, int], int]
Arrived = Callable[[Requests, Replica, Limits, Column, int], None]
ORDERS: Final = by_key.KEYS | trtllm.MODES
"""Limits.order of the policies that share a `schedule`."""
ASKS: Final = ("priority", "tenant", "predicted", "target", "joins")
"""Columns of the requests that are there only for a policy that needs them."""


@jitable
def retire_default(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Free what the finished sequences held."""
    retire_finished(req, rep, lim)


@jitable
def key_default(req: Requests, lim: Limits, i: int) -> int:
    """Stands for a key that nobody asks for."""
    return 0


@jitable
def arrived_default(req: Requests, rep: Replica, lim: Limits, aux: Column, i: int) -> None:
    """Nothing to do."""


@dataclass(frozen=True)
class Policy:
    """A scheduling policy: `schedule` plans a step, `retire` runs when sequences have ended.

    Hooks, all optional: `key` puts the waiting queue in its order (smaller first, ties by index), computed when a
    request enters it; `arrived` runs when a request has joined the queue.
    """

    name: str
    module: Any
    schedule: Step
    knobs: tuple[str, ...]
    retire: Step = retire_default
    key: Key = key_default
    arrived: Arrived = arrived_default
    engine: str = ""
    """Name of the compiled engine where policies share one; '' = one of its own."""
    needs: tuple[str, ...] = ()
    """Of ASKS: columns that must be filled."""
    aux: int = 1
    """Numbers that it keeps per replica (the column aux), and ..."""
    aux_per_tenant: int = 0
    """... how many more for each tenant."""
    lane: bool = True
    """Whether it knows the lane (engines/lane.py): False sees every sequence in `running`."""
    streams: bool = True
    """Whether tokens are sent as they come, unless the knob `stream` says otherwise."""
    whole_prompt: bool = False
    watermark: float | None = None
    """Share of KV blocks kept free when admitting, where the policy has its own default."""
    prefix_cache: bool = False
    """Whether it looks for known blocks when admitting."""
    aborts: bool = True
    """Whether a running request can be dropped when its client gives up."""
    swaps: bool = False
    """Whether it can preempt by swap to host memory."""
    drafts: bool = False
    """Whether it plans drafted tokens."""
    pipelines: bool = False
    """Whether it lets requests rest between two tokens, as a pipeline needs it (queues.wanted_in_turn)."""

    @property
    def ordered(self) -> bool:
        """Whether the waiting queue is in order of a key."""
        return self.key is not key_default

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
_PEERS = "peers"
_TURNS = "turns"
"""Compiled engines that several policies share: most of the work is the same for all (engines/rules.py)."""
_CHUNKED = (_SEQS, _BUDGET, "long_prefill_token_threshold", "watermark", "reserve_full_prompt")


def _by_key(module: Any, needs: tuple[str, ...], *knobs: str) -> Policy:
    """A policy that is no more than a key."""
    return Policy(module.__name__.rpartition(".")[2], module, by_key.schedule, (*_CHUNKED, *knobs), key=by_key.key,
                  engine=_TURNS, needs=needs, prefix_cache=True, pipelines=True)


def _trtllm(module: Any) -> Policy:
    """A capacity policy of TensorRT-LLM."""
    return Policy(module.__name__.rpartition(".")[2], module, trtllm.schedule, (_SEQS, _BUDGET), engine=_PEERS,
                  whole_prompt=True)


POLICIES: Final = {
    p.name: p
    for p in (
        Policy("static", static, static.schedule, (_SEQS, "batch_window_s", "preferred_batch_sizes", "length_bucket",
               "stream", "padding"), retire=static.retire, streams=False, aborts=False),
        Policy("orca", orca, orca.schedule, (_SEQS,), engine=_PEERS),
        Policy("vllm_v0", vllm_v0, vllm_v0.schedule, (_SEQS, _BUDGET, "watermark"), engine=_PEERS, whole_prompt=True,
               watermark=0.01, swaps=True),  # vLLM 0.6 vllm/core/block_manager_v2.py, BlockSpaceManagerV2.__init__
        Policy("chunked", chunked, chunked.schedule, _CHUNKED, prefix_cache=True, drafts=True, pipelines=True),
        Policy("sarathi", sarathi, chunked.schedule, (*_CHUNKED, "tbt_s"), engine="chunked", prefix_cache=True),
        Policy("splitfuse", splitfuse, splitfuse.schedule, (_SEQS, _BUDGET), engine=_PEERS),
        _trtllm(max_utilization),
        _trtllm(guaranteed_no_evict),
        Policy("tgi", tgi, tgi.schedule, (_SEQS, _BUDGET, "waiting_served_ratio", "max_waiting_tokens"),
               engine=_PEERS, aux=tgi.NUMBERS, lane=False, whole_prompt=True),
        Policy("fastserve", fastserve, fastserve.schedule,
               (_SEQS, _BUDGET, "max_batch_size", "quantum_s", "starvation_s"), arrived=fastserve.arrived,
               engine=_PEERS, needs=("joins",), aux=fastserve.NUMBERS, lane=False, whole_prompt=True, swaps=True),
        _by_key(priority, ("priority",), "aging_s"),
        _by_key(shortest_prompt, ()),
        _by_key(shortest_predicted, ("predicted",), "prediction_error"),
        _by_key(earliest_deadline, ("target",)),
        _by_key(oracle_sjf, ()),
        Policy("vtc", vtc, vtc.schedule, (*_CHUNKED, "tenant_weights"), arrived=vtc.arrived, engine=_TURNS,
               needs=("tenant",), aux=vtc.FIRST, aux_per_tenant=2, lane=False, prefix_cache=True),
    )
}


def policy_named(name: str) -> Policy:
    """The policy called `name`. Raises UnknownNameError listing the known ones."""
    if name not in POLICIES:
        raise UnknownNameError("policy", name, POLICIES)
    return POLICIES[name]

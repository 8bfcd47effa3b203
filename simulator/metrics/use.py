"""How slots, GPU time and KV memory were used, of a run or of one of its pools."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.metrics.fleet import paid_ns
from simulator.result import Result
from simulator.state import Limits
from simulator.units import NEVER, NS_PER_S
from simulator.windows import admission_blocks

Block = dict[str, Any]


def ratio(above: float, below: float) -> float | None:
    """above / below, None where there is nothing below."""
    return above / below if below else None


def total(result: Result, name: str) -> int:
    """Sum of one total over the replicas, as an unbounded integer."""
    return sum(result.totals[name].tolist())



def gpu_ns(alike: Sequence[Result], name: str = "gpu") -> float:
    """[ns] of GPU time of a kind, of one GPU a replica; of a pipeline, whose stages take turns, the mean."""
    return sum(total(part, name) / max(1, part.setup.limits.stages) for part in alike)


def use(result: Result, span: int, begin: int, alike: Sequence[Result]) -> Block:
    """Shares of slots, GPU and time in the `span` ns from tick `begin`, of the replicas there were; `alike` is the
    result in parts of one kind of replica.

    A step cut by the horizon may reach past it: shares end at 1.
    """
    wall, whole = total(result, "wall"), paid_ns(result, begin, begin + span)
    slots = sum(total(part, "wall") * part.setup.limits.max_num_seqs for part in alike)
    gpu, busy = ratio(gpu_ns(alike), whole), ratio(wall, whole)
    return {
        "steps": total(result, "steps"),
        "slot_utilization": ratio(total(result, "rows"), slots),
        "gpu_utilization": None if gpu is None else min(1.0, gpu),
        "busy_share": None if busy is None else min(1.0, busy),
    }


def batch(result: Result) -> Block:
    held = result.rows_time.tolist()
    whole = sum(held)
    used = [rows for rows, ns in enumerate(held) if ns]
    reached = np.cumsum([held[rows] / whole for rows in used])

    def share(q: float) -> int | None:
        """Smallest batch size that is not exceeded for a share q of the time."""
        return used[min(int(np.searchsorted(reached, q - 1e-12)), len(used) - 1)] if used else None

    wall = total(result, "wall")
    return {
        "mean_running": ratio(total(result, "running"), wall),
        "mean_scheduled": ratio(total(result, "rows"), wall),
        "p50": share(0.5),
        "p99": share(0.99),
        "max": used[-1] if used else None,
        "distribution": [[rows, held[rows] / whole] for rows in used],
    }


def queue(result: Result) -> Block:
    mean = ratio(total(result, "waiting"), total(result, "wall_short"))
    return {"mean_waiting": mean, "max_waiting": int(result.totals["peak_waiting"].max())}


def kv(result: Result, alike: Sequence[Result]) -> Block:
    if result.setup.pools:
        return _kv_of_pools(result, alike)
    limits, capacity = result.setup.limits, result.setup.capacity
    held, time = total(result, "blocks"), total(result, "wall_short") * limits.num_blocks
    filled = ratio(total(result, "kv_tokens"), held * limits.block_size)
    refused = total(result, "fragmented")
    sizes = (
        {}
        if capacity is None
        else {
            name: int(value)
            for name, value in vars(capacity).items()
            if name.endswith("_bytes") or name == "kv_bytes_per_token"
        }
    )
    return {
        "num_gpu_blocks": limits.num_blocks + (0 if limits.contiguous else 1),
        "block_size": limits.block_size,
        "tokens_capacity": _tokens_capacity(limits),
        "mean_use": ratio(held, time),
        "peak_use": int(result.totals["peak_blocks"].max()) / limits.num_blocks,
        # tokens in shared blocks are counted once a holder, so nothing can be said where blocks are shared, nor where
        # layers with windows hold some of the tokens
        "internal_fragmentation": None if filled is None or result.requests.found.any() or limits.window
        else 1 - filled,
        "external_fragmentation": ratio(total(result, "gaps"), time - held)
        if limits.contiguous
        else 0.0,
        "refused_by_fragmentation": refused,
        "breakdown": sizes or None,
        "prefix_cache": _prefix_cache(result),
    } | _swapped(result, alike)


def _tokens_capacity(limits: Limits) -> int:
    """[tokens] of KV memory; with windows in requests of max_model_len, as vLLM prints it."""
    if not limits.window:
        return limits.num_blocks * limits.block_size
    return int(limits.num_blocks / admission_blocks(limits, limits.max_model_len) * limits.max_model_len)


def _kv_of_pools(result: Result, own: Sequence[Result]) -> Block:
    """Shares over all pools; sizes and what is inside blocks differ from pool to pool (summary key `pools`)."""
    held = sum(total(part, "blocks") for part in own)
    time = sum(total(part, "wall_short") * part.setup.limits.num_blocks for part in own)
    peaks = [int(part.totals["peak_blocks"].max()) / part.setup.limits.num_blocks for part in own]
    unlike = ("num_gpu_blocks", "block_size", "tokens_capacity", "internal_fragmentation", "external_fragmentation",
              "breakdown")
    return dict.fromkeys(unlike) | {
        "mean_use": ratio(held, time), "peak_use": max(peaks), "refused_by_fragmentation": total(result, "fragmented"),
        "prefix_cache": _prefix_cache(result)} | _swapped(result, own)


def _prefix_cache(result: Result) -> Block:
    """Prompt tokens found in the prefix cache when requests were first admitted; without one, those the trace names."""
    req = result.requests
    on, admitted = req.found.size > 0, req.scheduled != NEVER
    block = result.setup.limits.block_size
    found = req.found if on else np.minimum(req.cached, req.prompt - 1) // block * block
    tokens, prompts = int(found[admitted].sum()), int(req.prompt[admitted].sum())
    rate = ratio(tokens, prompts) if on or tokens else None
    saved = {"peak_blocks_shared": int(result.totals["peak_spared"].max())} if on else {}
    return {"simulated": on, "found_tokens": tokens, "prompt_tokens": prompts, "hit_rate": rate} | saved | _host(result)


def _host(result: Result) -> Block:
    """What host memory behind the prefix cache had of it."""
    req = result.requests
    if not req.fetched.size:
        return {}
    admitted = req.scheduled != NEVER
    tokens, prompts = int(req.fetched[admitted].sum()), int(req.prompt[admitted].sum())
    pools = result.setup.pools.values() or (result.setup,)
    return {"host": {"blocks": max(each.limits.offload_blocks for each in pools), "found_tokens": tokens,
                     "hit_rate": ratio(tokens, prompts), "blocks_loaded": total(result, "loaded"),
                     "link_s": total(result, "loading") / NS_PER_S,
                     "peak_blocks": int(result.totals["peak_host"].max())}}


def _swapped(result: Result, alike: Sequence[Result]) -> Block:
    """What preemption by swap moved, where it is on."""
    if not any(part.setup.limits.swap_blocks for part in alike):
        return {}
    return {"swap": {"host_blocks": result.setup.limits.swap_blocks, "blocks_out": total(result, "swapped_out"),
                     "blocks_in": total(result, "swapped_in"),
                     "peak_host_blocks": int(result.totals["peak_host"].max())}}


def time_spent(result: Result, alike: Sequence[Result]) -> Block:
    exposed = max(0.0, total(result, "wall") - gpu_ns(alike))
    return {
        **{f"{name}_s": gpu_ns(alike, name) / NS_PER_S
           for name in ("gpu", "dense", "decode_attention", "prefill_attention")},
        "exposed_cpu_s": exposed / NS_PER_S,
        "copy_s": total(result, "copies") / NS_PER_S,
        "eager_steps": total(result, "eager"),
        "wasted_rows": total(result, "wasted"),
        "pad_rows": total(result, "pad_rows"),
        "pad_tokens": total(result, "pad_tokens"),
    }

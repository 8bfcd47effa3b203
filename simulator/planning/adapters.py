"""LoRA adapters in a plan: what they cost a replica and the fleet, and a fleet for each of them instead.

The recommended fleet serves all adapters on every replica. Beside it, by the same search: the same traffic without
adapters, and one fleet for each adapter, merged into the weights of its own copy of the model (Hu et al. 2021,
arXiv:2106.09685, section 4.1: no step is longer then), with the same requests 1 / adapters as fast.
"""

from dataclasses import replace
from typing import Any

from simulator.cost.step import FP_BITS, Cost
from simulator.planning.price import Fleet
from simulator.planning.search import Outcome, Search
from simulator.scenario.serving import lora_of
from simulator.units import NS_PER_S


def adapted(search: Search, fleet: Fleet, outcome: Outcome, rate: float) -> dict[str, Any] | None:
    """What adapters cost at `rate` times the workload's traffic; None where requests bring none, and
    for unlike replicas, where it is open what a fleet for each adapter would be of."""
    bench, candidate = search.runner.bench, fleet.candidate
    setup = bench.setup(candidate)
    lora = lora_of(setup.scenario.engine.lora)
    if lora is None or not lora.adapters or candidate.beside is not None:
        return None
    plain = bench.ready(replace(candidate, max_loras=0))
    assert plain.setup is not None and outcome.judgement is not None
    busy = [record for record in outcome.judgement.records if not record["idle"]]
    running = sum(record["slots_mean"] for record in busy) / max(1, len(busy)) * setup.limits.max_num_seqs
    sequences, trace = max(1, round(running)), bench.traffic.trace(0)
    context = float(trace.prompt.mean() + trace.output.mean() / 2)
    each = fleet.usd_per_hour / fleet.replicas
    need = search.needed(plain, rate, fleet.serving)
    alone = search.solve(plain, rate / lora.adapters) if lora.adapters > 1 else None
    row: dict[str, Any] = {
        "adapters": lora.adapters,
        "max_loras": lora.max_loras,
        "rank": lora.rank,
        "slots_bytes": lora.memory_bytes(setup.model),
        "kv_blocks": setup.limits.num_blocks,
        "kv_blocks_without": plain.setup.limits.num_blocks,
        "sequences": sequences,
        "step_s": decode_step_s(setup.cost, sequences, context),
        "step_s_without": decode_step_s(plain.setup.cost, sequences, context),
        "without": None if need is None else _fleets(fleet, 1, need, each),
        "apart": None,
        "reason": "",
    }
    if alone is not None and alone.status == "feasible":
        row["apart"] = _fleets(fleet, lora.adapters, alone.replicas, each)
    elif alone is not None:
        row["reason"] = alone.reason
    return row


def decode_step_s(cost: Cost, sequences: int, context: float) -> float:
    """[s] of GPU time that a step takes in which so many sequences of `context` tokens decode."""
    dense = int(cost.dense_ns[0, min(sequences, cost.dense_ns.shape[1] - 1)])
    attention = sequences * (context * int(cost.decode_context_fp) + int(cost.decode_seq_fp)) / 2**FP_BITS
    return float((dense + attention) / NS_PER_S)


def _fleets(fleet: Fleet, count: int, serving: int, each: float) -> dict[str, Any]:
    """`count` fleets of so many serving replicas each, with the spares of the plan, at `each` USD/h a replica."""
    replicas = count * (serving + fleet.spare)
    return {"fleets": count, "each": serving + fleet.spare, "replicas": replicas,
            "gpus": replicas * fleet.candidate.gpus, "usd_per_hour": replicas * each}  # fmt: skip

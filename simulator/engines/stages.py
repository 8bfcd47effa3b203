"""Pipeline stages: the clocks of a step that passes through them, one GPU clock and one worker clock each.

A step is planned, then every stage's worker prepares and launches its layers: the first when the scheduler has handed
the step over, each later one when the stage before has launched, for its inputs are announced then (vLLM 0.24
vllm/v1/worker/gpu_worker.py, Worker.execute_model). A stage computes when it is free, its inputs are there, and the
stage before it is done and has sent its hidden states. The last has the head. Where a request may be planned again
before its token is seen, the first stage waits for the tokens of the step one pipeline length ago, which the last
sends it (vllm/v1/worker/gpu/pp_utils.py, PPHandler.get_prev_sampled_outputs).
"""

from simulator.cost.step import Cost, scaled, table_at
from simulator.jit import jitable
from simulator.state import Column, Limits, Replica


@jitable
def layers_before(layers: int, stages: int, s: int) -> int:
    """Layers of the stages before stage s: as many each, what is left over one each to the last stages but the very
    last (vLLM 0.24 vllm/distributed/utils.py, get_pp_indices)."""
    each = layers // stages
    more = layers - each * stages
    return s * each + min(max(s - (stages - 1 - more), 0), more)


@jitable
def part_of(ns: int, part: int, whole: int) -> int:
    """[ns] part / whole of `ns`, rounded down, exact where it fits int64."""
    return ns // whole * part + ns % whole * part // whole


@jitable
def handed_over(rep: Replica, cost: Cost, rows: int) -> int:
    """[tick] when the scheduler has handed a step planned now over to the workers."""
    return rep.c.now + cost.plan_ns + rows * cost.plan_seq_ns


@jitable
def first_start(rep: Replica, lim: Limits, cost: Cost, kind: int, tokens: int, rows: int) -> int:
    """[tick] when the first stage begins to compute a step planned now."""
    ready = table_at(cost.prep_ns, kind, tokens) + rows * cost.prep_seq_ns
    start = max(rep.stage_gpu[0], max(handed_over(rep, cost, rows), rep.stage_cpu[0]) + ready)
    if rep.c.n_flight == lim.stages and rep.steps[rep.c.first_flight].yields > 0:
        start = max(start, rep.steps[rep.c.first_flight].gpu_end + cost.hop_ns)
    return start


@jitable
def crowded(rep: Replica, lim: Limits, start: int) -> bool:
    """Whether the first stage computes a step that begins at `start` while the last is at the one before, whose tokens
    it waits for."""
    return bool(rep.c.awaited > 0 and rep.stage_gpu[lim.stages - 1] > start)


@jitable
def launch_stages(rep: Replica, lim: Limits, cost: Cost, step: Column, kind: int, tokens: int, rows: int, start: int,
                  gpu: int, head: int) -> int:
    """Set the clocks for a step planned now, of `gpu` ns on all stages together, `head` of them on the last alone; the
    first begins at `start`. Returns 1 when it was launched eagerly.

    The scheduler is free when it has handed the step over; a stage is not done before its launch is.
    """
    c = rep.c
    launched = handed_over(rep, cost, rows)
    c.cpu_free = launched
    ready = table_at(cost.prep_ns, kind, tokens) + rows * cost.prep_seq_ns
    work = table_at(cost.cpu_ns, kind, tokens) + rows * cost.cpu_seq_ns
    hop = cost.hop_ns + scaled(tokens, cost.hop_fp)
    spent = 0
    for s in range(lim.stages):
        begun = max(launched, rep.stage_cpu[s])
        launched = begun + work
        upto = part_of(gpu - head, layers_before(cost.layers, lim.stages, s + 1), cost.layers)
        end = max(start, rep.stage_gpu[s], begun + ready) + upto - spent
        spent = upto
        if s == lim.stages - 1:
            end += head
        end = max(end, launched)
        rep.stage_cpu[s] = launched
        rep.stage_gpu[s] = end
        start = end + hop
    c.gpu_free = rep.stage_gpu[lim.stages - 1]
    c.awaited = step.yields
    step.start = c.now
    step.gpu_end = c.gpu_free
    step.gpu_ns = gpu
    return table_at(cost.eager, kind, tokens)

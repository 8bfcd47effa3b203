"""Before anything is simulated: does it fit, how fast can a replica be at best, and where to start looking.

The bound is proved, not estimated. A step of T tokens takes at least dense[T]; at most D sequences are in it
(D = slots, or what KV memory holds). So a request of P prompt and O output tokens takes of the GPU at least

    max((P + O) min_T dense[T] / T,  O / D min_T dense[T])  +  attention over its own context

and a fleet that keeps up with L requests/s has at least L times the mean of that replicas. With k drafts a step may
yield 1 + k tokens of a sequence: its O output tokens then take at least O / (1 + k) steps. With a prefix cache and
requests that name their prefixes, P is 1 and D the slots.

Beside k replicas of another kind the requests may be dealt out in any way: the least that is left for the others is
where those replicas, busy all the time, take the requests that are longest on the others for each second that they take
of them (a fractional knapsack; Dantzig, Operations Research 5(2), 1957).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.cost.step import FP_BITS, Cost
from simulator.errors import ServecastError
from simulator.metrics.trust import mark_of, never_run
from simulator.planning.candidate import Candidate, scenario_of
from simulator.planning.spec import PlanSpec
from simulator.planning.unlike import BESIDE, OWN
from simulator.profiles.uncertainty import load_uncertainty
from simulator.scenario.setup import FRONT_TIMES, Setup, on_host, prepare
from simulator.units import NS_PER_S
from simulator.workload.trace import Trace

DATASHEET_ERROR: Final = 0.25
"""Relative error of step times from datasheet rooflines: simulator.cost.roofline's own statement."""
RESOURCES: Final = ("compute", "bandwidth", "KV memory", "scheduler CPU", "slots")
RELIEF: Final = 1.25
"""How much more of a resource a sensitivity run gets."""
FULL: Final = 0.95
"""Share of the KV blocks held at the peak from which more of them may change the run (watermarks keep some free)."""


@dataclass(frozen=True)
class StepError:
    """Relative error of predicted step times, and why that number."""

    relative: float
    source: str


def step_error(setup: Setup, given: float | None = None) -> StepError:
    """The 90 % interval of mean TPOT, which is step time over steps, widened by the mark of what is run.

    That of a known host: what hosts differ by is in launches, not in all parts of every step, and a plan shows it apart
    (planning.sensitivity). The roofline model gets DATASHEET_ERROR.
    """
    if given is not None:
        return StepError(given, "set in the plan (search.calibration_error)")
    if setup.gpu.name == "unit":
        return StepError(0.0, "textbook GPU: step times are exact")
    if setup.scenario.cost_model == "roofline":
        return StepError(DATASHEET_ERROR, "roofline from the datasheet")
    known, mark, reason = load_uncertainty(), mark_of(setup), never_run(setup)
    relative = known.width("tpot_mean_s", mark, known_host=True)
    return StepError(
        relative,
        f"{setup.gpu.name} is {mark}: 90 % interval of mean TPOT on a known host (hwprofiles/uncertainty.yaml)"
        + (f"; {reason}" if reason else ""),
    )


def scaled_cost(cost: Cost, factor: float) -> Cost:
    """All GPU and CPU step times times `factor`; the front end's and a pipeline's pause are left."""
    if factor == 1.0:
        return cost
    kept = (*FRONT_TIMES, "eager", "layers", "crowded", "pause_ns")
    changes: dict[str, Any] = {
        name: np.rint(np.asarray(value) * factor).astype(np.int64)
        for name, value in cost._asdict().items()
        if name not in kept
    }
    return cost._replace(**changes)


def relieved_replica(setup: Setup, resource: str) -> Setup:
    """The same replica with RELIEF times as much of one resource."""
    cost, limits = setup.cost, setup.limits
    if resource == "KV memory":
        return replace(setup, limits=limits._replace(num_blocks=int(limits.num_blocks * RELIEF)))
    if resource == "slots":
        return _with_seqs(setup, int(limits.max_num_seqs * RELIEF))
    if resource == "scheduler CPU":
        front = {name: getattr(cost, name) for name in FRONT_TIMES}
        return replace(setup, cost=on_host(setup, 1 / RELIEF)._replace(**front))
    floor = cost.dense_ns[:, min(1, cost.dense_ns.shape[1] - 1)][:, None]
    floor = np.minimum(floor, cost.dense_ns)
    if resource == "bandwidth":
        dense = cost.dense_ns - floor + (floor / RELIEF).astype(np.int64)
        read: dict[str, Any] = {name: np.int64(getattr(cost, name) / RELIEF)
                                for name in ("decode_context_fp", "beside_context_fp", "seen_context_fp")}
        return replace(setup, cost=_with_dense(cost, dense)._replace(**read))
    dense = floor + ((cost.dense_ns - floor) / RELIEF).astype(np.int64)
    return replace(
        setup,
        cost=_with_dense(cost, dense)._replace(
            slope_fp=np.int64(cost.slope_fp / RELIEF),
            prefill_pair_fp=np.int64(cost.prefill_pair_fp / RELIEF),
        ),
    )


def _with_dense(cost: Cost, dense: npt.NDArray[np.int64]) -> Cost:
    """Another dense time; the part that a pipeline's last stage has alone is as much shorter."""
    return cost._replace(dense_ns=dense, head_ns=cost.head_ns * dense // np.maximum(1, cost.dense_ns))


def can_bind(resource: str, records: Sequence[dict[str, Any]], setup: Setup) -> bool:
    """Whether more of a resource could change what was recorded: slots that were never all held, and KV blocks that
    were never nearly all held, cannot. A prefix cache uses every block there is."""
    busy = [record for record in records if not record["idle"]]
    if resource == "slots":
        return any(record["slots_peak"] >= 1 for record in busy)
    if resource == "KV memory":
        return bool(setup.limits.prefix) or any(record["kv_peak"] >= FULL for record in busy)
    return True


def gains(
    above: Sequence[dict[str, Any]], setup: Setup, wall: float, relieved_wall: Callable[[str], float]
) -> dict[str, float]:
    """[%] how far the wall moves with RELIEF times as much of each resource, most first; infinite = no wall any more.

    What cannot bind in what was recorded just `above` the wall (can_bind) cannot move it, and is not tried.
    """
    walls = {name: relieved_wall(name) if can_bind(name, above, setup) else wall for name in RESOURCES}
    moved = {name: 100 * (found / wall - 1) for name, found in walls.items()}
    return dict(sorted(moved.items(), key=lambda row: -row[1]))


def _with_seqs(setup: Setup, seqs: int) -> Setup:
    scenario = setup.scenario.updated({"policy.max_num_seqs": seqs, "kv.num_gpu_blocks": setup.limits.num_blocks + 1})
    return prepare(scenario)


@dataclass(frozen=True)
class Ready:
    """A candidate looked up: its setup, or why it cannot run."""

    candidate: Candidate
    setup: Setup | None
    error: StepError
    reason: str = ""
    errors: dict[str, StepError] = field(default_factory=dict)  # of each pool, where they are unlike


def ready(spec: PlanSpec, candidate: Candidate, longest: int = 0) -> Ready:
    """Look a candidate up; what does not fit, or is not accepted for it, is a reason, not an error.

    Where the plan sets no max_model_len it is the longest that the GPUs surely hold, which must be enough for the
    `longest` request [tokens].
    """
    try:
        setup = _looked_up(spec, candidate)
    except ServecastError as error:
        reason = str(error).removeprefix(f"{spec.name}: ").removeprefix("model: ")
        return Ready(candidate, None, StepError(0.0, ""), reason)
    length, wanted = setup.limits.max_model_len, min(longest, setup.model.max_positions)
    if spec.max_model_len is None and length < wanted:
        text = (
            f"the longest request has {wanted:,} tokens, one replica's KV memory surely holds {length:,}: with that "
            "as max_model_len the longer ones would be rejected"
        )
        return Ready(candidate, None, StepError(0.0, ""), text)
    if candidate.beside is None:
        return Ready(candidate, setup, step_error(setup, spec.search.calibration_error))
    errors = {name: step_error(pool, spec.search.calibration_error) for name, pool in setup.pools.items()}
    worst = max(errors.values(), key=lambda error: error.relative)
    return Ready(candidate, setup, worst, "", errors)


def _looked_up(spec: PlanSpec, candidate: Candidate) -> Setup:
    """The candidate's setup; unlike pools get the shorter of the two lengths that are sure to fit."""
    scenario = scenario_of(spec, candidate)
    setup = prepare(scenario, shorten=True)
    lengths = {pool.limits.max_model_len for pool in setup.pools.values()}
    if candidate.beside is None or len(lengths) == 1:
        return setup
    return prepare(scenario.updated({"max_model_len": min(lengths)}))


def request_seconds_bound(setup: Setup, trace: Trace) -> float:
    """[s] of one replica's GPU that a mean request takes at least."""
    return float(_least_ns(setup, trace).sum()) / len(trace) / NS_PER_S / max(1, setup.limits.stages)


def _least_ns(setup: Setup, trace: Trace) -> npt.NDArray[np.float64]:
    """[ns] of one replica's GPUs that each request takes at least, (those within max_model_len,); of a pipeline those
    of all stages, its busiest has its share of them at least."""
    cost, limits = setup.cost, setup.limits
    served = trace.prompt + trace.output <= limits.max_model_len
    if not served.any():
        return np.zeros(0)
    prompt = (trace.prompt - trace.cached)[served].astype(np.float64)
    shared = bool(limits.prefix and trace.extras)
    if shared:  # how much of a prompt the cache knows is seen only then: at best all but its last token
        prompt = np.ones_like(prompt)
    output, whole = trace.output[served].astype(np.float64), trace.prompt[served].astype(np.float64)
    tokens = np.arange(1, max(1, min(limits.max_num_batched_tokens, cost.dense_ns.shape[1] - 1)) + 1)
    dense = cost.dense_ns.min(axis=0)[np.minimum(tokens, cost.dense_ns.shape[1] - 1)].astype(np.float64)
    per_token = float((dense / tokens).min())
    if setup.policy.name in ("static", "orca") or cost.dense_ns.shape[1] <= 2:
        per_token = 0.0  # steps without a token budget: only the decode term holds
    shortest = max(1.0, float(whole.min()))
    if limits.window_groups:  # a windowed group holds no more than its window
        shortest = limits.full_groups * shortest + limits.window_groups * min(shortest, limits.window)
    holders = limits.max_num_seqs if shared else min(
        limits.max_num_seqs, max(1.0, limits.num_blocks * limits.block_size / shortest))  # fmt: skip
    most = 1 + limits.draft_tokens
    ns = np.maximum((prompt + output - 1) * per_token, output / most / holders * float(dense.min()))
    context = (output - 1) / most * (whole + output / 2)
    pairs = whole * (1 if shared else prompt / 2)
    least: npt.NDArray[np.float64] = (
        ns + context * (cost.decode_context_fp / 2**FP_BITS) + pairs * (cost.prefill_pair_fp / 2**FP_BITS))
    return least


def fewest_replicas(setup: Setup, trace: Trace, rate: float) -> int:
    """Replicas below which a fleet cannot keep up with `rate` [requests/s]."""
    if BESIDE in setup.pools:
        return _fewest_of_both(setup, trace, rate)
    return max(1, math.ceil(rate * request_seconds_bound(setup, trace) - 1e-9))


def _fewest_of_both(setup: Setup, trace: Trace, rate: float) -> int:
    """fewest_replicas of unlike pools: all of those beside, and the fewest of the others."""
    own, other = (_least_ns(pool, trace) / max(1, pool.limits.stages)
                  for pool in (setup.pools[OWN], setup.pools[BESIDE]))  # fmt: skip
    beside = setup.pools[BESIDE].scenario.cluster.replicas
    span = len(trace) / rate * NS_PER_S
    first = np.argsort(-own / np.maximum(other, 1e-9), kind="stable")
    taken = np.clip((beside * span - (np.cumsum(other[first]) - other[first])) / np.maximum(other[first], 1e-9), 0, 1)
    left = float((own[first] * (1 - taken)).sum())
    return beside + max(0, math.ceil(left / span - 1e-9))


def likely_replicas(setup: Setup, trace: Trace, rate: float, tpot_s: float | None) -> int:
    """A starting point for the search: the largest batch whose step keeps `tpot_s`, and Little's law.

    Each step also prefills what its finished sequences bring along. Not a bound. Those beside a candidate's own take
    the share of the traffic that they are of a fleet of their kind.
    """
    if BESIDE in setup.pools:
        beside = setup.pools[BESIDE].scenario.cluster.replicas
        own, other = (likely_replicas(setup.pools[name], trace, rate, tpot_s) for name in (OWN, BESIDE))
        return max(fewest_replicas(setup, trace, rate), beside + math.ceil(own * max(0.0, 1 - beside / other)))
    cost, limits = setup.cost, setup.limits
    prompt, output = float(trace.prompt.mean()), float(trace.output.mean())
    context = prompt + output / 2
    most = int(min(limits.max_num_seqs, limits.num_blocks * limits.block_size / max(1.0, context)))
    batch = np.arange(1, max(most, 1) + 1)
    gain = setup.speculation.tokens_per_step if setup.speculation else 1.0
    tokens = np.rint(batch * (1 + limits.draft_tokens + gain * prompt / output)).astype(np.int64)
    dense = cost.dense_ns[1, np.minimum(tokens, cost.dense_ns.shape[1] - 1)].astype(np.float64)
    step = dense + batch * (context * cost.decode_context_fp + cost.decode_seq_fp) / 2**FP_BITS + float(cost.cpu_seq_ns)
    allowed = batch[step <= 0.7 * (tpot_s or np.inf) * gain * NS_PER_S]
    b = int(allowed[-1]) if allowed.size else 1
    served = b * gain / (output * step[b - 1] / NS_PER_S)
    return max(fewest_replicas(setup, trace, rate), math.ceil(rate / max(float(served), 1e-9)))

"""Fleets of drawn cases on which everything happens at once: hand-overs, crashes, autoscalers, restless clients."""

from dataclasses import replace
from typing import Any, Final

from simulator.engines.scaler import Scaler, Shift
from simulator.engines.scaling import METRICS, NOTHING, REQUESTS, WAITING_REQUESTS
from simulator.selftest.cases import Case, Choose, Uniform, some_case
from simulator.selftest.fleets import HANDED, limits_of, pools_of, some_changes, with_decode, with_pools

LONG_AFTER: Final = 1000
"""Ticks after which a run ends whose scalers may take its replicas away for ever."""
MIXED: Final = {"policy": "chunked", "draft_tokens": 0, "swap_blocks": 0}


def mixed(seed: int, longest: int = 25) -> Case:
    """Half of them hand over, the others are alike or unlike; changes of all kinds, autoscalers, and clients who wait,
    give up and come again; a gateway that submits again for ever, a few times or never."""
    more = Uniform(seed + 1)
    hands_over = more.among(True, False)
    given: dict[str, Any] = {**MIXED, "replicas": more.among(1, 2, 3), "n": more.numbers(1, 4, 20)[0]}
    case = some_case(Uniform(seed), given | (HANDED if hands_over else {}), longest=longest)
    if hands_over:
        case = with_decode(case, more)
    elif more.among(0, 0, 1):
        case = with_pools(case, more)
    tick = some_tick(case)
    scalers, shifts = _some_scalers(case, more, tick)
    count, replicas = more.among(1, 3, 8), len(limits_of(case))
    changes = some_changes(more, tick, count, replicas)
    case = replace(case, changes=changes, found_after=more.among(0, 0, 4 * tick), retry=more.among(tick, 3 * tick),
                   notice=more.among(0, 2, 9) * tick, retries=more.among(None, 0, 1, 3), scalers=scalers, shifts=shifts)
    if scalers and case.retries is None and case.until is None:  # may lose a request each time, and never end
        return replace(case, until=LONG_AFTER * tick)
    return case


def some_tick(case: Case) -> int:
    """[ns] about the longest thing that a run waits for: a step, its host's work, an answer."""
    cost = case.cost
    tables = (cost.dense_ns, cost.cpu_ns, cost.prep_ns, cost.head_ns)
    single = (cost.cpu_seq_ns, cost.prep_seq_ns, cost.plan_ns, cost.plan_seq_ns, cost.pause_ns, cost.frontend_in_ns,
              cost.frontend_each_ns, cost.frontend_out_ns, cost.hop_ns)
    return max(1, *(int(table.max()) for table in tables), *map(int, single), max(case.arrival) // 20)


def _some_scalers(case: Case, more: Choose, tick: int) -> tuple[tuple[Scaler, ...], tuple[Shift, ...]]:
    """Autoscalers of some pools, some with a schedule."""
    scalers: list[Scaler] = []
    shifts: list[Shift] = []
    first = 0
    for p, pool in enumerate(pools_of(case)):
        if more.among(0, 1, 1):
            if more.among(0, 0, 1):
                shifts.append(Shift(len(scalers), 4 * tick, 20 * tick, 50 * tick, pool.replicas))
            scaler = some_scaler(more, tick, first, pool.replicas, more.among(False, True), True)
            scaler.pool = p
            scalers.append(scaler)
        first += pool.replicas
    return tuple(scalers), tuple(shifts)


def some_scaler(more: Choose, tick: int, first: int, count: int, zero: bool, loses: bool) -> Scaler:
    """An autoscaler that looks every few steps and decides on little; `zero`: to no replica, `loses`: some with a
    grace period."""
    keda = 1 if zero else more.among(0, 1)
    grace = more.among(0, 2, 8) * tick if loses else 0
    metric = more.among(*METRICS.values(), NOTHING)
    if zero:
        metric = more.among(REQUESTS, REQUESTS if grace else WAITING_REQUESTS)
    low = 0 if zero else more.among(1, 1, min(2, count))
    sync = more.among(2, 5, 9) * tick
    return Scaler(
        first=first, count=count, low=low, keda=keda, metric=metric, target=more.among(200, 500, 1000, 3000),
        tolerance=more.among(0, 100, 500), sync=sync, up_window=more.among(0, 0, 3) * sync,
        down_window=more.among(0, 1, 4) * sync, up_pods=more.among(1, 4), up_percent=more.among(0, 100),
        up_period=more.among(1, 3) * sync, down_pods=more.among(0, 1), down_percent=more.among(50, 100),
        down_period=more.among(1, 3) * sync, pending=more.among(0, 3) * tick, start=more.among(0, 3, 12) * tick,
        grace=grace, ttft_window=more.among(5, 30) * tick,
        polling=more.among(3, 7) * tick if zero else 0, cool_down=more.among(0, 10) * tick,
        wanted=more.among(low, count), history=0 if zero or metric == NOTHING else more.among(0, 0, 2, 5),
        ahead=more.among(0, 700, 4000),
    )  # fmt: skip

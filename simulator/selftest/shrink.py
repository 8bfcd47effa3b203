"""A smaller case that fails too: fewer requests, shorter ones, plainer limits and costs."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from simulator.cost.step import Cost
from simulator.engines.signals import KNOWS_ALL
from simulator.selftest.cases import PATIENT, Case

COLUMNS: Final = ("arrival", "prompt", "output", "limit", "cached", "pick", "chains", "talk", "pause")
PLAIN: Final = {"replicas": 1, "router": "round_robin", "load": "open", "width": 1, "until": None,
                "talk": (), "pause": (), "habits": PATIENT, "found_after": 0, "retry": 1,
                "notice": 0, "retries": None, "shifts": (), "knows": KNOWS_ALL}
PLAIN_LIMITS: Final = {
    "schedule_ahead": 0, "watermark_blocks": 0, "long_prefill_token_threshold": 0, "reserve_tokens": 0,
    "batch_window": 0, "length_bucket": 0, "stream": 1, "contiguous": 0, "num_blocks": 1000, "max_model_len": 10**6,
    "max_num_batched_tokens": 200, "max_num_seqs": 6, "block_size": 16, "max_waiting": 0, "predicted_ttft": 0,
    "shed_waiting": 0,
}  # fmt: skip


def shrunk(case: Case, fails: Callable[[Case], bool], seconds: float = 30.0) -> Case:
    """The smallest case found in `seconds` that still fails."""
    end, smaller = time.monotonic() + seconds, True
    while smaller:
        smaller = False
        for candidate in _smaller(case):
            if time.monotonic() > end:
                return case
            if fails(candidate):
                case, smaller = candidate, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Cases one change simpler, the largest changes first."""
    yield from _fewer(case)
    yield from _plainer_fleet(case)
    for name, value in PLAIN.items():
        needed = (name == "pause" and case.talk) or (name == "replicas" and (case.changes or case.scalers))
        if getattr(case, name) != value and not needed:
            change: dict[str, Any] = {name: value}
            yield replace(case, **change)
    for name, value in PLAIN_LIMITS.items():
        if getattr(case.limits, name) != value:
            others = case.others if name != "stream" else tuple(  # one policy: all pools stream or none does
                pool._replace(lim=pool.lim._replace(stream=value)) for pool in case.others)
            plainer: dict[str, int] = {name: value} | ({"stages": 0} if name == "schedule_ahead" else {})
            yield replace(case, limits=case.limits._replace(**plainer), others=others)
    if case.limits.prefix:
        yield replace(case, limits=case.limits._replace(prefix=0), chains=(), knows=KNOWS_ALL)
    for name, value in PATIENT._asdict().items():
        if getattr(case.habits, name) != value:
            yield replace(case, habits=case.habits._replace(**{name: value}))
    if case.limits.draft_tokens:
        yield replace(case, limits=case.limits._replace(draft_tokens=0, lookahead=0, rehearse=0), salts=(), chances=())
    yield from _plainer_cost(case)
    for name in ("arrival", "prompt", "output", "limit", "cached", "pick"):
        yield from _lower(case, name)


def _fewer(case: Case) -> Iterator[Case]:
    n = len(case.arrival)
    size = n // 2
    while size > 0:
        for start in range(0, n, size):
            kept = [k for k in range(n) if not start <= k < start + size]
            if kept:
                columns: dict[str, Any] = {name: getattr(case, name) for name in COLUMNS}
                fewer: dict[str, Any] = {name: tuple(column[k] for k in kept) if column else ()
                                         for name, column in columns.items()}
                asks = tuple((name, tuple(column[k] for k in kept)) for name, column in case.asks)
                yield replace(case, asks=asks, **fewer)
        size //= 2


def _plainer_fleet(case: Case) -> Iterator[Case]:
    """Fewer changes and autoscalers; no pools, where nothing is handed over and nothing happens to one of them."""
    for k in range(len(case.changes)):
        yield replace(case, changes=case.changes[:k] + case.changes[k + 1:])
    for k in range(len(case.scalers)):
        yield replace(case, scalers=case.scalers[:k] + case.scalers[k + 1:], shifts=())
    if case.others and not case.link and not case.scalers and all(row[2] < case.replicas for row in case.changes):
        yield replace(case, others=(), groups=())
    if case.groups and not case.link:
        yield replace(case, groups=())
    if case.link and case.link != (0, 0, 0):
        yield replace(case, link=(0, 0, 0))


def _plainer_cost(case: Case) -> Iterator[Case]:
    """Times that are the same for all tokens, or none, in all pools at once: their front end is one."""
    for name, value in case.cost._asdict().items():
        plain: Any = np.int64(Cost._field_defaults.get(name, 0))
        if isinstance(value, np.ndarray):
            plain = np.full((2, 1), int(name == "dense_ns"))
        if not np.array_equal(plain, value):
            changes: dict[str, Any] = {name: plain}
            if name == "cpu_ns":  # preparation is a part of it
                changes["prep_ns"] = np.zeros((2, 1), dtype=np.int64)
            yield replace(case, cost=case.cost._replace(**changes), others=tuple(
                pool._replace(cost=pool.cost._replace(**changes)) for pool in case.others))


def _lower(case: Case, name: str) -> Iterator[Case]:
    """One number less of a column: at once as small as can be, halved, or by one."""
    column = getattr(case, name)
    for k, value in enumerate(column):
        least = {"prompt": 1, "output": 1, "limit": case.output[k]}.get(name, column[k - 1] if name == "arrival" and k
                                                                        else 0)
        for lower in dict.fromkeys((least, (least + value) // 2, value - 1)):
            if least <= lower < value:
                changed: dict[str, Any] = {name: (*column[:k], lower, *column[k + 1:])}
                if name == "output" and case.limit[k] == value:
                    changed["limit"] = (*case.limit[:k], lower, *case.limit[k + 1:])
                if name == "prompt":
                    changed["cached"] = (*case.cached[:k], min(lower, case.cached[k]), *case.cached[k + 1:])
                yield replace(case, **changed)

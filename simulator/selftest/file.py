"""A case as YAML and back: what `servecast selftest` prints of a failure, and runs again with --replay."""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import yaml
from pydantic import Field

from policies.registry import POLICIES
from policies.routers import ROUTERS
from simulator.config import Document, Section, placed, validate
from simulator.cost.check import check_cost
from simulator.cost.step import TABLES, Cost
from simulator.engines.changes import RECLAIM, SLOW
from simulator.engines.clients import Habits
from simulator.engines.pools import Pool
from simulator.engines.scaler import Scaler, Shift
from simulator.engines.signals import KNOWS_ALL, Knows
from simulator.errors import ConfigError, ServecastError
from simulator.selftest.cases import PATIENT, Case
from simulator.state import Limits

MOST: Final = 10**6
"""Largest count, and longest time [ticks of 1 ns] of a table: what the drawn cases have is far below."""
Count = Annotated[int, Field(ge=0, le=MOST)]
Tick = Annotated[int, Field(ge=0, le=10**12)]


class RequestColumns(Section):
    """One number a request; `chains` are the numbers of its shared leading blocks, `asks` columns of registry.ASKS,
    `talk` its conversation and `pause` what its client lets pass after the answer, the last two where they are."""

    arrival: list[Tick] = Field(min_length=1, max_length=10_000)
    prompt: list[Annotated[int, Field(ge=1, le=MOST)]]
    output: list[Annotated[int, Field(ge=1, le=MOST)]]
    limit: list[Count]
    cached: list[Count]
    pick: list[Count]
    chains: list[list[Count]] = Field(default=[])
    asks: dict[str, list[Annotated[int, Field(ge=-MOST, le=10**12)]]] = Field(default={})
    talk: list[Count] = Field(default=[])
    pause: list[Tick] = Field(default=[])


RECORDS: Final[dict[str, Any]] = {"scalers": Scaler, "shifts": Shift}
OPTIONAL: Final = ("chains", "asks", "talk", "pause")
LEAST_ONE: Final = ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_blocks")


class KindFile(Section):
    """Replicas that are alike."""

    limits: dict[str, Tick]
    cost: dict[str, Annotated[int, Field(ge=0, le=2**40)] | list[list[Tick]]]
    replicas: int = Field(default=1, ge=1, le=64)


class PoolFile(KindFile):
    """A pool beside the case's own."""

    speed: int = Field(default=1, ge=1, le=MOST)


class CaseFile(KindFile):
    """A case; limits, cost and habits are those of simulator.state.Limits, simulator.cost.step.Cost and
    simulator.engines.clients.Habits."""

    policy: str
    requests: RequestColumns
    router: str = "round_robin"
    load: Literal["open", "closed", "grouped"] = "open"
    width: int = Field(default=1, ge=1, le=MOST)
    until: Tick | None = None
    salts: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(default=[], max_length=2)
    chances: list[Annotated[int, Field(ge=0, le=2**32)]] = Field(default=[], max_length=64)
    habits: dict[str, Tick] = Field(default={})
    others: list[PoolFile] = Field(default=[], max_length=8)
    groups: list[list[Annotated[int, Field(ge=0, le=8)]]] = Field(default=[], max_length=64)
    link: list[Annotated[int, Field(ge=0, le=2**50)]] | None = Field(default=None, min_length=3, max_length=3)
    changes: list[Annotated[list[Tick], Field(min_length=4, max_length=4)]] = Field(default=[], max_length=100)
    found_after: Tick = 0
    retry: Tick = 1
    notice: Tick = 0
    retries: Count | None = None
    knows: dict[str, Tick] = Field(default={})
    scalers: list[dict[str, Tick]] = Field(default=[], max_length=8)
    shifts: list[dict[str, Tick]] = Field(default=[], max_length=8)


def case_text(case: Case) -> str:
    """The case as YAML."""
    columns: dict[str, Any] = {name: list(getattr(case, name)) for name in RequestColumns.model_fields
                               if name not in OPTIONAL}
    if case.limits.prefix:
        columns["chains"] = [list(chain) for chain in case.chains]
    if case.asks:
        columns["asks"] = {name: list(column) for name, column in case.asks}
    columns |= {name: list(column) for name in ("talk", "pause") if (column := getattr(case, name))}
    data: dict[str, Any] = {"policy": case.policy, "requests": columns, "limits": dict(case.limits._asdict()),
                            "cost": _plain(case.cost)}
    data |= {name: getattr(case, name) for name in ("replicas", "router", "load", "width", "until")}
    if case.limits.draft_tokens:
        data["salts"], data["chances"] = list(case.salts), list(case.chances)
    if case.habits != PATIENT:
        data["habits"] = dict(case.habits._asdict())
    if case.others:
        data["others"] = [{"limits": dict(pool.lim._asdict()), "cost": _plain(pool.cost), "replicas": pool.replicas,
                           "speed": pool.speed} for pool in case.others]
        data["groups"] = [list(group) for group in case.groups]
    if case.link:
        data["link"] = list(case.link)
    if case.knows != KNOWS_ALL:
        data["knows"] = {name: int(value) for name, value in case.knows._asdict().items()}
    if case.changes or case.scalers:
        data |= {"changes": [list(row) for row in case.changes], "found_after": case.found_after,
                 "retry": case.retry, "notice": case.notice, "retries": case.retries}
        data |= {name: [asdict(each) for each in getattr(case, name)] for name in ("scalers", "shifts")}
    return str(yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110))


def _plain(cost: Cost) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else int(value)
            for name, value in cost._asdict().items()}


def load_case(path: Path) -> Case:
    """The case in a file. Raises ConfigError with file, line and key."""
    document = Document.of_file(path)
    given = validate(CaseFile, document)
    try:
        return _case(given)
    except ServecastError as error:
        raise placed(document, error, "") from None


def _case(given: CaseFile) -> Case:
    for what, name, known in (("policy", given.policy, POLICIES), ("router", given.router, ROUTERS)):
        if name not in known:
            raise ConfigError(f"{what}: unknown {name!r}; accepted: {', '.join(known)}")
    kinds: list[KindFile] = [given, *given.others]
    for k, pool in enumerate(kinds):
        where = f"others.{k - 1}." if k else ""
        _all_of(f"{where}limits", pool.limits, Limits)
        _all_of(f"{where}cost", pool.cost, Cost)
        if min(pool.limits[name] for name in LEAST_ONE) < 1:
            raise ConfigError(f"{where}limits: {', '.join(LEAST_ONE)} must be at least 1")
    _check_fleet(given)
    _all_of("habits", given.habits, Habits)
    _all_of("knows", given.knows, Knows)
    sees: dict[str, Any] = {**given.knows, "prefixes": bool(given.knows.get("prefixes"))}
    knows = Knows(**sees)
    if knows.prefixes and not given.limits["prefix"]:
        raise ConfigError("knows: prefixes needs limits.prefix")
    columns: dict[str, Any] = given.requests.model_dump()
    chains, asks = columns.pop("chains"), columns.pop("asks")
    asked = {*POLICIES[given.policy].needs, *(("priority",) if given.limits.get("shed_waiting") else ())}
    if not asked <= set(asks) <= asked | {"priority"}:
        needs = ", ".join(sorted(asked))
        raise ConfigError(f"requests: asks must hold what {given.policy} needs ({needs or 'nothing'}), got "
                          f"{', '.join(asks) or 'nothing'}")
    lengths = {name: len(column) for name, column in columns.items() if column or name not in OPTIONAL}
    lengths |= {"chains": len(chains)} if chains else {}
    lengths |= {f"asks.{name}": len(column) for name, column in asks.items()}
    if len(set(lengths.values())) > 1:
        raise ConfigError(f"requests: columns must be of one length, got {lengths}")
    drafts = (given.limits.get("draft_tokens", 0), len(given.chances), len(given.salts))
    if drafts[0] != drafts[1] or drafts[2] != (2 if drafts[0] else 0):
        raise ConfigError("limits.draft_tokens needs as many chances, and two salts with them, got "
                          f"{drafts[0]}, {drafts[1]} and {drafts[2]}")
    rest: dict[str, Any] = {name: tuple(column) for name, column in columns.items()}
    rest |= {name: getattr(given, name) for name in ("policy", "replicas", "router", "load", "width", "until")}
    own, *others = (Pool(Limits(**pool.limits), _cost(pool.cost), pool.replicas, getattr(pool, "speed", 1))
                    for pool in kinds)
    rest |= {"link": given.link and tuple(given.link)}
    rest |= {name: getattr(given, name) for name in ("found_after", "retry", "notice", "retries")}
    rest |= {name: tuple(kind(**row) for row in getattr(given, name)) for name, kind in RECORDS.items()}
    return Case(limits=own.lim, cost=own.cost, others=tuple(others),
                changes=tuple((a, b, c, d) for a, b, c, d in given.changes),
                groups=tuple(tuple(group) for group in given.groups),
                chains=tuple(tuple(chain) for chain in chains), salts=tuple(given.salts),
                chances=tuple(given.chances), asks=tuple((name, tuple(column)) for name, column in asks.items()),
                habits=Habits(**given.habits), knows=knows,
                **rest)


def _cost(given: dict[str, Any]) -> Cost:
    cost: dict[str, Any] = {name: np.array(value, dtype=np.int64)[()] for name, value in given.items()}
    return check_cost(Cost(**cost))


def _check_fleet(given: CaseFile) -> None:
    """Raises ConfigError for pools, groups, links and changes that do not go together."""
    pools, replicas = 1 + len(given.others), given.replicas + sum(pool.replicas for pool in given.others)
    if any(p >= pools for group in given.groups for p in group):
        raise ConfigError(f"groups: must be pools 0 to {pools - 1}")
    if given.link is not None and (len(given.groups) < 2 or len(given.groups) % 2):
        raise ConfigError(f"link: needs groups for both halves of the way, got {len(given.groups)}")
    if given.link is None and not all(given.groups):
        raise ConfigError("groups: each must have a pool")
    for _, kind, replica, lasts in given.changes:
        if kind > RECLAIM or replica >= replicas or (lasts < 1 and kind != SLOW):
            raise ConfigError(f"changes: each must be [time, kind 0 to {RECLAIM}, replica 0 to {replicas - 1}, at "
                              "least 1 ns long]")
    first = 0
    for k, row in enumerate(given.scalers):
        names = {field.name for field in fields(Scaler)}
        if set(row) != names or row["first"] < first or not 1 <= row["count"] <= replicas - row["first"]:
            raise ConfigError(f"scalers: each must have {', '.join(sorted(names))}, and replicas of its own")
        if row["sync"] < 1 or row["target"] < 1 or row["pool"] >= pools or row["wanted"] > row["count"]:
            raise ConfigError(f"scalers: sync and target of {k} must be at least 1, pool and wanted what there is")
        first = row["first"] + row["count"]
    for row in given.shifts:
        names = {field.name for field in fields(Shift)}
        if set(row) != names or row["scaler"] >= len(given.scalers) or row["every"] < 1:
            raise ConfigError("shifts: each must have scaler, begin, end, every and replicas")


def _all_of(section: str, given: dict[str, Any], kind: Any) -> None:
    """Raises ConfigError unless the keys of a section are the fields of `kind`, tables being lists of lists."""
    needed = set(kind._fields) - set(kind._field_defaults)
    wrong = sorted(set(given) - set(kind._fields)) or sorted(needed - set(given))
    if wrong:
        raise ConfigError(f"{section}: {wrong[0]} is {'unknown' if wrong[0] in given else 'missing'}; "
                          f"accepted: {', '.join(kind._fields)}")
    for name, value in given.items():
        if (name in TABLES) != isinstance(value, list):
            raise ConfigError(f"{section}: {name} must be {'a table of two rows' if name in TABLES else 'a number'}")

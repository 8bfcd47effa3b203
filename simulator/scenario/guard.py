"""A user's policy under watch: every call and every plan of it checked against contract 1, on the SimPy engine."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

from policies.queues import wanted
from policies.registry import Policy
from simulator.errors import ConfigError
from simulator.scenario.own import _line
from simulator.state import Limits, Replica, Requests

TRIAL: Final = 200
"""Requests of the trial run that comes before a compiled one."""


class _Hidden:
    """Stands for a column that a policy must not read."""

    def __getitem__(self, i: int) -> NoReturn:
        raise PermissionError("a policy must not read output, the true length, which no engine knows")


def guarded(policy: Policy) -> Policy:
    """The policy for the SimPy engine, with its functions watched. They raise ConfigError with file and line."""
    path = Path(policy.module.__file__)
    oracle = path.stem.startswith("oracle_")

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(req: Requests, *rest: Any) -> Any:
            try:
                return function(req if oracle else req._replace(output=_Hidden()), *rest)
            except Exception as error:
                what = str(error) if isinstance(error, PermissionError) else f"{type(error).__name__}: {error}"
                raise ConfigError(f"{path}{_line(error, path)}: {what}") from error
        return call

    schedule = watched(policy.schedule)

    def planned(req: Requests, rep: Replica, lim: Limits, aux: Any) -> None:
        schedule(req, rep, lim, aux)
        why = broken_plan(req, rep, lim)
        if why:
            raise ConfigError(f"{path}: schedule made a plan that cannot be: {why} (at {rep.c.now / 1e9:.6f} s)")

    changes: dict[str, Any] = {name: watched(getattr(policy, name)) for name in ("retire", "arrived")}
    if policy.ordered:
        changes["key"] = watched(policy.key)
    return replace(policy, schedule=planned, **changes)


def broken_plan(req: Requests, rep: Replica, lim: Limits) -> str:
    """What is wrong with the plan in rep.batch, '' when nothing is."""
    if rep.c.n_running > lim.max_num_seqs:
        return f"{rep.c.n_running} sequences hold slots, there are {lim.max_num_seqs}"
    if rep.c.free_blocks < 0:
        return f"{-rep.c.free_blocks} KV blocks are held that are not there"
    running = set(rep.running[: rep.c.n_running])
    seen: set[int] = set()
    for i, tokens in zip(rep.batch[: rep.c.n_batch], rep.tokens[: rep.c.n_batch], strict=True):
        if i not in running:
            return f"request {i} holds no slot (admit it first)"
        if i in seen:
            return f"request {i} is planned twice"
        if not 1 <= tokens <= wanted(req, i):
            return f"request {i} is to compute {tokens} tokens, it wants {wanted(req, i)}"
        if req.computed[i] + tokens > req.blocks[i] * lim.block_size:
            return f"request {i} is to hold {req.computed[i] + tokens} tokens in {req.blocks[i]} KV blocks (grow first)"
        seen.add(i)
    return ""

"""A policy in a file of the user's own: `policy: {file: mine.py}`. Reading it runs it, so it must be allowed.

The file has `key` (queue order), `victim` (who is preempted), or a whole `schedule`, beside `retire` and `arrived`, as
docs/architecture.md, contract 1, has them. What it leaves out is that of `chunked`. NEEDS names the request columns it
reads (registry.ASKS), AUX how many numbers it keeps, LANE = True says that its `schedule` knows the lane.
"""

import ast
import hashlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from policies.chunked import scheduler
from policies.queues import largest_key, last_admitted
from policies.registry import ASKS, POLICIES, Policy, arrived_default, key_default, retire_default
from simulator.errors import ConfigError
from simulator.jit import jitable
from simulator.reading import ReadError, read_text

ARGUMENTS: Final = {"key": "req, lim, i", "victim": "req, rep, lim", "schedule": "req, rep, lim, aux",
                    "retire": "req, rep, lim, aux", "arrived": "req, rep, lim, aux, i"}
"""The functions a file may have, and what they are called with."""
_PREFIX: Final = "own-"
MOST_AUX: Final = 1_000_000


def is_own(policy: Policy) -> bool:
    """Whether a policy comes from a user's file."""
    return policy.engine.startswith(_PREFIX)


def sha256_of(policy: Policy) -> str | None:
    """Hash of the file that a policy comes from; None for those shipped."""
    return getattr(policy.module, "SHA256", None)


def load_policy(path: Path) -> Policy:
    """Run the file and make a policy of its functions. Raises ConfigError with file and line."""
    try:
        text = read_text(path)
    except ReadError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    _check_text(path, text)
    module = _run(path, text)
    found = {name: getattr(module, name, None) for name in ARGUMENTS}
    for name, function in found.items():
        _check_arguments(path, name, function)
    if not any(found[name] for name in ("key", "victim", "schedule")):
        raise ConfigError(f"{path}: has none of key, victim, schedule; accepted: at least one of them")
    victim = found["victim"] or (largest_key if found["key"] else last_admitted)
    if found["schedule"] and found["victim"]:
        raise ConfigError(f"{path}: victim has no effect beside schedule, which preempts by itself; remove one")
    return Policy(
        path.stem, module, found["schedule"] or scheduler(victim), POLICIES["chunked"].knobs,
        retire=found["retire"] or retire_default, key=found["key"] or key_default,
        arrived=found["arrived"] or arrived_default, engine=f"{_PREFIX}{module.SHA256[:16]}",
        needs=_needs(path, module), aux=_aux(path, module),
        lane=found["schedule"] is None or bool(getattr(module, "LANE", False)),
        prefix_cache=found["schedule"] is None)


def _check_text(path: Path, text: str) -> None:
    """What can be seen without running it. Raises ConfigError."""
    try:
        tree = ast.parse(text, str(path))
    except SyntaxError as error:
        raise ConfigError(f"{path}:{error.lineno}: {error.msg}") from None
    for line, why in sorted(_broken(tree, path.stem.startswith("oracle_"))):
        raise ConfigError(f"{path}:{line}: {why}")


def _broken(tree: ast.Module, oracle: bool) -> Iterator[tuple[int, str]]:
    """(line, what breaks the contract)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "output" and not oracle:
            yield node.lineno, ("a policy must not read output, the true length, which no engine knows; accepted in a "
                                "file whose name begins with oracle_")
        if isinstance(node, ast.FunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Raise | ast.Try | ast.Assert):
                    yield inner.lineno, f"{node.name} must raise nothing and catch nothing: it is compiled"


def _run(path: Path, text: str) -> ModuleType:
    """The module; its functions are known to both engines. numba finds it again by its name, which holds the hash."""
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    module = ModuleType(f"servecast_own_{sha256}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise ConfigError(f"{path}{_line(error, path)}: {type(error).__name__}: {error}") from error
    module.__dict__["SHA256"] = sha256
    for value in list(module.__dict__.values()):
        if isinstance(value, FunctionType) and value.__code__.co_filename == str(path):
            jitable(value)
    return module


def _line(error: BaseException, path: Path) -> str:
    """`:line` in the file where an error came from, '' when it came from elsewhere."""
    found, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            found = f":{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _check_arguments(path: Path, name: str, function: Any) -> None:
    if function is None:
        return
    if not isinstance(function, FunctionType):
        raise ConfigError(f"{path}: {name} must be a function, got {type(function).__name__}")
    wanted, got = ARGUMENTS[name], ", ".join(inspect.signature(function).parameters)
    if len(wanted.split(", ")) != len(inspect.signature(function).parameters):
        raise ConfigError(f"{path}:{function.__code__.co_firstlineno}: {name} must take ({wanted}), takes ({got})")


def _needs(path: Path, module: ModuleType) -> tuple[str, ...]:
    needs = getattr(module, "NEEDS", ())
    if not isinstance(needs, tuple | list) or not set(needs) <= set(ASKS):
        raise ConfigError(f"{path}: NEEDS must be a list of {', '.join(ASKS)}, got {needs!r}")
    return tuple(needs)


def _aux(path: Path, module: ModuleType) -> int:
    aux = getattr(module, "AUX", 1)
    if isinstance(aux, bool) or not isinstance(aux, int) or not 1 <= aux <= MOST_AUX:
        raise ConfigError(f"{path}: AUX must be 1..{MOST_AUX}, got {aux!r}")
    return aux

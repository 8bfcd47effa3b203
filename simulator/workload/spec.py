"""The `workload:` section of a scenario -> typed, frozen descriptions; unknown keys and wrong types are refused."""

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from simulator.config import shown
from simulator.errors import ConfigError, ServecastError

from .arrivals import Arrivals
from .generate import ClassSpec, Generated
from .lengths import Lengths
from .prefixes import Prefixes
from .sessions import Sessions
from .trace import DEFAULT_CLASS, Trace

T = TypeVar("T")


@dataclass(frozen=True)
class TraceFile:
    """A trace from a file: the options of load.load_trace, under the same names."""

    path: str
    format: str = "auto"
    columns: dict[str, str] | None = None
    time_unit: str | None = None
    sort: bool = False
    limit: int | None = None
    start_s: float | None = None
    end_s: float | None = None
    rate_scale: float = 1.0
    copies: int = 1
    copy_shift_s: float | None = None
    where: dict[str, str | int] | None = None
    shift_to_zero: bool | None = None
    max_tokens: int | None = None
    bad_rows: Literal["error", "drop"] = "error"


@dataclass(frozen=True)
class Inline:
    """Requests written out: `output` lists one number a request; the others are lists as long, or one
    number for all. arrival_s in seconds, sorted; cls names a class, tenant who sent it; a smaller priority goes first;
    ttft_target_s is the wanted time to first token [s]; the rest in tokens."""

    output: tuple[int, ...]
    prompt: tuple[int, ...] | int = 1
    arrival_s: tuple[float, ...] | float = 0.0
    max_tokens: tuple[int, ...] | int | None = None
    cached: tuple[int, ...] | int = 0
    cls: tuple[str, ...] | None = None
    priority: tuple[int, ...] | int | None = None
    tenant: tuple[str, ...] | None = None
    predicted: tuple[int, ...] | int | None = None
    ttft_target_s: tuple[float, ...] | float | None = None


Workload = TraceFile | Inline | Generated | Sessions
_LENGTH_KEYS = ("prompt", "output", "joint", "cached", "prefix")
_GENERATED_KEYS = ("arrivals", *_LENGTH_KEYS, "classes", "max_tokens")


def parse_workload(data: Mapping[str, Any], base: str | Path = ".", where: str = "workload") -> Workload:
    """Mapping -> TraceFile (`trace:`), Inline (`requests:`), Sessions (`sessions:`) or Generated (`arrivals:` with
    lengths or `classes:`).

    Relative paths are taken from `base`; files named for empirical and joint lengths are read here.
    Raises ConfigError starting with the key's path (`workload.arrivals.rate must be > 0, got 0`).
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a mapping, got {shown(data)}")
    starts = [key for key in ("trace", "requests", "sessions", "arrivals") if key in data]
    if isinstance(data.get("trace"), Mapping):
        _no_scale(data["trace"], f"{where}.trace")
    if len(starts) != 1:
        got = ", ".join(starts) or "none"
        raise ConfigError(f"{where} needs exactly one of trace, requests, sessions, arrivals; got {got}")
    key = starts[0]
    _only(data, _GENERATED_KEYS if key == "arrivals" else (key,), where)
    if key == "arrivals":
        return _generated(data, Path(base), where)
    if key == "requests":
        return _make(Inline, data[key], f"{where}.requests")
    if key == "sessions":
        return _sessions(data[key], Path(base), f"{where}.sessions")
    given = {"path": data[key]} if isinstance(data[key], str) else data[key]
    file = _make(TraceFile, given, f"{where}.trace")
    return replace(file, path=str(_seen_from(Path(base), file.path)))


def _no_scale(trace: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError for factors on lengths, which overlays of a what-if have."""
    for key in ("prompt_scale", "output_scale"):
        if key in trace:
            raise ConfigError(f"{where}.{key}: a trace keeps its lengths; longer or shorter ones are asked for by an "
                              f"overlay of servecast whatif: {{name: longer, {key}: {shown(trace[key])}}}")


def _seen_from(base: Path, name: str) -> Path:
    """A file named relative to the folder `base`, without `..`: messages name it as a person would."""
    path = base / name
    if ".." not in path.parts:
        return path
    try:
        real, here = (Path(os.path.realpath(each)) for each in (path, "."))  # `..` may lead through links
    except ValueError:  # a NUL: whoever opens it says so
        return path
    return real if path.is_absolute() or not real.is_relative_to(here) else real.relative_to(here)


def _generated(data: Mapping[str, Any], base: Path, where: str) -> Generated:
    arrivals = _make(Arrivals, data["arrivals"], f"{where}.arrivals", "arrivals")
    limit = data.get("max_tokens")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ConfigError(f"{where}.max_tokens must be a whole number >= 1, got {limit!r}")
    if "classes" not in data:
        lengths = {key: data[key] for key in _LENGTH_KEYS if key in data}
        return Generated(arrivals, (_class(DEFAULT_CLASS, lengths, base, where),), limit)
    _only(data, ("arrivals", "classes", "max_tokens"), where)
    if not isinstance(data["classes"], Mapping) or not data["classes"]:
        raise ConfigError(f"{where}.classes must map names to lengths, got {shown(data['classes'])}")
    named = data["classes"].items()
    classes = (_class(str(name), each, base, f"{where}.classes.{name}") for name, each in named)
    return Generated(arrivals, tuple(classes), limit)


def _sessions(data: Any, base: Path, where: str) -> Sessions:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a mapping, got {shown(data)}")
    made: dict[str, Any] = dict(data)
    for key in ("turns", "new", "output", "first"):
        if key in data:
            made[key] = _lengths(data[key], "output" if key == "output" else "prompt", base, f"{where}.{key}")
    if "prefix" in data:
        made["prefix"] = _prefixes(data["prefix"], base, f"{where}.prefix")
    if "arrivals" in data:
        made["arrivals"] = _make(Arrivals, data["arrivals"], f"{where}.arrivals", "arrivals")
    return _make(Sessions, made, where, "sessions")


def _class(name: str, data: Mapping[str, Any], base: Path, where: str) -> ClassSpec:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a mapping, got {shown(data)}")
    _only(data, ("weight", *_LENGTH_KEYS, "priority", "ttft_target_s"), where)
    parts = {
        key: _lengths(data[key], key, base, f"{where}.{key}")
        for key in ("prompt", "output", "cached")
        if key in data
    }
    prefix = _prefixes(data["prefix"], base, f"{where}.prefix") if "prefix" in data else None
    joint = _sample(data["joint"], base, f"{where}.joint") if "joint" in data else None
    weight, target = data.get("weight", 1.0), data.get("ttft_target_s")
    for key, value in (("weight", weight), ("ttft_target_s", 1.0 if target is None else target)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{where}.{key} must be a number > 0, got {value!r}")
    priority = data.get("priority")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise ConfigError(f"{where}.priority must be a whole number, got {priority!r}")
    try:
        return ClassSpec(name, float(weight), joint=joint, prefix=prefix, priority=priority,
                         ttft_target_s=None if target is None else float(target), **parts)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _prefixes(data: Any, base: Path, where: str) -> Prefixes:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a mapping like {{groups: 8, length: 1000}}, got {shown(data)}")
    made: dict[str, Any] = dict(data)
    if "length" in data:
        made["length"] = _lengths(data["length"], "prompt", base, f"{where}.length")
    return _make(Prefixes, made, where, "prefix")


def _lengths(data: Any, part: str, base: Path, where: str) -> Lengths:
    if isinstance(data, int) and not isinstance(data, bool):
        return _make(Lengths, {"kind": "fixed", "value": data}, where, "lengths")
    if isinstance(data, Mapping) and data.get("kind") == "empirical" and "path" in data:
        file = {key: value for key, value in data.items() if key not in ("kind", "min", "max")}
        column = getattr(_sample(file, base, where), part)
        rest = {key: value for key, value in data.items() if key in ("kind", "min", "max")}
        return _make(Lengths, {**rest, "values": column}, where, "lengths")
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a whole number or a mapping like {{kind: lognormal, mean: 200, cv: 1}}, "
                          f"got {shown(data)}")
    return _make(Lengths, data, where, "lengths")


@dataclass(frozen=True)
class _SampleFile:
    path: str
    format: str = "auto"
    columns: dict[str, str] | None = None
    where: dict[str, str | int] | None = None


def _sample(data: Any, base: Path, where: str) -> Trace:
    file = _make(_SampleFile, {"path": data} if isinstance(data, str) else data, where)
    try:
        from .load import load_lengths  # here, because pyarrow takes long to load

        return load_lengths(_seen_from(base, file.path), file.format, file.columns, file.where)
    except ServecastError as error:
        raise type(error)(f"{where}: {error}") from None


def _only(data: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in data:
        if key not in known:
            raise ConfigError(f"{where}.{key} is not known here; accepted: {', '.join(known)}")


def _make(kind: type[T], data: Any, where: str, label: str = "") -> T:
    """Mapping -> dataclass `kind`, types checked; messages that start with `label` are moved under `where`."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a mapping, got {shown(data)}")
    hints = get_type_hints(kind)
    _only(data, tuple(hints), where)
    for each in fields(kind):  # type: ignore[arg-type]
        if each.default is MISSING and each.name not in data:
            raise ConfigError(f"{where}.{each.name} is needed")
    values = {name: _typed(hints[name], value, f"{where}.{name}") for name, value in data.items()}
    try:
        return kind(**values)
    except ConfigError as error:
        text = str(error)
        moved = where + text[len(label) :] if label and text.startswith(label) else f"{where}: {text}"
        raise ConfigError(moved) from None


def _typed(hint: Any, value: Any, where: str) -> Any:
    try:
        return TypeAdapter(hint).validate_python(_tuples(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
        message = first["msg"].replace("Input should be", "must be")
        raise ConfigError(f"{where}{place} {message}, got {shown(first['input'])}") from None


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value

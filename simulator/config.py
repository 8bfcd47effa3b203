"""YAML and `--set` in, plain data out, and errors that say file, line, key, value and what is accepted."""

import difflib
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from simulator.errors import ConfigError, ServecastError
from simulator.reading import ReadError, read_text
from simulator.yaml_text import parse_yaml

M = TypeVar("M", bound=BaseModel)
Key = tuple[str | int, ...]


SHORT_FORMS: Final = {"hardware": "gpu", "load": "kind", "engine": "name", "host": "name", "policy": "name"}
"""Sections of a scenario that may be one text, and the key it stands for."""


class Section(BaseModel):
    """What typed YAML is made of: unknown keys, other types and infinite numbers are refused; frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Document:
    """A YAML file read once: `data`, and the line of every key for messages."""

    def __init__(self, path: str | Path, text: str | None = None) -> None:
        self.path = Path(path)
        self.name = str(path)
        self.overridden: set[Key] = set()
        self.in_file = True
        try:
            self.node, data = parse_yaml(read_text(path) if text is None else text)
        except ReadError as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
        except ConfigError as error:
            raise ConfigError(_at(path, error)) from None
        self.data: dict[str, Any] = {} if data is None else data
        if not isinstance(self.data, dict):
            raise ConfigError(f"{path}: must hold a mapping of keys, got {type(self.data).__name__}")

    @classmethod
    def of_file(cls, path: str | Path, overrides: Iterable[str] = ()) -> "Document":
        """A file with `key=value` assignments that beat it. Raises ConfigError."""
        document = cls(path)
        document.override(overrides)
        return document

    @classmethod
    def of_data(cls, data: Mapping[str, Any], name: str) -> "Document":
        """Plain data, e.g. a dict written in Python; `name` stands in messages where a file would."""
        document = cls(name, text="{}")
        document.data, document.in_file = dict(data), False
        return document

    def line(self, key: Key) -> int | None:
        """Line of the deepest part of `key` that is in the file, None when it came from --set."""
        if any(key[: len(o)] == o or o[: len(key)] == key for o in self.overridden):
            return None
        node, line = self.node, 1
        for part in key:
            found = _child(node, part)
            if found is None:
                break
            node, line = found
        return line

    def where(self, key: Key) -> str:
        """`file:line`, `--set` or, of plain data, its name, for the start of a message."""
        if not self.in_file:
            return self.name
        line = self.line(key)
        return "--set" if line is None else f"{self.name}:{line}"

    def override(self, assignments: Iterable[str]) -> None:
        """Apply `a.b.c=value` assignments (value read as YAML). Raises ConfigError for a malformed one."""
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            parts = tuple(name.strip().split("."))
            if not equals or not all(parts):
                raise ConfigError(f"--set {shown(assignment)[1:-1]}: must read key=value, e.g. policy.max_num_seqs=64")
            try:
                value = parse_yaml(text)[1]
            except ConfigError as error:
                problem = str(error).removeprefix("line 1: ")
                raise ConfigError(f"--set {shown(assignment)[1:-1]}: {problem}: not a YAML value") from None
            self.assign(parts, value)

    def accepted(self, key: Key, known: list[str]) -> list[str]:
        """Of the keys that are known where the unknown `key` stands those that this file may have there."""
        return known

    def assign(self, parts: tuple[str, ...], value: Any) -> None:
        """Set the key `parts`; messages about it will not point at a line of the file."""
        set_key(self.data, parts, value)
        self.overridden.add(parts)


def _at(path: str | Path, error: ConfigError) -> str:
    """`FILE:LINE: what is wrong` of an error that begins with `line N: `, else `FILE: what is wrong`."""
    text = str(error)
    return f"{path}:{text.removeprefix('line ')}" if text.startswith("line ") else f"{path}: {text}"


def read_yaml(path: Path, what: str) -> Any:
    """The data of a YAML file. Raises ConfigError with file, line and, in front of the reason, `what` it is."""
    try:
        return parse_yaml(read_text(path))[1]
    except ReadError as error:
        raise ConfigError(f"{path}: not a readable {what}: {error}") from error
    except ConfigError as error:
        raise ConfigError(_at(path, error)) from None


def _child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return value, key.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark.line + 1
    return None


def set_key(data: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    """data[a][b][c] = value, making mappings on the way; a text in the way is what it is short for."""
    for part in parts[:-1]:
        below = data.get(part)
        if not isinstance(below, dict):
            below = {} if below is None else {"path" if part == "trace" else SHORT_FORMS.get(part, "name"): below}
            data[part] = below
        data = below
    data[parts[-1]] = value


def validate(model: type[M], document: Document, data: Mapping[str, Any] | None = None, prefix: Key = ()) -> M:
    """Data -> pydantic model. Raises ConfigError with one line for the first thing that is wrong."""
    try:
        return model.model_validate(document.data if data is None else data)
    except ValidationError as error:
        first = error.errors()[0]
        key = (*prefix, *(part for part in first["loc"] if not _is_tag(part)))
        if first["type"] == "value_error" and not first["loc"]:
            key = (*prefix, *_named_key(model, first["msg"]))
        raise ConfigError(f"{document.where(key)}: {_problem(model, first, key, document)}") from None


def placed(document: Document, error: ServecastError, section: str) -> ServecastError:
    """The error with `file:line: ` in front when it starts with a key of `section`."""
    text = str(error)
    key = text.split(" ")[0].split(":")[0]
    return type(error)(f"{document.where(tuple(key.split('.')))}: {text}") if key.startswith(section) else error


def _named_key(model: type[BaseModel], message: str) -> Key:
    """The dotted key that a message of a whole-file check starts with, () when it starts with none."""
    name = message.removeprefix("Value error, ").split(" ")[0].rstrip(":")
    parts = tuple(name.split("."))
    return parts if parts[0] in model.model_fields else ()


def _is_tag(part: str | int) -> bool:
    return isinstance(part, str) and ("[" in part or part.endswith("Spec") or part in ("str", "int", "float", "bool"))


def _problem(model: type[BaseModel], error: Any, key: Key, document: Document) -> str:
    name = ".".join(str(part) for part in key) or "the file"
    kind, value = error["type"], error.get("input")
    if kind == "extra_forbidden":
        known = document.accepted(key, sorted(_fields_at(model, error["loc"][:-1])))
        near = difflib.get_close_matches(str(error["loc"][-1]), known, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return f"unknown key {name}{hint}; known here: {', '.join(known)}"
    if kind == "missing":
        return f"{name} is missing"
    message = error["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return message if message.startswith(name) else f"{name}: {message}"
    message = message.replace("Input should be", "must be").replace("greater than or equal to", ">=")
    message = message.replace("less than or equal to", "<=").replace("greater than", ">").replace("less than", "<")
    message = re.sub(r"List should (have at \w+ \d+ items?) after validation, not \d+", r"must \1", message)
    message = re.sub(r"a valid dictionary( or instance of \w+)?", "a mapping of keys", message)
    message = message.replace("a valid tuple", "a list").replace("Keys should be strings", "must be a text")
    return f"{name} {message}, got {shown(value)}"


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 77
_SHORT.maxlevel, _SHORT.maxdict = 3, 6


def shown(value: Any) -> str:
    """A value as it stands in a message: cut where it is long, and never written out whole before."""
    if isinstance(value, str):
        text = repr(value if len(value) < 80 else value[:80])
        return text if len(text) < 80 and len(value) < 80 else text[:77] + "..."
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    text = _SHORT.repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def listed(names: Iterable[Any], most: int = 30) -> str:
    """Names joined by commas for a message: long ones are cut, and no more than `most`."""
    texts = [name if len(name) <= 60 else name[:57] + "..." for name in (str(each)[:61] for each in names)]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _fields_at(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    current: Any = model
    for part in loc:
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            continue
        current = next(_models_in(field.annotation), current)
    return list(current.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Models that a field may hold, also as one of several and in lists."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in getattr(annotation, "__args__", ()):
        yield from _models_in(each)

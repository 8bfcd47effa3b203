"""YAML as data: text -> nodes with lines -> dicts, lists and scalars, nothing else.

libyaml parses; what could grow or surprise is refused first: deep nesting, aliases that expand, tags that name
types, keys that repeat. Numbers are read as in YAML 1.2: `1e6` is one, `1:30:00` and `010` are texts.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from simulator.errors import ConfigError

MAX_DEPTH: Final = 50
"""Deepest nesting of lists and mappings."""
MAX_NODES: Final = 100_000
"""Most keys and values, those that aliases repeat counted each time."""
MAX_DIGITS: Final = 400
"""Most characters of a number."""
TERMINAL: Final = "\x07\x08\x1b\x7f\x9b"
"""Bell, backspace, escape, delete and CSI: a name that is printed may not move the cursor or hide what stands there."""
_LONG: Final = "accepted: a trace file for long lists"
_YAML: Final = "tag:yaml.org,2002:"
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """The safe loader, strict about keys: they are texts or numbers and appear once."""


def _resolvers() -> dict[str, list[tuple[str, Any]]]:
    """YAML's implicit types with numbers as in YAML 1.2's core schema (underscores still group digits)."""
    kept = {first: [pair for pair in pairs if pair[0] not in (f"{_YAML}int", f"{_YAML}float")]
            for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    whole = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+|0b[01]+)\Z")
    real = re.compile(r"[-+]?((0|[1-9][0-9_]*)?\.[0-9]+([eE][-+]?\d+)?|(0|[1-9][0-9_]*)\.?([eE][-+]?\d+)"
                      r"|(0|[1-9][0-9_]*)\.|\.(inf|Inf|INF))\Z|\.(nan|NaN|NAN)\Z")
    for first in "-+.0123456789":
        kept[first] = [*kept.get(first, []), (f"{_YAML}int", whole), (f"{_YAML}float", real)]
    return kept


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"line {line}: a key must be a text or number, got a {key_node.id}")
        key = loader.construct_object(key_node)
        if key in seen:
            raise ConfigError(f"line {line}: key {repr(key)[:80]} appears twice")
        seen.add(key)
    return dict(loader.construct_mapping(node, deep=True))


def _text(loader: Any, node: yaml.ScalarNode) -> str:
    text = str(loader.construct_scalar(node))
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError(f"line {node.start_mark.line + 1}: a text must be Unicode without NUL, got {text[:60]!r}")
    if any(letter in text for letter in TERMINAL):
        raise ConfigError(f"line {node.start_mark.line + 1}: a text must hold no control codes of a terminal, got "
                          f"{text[:60]!r}")
    return text


_Loader.yaml_implicit_resolvers = _resolvers()
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG, _text)


def parse_yaml(text: str) -> tuple[yaml.Node | None, Any]:
    """(root node, data); (None, None) for an empty text.

    Raises ConfigError starting with `line N: ` where a line can be named.
    """
    try:
        _check_size(text)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, None
            _check_nodes(loader, node)
            return node, loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML")
        got = f", got {_line_of(text, mark.line)!r}" if mark else ""
        raise ConfigError(f"{line}not readable YAML: {problem[:200]}{got}") from None
    except RecursionError:
        raise ConfigError("not readable YAML: nested too deeply") from None
    except UnicodeEncodeError as error:
        got = text[error.start : error.start + 20]
        raise ConfigError(f"a text must be Unicode without lone surrogates, got {got!r}") from None


def _line_of(text: str, number: int) -> str:
    """The start of a line, counted from 0."""
    lines = text[: 2**20].split("\n", number + 1)
    return lines[number][:60].strip() if number < len(lines) else ""


def _check_size(text: str) -> None:
    """Refuse a text that may hold more than MAX_NODES values, by what stands between them."""
    between = sum(text.count(each) for each in (",", "\n", ": ", "- ", "[", "{", "? "))
    if between > 2 * MAX_NODES:
        raise ConfigError(f"not readable YAML: more than {MAX_NODES:,} values; {_LONG}")


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _check_nodes(loader: Any, root: yaml.Node) -> None:
    """Refuse types by tag, scalars that no type can hold, and more than MAX_NODES values once aliases are expanded."""
    sizes: dict[int, int] = {}
    checked: set[tuple[str, str, bool]] = set()

    def size(node: yaml.Node, depth: int) -> int:
        known = sizes.get(id(node))
        line = node.start_mark.line + 1
        if known == 0 or depth > MAX_DEPTH:
            raise ConfigError(f"line {line}: nests more than {MAX_DEPTH} deep, or an alias names what it is part of")
        if known is not None:
            return known
        sizes[id(node)] = 0
        mark = (node.tag, node.value, bool(node.style)) if isinstance(node, yaml.ScalarNode) else None
        if mark not in checked:
            _check_tag(loader, node, line)
        if mark is not None:
            checked.add(mark)
        total = 1 + sum(size(each, depth + 1) for each in _children(node))
        if total > MAX_NODES:
            raise ConfigError(f"line {line}: more than {MAX_NODES:,} values; {_LONG}")
        sizes[id(node)] = total
        return total

    size(root, 0)


def _check_tag(loader: Any, node: yaml.Node, line: int) -> None:
    if not isinstance(node, yaml.ScalarNode):
        kind = "map" if isinstance(node, yaml.MappingNode) else "seq"
        if node.tag != f"{_YAML}{kind}":
            raise ConfigError(f"line {line}: tag {node.tag[:60]!r} is not accepted; only plain lists and mappings are")
        return
    if node.tag == f"{_YAML}str":
        return
    plain = loader.resolve(yaml.ScalarNode, node.value, (not node.style, bool(node.style)))
    if node.tag != plain:
        raise ConfigError(f"line {line}: tag {node.tag[:60]!r} is not accepted; only plain values and !!str are")
    if node.tag in (f"{_YAML}int", f"{_YAML}float") and len(node.value) > MAX_DIGITS:
        raise ConfigError(f"line {line}: a number of {len(node.value)} characters; accepted: at most {MAX_DIGITS}")
    if node.tag == f"{_YAML}timestamp":
        try:
            loader.construct_yaml_timestamp(node)
        except ValueError as error:
            raise ConfigError(f"line {line}: not readable YAML: {node.value[:40]!r}: {error}") from None

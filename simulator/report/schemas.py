"""JSON Schemas of what is written, from the table in schemas.yaml: more keys may come, those it names stay.

What each key means, with its unit, is in schema_words.yaml.
"""

from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from simulator.version import SCHEMAS, schema_of

KINDS: Final = tuple(SCHEMAS)
"""summary.json (comparison.json is a list of such), plan.json, budget.json, ..."""
WORDS: Final[dict[str, dict[str, Any]]] = {
    "count": {"type": "integer"}, "number": {"type": ["number", "null"]}, "text": {"type": "string"},
    "flag": {"type": "boolean"}, "object": {"type": "object"}, "value": {},
}  # fmt: skip
ENDS: Final = {"low": "lower", "high": "upper"}


@cache
def schema_for(kind: str) -> dict[str, Any]:
    """Draft 2020-12 schema of one of KINDS."""
    table = _table()
    made = _of(table[kind], schema_of(kind), (kind,))
    shared = {name: _of(node, "", (name,)) for name, node in table["shared"].items()}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": kind, **made, "$defs": shared}


@cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return found


@cache
def _words() -> dict[str, str]:
    file = Path(__file__).with_name("schema_words.yaml")
    found: dict[str, str] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


def described(place: tuple[str, ...]) -> str:
    """What the key at a place is, the most particular line first; KeyError where there is none."""
    known = _words()
    name = next((".".join(place[k:]) for k in range(len(place)) if ".".join(place[k:]) in known), "")
    if name:
        return known[name]
    base, _, end = place[-1].rpartition("_")
    if end not in ENDS:
        raise KeyError(".".join(place))
    return f"{described((*place[:-1], base))}: {ENDS[end]} end of its 90 % interval over replications"


def _of(node: Any, name: str, place: tuple[str, ...]) -> dict[str, Any]:
    if isinstance(node, list):
        return {"type": "array", "items": _of(node[0], name, place)}
    if isinstance(node, str):
        if node == "schema":
            return {"const": name}
        return WORDS.get(node, {"$ref": f"#/$defs/{node}"})
    keys = {key.rstrip("?~"): key for key in node if key != "*"}
    made: dict[str, Any] = {"type": "object", "required": [key for key, marked in keys.items() if "?" not in marked],
                            "properties": {key: _said(_maybe(marked, _of(node[marked], name, (*place, key))),
                                                      (*place, key)) for key, marked in keys.items()}}  # fmt: skip
    return made | ({"additionalProperties": _of(node["*"], name, place)} if "*" in node else {})


def _said(schema: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    return {**schema, "description": described(place)}


def _maybe(marked: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, or null where the key is marked with ~."""
    return {"anyOf": [schema, {"type": "null"}]} if "~" in marked else schema

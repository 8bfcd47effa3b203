"""JSON Schemas of what is written, from the table in schemas.yaml: more keys may come, those it names stay."""

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


@cache
def schema_for(kind: str) -> dict[str, Any]:
    """Draft 2020-12 schema of one of KINDS."""
    table = _table()
    made = _of(table[kind], schema_of(kind))
    shared = {name: _of(node, "") for name, node in table["shared"].items()}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": kind, **made, "$defs": shared}


@cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return found


def _of(node: Any, name: str) -> dict[str, Any]:
    if isinstance(node, list):
        return {"type": "array", "items": _of(node[0], name)}
    if isinstance(node, str):
        if node == "schema":
            return {"const": name}
        return WORDS.get(node, {"$ref": f"#/$defs/{node}"})
    keys = {key.rstrip("?~"): key for key in node if key != "*"}
    made: dict[str, Any] = {"type": "object", "required": [key for key, marked in keys.items() if "?" not in marked],
                            "properties": {key: _maybe(marked, _of(node[marked], name))
                                           for key, marked in keys.items()}}  # fmt: skip
    return made | ({"additionalProperties": _of(node["*"], name)} if "*" in node else {})


def _maybe(marked: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, or null where the key is marked with ~."""
    return {"anyOf": [schema, {"type": "null"}]} if "~" in marked else schema

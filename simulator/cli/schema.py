"""JSON schema of a scenario file, from the types that read it: nothing is written down twice.

What keys mean that their types do not describe is in scenario_words.yaml.
"""

from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import TypeAdapter

from simulator.config import SHORT_FORMS
from simulator.scenario.limits import LONGEST_S
from simulator.scenario.spec import Scenario
from simulator.workload.arrivals import MAX_REQUESTS, Arrivals
from simulator.workload.lengths import Lengths
from simulator.workload.prefixes import MOST_GROUPS, MOST_SKEW, Prefixes
from simulator.workload.sessions import Sessions
from simulator.workload.spec import Inline, TraceFile
from simulator.workload.trace import MAX_TOKENS

Schema = dict[str, Any]

_SPREAD, _COUNT = (0, 1e6), (1, MAX_TOKENS)
BOUNDS: Final[dict[type, dict[str, tuple[float, float]]]] = {
    Arrivals: {"requests": (1, MAX_REQUESTS), "duration_s": (0, LONGEST_S), "start_s": (0, LONGEST_S),
               "cv": (1e-3, 1e3), "amplitude": (0, 1)},
    Lengths: {"value": _COUNT, "min": _COUNT, "max": _COUNT, "mean": (0, MAX_TOKENS), "median": (0, MAX_TOKENS),
              "cv": _SPREAD, "sigma": _SPREAD},
    Prefixes: {"groups": (1, MOST_GROUPS), "skew": (0, MOST_SKEW)},
}
"""Least and largest numbers that these classes accept."""

ENDS: Final = {"_s": "[s]", "_blocks": "[blocks]"}
"""End of a key -> its unit, where its description does not say one."""
_SAMPLE: Final = ("path", "format", "columns", "where")
"""Options of a file that lengths are drawn from."""


def scenario_schema() -> Schema:
    """Draft 2020-12 schema of a scenario. It covers keys and types; `servecast run` checks the rest."""
    schema: Schema = Scenario.model_json_schema()
    properties = schema["properties"]
    for section, key in SHORT_FORMS.items():
        short = {"type": "string", "description": f"short for {{{key}: ...}}"}
        for keys in (properties, schema["$defs"]["PoolSpec"]["properties"]):
            if section in keys:
                keys[section] = {"anyOf": [short, keys[section]]}
    properties["workload"] = _workload()
    _describe(schema, "")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "scenario"}


@cache
def scenario_words() -> dict[str, str]:
    """`KEY` or `TYPE.KEY` -> what it is."""
    file = Path(__file__).with_name("scenario_words.yaml")
    found: dict[str, str] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


def _describe(node: Any, title: str) -> None:
    """Give every property below `node` that has no description the one in scenario_words.yaml, in place."""
    if isinstance(node, list):
        for each in node:
            _describe(each, title)
    if not isinstance(node, dict):
        return
    if isinstance(node.get("properties"), dict):
        title = str(node.get("title", title))
        words = scenario_words()
        for key, part in node["properties"].items():
            text = part.get("description") or words.get(f"{title}.{key}", words.get(key))
            unit = next((unit for end, unit in ENDS.items() if key.endswith(end)), "")
            if text is not None:
                text = " ".join(text.split())
                node["properties"][key] = {**part, "description": text if "[" in text or not unit else f"{unit} {text}"}
    for part in node.values():
        _describe(part, title)


def _workload() -> Schema:
    """A trace file, written-out requests, or arrivals with lengths (workload.spec.parse_workload)."""
    sample: Schema = {"anyOf": [{"type": "string"}, _section(TraceFile, _SAMPLE)]}
    lengths = {"anyOf": [{"type": "integer", "minimum": 1}, _lengths()]}
    prefixes = _section(Prefixes)
    prefixes["properties"] |= {"length": lengths}
    parts: Schema = {"prompt": lengths, "output": lengths, "cached": lengths, "joint": sample, "prefix": prefixes}
    one = {"type": "object", "additionalProperties": False,
           "properties": {**parts, "weight": {"type": "number", "exclusiveMinimum": 0},
                          "priority": {"type": "integer"},
                          "ttft_target_s": {"type": "number", "exclusiveMinimum": 0}}}
    generated = {**parts, "arrivals": _section(Arrivals), "max_tokens": {"type": "integer", "minimum": 1},
                 "classes": {"type": "object", "additionalProperties": one, "minProperties": 1}}
    sessions = _section(Sessions)
    sessions["properties"] |= {"arrivals": _section(Arrivals), "prefix": prefixes,
                               **{key: lengths for key in ("turns", "new", "output", "first")}}
    return {"title": "workload", "oneOf": [
        _only({"trace": {"anyOf": [{"type": "string"}, _section(TraceFile)]}}, "trace"),
        _only({"requests": _section(Inline)}, "requests"),
        _only({"sessions": sessions}, "sessions"),
        _only(generated, "arrivals"),
    ]}


def _only(properties: Schema, needed: str) -> Schema:
    return {"type": "object", "additionalProperties": False, "required": [needed], "properties": properties}


def _section(kind: type, keys: tuple[str, ...] | None = None) -> Schema:
    """Schema of a dataclass with the bounds of its numbers, other keys refused; `keys` leaves only those."""
    schema: Schema = TypeAdapter(kind).json_schema()
    for key, (least, most) in BOUNDS.get(kind, {}).items():
        schema["properties"][key] |= {"minimum": least, "maximum": most}
    if keys is not None:
        schema["properties"] = {key: schema["properties"][key] for key in keys}
    return {**schema, "additionalProperties": False}


def _lengths() -> Schema:
    """Lengths as written in YAML: drawn from a distribution, or `empirical` from a file's column."""
    schema = _section(Lengths)
    extra = _section(TraceFile, _SAMPLE)["properties"]
    return {**schema, "properties": {**schema["properties"], **extra}}

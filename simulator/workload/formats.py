"""Known trace formats: which column of the file plays which part, and in which unit times are given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from simulator.errors import ConfigError, TraceError, UnknownNameError

FIELDS: Final = ("arrival", "prompt", "output", "max_tokens", "cached", "cls", "id")
"""Parts a column can play; `class` is accepted for `cls`."""
NEEDED: Final = ("arrival", "prompt", "output")
UNITS_NS: Final[Mapping[str, int]] = MappingProxyType({"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1})
"""Nanoseconds of one unit; `iso` (ISO 8601 text) is the fifth accepted unit."""


@dataclass(frozen=True)
class Format:
    """A published layout. `columns` maps part -> column name; `failed` is why a row with 0 output tokens
    is dropped (None: such a row is an error); `sort` is set where the file is not ordered by arrival by
    design."""

    name: str
    columns: Mapping[str, str]
    unit: str
    failed: str | None = None
    sort: bool = False
    optional: tuple[str, ...] = ()
    source: str = ""


_LIST = (
    Format(
        "azure",
        {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"},
        "iso",
        source="Azure/AzurePublicDataset, LLM inference traces 2023 and 2024",
    ),
    Format(
        "burstgpt",
        {"arrival": "Timestamp", "prompt": "Request tokens", "output": "Response tokens"},
        "s",
        failed="failed request (0 response tokens)",
        source="HPMLL/BurstGPT",
    ),
    Format(
        "mooncake",
        {"arrival": "timestamp", "prompt": "input_length", "output": "output_length"},
        "ms",
        source="kvcache-ai/Mooncake, FAST'25 traces (hash_ids are not read)",
    ),
    Format(
        "vllm_bench",
        {"arrival": "start_times", "prompt": "input_lens", "output": "output_lens"},
        "s",
        failed="failed request (0 output tokens)",
        sort=True,
        source="vllm bench serve --save-detailed",
    ),
    Format(
        "servecast",
        {
            "arrival": "arrival_s",
            "prompt": "prompt_tokens",
            "output": "output_tokens",
            "max_tokens": "max_tokens",
            "cached": "cached_tokens",
            "cls": "class",
            "id": "id",
        },
        "s",
        optional=("max_tokens", "cached", "cls", "id"),
        source="this project's own requests table",
    ),
)
FORMATS: Final[Mapping[str, Format]] = MappingProxyType({layout.name: layout for layout in _LIST})
OTHERS: Final = ("auto", "generic", "sharegpt", "columns")

_GUESSES: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "arrival": [
            "arrival",
            "arrivaltime",
            "arrivals",
            "arrivalms",
            "arrivalus",
            "arrivalns",
            "timestamp",
            "time",
        ],
        "prompt": [
            "prompt",
            "prompttokens",
            "promptlen",
            "inputtokens",
            "inputlen",
            "inputlength",
            "contexttokens",
        ],
        "output": [
            "output",
            "outputtokens",
            "outputlen",
            "outputlength",
            "completiontokens",
            "generatedtokens",
            "responsetokens",
        ],
    }
)
"""Column names (without case and separators) taken for a part when no format fits."""


@dataclass(frozen=True)
class Layout:
    """What to read: part -> column of the file, the unit (None: decide from the column), the format's
    rules."""

    name: str
    columns: Mapping[str, str]
    unit: str | None
    failed: str | None = None
    sort: bool = False


def plain(name: str) -> str:
    """Column name without case, blanks, dashes and underscores."""
    return "".join(ch for ch in name.lower() if ch.isalnum())


def resolve_layout(
    where: str,
    header: Sequence[str],
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    needed: Sequence[str] = NEEDED,
) -> Layout:
    """Header and options -> Layout. `columns` overrides the format column by column.

    Raises UnknownNameError for a format, ConfigError for a part or unit that does not exist, TraceError
    (naming what the file has) for a column that is not there.
    """
    if format not in FORMATS and format not in OTHERS:
        raise UnknownNameError("trace format", format, [*FORMATS, *OTHERS], where)
    if time_unit is not None and time_unit not in {*UNITS_NS, "iso"}:
        raise ConfigError(f"{where}: time_unit must be one of s, ms, us, ns, iso, got {time_unit!r}")
    own = _overrides(where, columns or {})
    known = {plain(name): name for name in header}
    layout = _detect(known) if format == "auto" else FORMATS.get(format)
    chosen = _from_format(layout, known) if layout else _guess(known)
    chosen |= {part: _present(where, name, header, known) for part, name in own.items()}
    missing = [part for part in needed if part not in chosen]
    if missing:
        raise TraceError(_missing_text(where, missing, header, layout))
    unit = time_unit or (_unit_of(chosen, layout) if "arrival" in chosen else None)
    if layout is None:
        return Layout("generic", chosen, unit)
    return Layout(layout.name, chosen, unit, layout.failed, layout.sort)


def _overrides(where: str, columns: Mapping[str, str]) -> dict[str, str]:
    own = {("cls" if part == "class" else part): name for part, name in columns.items()}
    for part in own:
        if part not in FIELDS:
            raise ConfigError(
                f"{where}: columns.{part} is not a part of a request; accepted: arrival, prompt, output, "
                "max_tokens, cached, class, id"
            )
    return own


def _present(where: str, name: str, header: Sequence[str], known: Mapping[str, str]) -> str:
    if name in header:
        return name
    if plain(name) in known:
        return known[plain(name)]
    raise TraceError(f"{where}: no column {name!r}; the file has: {', '.join(header)}")


def _detect(known: Mapping[str, str]) -> Format | None:
    for layout in _LIST:
        if all(plain(layout.columns[part]) in known for part in NEEDED):
            return layout
    return None


def _from_format(layout: Format, known: Mapping[str, str]) -> dict[str, str]:
    return {part: known[plain(name)] for part, name in layout.columns.items() if plain(name) in known}


def _guess(known: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part, names in _GUESSES.items():
        for name in names:
            if name in known:
                found[part] = known[name]
                break
    return found


def _unit_of(chosen: Mapping[str, str], layout: Format | None) -> str | None:
    """The format's unit, unless another column is read as arrival: then the suffix of its name (_s, _ms,
    ...)."""
    if layout and (plain(chosen["arrival"]) == plain(layout.columns["arrival"])):
        return layout.unit
    suffix = chosen["arrival"].lower().rpartition("_")[2]
    return suffix if suffix in UNITS_NS else None


def _missing_text(where: str, missing: Sequence[str], header: Sequence[str], layout: Format | None) -> str:
    if "conversations" in header or layout is None:
        hint = ("name them with columns: {arrival: ..., prompt: ..., output: ...}, "
                "on the command line with --column arrival=... and so on")
    else:
        hint = f"format {layout.name} needs {', '.join(layout.columns[part] for part in missing)}"
    counts = " (texts without token counts cannot be replayed)" if "conversations" in header else ""
    return f"{where}: no column for {', '.join(missing)}{counts}; the file has: {', '.join(header)}; {hint}"

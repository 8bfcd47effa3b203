"""Header of a file -> Layout: which column plays which part, in which unit times are given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from simulator.config import listed
from simulator.errors import ConfigError, TraceError, UnknownNameError

from .published import FORMATS, NEEDED, UNUSABLE, Failure, Format

FIELDS: Final = ("arrival", "prompt", "output", "max_tokens", "cached", "cls", "id", "session", "turn", "delay",
                 "priority", "tenant", "predicted", "ttft_target")
"""Parts a column can play; `class` is accepted for `cls`."""
UNITS_NS: Final[Mapping[str, int]] = MappingProxyType({"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1})
"""Nanoseconds of one unit; `iso` (ISO 8601 text) is the fifth accepted unit."""
OTHERS: Final = ("auto", "generic", "sharegpt", "columns")

_GUESSES: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "arrival": ["arrival", "arrivaltime", "arrivals", "arrivalms", "arrivalus", "arrivalns", "timestamp", "time"],
        "prompt": ["prompt", "prompttokens", "promptlen", "inputtokens", "inputlen", "inputlength", "contexttokens"],
        "output": ["output", "outputtokens", "outputlen", "outputlength", "completiontokens", "generatedtokens",
                   "responsetokens"],
    }
)
"""Column names (without case and separators) taken for a part when no format fits."""


@dataclass(frozen=True)
class Layout:
    """What to read: part -> column of the file, the unit (None: decide from the column), the format's rules.

    `untimed`: why there are no arrival times, empty when there are.
    """

    name: str
    columns: Mapping[str, str]
    unit: str | None
    failed: str | None = None
    sort: bool = False
    clock: bool = False
    untimed: str = ""
    failures: tuple[Failure, ...] = ()
    fraction_unit: str | None = None
    delay_unit: str = "s"
    hash_block: int = 0
    maybe: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Columns to read, each once."""
        return list(dict.fromkeys([*self.columns.values(), *(rule.column for rule in self.failures)]))


def plain(name: str) -> str:
    """Column name without case, blanks, dashes and underscores; the dots of nested names stay."""
    return "".join(ch for ch in name.lower() if ch.isalnum() or ch == ".")


def resolve_layout(
    where: str,
    header: Sequence[str],
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
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
    if not {*NEEDED} <= set(own):
        _refuse_unusable(where, known)
    layout = _detect(known) if format == "auto" else FORMATS.get(format)
    chosen = _from_format(layout, known) if layout else _guess(known)
    chosen |= {part: _present(where, name, header, known) for part, name in own.items()}
    missing = [part for part in ("arrival", *NEEDED) if part not in chosen]
    late = missing == ["arrival"] and (layout is None or layout.untimed or format == "auto")
    if missing and not late:
        raise TraceError(_missing_text(where, missing, header, layout))
    untimed = _untimed_text(where, header) if late else ""
    unit = time_unit or (_unit_of(chosen, layout) if "arrival" in chosen else None)
    if layout is None:
        return Layout("generic", chosen, unit, untimed=untimed, delay_unit=suffix(chosen.get("delay", "")) or "s")
    return Layout(
        layout.name, chosen, unit, layout.failed, layout.sort, layout.clock, untimed,
        tuple(_rule(rule, known) for rule in layout.failures if plain(rule.column) in known),
        layout.fraction_unit if time_unit is None else None, layout.delay_unit, layout.hash_block, layout.maybe,
    )


def _rule(rule: Failure, known: Mapping[str, str]) -> Failure:
    return Failure(known[plain(rule.column)], rule.reason, rule.fine)


def _refuse_unusable(where: str, known: Mapping[str, str]) -> None:
    for each in UNUSABLE:
        if all(plain(mark) in known for mark in each.marks) and not any(plain(mark) in known for mark in each.without):
            raise TraceError(f"{where}: {each.why}")


def _overrides(where: str, columns: Mapping[str, str]) -> dict[str, str]:
    own = {("cls" if part == "class" else part): name for part, name in columns.items()}
    for part in own:
        if part not in FIELDS:
            accepted = ", ".join("class" if field == "cls" else field for field in FIELDS)
            raise ConfigError(f"{where}: columns.{part} is not a part of a request; accepted: {accepted}")
    return own


def _present(where: str, name: str, header: Sequence[str], known: Mapping[str, str]) -> str:
    if name in header:
        return name
    if plain(name) in known:
        return known[plain(name)]
    raise TraceError(f"{where}: no column {name!r}; the file has: {listed(header)}")


def _detect(known: Mapping[str, str]) -> Format | None:
    """The format whose columns are all there; one that may lack arrivals only when no other fits."""
    for needed in (("arrival", *NEEDED), NEEDED):
        for layout in FORMATS.values():
            there = all(any(plain(name) in known for name in layout.names(part)) for part in needed)
            if there and ("arrival" in needed or layout.untimed) and all(plain(m) in known for m in layout.marks):
                return layout
    return None


def _from_format(layout: Format, known: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in layout.columns:
        name = next((known[plain(name)] for name in layout.names(part) if plain(name) in known), None)
        if name is not None:
            found[part] = name
    return found


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
    if layout and plain(chosen["arrival"]) in map(plain, layout.names("arrival")):
        return layout.unit
    return suffix(chosen["arrival"])


def suffix(name: str) -> str | None:
    """Unit that a column's name ends with (_s, _ms, ...), None when it names none."""
    last = name.lower().rpartition("_")[2]
    return last if last in UNITS_NS else None


def _missing_text(where: str, missing: Sequence[str], header: Sequence[str], layout: Format | None) -> str:
    if layout is None:
        hint = ("name them with columns: {arrival: ..., prompt: ..., output: ...}, "
                "on the command line with --column arrival=... and so on")
    else:
        hint = f"format {layout.name} needs {', '.join(' or '.join(layout.names(part)) for part in missing)}"
    return f"{where}: no column for {', '.join(missing)}; the file has: {listed(header)}; {hint}"


def _untimed_text(where: str, header: Sequence[str]) -> str:
    return (f"{where}: no column for arrival times; accepted: name it (--column arrival=..., columns), replay under "
            "a closed load (load: {kind: closed, width: 8}), or draw arrivals with joint: the file; "
            f"the file has: {listed(header)}")

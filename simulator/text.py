"""Numbers for people: one way to write a time, a number and a share, with their units, wherever they are shown."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

MISSING: Final = "–"
"""Stands for what is not defined or not finite."""
UNBOUNDED: Final = "unbounded"
"""Stands for a service level that no bound can be given for."""


SHORT: Final = "goodput short"
"""Begins the name of a level that says which share is missing of the good requests asked for."""


def seconds(value: float | None, missing: str = MISSING) -> str:
    """A time [s] with three significant digits and a unit that suits it: 250 µs, 41.2 ms, 3.5 s, 1,065 s."""
    if value is None:
        return missing
    if value == 0:
        return "0 s"
    for factor, unit in ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms")):
        if abs(value) < 999.5 * factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g} s" if abs(value) < 999.5 else f"{value:,.0f} s"


def moment(value: float) -> str:
    """A time [s] into a trace: 41 s, 12 min 5 s, 13 h 47 min."""
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
    minutes = round(value / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def number(value: float | None, missing: str = MISSING) -> str:
    """A count whole, with thousands apart; anything else with three significant digits, whole from 100 on."""
    if value is None:
        return missing
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 99.95 else f"{value:.3g}"


def share(value: float | None, missing: str = MISSING) -> str:
    """A share in per cent, to a tenth; nearly nothing and nearly all are not rounded to 0 and 100."""
    if value is None:
        return missing
    text = f"{100 * value:.1f} %"
    if value not in (0, 1) and text in ("0.0 %", "100.0 %"):
        return f"{100 * value:.2g} %" if value < 0.5 else f"{100 * value:.3f} %"
    return text


def gain(pct: float | None) -> str:
    """How far the wall moves; null = no limit breaks any more."""
    return "no wall" if pct is None else f"{pct:+.1f} %"


def times(ratio: float) -> str:
    """How many times something else, wherever it is shown: 3.05x, 0.71x, 0.041x, <0.001x, 10.0x, 12.3x, 1,200x."""
    if 0 < ratio < 0.0995:
        return "<0.001x" if ratio < 0.001 else f"{ratio:.3f}x" if ratio >= 0.00995 else f"{ratio:.4f}x"
    if ratio < 99.95:
        return f"{ratio:.2f}x" if ratio < 9.995 else f"{ratio:.1f}x"
    return f"{number(ratio)}x"


_NUMBER_AND_UNIT: Final = re.compile(r"(?<=\d) (?=(?:ns|µs|ms|s|min|h|%|GiB|USD|GPUs?|tokens|requests)(?!\w))")
_JOINT: Final = "\ue000"
"""A letter that no text has: stands for a blank at which no line may end."""


def glued(text: str) -> str:
    """The text with numbers and their units joined, so that no line ends between them; `unglued` gives it back."""
    return _NUMBER_AND_UNIT.sub(_JOINT, text)


def unglued(text: str) -> str:
    """What is shown of a text that was `glued`."""
    return text.replace(_JOINT, " ")


def bounded(value: float | None) -> str:
    """A time [s]; unbounded when null."""
    return seconds(value, UNBOUNDED)


def stopped_lines(data: Mapping[str, Any]) -> list[str]:
    """That an answer is not whole, where something stopped the search for it."""
    if not data.get("stopped"):
        return []
    left = f"; not done: {', '.join(data['missing'])}" if data.get("missing") else ""
    return [f"The search was stopped by {data['stopped']}: this is the best so far, not the answer{left}."]


def level_value(row: Mapping[str, Any], key: str) -> str:
    """A cell of a service level: a time, or a share where requests that miss are counted; unbounded where null."""
    if row["name"].startswith(("requests that miss", SHORT)):
        return UNBOUNDED if row[key] is None else f"{100 * row[key]:.2f} %"
    return bounded(row[key])


def gpus_of(name: str, tensor: int, stages: int) -> str:
    """The GPUs of a replica: `h100-sxm`, `2 x h100-sxm`, `2 stages of 4 x h100-sxm`."""
    each = f"{tensor} x {name}" if tensor > 1 else name
    return f"{stages} stages of {each}" if stages > 1 else each


def several(count: int, noun: str) -> str:
    """`1 request`, `3,000 requests`, `0 requests`: a noun whose plural has an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def verb(count: int, one: str, more: str) -> str:
    """`1 was`, `3 were`: the verb that goes with a count."""
    return one if count == 1 else more


def sentence(text: str) -> str:
    """`it does` as a sentence: `It does.`"""
    return f"{text[0].upper()}{text[1:]}."


def rate_words(drawn: float, asked: float | None) -> str:
    """`19.6 requests/s`; where a draw of arrivals is off what was asked for, `20 requests/s asked for, 19.6 drawn`."""
    if asked is None or f"{asked:.3g}" == f"{drawn:.3g}":
        return f"{drawn:.3g} requests/s"
    return f"{asked:.3g} requests/s asked for, {drawn:.3g} drawn"


def joined(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


def replicas_text(count: int) -> str:
    """`1 replica`, `3 replicas`."""
    return several(count, "replica")


def restarted(count: int) -> str:
    """How many requests start again after a loss."""
    return f"{several(count, 'request')} {verb(count, 'starts', 'start')} again"


def counted(fleet: Mapping[str, Any]) -> str:
    """Replicas of a fleet, `3`; of unlike ones those beside last, `1 + 2`."""
    other = fleet.get("beside")
    return f"{other['own']} + {other['replicas']}" if other else f"{fleet['replicas']}"


def counted_range(fleet: Mapping[str, Any]) -> str:
    """From how many replicas of the searched kind to how many, spares included: `3-5`."""
    more = fleet["spare"] - (fleet["beside"]["replicas"] if fleet.get("beside") else 0)
    low, high = (n + more for n in fleet["serving_range"])
    return f"{low}-{high}"

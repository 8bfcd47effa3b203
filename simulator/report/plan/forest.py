"""Factors side by side, a row each on one logarithmic axis: a dot with its interval, or a bar between two of them.

Inline SVG with hover titles as the other charts of a plan; every text is escaped. Drawn twice, names beside the rows
and, for narrow screens, above them; the page shows one of the two (svg.broad, svg.narrow).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from simulator.report.plan.charts import HALO

RIGHT, TOP, BOTTOM = 16, 6, 34
MOST: Final = 32.0
"""Factors beyond this, and below one over it, are drawn at the edge."""
TICKS: Final = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.4, 2.0, 4.0,
                8.0, 16.0, 32.0)  # fmt: skip
APART: Final = 46
"""[px] between tick labels, at least."""
SEEN: Final = 12
"""[px] from no change at which a side of the axis has something to be seen."""


@dataclass(frozen=True)
class Bar:
    """One row: the ends of its interval, the middle (None: none is drawn) and a CSS colour; factors > 0.

    `above`: another colour for what is beyond `same`.
    """

    name: str
    low: float
    high: float
    middle: float | None
    hover: str
    colour: str = "var(--muted)"
    above: str = ""


@dataclass(frozen=True)
class Layout:
    """Where things stand [px]: width of the picture, left end of the axis, height of a row and of the names above bars.

    `letters`: of a name that fit; its hover text has all.
    """

    kind: str
    width: int
    left: int
    row: int
    above: int
    letters: int


BROAD: Final = Layout("broad", 500, 196, 24, 0, 27)
NARROW: Final = Layout("narrow", 360, 16, 38, 18, 52)


def forest(rows: Sequence[Bar], title: str, label: str) -> str:
    """The picture, for broad and for narrow screens; `label` stands below the axis. Empty without rows."""
    return "".join(_drawn(rows, title, label, layout) for layout in (BROAD, NARROW)) if rows else ""


def _drawn(rows: Sequence[Bar], title: str, label: str, at: Layout) -> str:
    ends = [_log(v) for row in rows for v in (row.low, row.high)] + [0.0]
    low, high = _range(min(ends), max(ends), at.width - at.left - RIGHT)
    room = max(0.04 * (high - low), 0.02)
    edges, low, high = (low, high), low - room, high + room
    bottom = TOP + at.row * len(rows)

    def place(value: float) -> float:
        return at.left + (value - low) / (high - low) * (at.width - at.left - RIGHT)

    lines = [(TOP + at.row * k + at.above, TOP + at.row * (k + 1)) for k in range(len(rows))] if at.above else [
        (TOP, bottom)]  # no line through a name
    parts = [_ticks(edges, place, lines, bottom)]
    for k, row in enumerate(rows):
        top = TOP + at.row * k
        middle = top + (at.above + at.row) / 2
        name = row.name if len(row.name) <= at.letters else row.name[: at.letters - 1] + "…"
        place_of_name = (f'x="{at.left}" y="{top + 15:.1f}"' if at.above else
                         f'x="{at.left - 8}" y="{middle + 4:.1f}" text-anchor="end"')  # fmt: skip
        spans = [(row.low, row.high, row.colour)]
        if row.above and row.low <= 1 <= row.high:
            spans = [(row.low, 1.0, row.colour), (1.0, row.high, row.above)]
        thick = 9 if row.middle is None else 3
        parts += [f"<g><title>{escape(f'{row.name}: {row.hover}')}</title>",
                  f'<text {place_of_name} fill="var(--ink)"{HALO if at.above else ""}>{escape(name)}',
                  "</text>"]  # fmt: skip
        parts += [f'<line x1="{place(_log(a)):.1f}" x2="{place(_log(b)):.1f}" y1="{middle:.1f}" y2="{middle:.1f}" '
                  f'stroke="{colour}" stroke-width="{thick}"/>' for a, b, colour in spans]  # fmt: skip
        if row.middle is not None:
            parts.append(f'<circle cx="{place(_log(row.middle)):.1f}" cy="{middle:.1f}" r="5" fill="{row.colour}"/>')
        parts.append("</g>")
    height = bottom + BOTTOM
    parts.append(f'<text x="{(at.left + at.width - RIGHT) / 2:.1f}" y="{height - 3}" text-anchor="middle" '
                 f'fill="var(--muted)">{escape(label)}</text>')  # fmt: skip
    return (f'<svg class="{at.kind}" viewBox="0 0 {at.width} {height}" role="img" aria-label="{escape(title)}" '
            f'font-size="12" font-family="inherit">{"".join(parts)}</svg>')  # fmt: skip


def _log(factor: float) -> float:
    return math.log(min(max(factor, 1 / MOST), MOST))


def _range(least: float, most: float, width: float) -> tuple[float, float]:
    """Ends of an axis of `width` px for logarithms from `least` <= 0 to `most` >= 0: a side on which something is to be
    seen ends at a tick beyond it, where that has room for its label."""
    low = _end(-least, most, width, [-math.log(t) for t in reversed(TICKS) if t < 1])
    return -low, _end(most, low, width, [math.log(t) for t in TICKS if t > 1])


def _end(far: float, other: float, width: float, ticks: Sequence[float]) -> float:
    """How far one side reaches: `far`, or the tick beyond it; `other` is how far the other side does."""
    if far * width < SEEN * (far + other):
        return far
    fits = (t for t in ticks if t >= far - 1e-9 and t * width >= APART * (t + other))
    return next(fits, far)


def _ticks(edges: tuple[float, float], place: Callable[[float], float], lines: Sequence[tuple[float, float]],
           bottom: float) -> str:
    """Grid lines with their factors, all as per cent or all as multiples; none closer than APART to its neighbour."""
    low, high = edges
    words = _percent if math.log(0.5) <= low + 1e-9 and high - 1e-9 <= math.log(2) else _multiple
    shown = [0.0]
    for tick in sorted((math.log(t) for t in TICKS), key=lambda t: (min(abs(t - low), abs(t - high)) > 1e-9, abs(t))):
        if low - 1e-9 <= tick <= high + 1e-9 and all(abs(place(tick) - place(other)) >= APART for other in shown):
            shown.append(tick)
    parts = []
    for tick in shown:
        at, one = place(tick), tick == 0.0
        parts += [f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{end}" '
                  f'stroke="var(--{"muted" if one else "grid"})"/>' for top, end in lines]  # fmt: skip
        parts.append(f'<text x="{at:.1f}" y="{bottom + 14}" text-anchor="middle" fill="var(--muted)">'
                     f"{words(math.exp(tick))}</text>")  # fmt: skip
    return "".join(parts)


def _percent(factor: float) -> str:
    """0 %, +20 %, -30 %."""
    return "0 %" if abs(factor - 1) < 1e-9 else f"{100 * (factor - 1):+.0f} %"


def _multiple(factor: float) -> str:
    """1x, 4x, 0.25x."""
    return f"{factor:,.3g}x"

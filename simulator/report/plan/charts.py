"""Charts of a plan as inline SVG with hover titles: scatter, lines, columns. Light and dark by CSS variables.

Every text is escaped; numbers are rounded to a tenth of a pixel, so equal data give equal text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

WIDTH: Final = 500
HEIGHT: Final = 300
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 20, 48
COLOURS: Final = 7
HALO: Final = ' paint-order="stroke" stroke="var(--paper)" stroke-width="4"'


@dataclass(frozen=True)
class Series:
    """Points (x, y, hover text); `line` joins them, `marks` draws them, `ring` holds indices to be ringed."""

    name: str
    points: Sequence[tuple[float, float, str]]
    line: bool = True
    dashed: bool = False
    marks: bool = True
    ring: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Axis:
    """Range and round ticks of an axis."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float, start: float, end: float) -> float:
        """Pixel of a value."""
        share = (value - self.low) / (self.high - self.low)
        return start + min(max(share, 0.0), 1.0) * (end - start)


def axis(values: Sequence[float], from_zero: bool = True, most: int = 6) -> Axis:
    """An axis over the finite values with ticks at 1, 2, 2.5 or 5 times a power of ten."""
    finite = [v for v in values if math.isfinite(v)] or [0.0]
    low, high = (min(0.0, *finite) if from_zero else min(finite)), max(finite)
    if high <= low:
        high = low + 1.0
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return Axis(first * step, last * step, tuple(k * step for k in range(first, last + 1)))


def number(value: float) -> str:
    """A tick label."""
    text = f"{value:,.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def chart(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    title: str,
    *,
    x_from_zero: bool = True,
    y_max: float | None = None,
    verticals: Sequence[tuple[float, str]] = (),
    horizontals: Sequence[tuple[float, str]] = (),
) -> str:
    """Lines or points over two axes; values above `y_max` are drawn at its edge, hover texts keep the number."""
    xs = [p[0] for s in series for p in s.points] + [v for v, _ in verticals]
    ys = [p[1] for s in series for p in s.points] + [v for v, _ in horizontals]
    x, y = axis(xs, x_from_zero), axis([min(v, y_max) for v in ys] if y_max else ys)
    parts = [_frame(x, y, x_label, y_label)]
    parts += [_series(s, k, x, y) for k, s in enumerate(series)]
    parts += [_guide(x.place(v, LEFT, WIDTH - RIGHT), text, k == 0) for k, (v, text) in enumerate(verticals)]
    parts += [_level(y.place(v, HEIGHT - BOTTOM, TOP), text) for v, text in horizontals]
    return _svg("".join(parts), title) + _legend(series)


def columns(values: Sequence[tuple[str, float, str]], y_label: str, title: str, level: float | None = None) -> str:
    """One column a (label, value, hover text); `level` is a dashed line."""
    y = axis([v for _, v, _ in values] + ([level] if level is not None else []))
    width = (WIDTH - LEFT - RIGHT) / max(1, len(values))
    every = max(1, math.ceil(len(values) / 16))
    parts = [_frame(Axis(0, 1, ()), y, "", y_label)]
    for k, (label, value, hover) in enumerate(values):
        left, top = LEFT + k * width, y.place(value, HEIGHT - BOTTOM, TOP)
        parts.append(
            f'<rect x="{left + 0.1 * width:.1f}" y="{top:.1f}" width="{0.8 * width:.1f}" '
            f'height="{HEIGHT - BOTTOM - top:.1f}" fill="var(--r0)"><title>{escape(hover)}</title></rect>'
        )
        if k % every == 0:
            parts.append(_text(left + width / 2, HEIGHT - BOTTOM + 15, label, "middle"))
    if level is not None:
        parts.append(_level(y.place(level, HEIGHT - BOTTOM, TOP), "constant"))
    return _svg("".join(parts), title)


def _svg(inner: str, title: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'font-size="12" font-family="inherit">{inner}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="var(--muted)"{extra}>{escape(text)}</text>'


def _frame(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in y.ticks:
        at = y.place(tick, bottom, TOP)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="var(--grid)"/>')
        parts.append(_text(LEFT - 6, at + 4, number(tick), "end"))
    for tick in x.ticks:
        at = x.place(tick, LEFT, right)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}" stroke="var(--muted)"/>')
        parts.append(_text(at, bottom + 17, number(tick), "middle"))
    parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="var(--muted)"/>')
    parts.append(_text((LEFT + right) / 2, HEIGHT - 8, x_label, "middle"))
    middle = (TOP + bottom) / 2
    parts.append(_text(13, middle, y_label, "middle", f' transform="rotate(-90 13 {middle:.1f})"'))
    return "".join(parts)


def _guide(at: float, text: str, to_left: bool) -> str:
    anchor, shift = ("end", -4) if to_left else ("start", 4)
    return (
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="var(--muted)" '
        f'stroke-dasharray="3 3"/>{_text(at + shift, TOP + 11, text, anchor, HALO)}'
    )


def _level(at: float, text: str) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="var(--bad)" '
        f'stroke-dasharray="5 4"/>{_text(LEFT + 4, at - 5, text, "start", HALO)}'
    )


def _series(s: Series, k: int, x: Axis, y: Axis) -> str:
    colour = f"var(--l{k % COLOURS})"
    at = [(x.place(px, LEFT, WIDTH - RIGHT), y.place(py, HEIGHT - BOTTOM, TOP)) for px, py, _ in s.points]
    parts = []
    if s.line and len(at) > 1:
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in at)
        dash = ' stroke-dasharray="6 4"' if s.dashed else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
    for i, ((px, py), (_, _, hover)) in enumerate(zip(at, s.points, strict=True)):
        if s.marks:
            ring = ' stroke="var(--ink)" stroke-width="2"' if i in s.ring else ""
            parts.append(
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{5 if s.ring else 4}" fill="{colour}"{ring}>'
                f"<title>{escape(hover)}</title></circle>"
            )
    return "".join(parts)


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    items = "".join(
        f'<span><i style="background:var(--l{k % COLOURS})"></i>{escape(s.name)}</span>' for k, s in enumerate(series)
    )
    return f'<div class="legend">{items}</div>'

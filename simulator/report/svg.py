"""How pictures look, and Figure -> SVG text or PNG bytes: deterministic, light and dark, nothing fetched.

Figures are drawn in the light colours below. In a page, `to_svg` turns each into a CSS variable with the
light colour as fallback (`var(--ink, #1d2433)`), so one drawing serves both themes; `css_variables` gives
their values.
"""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1d2433", "#5b6579", "#dfe4ec", "#fffffe"
EMPTY, HELD, HELD_LINE = "#f0f2f6", "#fbe3df", "#d4796a"
REQUESTS: Final = ("#8fb8f6", "#f4b36c", "#84cfb6", "#c7a8f0", "#f0a5bf", "#94d0e2", "#d8c777")
LINES: Final = ("#2563eb", "#c2620a", "#0b8a68", "#7c4fd0", "#c02f62", "#0e7f9e", "#8a7512")

_DARK: Final = {
    INK: "#e8ecf4",
    MUTED: "#9aa5b8",
    GRID: "#303847",
    PAPER: "#171b23",
    EMPTY: "#222834",
    HELD: "#3d2b2c",
    HELD_LINE: "#a85e54",
    **dict(
        zip(
            REQUESTS,
            ("#33599a", "#94591c", "#246a54", "#624394", "#8f3f5c", "#266c80", "#6f6117"),
            strict=True,
        )
    ),
    **dict(
        zip(LINES, ("#7aa7ff", "#f0a04f", "#4fcfa8", "#b394f5", "#f07ea5", "#5fc6e0", "#cdb648"), strict=True)
    ),
}
_NAMES: Final = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    EMPTY: "empty",
    HELD: "held",
    HELD_LINE: "held-line",
    **{colour: f"r{k}" for k, colour in enumerate(REQUESTS)},
    **{colour: f"l{k}" for k, colour in enumerate(LINES)},
}
_STYLE: Final[dict[str, Any]] = {
    "svg.hashsalt": "servecast",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.facecolor": PAPER,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.linewidth": 1.5,
    "figure.dpi": 100.0,
    "path.simplify": True,
    "axes.formatter.useoffset": False,
    "axes.unicode_minus": True,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Context in which every figure is built and written; settings of the caller's are put back after it."""
    import matplotlib

    with matplotlib.rc_context():
        settings: Any = matplotlib.rcParams
        settings.update({key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"})
        settings.update(_STYLE)
        yield


def figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> "tuple[Figure, list[Axes]]":
    """An empty figure of [inch] size with its axes, row by row. No pyplot: nothing global is kept."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    engine: Any = fig.get_layout_engine()
    engine.set(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.05)
    axes = fig.subplots(rows, columns, squeeze=False, **options)
    return fig, [ax for row in axes for ax in row]


def css_variables(dark: bool) -> str:
    """CSS declarations of the colours, light or dark."""
    return " ".join(f"--{name}: {_DARK[colour] if dark else colour};" for colour, name in _NAMES.items())


class Picture:
    """A figure to be written in several places: laid out and drawn once."""

    def __init__(self, fig: "Figure") -> None:
        self.figure = fig
        self.wide = bool(fig.get_figwidth() > 6)

    @cached_property
    def svg(self) -> str:
        """As a stand-alone SVG file."""
        return svg_file(self.figure)

    def in_page(self, label: str, prefix: str) -> str:
        """As an <svg> element, see `to_svg`."""
        return for_page(self.svg, label, prefix)


def to_png(fig: "Figure") -> bytes:
    """The figure as PNG, without date or version."""
    buffer = io.BytesIO()
    with _laid_out(fig):
        fig.savefig(buffer, format="png", dpi=144, metadata={"Software": None})
    return buffer.getvalue()


def svg_file(fig: "Figure") -> str:
    """The figure as a stand-alone SVG file."""
    buffer = io.StringIO()
    with _laid_out(fig):
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def to_svg(fig: "Figure", label: str = "", prefix: str = "p") -> str:
    """The figure as an <svg> element for a page: scales with its box, ids start with `prefix`.

    `label` is what a screen reader says. Equal figures give equal text.
    """
    return for_page(svg_file(fig), label, prefix)


@contextlib.contextmanager
def _laid_out(fig: "Figure") -> Iterator[None]:
    """Context to write a figure in. Its layout is worked out the first time only: it costs as much as drawing."""
    with style(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # glyphs of a name that the font lacks
        engine = fig.get_layout_engine()
        if engine is not None:
            engine.execute(fig)
            fig.set_layout_engine("none")
        yield


def for_page(text: str, label: str, prefix: str) -> str:
    """An SVG file as an <svg> element for a page, see `to_svg`."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = _short_ids(text, prefix)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda hit: _variable(hit.group()), text)
    text = re.sub(r"'DejaVu Sans'(, sans-serif)?", "system-ui, sans-serif", text)
    text = re.sub(r"\s*\n\s*", "\n", text)
    return _root(text, label)


def _variable(colour: str) -> str:
    return f"var(--{_NAMES[colour]}, {colour})" if colour in _NAMES else colour


def _short_ids(text: str, prefix: str) -> str:
    """Drop ids that nothing refers to; number the others, so that figures of one page do not clash."""
    used = list(dict.fromkeys(re.findall(r"(?:url\(#|href=\"#)([\w.-]+)", text)))
    short = {name: f"{prefix}{k}" for k, name in enumerate(used)}
    text = re.sub(r' id="([\w.-]+)"', lambda m: f' id="{short[m[1]]}"' if m[1] in short else "", text)
    text = re.sub(r"url\(#([\w.-]+)\)", lambda m: f"url(#{short[m[1]]})", text)
    return re.sub(r'href="#([\w.-]+)"', lambda m: f'href="#{short[m[1]]}"', text)


def _root(text: str, label: str) -> str:
    """The root element without fixed size, with a role and a label."""
    from xml.sax.saxutils import quoteattr

    head, rest = text.split(">", 1)
    width = re.search(r' width="([\d.]+)pt"', head)
    head = re.sub(r' (width|height)="[\d.]+pt"', "", head)
    size = f' style="max-width: {float(width[1]) * 4 / 3:.0f}px"' if width else ""
    return f'{head} role="img" aria-label={quoteattr(label)}{size}>{rest}'

"""`servecast toy`: a handful of output lengths under static and continuous batching, drawn in the terminal.

The textbook setting: every step takes one unit of time, a prompt is one token, the step that admits a request
also yields its first token, and all requests wait from the start.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from simulator.errors import ConfigError
from simulator.report.timeline import Spans, slot_spans
from simulator.run import Result, simulate
from simulator.scenario.spec import scenario_from
from simulator.text import several
from simulator.units import NS_PER_S

POLICIES: Final = (("static", "static batching"), ("chunked", "continuous batching"))
COLOURS: Final = (
    "cornflower_blue",
    "dark_orange",
    "sea_green3",
    "medium_purple1",
    "pale_violet_red1",
    "turquoise2",
    "khaki3",
)
EMPTY, HELD = "·", "░"
MAX_LENGTH: Final = 1_000_000
MAX_LINES: Final = 40
"""Slots drawn."""
_REFERENCE_TOKENS: Final = 100_000
"""Up to this many tokens the SimPy engine is quicker than compiling the other."""


def toy(lengths: Sequence[int], slots: int = 4) -> RenderableType:
    """Both slot pictures, total steps, slot use, and how long the short requests wait, for output `lengths`
    [tokens] on `slots` slots. Raises ConfigError for an empty list or a number that is not accepted."""
    results = [run_toy(lengths, slots, policy) for policy, _ in POLICIES]
    longest = max(result.summary["steps"] for result in results)
    parts: list[RenderableType] = []
    for result, (_, title) in zip(results, POLICIES, strict=True):
        parts += [_headline(result, title), SlotPicture(slot_spans(result), slots, longest), Text()]
    if max(len(lengths), slots) <= 26:
        parts += [_requests_table(results, lengths)]
    return Group(*parts, _totals_table(results, lengths), Text(_legend(results), style="dim"))


def run_toy(lengths: Sequence[int], slots: int, policy: str) -> Result:
    """The simulation behind one picture. Raises ConfigError."""
    check(lengths, slots)
    scenario = scenario_from(
        {
            "name": "toy",
            "workload": {"requests": {"output": [int(length) for length in lengths]}},
            "hardware": {"gpu": "unit"},
            "policy": {"name": policy, "max_num_seqs": slots},
            "max_model_len": max(lengths) + 1,
        }
    )
    return simulate(scenario, "reference" if sum(lengths) <= _REFERENCE_TOKENS else "fast", log=True)


def check(lengths: Sequence[int], slots: int) -> None:
    """Raise ConfigError for what cannot be drawn."""
    if not lengths:
        raise ConfigError("lengths must hold at least one output length")
    for length in lengths:
        if not 1 <= length <= MAX_LENGTH:
            raise ConfigError(f"an output length must be 1..{MAX_LENGTH} tokens, got {length}")
    if not 1 <= slots <= 1024:
        raise ConfigError(f"slots must be 1..1024, got {slots}")


def letter(row: int) -> str:
    """Name of request `row`: A..Z, then its number."""
    return chr(ord("A") + row) if row < 26 else str(row)


class SlotPicture:
    """Slots as lines, steps to the right, scaled to the terminal's width; `longest` is the common axis."""

    def __init__(self, spans: Spans, slots: int, longest: int) -> None:
        self.spans, self.slots, self.longest = spans, slots, longest

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(20, options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(options.max_width - 8 - len(str(self.longest)), 10)
        per_step = max(1, min(room // self.longest, 4))
        columns = min(room, self.longest * per_step)
        at = (np.arange(columns) + 0.5) * self.longest / columns
        for slot in range(min(self.slots, MAX_LINES)):
            yield Segment(f"slot {slot:<3}")
            yield from _line(self.spans, slot, at)
            yield Segment.line()
        if self.slots > MAX_LINES:
            yield Segment(f"        ... and {self.slots - MAX_LINES} more slots")
            yield Segment.line()
        yield Segment(_axis(self.longest, columns), Style(dim=True))
        yield Segment.line()


def _line(spans: Spans, slot: int, at: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[Segment]:
    """One slot: at each sampled step the request that works in it, held or empty capacity."""
    cells = [(EMPTY, Style(dim=True))] * len(at)
    for k in np.flatnonzero(spans.slot == slot).tolist():
        start, useful, held = (column[k] / NS_PER_S for column in (spans.start, spans.useful, spans.held))
        row = int(spans.row[k])
        mine = np.flatnonzero((at >= start) & (at < useful)).tolist()
        for place, column in enumerate(mine):
            text = _glyph(row, place, len(mine))
            cells[column] = (text, Style.parse(f"black on {COLOURS[row % len(COLOURS)]}"))
        for column in np.flatnonzero((at >= useful) & (at < held)).tolist():
            cells[column] = (HELD, Style(color="red", dim=True))
    return [Segment(text, style) for text, style in cells]


def _glyph(row: int, place: int, width: int) -> str:
    """A request's letter in every cell; numbers beyond Z are written once and padded."""
    name = letter(row)
    return name if len(name) == 1 else name[place] if place < len(name) and width >= len(name) else "="


def _axis(longest: int, columns: int) -> str:
    """Steps below the picture, about every tenth column, the last always."""
    step = next(s * 10**p for p in range(9) for s in (1, 2, 5) if columns * s * 10**p / longest >= 8)
    line = [" "] * (columns + 12)
    for tick in range(0, longest + 1, step):
        place = round(tick * columns / longest)
        line[place : place + len(str(tick))] = str(tick)
    return "step    " + "".join(line).rstrip()


def _headline(result: Result, title: str) -> Text:
    steps, use = result.summary["steps"], result.summary["slot_utilization"]
    return Text.assemble((title, "bold"), f": {several(steps, 'step')}, slots {100 * use:.4g} % in use")


def _ticks(result: Result, name: str) -> list[int]:
    return [round(tick / NS_PER_S) for tick in getattr(result.requests, name).tolist()]


def _requests_table(results: Sequence[Result], lengths: Sequence[int]) -> Table:
    table = Table("request", "tokens", box=None, pad_edge=False, title_justify="left")
    for _, title in POLICIES:
        for what in ("starts after step", "answered after step"):
            table.add_column(f"{title.split()[0]}:\n{what}", justify="right")
    columns = [_ticks(result, name) for result in results for name in ("scheduled", "last")]
    for row, length in enumerate(lengths):
        table.add_row(letter(row), str(length), *(str(column[row]) for column in columns))
    return table


def _totals_table(results: Sequence[Result], lengths: Sequence[int]) -> Table:
    """Steps, slot use, and waits of the requests that are no longer than the median."""
    short = np.asarray(lengths) <= np.median(lengths)
    bound = max(np.asarray(lengths)[short])
    table = Table("", *(title for _, title in POLICIES), box=None, pad_edge=False)
    waits = [np.array(_ticks(result, "scheduled"))[short] for result in results]
    ends = [np.array(_ticks(result, "last"))[short] for result in results]
    rows = [
        ("total steps", [f"{result.summary['steps']:,}" for result in results]),
        ("slot use", [f"{100 * result.summary['slot_utilization']:.4g} %" for result in results]),
        (f"short requests (<= {bound} tokens): mean wait [steps]", [f"{wait.mean():.4g}" for wait in waits]),
        ("    longest wait [steps]", [str(wait.max()) for wait in waits]),
        ("    answered after, mean [steps]", [f"{end.mean():.4g}" for end in ends]),
    ]
    for name, values in rows:
        table.add_row(Text(name), *values)
    return table


def _legend(results: Sequence[Result]) -> str:
    held, free = (result.summary["steps"] for result in results)
    gain = f"Here continuous batching needs {free:,} of {several(held, 'step')} ({held / free:.3g}x as fast)."
    if held == free:
        gain = "Here both need as many steps, but answers of continuous batching do not wait for the longest."
    return f"\nA letter: a request at work; {HELD} held by a request that has ended; {EMPTY} empty.\n{gain}"

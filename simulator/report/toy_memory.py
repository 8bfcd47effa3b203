"""`servecast toy --memory`: KV memory filling up step by step, reserved whole or taken as answers grow; and preemption.

Every step takes one unit of time and every prompt is one token; all requests wait from the start. A line is a few
tokens of memory, a column a step; a letter is a token that a request has filled.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from simulator.errors import ConfigError
from simulator.report.toy import COLOURS, EMPTY, HELD, letter
from simulator.run import Result, simulate
from simulator.scenario.setup import prepare
from simulator.scenario.spec import scenario_from
from simulator.state import RUNNING, Column, Limits, Replica, Requests
from simulator.text import several, verb
from simulator.units import NS_PER_S

MOST_TOKENS: Final = 10_000
"""Of memory, and of all answers together: every step is kept."""
LINES: Final = 16
KINDS: Final = (("orca", "contiguous", "reserved for the longest answer"),
                ("chunked", "paged", "taken as answers grow"))


class Moment(NamedTuple):
    """KV memory in one step: (request, tokens filled, tokens held) in order of admission; who was just preempted."""

    step: int
    held: tuple[tuple[int, int, int], ...]
    preempted: tuple[tuple[int, int], ...]


def toy_memory(lengths: Sequence[int], memory: int, slots: int = 4) -> RenderableType:
    """KV memory of `memory` tokens over the steps, reserved and paged. Raises ConfigError."""
    parts: list[RenderableType] = []
    for policy, layout, title in KINDS:
        result, moments = watch(lengths, memory, slots, policy, layout)
        steps, lost = result.summary["steps"], sum(tokens for each in moments for _, tokens in each.preempted)
        parts += [Text.assemble((f"memory {title}", "bold"), f": {several(steps, 'step')}, up to "
                                f"{several(max(len(each.held) for each in moments), 'request')} at a time"),
                  MemoryPicture(moments, memory)]
        parts += [Text(line, style="dim") for line in _preemptions(moments)]
        if lost:
            parts.append(Text(f"{several(lost, 'token')} of KV {verb(lost, 'was', 'were')} dropped and had to be "
                              "computed again", style="dim"))
        parts.append(Text())
    legend = f"A letter: memory that a request has filled; {HELD} reserved for it and empty; {EMPTY} free."
    return Group(*parts, Text(legend, style="dim"))


def watch(lengths: Sequence[int], memory: int, slots: int, policy: str, layout: str) -> tuple[Result, list[Moment]]:
    """The simulation behind a picture, and the memory of each of its steps. Raises ConfigError."""
    if not lengths or min(lengths) < 1 or sum(lengths) > MOST_TOKENS:
        raise ConfigError(f"answers must have 1 to {MOST_TOKENS} tokens together, got {list(lengths)}")
    if not max(lengths) < memory <= MOST_TOKENS:
        raise ConfigError(f"memory must hold the longest answer and its prompt, {max(lengths) + 1} to {MOST_TOKENS} "
                          f"tokens, got {memory}")
    scenario = scenario_from({
        "name": "toy", "workload": {"requests": {"output": list(lengths), "max_tokens": max(lengths)}},
        "hardware": {"gpu": "unit"}, "policy": {"name": policy, "max_num_seqs": slots},
        "max_model_len": max(lengths) + 1, "engine": {"schedule_ahead": 0},
        "kv": {"layout": layout, "block_size": 1, "prefix_caching": False,
               "num_gpu_blocks": memory + (layout == "paged")}})
    ready = prepare(scenario)
    moments: list[Moment] = []
    before: dict[int, int] = {}

    def schedule(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
        ready.policy.schedule(req, rep, lim, aux)
        planned = {rep.batch[k]: rep.tokens[k] for k in range(rep.c.n_batch)}
        held = tuple((i, int(req.computed[i] + planned.get(i, 0)), int(req.blocks[i]))
                     for i in rep.running[: rep.c.n_running] if req.status[i] == RUNNING)
        gone = tuple((i, tokens) for i, tokens in before.items() if i not in {each[0] for each in held}
                     and req.status[i] < RUNNING)
        before.clear()
        before.update({i: filled for i, filled, _ in held})
        if held:
            moments.append(Moment(round(rep.c.now / NS_PER_S), held, gone))

    watched = replace(ready, policy=replace(ready.policy, schedule=schedule))
    return simulate(scenario, "reference", setup=watched), moments


def _preemptions(moments: Sequence[Moment]) -> list[str]:
    return [f"step {each.step}: {letter(i)} is preempted, {several(tokens, 'token')} dropped"
            for each in moments for i, tokens in each.preempted]


class MemoryPicture:
    """Memory upwards, steps to the right, one column a step as far as the terminal goes."""

    def __init__(self, moments: Sequence[Moment], memory: int) -> None:
        self.moments, self.memory = moments, memory

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(20, options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = min(self.memory, LINES)
        wide = len(str(self.memory))
        shown = self.moments[: max(1, options.max_width - wide - 2)]
        columns = [_column(moment, self.memory, lines) for moment in shown]
        for line in range(lines - 1, -1, -1):
            named = line in (0, lines - 1)
            yield Segment(f"{self.memory * (line + 1) // lines:>{wide}} " if named else " " * (wide + 1))
            yield from (Segment(*column[line]) for column in columns)
            yield Segment.line()
        if len(shown) < len(self.moments):
            yield Segment(f"{' ' * (wide + 1)}... {len(self.moments) - len(shown)} more steps", Style(dim=True))
            yield Segment.line()


def _column(moment: Moment, memory: int, lines: int) -> list[tuple[str, Style]]:
    """What is in each line of memory in one step, from the bottom."""
    cells: list[tuple[str, Style]] = []
    for i, filled, held in moment.held:
        colour = Style.parse(f"black on {COLOURS[i % len(COLOURS)]}")
        cells += [(letter(i)[0], colour)] * filled + [(HELD, Style(color="red", dim=True))] * (held - filled)
    cells += [(EMPTY, Style(dim=True))] * (memory - len(cells))
    return [cells[(2 * line + 1) * memory // (2 * lines)] for line in range(lines)]
